"""Model cards of paired runs: what was trained, how to use it, and its results on pairs."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
