"""Image classification: paired data sets of the paper, networks and correctness."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
