"""Joint goal accuracy: conventions, normalization and comparison of dialog states."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
