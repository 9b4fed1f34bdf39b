"""Pairs of MNIST digits: colored, rotated, and 6 against 9."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
