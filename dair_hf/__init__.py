"""DAIR: training on pairs of an original and an augmented sample so that both have the same loss."""

from typing import TYPE_CHECKING

from dair_hf.lazy import lazy_submodules

if TYPE_CHECKING:
    from dair_hf.config import DAIRConfig as DAIRConfig
    from dair_hf.data.collator import PairCollator as PairCollator
    from dair_hf.data.sampling import EpochPairs as EpochPairs
    from dair_hf.data.tensor_pairs import TensorPairs as TensorPairs
    from dair_hf.data.texts.files import pairs_from_jsonl as pairs_from_jsonl
    from dair_hf.errors import BeliefTextWarning as BeliefTextWarning
    from dair_hf.errors import DataError as DataError
    from dair_hf.errors import NonFiniteLossError as NonFiniteLossError
    from dair_hf.errors import SlotNameWarning as SlotNameWarning
    from dair_hf.errors import UndefinedMetricWarning as UndefinedMetricWarning
    from dair_hf.evaluation.evaluator import PairEvaluator as PairEvaluator
    from dair_hf.losses.objective import dair_loss as dair_loss
    from dair_hf.training.forward.pair_mixin import PairMixin as PairMixin
    from dair_hf.training.trainer import DAIRTrainer as DAIRTrainer

__version__ = "0.1.0"

# Imported on first use: a metric on the command line needs neither torch nor transformers.
_HOMES = {
    "BeliefTextWarning": "dair_hf.errors",
    "DAIRConfig": "dair_hf.config",
    "DAIRTrainer": "dair_hf.training.trainer",
    "DataError": "dair_hf.errors",
    "EpochPairs": "dair_hf.data.sampling",
    "NonFiniteLossError": "dair_hf.errors",
    "PairCollator": "dair_hf.data.collator",
    "PairEvaluator": "dair_hf.evaluation.evaluator",
    "PairMixin": "dair_hf.training.forward.pair_mixin",
    "SlotNameWarning": "dair_hf.errors",
    "TensorPairs": "dair_hf.data.tensor_pairs",
    "UndefinedMetricWarning": "dair_hf.errors",
    "dair_loss": "dair_hf.losses.objective",
    "pairs_from_jsonl": "dair_hf.data.texts.files",
}
__all__ = ["__version__", *_HOMES]

__getattr__ = lazy_submodules(__name__, _HOMES)
