"""Atomic files and folders, archives, Arrow columns, distributed work, exit status of commands."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
