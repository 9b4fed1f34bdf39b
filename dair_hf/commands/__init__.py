"""The command `dair-hf`: one module per subcommand."""

from dair_hf.lazy import lazy_submodules

__getattr__ = lazy_submodules(__name__)
