"""Text data of a trainer: what its model needs of them, and their encoding."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
