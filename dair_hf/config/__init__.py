"""`DAIRConfig`: the settings of a run, validated when they are created."""

from dair_hf.config.objective import AUTO
from dair_hf.config.training import DAIRConfig

__all__ = ["AUTO", "DAIRConfig"]
