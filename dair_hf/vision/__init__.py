"""Image classification: data sets of the paper as pairs, and networks."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
