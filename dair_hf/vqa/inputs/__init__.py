"""Model inputs: images, image features, questions and answers as batches."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
