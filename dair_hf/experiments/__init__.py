"""Experiments of several runs: settings, comparison of methods, search for lambda, tables and plots."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
