"""Augmentation of images and tensors: functions that make the augmented view of a pair."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
