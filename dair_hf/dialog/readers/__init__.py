"""Readers of MultiWOZ, WOZ 2.0 and Schema-Guided Dialogue."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
