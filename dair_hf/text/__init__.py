"""Texts under counterfactual revisions, and word problems."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
