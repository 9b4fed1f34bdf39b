"""Dialog state tracking: readers, belief text, generated dialogs, audit of paired data."""

from typing import Any

from dair_hf.lazy import lazy_attribute


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, name)
