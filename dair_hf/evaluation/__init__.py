"""Predictions for both views of paired data, and the metrics that follow from them."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
