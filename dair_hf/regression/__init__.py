"""Robust regression: tables with a spurious feature as pairs, a linear model, the tilted loss."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
