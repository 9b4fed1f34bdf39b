"""Augmented dialogues: entities under new names in text and state."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
