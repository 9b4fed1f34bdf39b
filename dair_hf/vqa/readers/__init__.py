"""Readers of VQA v2, IV-VQA and CV-VQA."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
