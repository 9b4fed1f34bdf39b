"""Text data: files, forms, chats, and their encoding as the columns of a model."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
