"""From a batch of pairs to the terms of the objective: which views run in which forward, and what comes of them."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
