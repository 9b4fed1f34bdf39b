"""Robust regression: QSAR and other tables with a spurious feature as pairs, a linear model, the tilted loss."""

from typing import Any

from dair_hf.lazy import lazy_attribute


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, name)
