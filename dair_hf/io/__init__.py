"""Files and folders that are whole or absent, archives, Arrow columns, and the exit status of commands."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
