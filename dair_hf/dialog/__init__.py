"""Dialog state tracking: readers, renaming of entities, belief text, audit of paired data."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
