"""Paired rows, from a data set to batches of pairs."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
