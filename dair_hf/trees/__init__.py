"""Prefix trees: rows that begin alike are computed once, with the losses and gradients of separate rows."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
