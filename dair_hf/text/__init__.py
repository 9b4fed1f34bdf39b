"""Classification of texts under counterfactual revisions."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
