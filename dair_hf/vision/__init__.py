"""Image classification: the data sets of the paper as pairs, and the networks that learn them."""

from typing import Any

from dair_hf.lazy import lazy_attribute


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, name)
