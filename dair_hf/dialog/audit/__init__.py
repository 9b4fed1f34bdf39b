"""Checks of paired dialogues before training: unsound renamings and the accuracy that the targets allow."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
