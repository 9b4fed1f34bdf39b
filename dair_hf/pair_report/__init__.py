"""Report on pairs: losses of both views, and the pairs that never agree, as a page and as JSON."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
