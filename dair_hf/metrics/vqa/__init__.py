"""VQA accuracy: normalization of answers, scores and breakdown by type."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
