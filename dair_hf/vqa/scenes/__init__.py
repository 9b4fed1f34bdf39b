"""Counting scenes: drawn images with questions, edited by removing an object."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
