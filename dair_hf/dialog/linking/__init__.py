"""Names of a dialogue, found in its text in every spelling."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
