"""DAIR: training on pairs of an original and an augmented sample so that both have the same loss."""

from dair_hf.collator import PairCollator
from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.sampling import EpochPairs
from dair_hf.trainer import DAIRTrainer

__version__ = "0.1.0"
__all__ = ["DAIRConfig", "DAIRTrainer", "DataError", "EpochPairs", "NonFiniteLossError", "PairCollator", "__version__"]
