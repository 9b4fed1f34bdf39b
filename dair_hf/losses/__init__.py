"""Per-sample losses and the DAIR objective: pure functions of tensors."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
