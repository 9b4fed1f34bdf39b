"""Text of a dialogue: rows, belief states, names and their spelling."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
