"""Visual question answering under edited images: data, answers, the SAAA network, processors of current models."""

from typing import Any

from dair_hf.lazy import lazy_attribute


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, name)
