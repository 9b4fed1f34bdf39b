"""Changes of the input: the augmented view of a pair is made here."""

from typing import Any

from dair_hf.lazy import lazy_attribute


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, name)
