"""Joint goal accuracy: conventions, normalization and comparison of dialogue states."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
