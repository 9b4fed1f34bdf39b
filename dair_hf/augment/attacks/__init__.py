"""Adversarial attacks: the worst input within a ball around the original."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
