"""Models of visual question answering: SAAA and pretrained vision-language models."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
