"""Pairs of MNIST digits: Colored MNIST, Rotated MNIST, and rotated 6 and 9."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
