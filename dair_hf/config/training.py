"""DAIRConfig: training arguments of paired runs, validated when they are created."""

from __future__ import annotations

import copy
import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral
from typing import Any, get_type_hints

import numpy as np
import torch
from transformers import Seq2SeqTrainingArguments
from transformers.utils import logging

from dair_hf.config.objective import ObjectiveConfig, is_finite, is_integer, require_choice, require_number
from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.losses.custom_regularizer import CustomRegularizer
from dair_hf.losses.objective import LOSS_REGULARIZERS

logger = logging.get_logger(__name__)

FORWARD_MODES = ("joint", "separate")
DROPOUT_MODES = ("independent", "shared")


@dataclass
class DAIRConfig(ObjectiveConfig, Seq2SeqTrainingArguments):
    """Training arguments of `DAIRTrainer`: those of `Seq2SeqTrainingArguments` and of the objective.

    Raises:
        DataError: A value is out of range, or two settings cannot be combined; the message names both.

    Example:
        >>> DAIRConfig(output_dir="out", method="dair", dair_lambda=0.5, normalization="token").regularizer
        'sq'
    """

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
    max_length: int | None = field(
        default=None,
        metadata={
            "help": "Number of tokens, >= 2, after which texts that the trainer tokenizes are cut: prompt and answer "
            "of a decoder-only model together, input and target of an encoder-decoder apart, a text to classify. A "
            "prompt before an answer loses its beginning, a target its end, anything else what "
            "tokenizer.truncation_side says. Rows that are cut are counted in a warning; a chat that keeps no turn of "
            "the assistant is refused. None: the positions of the model. Tokenised data are not cut.",
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
    pair_history: bool = field(
        default=True,
        metadata={
            "help": "Keep a sum and a count of every pair over the training steps, by which `pair_report` finds faulty "
            "pairs that the trained model has memorized. Costs about 150 bytes of host memory per row and process, at "
            "most 300 MB, and a few small operations per step, for which the host does not wait. False: reports rank "
            "by the losses of the final model alone.",
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
            "Needs lr_scheduler_type constant and no warmup.",
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
        self._check_switches()
        self._check_shared_prefixes()
        self._prepare_separate_forwards()
        # A line without value in YAML gives None, from which transformers would make [None].
        if getattr(self, "report_to", None) is None:
            self.report_to = "none"
        is_rank = {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if (is_rank or self.bf16 or self.bf16_full_eval) and not torch.accelerator.is_available():
            # Otherwise accelerate would make each rank a run of its own, silently, and transformers would refuse bf16.
            self.use_cpu = True
        direction = getattr(self, "greater_is_better", None)
        super().__post_init__()
        self.greater_is_better = direction  # where it is None, the trainer decides, which knows its metrics
        # accelerate's launcher of a single process sets the address where it was told to start several.
        if {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys() and self.world_size == 1:
            logger.warning_once(
                "accelerate launch started one process only; for several on a CPU, use dair-hf train --launch "
                "cpu_processes, or a file of settings with distributed_type: MULTI_GPU and without use_cpu"
            )
        self.validate()

    def validate(self) -> None:
        """Refuse invalid values and combinations.

        The trainer calls this before each run, since attributes may be assigned later, for example by a hyperparameter
        search.

        Raises:
            DataError: A value is out of range, or two settings cannot be combined; the message names a remedy.
        """
        self._check_switches()
        self.validate_objective()
        require_choice("forward_mode", self.forward_mode, FORWARD_MODES)
        require_choice("pair_dropout", self.pair_dropout, DROPOUT_MODES)
        require_number("learning_rate", self.learning_rate, 0.0)
        require_number("weight_decay", self.weight_decay, 0.0)
        for name in (
            "gradient_cache",
            "max_tokens_per_batch",
            "max_length",
            "generation_batch_size",
            "lr_half_life_steps",
        ):
            value = getattr(self, name)
            smallest = 2 if name == "max_length" else 1
            if value is not None and (not is_integer(value) or value < smallest):
                raise DataError(f"{name}={value!r} is out of range; it must be an integer >= {smallest}, or None")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if not is_integer(getattr(self, name)) or getattr(self, name) < 1:
                raise DataError(f"{name}={getattr(self, name)!r} is out of range; it must be an integer >= 1")
        if not is_integer(self.max_steps) or self.max_steps == 0 or self.max_steps < -1:
            raise DataError(
                f"max_steps={self.max_steps!r} is out of range; it must be an integer >= 1, or -1, the default, for "
                "num_train_epochs"
            )
        if not (is_finite(self.num_train_epochs) and self.num_train_epochs >= 0):
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
        are_epochs = isinstance(drops, Sequence) and all(is_finite(epoch) and epoch > 0 for epoch in drops)
        if drops is not None and not (drops and are_epochs):
            raise DataError(f"lr_drop_epochs={reprlib.repr(drops)} must list finite numbers > 0, or be left out")
        for name, is_set in (
            (half_life, drops is not None and self.lr_half_life_steps is not None),
            (f"lr_scheduler_type={self.lr_scheduler_type!s}", self.lr_scheduler_type != "constant"),
            (f"warmup_steps={self.warmup_steps}", bool(self.warmup_steps)),
        ):
            if is_set:
                raise DataError(
                    f"{half_life if drops is None else f'lr_drop_epochs={drops}'} and {name} cannot be combined: the "
                    "former is a complete schedule; use lr_scheduler_type='constant' and no warmup with it"
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

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled, such as for `training_args.bin` of each checkpoint: all but the token of the Hub."""
        return {**vars(self), "hub_token": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> DAIRConfig:
        copied = object.__new__(type(self))
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for JSON, with a custom regularizer by its name."""
        settings: dict[str, Any] = super().to_dict()
        if isinstance(self.regularizer, CustomRegularizer):
            settings["regularizer"] = repr(self.regularizer)
        return settings


@cache
def _switches() -> list[str]:
    """Return the names of the fields that are True or False."""
    # Not of `dataclasses.fields`, whose types HfArgumentParser replaces.
    return [name for name, kind in get_type_hints(DAIRConfig).items() if kind in (bool, bool | None)]
