"""DAIRConfig: training arguments of paired runs, validated when they are created."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import torch
from torch import Tensor
from transformers import Seq2SeqTrainingArguments

from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.losses.custom_regularizer import CustomRegularizer
from dair_hf.losses.divergence import FEATURE_REGULARIZERS
from dair_hf.losses.objective import (
    LOSS_EPSILON,
    LOSS_REGULARIZERS,
    METHOD_WEIGHTS,
    METHODS,
    NORMALIZATIONS,
    REGULARIZED,
    TOKEN_METHODS,
    LossRegularizer,
)

REGULARIZERS = (*LOSS_REGULARIZERS, *FEATURE_REGULARIZERS)

FORWARD_MODES = ("joint", "separate")
DROPOUT_MODES = ("independent", "shared")
VIEWS = ("original", "augmented")
AUTO = "auto"  # value of `dair_lambda`
LAMBDA_TARGET = 8.0
AUTO_WARMUP = 0.25  # share of the steps over which `dair_lambda="auto"` reaches its target
# Schedules of transformers that are functions of the step alone.
LAMBDA_SCHEDULES = (
    "constant",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
)
# Of fields that the command line reads as text.
if TYPE_CHECKING:
    Regularizer = str | CustomRegularizer | Callable[[Tensor, Tensor], Tensor]
    LambdaValue = float | str
else:
    Regularizer = LambdaValue = str


@dataclass
class DAIRConfig(Seq2SeqTrainingArguments):
    """Training arguments of `DAIRTrainer`: those of `Seq2SeqTrainingArguments` and the fields of the objective.

    Raises:
        DataError: A value is out of range, or two settings cannot be combined; the message names both.

    Example:
        >>> DAIRConfig(output_dir="out", method="dair", dair_lambda=0.5, normalization="token").regularizer
        'sq'
    """

    method: str = field(
        default="dair",
        metadata={
            "help": "Objective: erm (original views only), da (mean of both views' losses) or dair (da + lambda * R), "
            "equations 1 to 4 of the paper. Baselines with adversarial partners: augmented (partners only), trades "
            "(originals + lambda * R, with regularizer kl), mart (with regularizer kl).",
            "choices": METHODS,
        },
    )
    regularizer: Regularizer = field(
        default="sq",
        metadata={
            "help": "R: "
            + "".join(f"{name} ({regularizer.text}), " for name, regularizer in LOSS_REGULARIZERS.items())
            + f"{' or '.join(FEATURE_REGULARIZERS)} (divergence of the output distributions). In Python also a "
            "function (l, l~) -> R of the losses of pairs, each [B], in nats per row.",
            "choices": REGULARIZERS,
        },
    )
    dair_lambda: LambdaValue = field(
        default=0.5,
        metadata={
            "help": "Weight of R, >= 0, in the unit of `normalization`: lambda_pair = lambda_token * mean target "
            "length. The paper uses 0.5 in token units for dialogues. auto: chosen at every step so that the gradient "
            "of lambda R has lambda_target times the size of the gradient of the losses.",
        },
    )
    lambda_target: float = field(
        default=LAMBDA_TARGET,
        metadata={
            "help": "For dair_lambda auto: size of the gradient of lambda R, > 0, as a multiple of that of the losses, "
            "both with respect to the roots of the losses of pairs. Without unit; the same for all tasks.",
        },
    )
    lambda_max: float = field(
        default=1e4,
        metadata={"help": "For dair_lambda auto: largest lambda, > 0, per pair, also with token normalization."},
    )
    lambda_scheduler_type: str = field(
        default="constant",
        metadata={
            "help": "Schedule by which lambda (with auto, its target) is multiplied after the warmup, as "
            f"lr_scheduler_type: {', '.join(LAMBDA_SCHEDULES)}.",
            "choices": LAMBDA_SCHEDULES,
        },
    )
    lambda_warmup_steps: float | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps over which lambda (with auto, its target) rises from 0, as warmup_steps: a number "
            f"of steps, or a share of all steps in [0, 1). None: {AUTO_WARMUP:g} with auto, else 0.",
        },
    )
    view_weights: list[float] | None = field(
        default=None,
        metadata={
            "help": "Weights of the losses of original and augmented view in a pair, each >= 0 and one > 0, for "
            "methods da and dair. None: 0.5 0.5. A row without a partner has weight 1.",
        },
    )
    stop_gradient: str | None = field(
        default=None,
        metadata={
            "help": "View through which R has no gradient: original (augmented views are drawn to their originals) or "
            "augmented. None: R acts on both.",
            "choices": (*VIEWS, None),
        },
    )
    normalization: str = field(
        default="pair",
        metadata={
            "help": "pair: sum of f over the rows / rows (the paper's formula); token: losses / target tokens + lambda "
            "* R / pairs (the authors' dialog code). Denominators are sums over the whole optimizer step.",
            "choices": NORMALIZATIONS,
        },
    )
    loss_epsilon: float = field(
        default=LOSS_EPSILON,
        metadata={"help": "Added to the losses inside both roots of R_sq, > 0, nats per row. Authors' code: 1e-7."},
    )
    forward_mode: str = field(
        default="joint",
        metadata={
            "help": "joint: both views in one forward; separate: one forward per view, so that each view has its own "
            "batch norm statistics, as in the authors' image code. With several processes, statistics differ per rank.",
            "choices": FORWARD_MODES,
        },
    )
    pair_dropout: str = field(
        default="independent",
        metadata={
            "help": "independent: the views of a pair get different dropout masks, so that R > 0 for identical views; "
            "shared: the same masks, in one forward per view, so that R measures the change of the input alone.",
            "choices": DROPOUT_MODES,
        },
    )
    pair_group_by_length: bool = field(
        default=False,
        metadata={"help": "Batch rows whose longer views have similar lengths, which saves padding."},
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Limit of the input tokens in a batch of a process, padding and both views included, >= 1. Batches "
            "then hold as many rows of similar length as fit, and per_device_train_batch_size is ignored. With "
            "EpochPairs, all epochs are drawn once before training, since they need the same number of batches.",
        },
    )
    share_prefixes: str | None = field(
        default=None,
        metadata={
            "help": "Column that names the group of a row, such as dialogue_id. Rows of a group that begin alike, and "
            "both views of a row, share the tokens of their prefix, which a decoder-only model then computes once. "
            "Losses and gradients are those of separate rows; with dropout, rows share the masks of their prefix. "
            "Batches hold whole groups: up to per_device_train_batch_size rows, or max_tokens_per_batch distinct "
            "tokens.",
        },
    )
    chunked_loss: bool = field(
        default=False,
        metadata={
            "help": "Compute sequence losses from hidden states in chunks of target tokens, without the logits of the "
            "whole batch: less memory, one more pass through the output projection. Needs a regularizer of the "
            f"losses ({' or '.join(LOSS_REGULARIZERS)}). A model whose losses in chunks differ from those of its own "
            "logits is refused at the first batch.",
        },
    )
    gradient_cache: int | None = field(
        default=None,
        metadata={
            "help": "For an `objective` of the whole batch: number of pairs, >= 1, whose activations are held at once. "
            "Other activations are recomputed in the backward pass, which costs one more forward. None: all pairs. "
            "The objectives of `method` are sums over pairs; use gradient_accumulation_steps for them.",
        },
    )
    predict_with_generate: bool | None = field(
        default=None,
        metadata={
            "help": "True: predictions are generated answers. False: logits with the targets as decoder inputs, as in "
            "Seq2SeqTrainer. None: generated answers for language models, logits otherwise.",
        },
    )
    generation_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Number of answers, >= 1, that a text encoder-decoder generates at once in evaluation on each "
            "process, beams included; up to four times as many for short inputs. Inputs are encoded "
            "per_device_eval_batch_size at a time. Memory per answer: 2 * decoder layers * key-value heads * head size "
            "numbers for each token of the input and the answer. None: eight times the evaluation batch, at most 128 "
            "unless that batch is larger. A decoder-only model with share_prefixes, whose prompts are read before, "
            "likewise; None: twice the evaluation batch. Other models generate per_device_eval_batch_size answers at a "
            "time.",
        },
    )
    lr_drop_epochs: list[float] | None = field(
        default=None,
        metadata={
            "help": "Epochs, > 0, after which the learning rate is multiplied by 0.1; [20] in the paper's MNIST runs. "
            "Needs lr_scheduler_type constant, no max_steps and no warmup.",
        },
    )
    lr_half_life_steps: int | None = field(
        default=None,
        metadata={
            "help": "Half-life of the learning rate in optimizer steps, >= 1: after s steps it is learning_rate * "
            "0.5 ** (s / lr_half_life_steps); 50000 in the paper's VQA runs. Needs lr_scheduler_type constant and no "
            "warmup.",
        },
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={
            "help": "Must be False: a non-finite loss stops training, and the error names the rows.",
        },
    )

    _unset_broadcasts = False  # whether ddp_broadcast_buffers was unset before separate forwards made it False

    def __post_init__(self) -> None:
        self._convert_values()
        self._check_switches()
        self._check_shared_prefixes()
        self._prepare_separate_forwards()
        # A line without value in YAML gives None, from which transformers would make [None].
        if getattr(self, "report_to", None) is None:
            self.report_to = "none"
        is_rank = {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if is_rank and not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise accelerate would make each rank a run of its own, silently
        super().__post_init__()
        self.validate()

    def validate(self) -> None:
        """Refuse invalid values and combinations.

        The trainer calls this before each run, since attributes may be assigned later, for example by a hyperparameter
        search.

        Raises:
            DataError: A value is out of range, or two settings cannot be combined; the message names a remedy.
        """
        self._convert_values()
        self._check_switches()
        for name, choices in (
            ("method", METHODS),
            ("regularizer", REGULARIZERS),
            ("normalization", NORMALIZATIONS),
            ("forward_mode", FORWARD_MODES),
            ("pair_dropout", DROPOUT_MODES),
            ("lambda_scheduler_type", LAMBDA_SCHEDULES),
        ):
            value = getattr(self, name)
            if not isinstance(value, CustomRegularizer) and value not in choices:
                raise DataError(f"{name}={value!r} is unknown; use one of {', '.join(choices)}")
        for name, lowest in (
            ("dair_lambda", 0.0),
            ("loss_epsilon", math.ulp(0.0)),
            ("learning_rate", 0.0),
            ("lambda_target", math.ulp(0.0)),
            ("lambda_max", math.ulp(0.0)),
        ):
            value = getattr(self, name)
            if name == "dair_lambda" and value == AUTO:
                continue
            if not (_is_finite(value) and lowest <= value):
                bound = ">= 0" if lowest == 0 else "> 0"
                also = ", or 'auto'" if name == "dair_lambda" else ""
                raise DataError(
                    f"{name}={reprlib.repr(value)} is out of range; it must be a finite number {bound}{also}"
                )
        for name in ("gradient_cache", "max_tokens_per_batch", "generation_batch_size", "lr_half_life_steps"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise DataError(f"{name}={value!r} is out of range; it must be an integer >= 1, or None")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise DataError(f"{name}={getattr(self, name)} is out of range; it must be an integer >= 1")
        if self.max_steps == 0 or self.max_steps < -1:
            raise DataError(
                f"max_steps={self.max_steps} is out of range; it must be >= 1, or -1, the default, for num_train_epochs"
            )
        if not (_is_finite(self.num_train_epochs) and self.num_train_epochs >= 0):
            raise DataError(
                f"num_train_epochs={self.num_train_epochs!r} is out of range; it must be a finite number >= 0"
            )
        require_seeds("seed", [self.seed])
        require_seeds("data_seed", [] if self.data_seed is None else [self.data_seed])
        if self.logging_nan_inf_filter:
            raise DataError(
                "logging_nan_inf_filter=True would hide a non-finite loss, which must stop training; leave it at its "
                "default, False"
            )
        self._check_shared_prefixes()
        self._prepare_separate_forwards()
        self._check_schedules()
        if self.label_smoothing_factor:
            raise DataError(
                f"label_smoothing_factor={self.label_smoothing_factor} has no effect on a per-row sample loss; set it "
                "to 0 and pass your own smoothed `sample_loss` to DAIRTrainer"
            )
        self._check_method()
        orders = [
            name
            for name, is_set in (
                ("pair_group_by_length", self.pair_group_by_length),
                (f"max_tokens_per_batch={self.max_tokens_per_batch}", self.max_tokens_per_batch is not None),
                (f"train_sampling_strategy={self.train_sampling_strategy!r}", self.train_sampling_strategy != "random"),
            )
            if is_set
        ]
        if len(orders) > 1:
            raise DataError(f"{orders[0]} and {orders[1]} would both order the rows; leave one at its default")

    def _check_switches(self) -> None:
        for name in _switches():
            value = getattr(self, name)
            if isinstance(value, str):
                raise DataError(f"{name}={value!r} is a text, which would count as {bool(value)}; give True or False")
            if value is not None and not (isinstance(value, (Integral, np.bool_)) and value in (0, 1)):
                raise DataError(f"{name}={reprlib.repr(value)} is no switch; give True or False")

    def _convert_values(self) -> None:
        """Read lambda from text, as the command line gives it, and wrap a function as regularizer."""
        if isinstance(self.dair_lambda, str) and self.dair_lambda != AUTO:
            try:
                self.dair_lambda = float(self.dair_lambda)
            except ValueError:
                pass  # refused by `validate`
        if callable(self.regularizer) and not isinstance(self.regularizer, CustomRegularizer):
            self.regularizer = CustomRegularizer(self.regularizer)

    def _check_method(self) -> None:
        if self.method == "mart" and self.regularizer != "kl":
            raise DataError(
                f"method='mart' and regularizer={self.regularizer!r} cannot be combined: MART uses a weighted KL; "
                "set regularizer='kl'"
            )
        if self.normalization == "token" and self.method not in TOKEN_METHODS:
            raise DataError(
                f"method={self.method!r} and normalization='token' cannot be combined: token normalization is defined "
                f"for {', '.join(TOKEN_METHODS)} only; use normalization='pair'"
            )
        self._check_weights()

    def _check_weights(self) -> None:
        """Refuse weights of losses and of R that are out of range or cannot be combined."""
        weights, warmup = self.view_weights, self.lambda_warmup_steps
        if weights is not None:
            numbers = isinstance(weights, Sequence) and all(_is_finite(weight) and weight >= 0 for weight in weights)
            if not numbers or len(weights) != 2 or not sum(weights) > 0:
                raise DataError(
                    f"view_weights={reprlib.repr(weights)} must be two finite numbers >= 0, of the original and of the "
                    "augmented view, not both 0"
                )
            if self.method not in TOKEN_METHODS:
                raise DataError(
                    f"method={self.method!r} and view_weights={weights} cannot be combined: the method has weights of "
                    f"its own, {METHOD_WEIGHTS[self.method][:2]}; leave view_weights unset, or use method='dair'"
                )
        if self.stop_gradient not in (None, *VIEWS):
            raise DataError(f"stop_gradient={self.stop_gradient!r} is unknown; use {' or '.join(VIEWS)}, or None")
        if self.stop_gradient is not None and self.method == "mart":
            raise DataError(
                f"method='mart' and stop_gradient={self.stop_gradient!r} cannot be combined: its two terms come from "
                "both views; leave stop_gradient unset"
            )
        if warmup is not None and not (_is_finite(warmup) and warmup >= 0 and (warmup < 1 or warmup == int(warmup))):
            raise DataError(
                f"lambda_warmup_steps={reprlib.repr(warmup)} is out of range; give a whole number of steps, or a share "
                "of all steps in [0, 1)"
            )
        if self.dair_lambda == AUTO and self.method == "mart":
            raise DataError(
                "method='mart' and dair_lambda='auto' cannot be combined: its first term is no loss of a view; give "
                "dair_lambda a number"
            )

    def _check_shared_prefixes(self) -> None:
        if self.share_prefixes is None:
            return
        setting = f"share_prefixes={self.share_prefixes!r}"
        if not isinstance(self.share_prefixes, str):
            raise DataError(f"{setting} is no name of a column; give one, such as 'dialogue_id'")
        for name, is_set in (
            ("forward_mode='separate'", self.forward_mode == "separate"),
            ("pair_dropout='shared'", self.pair_dropout == "shared"),
            (f"gradient_cache={self.gradient_cache}", self.gradient_cache is not None),
            ("pair_group_by_length=True", self.pair_group_by_length),
            (f"train_sampling_strategy={self.train_sampling_strategy!r}", self.train_sampling_strategy != "random"),
            (f"method={self.method!r}", self.method in ("augmented", "mart")),
            # Its noise is scaled by the length of a sequence, which is that of whole trees.
            (f"neftune_noise_alpha={self.neftune_noise_alpha}", self.neftune_noise_alpha is not None),
            ("dataloader_drop_last=True", self.dataloader_drop_last),
        ):
            if is_set:
                raise DataError(
                    f"{setting} and {name} cannot be combined: rows that share a prefix run together, in batches of "
                    f"whole groups; leave {name.split('=')[0]} at its default"
                )

    def _check_schedules(self) -> None:
        drops, half_life = self.lr_drop_epochs, f"lr_half_life_steps={self.lr_half_life_steps}"
        if drops is None and self.lr_half_life_steps is None:
            return
        are_epochs = isinstance(drops, Sequence) and all(_is_finite(epoch) and epoch > 0 for epoch in drops)
        if drops is not None and not (drops and are_epochs):
            raise DataError(f"lr_drop_epochs={reprlib.repr(drops)} must list finite numbers > 0, or be left out")
        for name, is_set in (
            (half_life, drops is not None and self.lr_half_life_steps is not None),
            (f"lr_scheduler_type={self.lr_scheduler_type!s}", self.lr_scheduler_type != "constant"),
            (f"max_steps={self.max_steps}", drops is not None and self.max_steps > 0),
            (f"warmup_steps={self.warmup_steps}", bool(self.warmup_steps)),
        ):
            if is_set:
                length = "" if drops is None else ", num_train_epochs"
                raise DataError(
                    f"{half_life if drops is None else f'lr_drop_epochs={drops}'} and {name} cannot be combined: the "
                    f"former is a complete schedule; use lr_scheduler_type='constant'{length} and no warmup with it"
                )

    def _prepare_separate_forwards(self) -> None:
        """Check and adapt settings for different numbers of forwards per rank: a batch without partners needs one."""
        settings = [
            f"{name}={value!r}"
            for name, value in (
                ("forward_mode", self.forward_mode),
                ("pair_dropout", self.pair_dropout),
                ("share_prefixes", self.share_prefixes),
            )
            if value not in ("joint", "independent", None)
        ]
        if not settings:
            if self._unset_broadcasts:
                self.ddp_broadcast_buffers, self._unset_broadcasts = None, False
            return
        if len(settings) == 2:
            raise DataError(
                "forward_mode='separate' and pair_dropout='shared' cannot be combined: shared masks already need "
                "separate forwards of both views and of rows without a partner; leave forward_mode at 'joint'"
            )
        for name in ("fsdp", "deepspeed"):
            if value := getattr(self, name, None):
                raise DataError(
                    f"{settings[0]} and {name}={value!r} cannot be combined: sharded models need equally many forwards "
                    f"on every rank; leave {settings[0].split('=')[0]} at its default, or use DDP"
                )
        if getattr(self, "ddp_broadcast_buffers", None):
            raise DataError(
                f"{settings[0]} and ddp_broadcast_buffers=True cannot be combined: ranks without partners run fewer "
                "forwards, so the other ranks would hang; leave ddp_broadcast_buffers unset"
            )
        self._unset_broadcasts |= self.ddp_broadcast_buffers is None
        self.ddp_broadcast_buffers = False

    @property
    def uses_partners(self) -> bool:
        """True if the objective uses augmented views."""
        return self.method != "erm"

    @property
    def uses_features(self) -> bool:
        """True if R compares output distributions instead of losses."""
        return self.uses_regularizer and self.regularizer in FEATURE_REGULARIZERS

    @property
    def compares_losses(self) -> bool:
        """True if R is a function of the losses of both views, whether the method trains it or not."""
        return self.regularizer not in FEATURE_REGULARIZERS

    @property
    def loss_regularizer(self) -> LossRegularizer | None:
        """R as a function of the losses; None if it compares output distributions."""
        if isinstance(self.regularizer, CustomRegularizer):
            return self.regularizer.as_regularizer()
        return LOSS_REGULARIZERS.get(str(self.regularizer))

    @property
    def pair_weights(self) -> tuple[float, float]:
        """Weights w, w~ of the two losses of a pair in the objective."""
        if self.view_weights is not None and self.method in ("da", "dair"):
            return self.view_weights[0], self.view_weights[1]
        return METHOD_WEIGHTS[self.method][:2]

    def lambda_warmup(self, num_training_steps: int) -> int:
        """Return the number of steps over which lambda rises from 0."""
        steps = self.lambda_warmup_steps
        if steps is None:
            steps = AUTO_WARMUP if self.dair_lambda == AUTO else 0
        return int(steps) if steps >= 1 else math.ceil(num_training_steps * steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for JSON, with a custom regularizer by its name."""
        settings: dict[str, Any] = super().to_dict()
        if isinstance(self.regularizer, CustomRegularizer):
            settings["regularizer"] = repr(self.regularizer)
        return settings

    @property
    def uses_regularizer(self) -> bool:
        """True if the objective contains lambda R."""
        return self.method in REGULARIZED

    @property
    def lambda_text(self) -> str:
        """Lambda in words: a number, or auto with its target."""
        if isinstance(self.dair_lambda, str):
            return f"{self.dair_lambda}, gradient share {self.lambda_target:g}"
        return f"{self.dair_lambda:g}"

    @property
    def lambda_unit(self) -> str:
        """Unit of `dair_lambda`, in words."""
        if self.normalization == "pair":
            return "per pair: objective = sum of f / rows"
        return "token: objective = losses / target tokens + lambda * R / pairs"


@cache
def _switches() -> list[str]:
    """Return the names of the fields that are True or False."""
    # Not of `dataclasses.fields`, whose types HfArgumentParser replaces.
    return [name for name, kind in get_type_hints(DAIRConfig).items() if kind in (bool, bool | None)]


def _is_finite(value: Any) -> bool:
    """Return whether a value is a number that a float can hold, neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
