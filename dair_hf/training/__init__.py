"""`DAIRTrainer` and its parts: one optimizer step over a batch of pairs."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
