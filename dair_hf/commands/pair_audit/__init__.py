"""Audit of a paired file: reading that survives faulty rows, and the findings."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
