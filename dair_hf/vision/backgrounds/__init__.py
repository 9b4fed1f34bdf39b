"""Backgrounds as spurious features: ImageNet-9 and its drawn stand-in."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
