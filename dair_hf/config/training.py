"""DAIRConfig: training arguments of paired runs, validated when they are created."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from transformers import Seq2SeqTrainingArguments
from transformers.utils import logging

from dair_hf.config.objective import UNSET, ObjectiveConfig
from dair_hf.losses.custom_regularizer import CustomRegularizer
from dair_hf.losses.objective import LOSS_REGULARIZERS
from dair_hf.settings import Count, NonNegative, Positive, Range, check_fields

logger = logging.get_logger(__name__)

Seed = Annotated[int, Range(low=0, high=2**32 - 1)]
# Limits of fields that transformers declares, or that HfArgumentParser reads in a simpler type.
LIMITS: dict[str, Any] = {
    "dair_lambda": NonNegative | Literal["auto"],
    "learning_rate": NonNegative,
    "weight_decay": NonNegative,
    "num_train_epochs": NonNegative,
    "max_steps": Count | Literal[-1],
    "per_device_train_batch_size": Count,
    "per_device_eval_batch_size": Count,
    "gradient_accumulation_steps": Count,
    "seed": Seed,
    "data_seed": Seed | None,
    "label_smoothing_factor": Literal[0],  # has no effect on the losses of rows: give a smoothed `sample_loss`
    "logging_nan_inf_filter": Literal[False],  # would hide a loss that is NaN or infinite
}


@dataclass
class DAIRConfig(ObjectiveConfig, Seq2SeqTrainingArguments):
    """Training arguments of `DAIRTrainer`: `Seq2SeqTrainingArguments` and the settings of the objective.

    Raises:
        DataError: A value is out of range, or two settings cannot be combined; the message names both.

    Example:
        >>> DAIRConfig(output_dir="out", method="dair", dair_lambda=0.5, normalization="token").regularizer
        'sq'
    """

    forward_mode: Literal["joint", "separate"] = field(
        default="joint",
        metadata={
            "help": "joint: both views in one forward; separate: one forward per view, so that each view has its own "
            "batch norm statistics, as in the authors' image code. With several processes, statistics differ per rank.",
        },
    )
    pair_dropout: Literal["independent", "shared"] = field(
        default="independent",
        metadata={
            "help": "independent: the views of a pair get different dropout masks, so that R > 0 for identical views; "
            "shared: the same masks, in one forward per view, so that R measures the change of the input alone.",
        },
    )
    pair_group_by_length: bool = field(
        default=False,
        metadata={"help": "Batch rows whose longer views have similar lengths, which saves padding."},
    )
    max_tokens_per_batch: Count | None = field(
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
            "help": "Column that names the group of a row, such as dialogue_id. Rows of a group with a common prefix, "
            "and both views of a row, share the tokens of this prefix, which a decoder-only model then computes once. "
            "Losses and gradients are as for separate rows; with dropout, rows share the masks of their prefix. "
            "Batches hold whole groups: up to per_device_train_batch_size rows, or max_tokens_per_batch distinct "
            "tokens.",
        },
    )
    max_length: Annotated[int, Range(low=2)] | None = field(
        default=None,
        metadata={
            "help": "Number of tokens, >= 2, after which texts that the trainer tokenizes are cut: prompt and answer "
            "of a decoder-only model together, input and target of an encoder-decoder separately, a text to classify. "
            "Prompts before an answer are cut at the beginning, targets at the end, other texts on the side "
            "tokenizer.truncation_side. None: the positions of the model. Tokenized data are not cut.",
        },
    )
    chunked_loss: bool = field(
        default=False,
        metadata={
            "help": "Compute sequence losses from hidden states in chunks of target tokens, without the logits of the "
            "whole batch: less memory, one more pass through the output projection. Needs a regularizer of the "
            f"losses ({' or '.join(LOSS_REGULARIZERS)}).",
        },
    )
    gradient_cache: Count | None = field(
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
            "Seq2SeqTrainer. None: generated answers for language models, logits for others, and with "
            "preprocess_logits_for_metrics and no evaluator.",
        },
    )
    generation_batch_size: Count | None = field(
        default=None,
        metadata={
            "help": "Number of answers, >= 1, that a text encoder-decoder generates at once in evaluation on each "
            "process, beams included; up to four times as many for short inputs. Inputs are encoded "
            "per_device_eval_batch_size at a time. Memory per answer: 2 * decoder layers * key-value heads * head size "
            "numbers for each token of the input and the answer. None: eight times the evaluation batch, at most 128 "
            "unless that batch is larger. The same holds for a decoder-only model with share_prefixes, but None: "
            "twice the evaluation batch. Other models generate per_device_eval_batch_size answers at a "
            "time.",
        },
    )
    lr_drop_epochs: list[Positive] | None = field(
        default=None,
        metadata={
            "help": "Epochs, > 0, after which the learning rate is multiplied by 0.1; [20] in the paper's MNIST runs. "
            "Needs lr_scheduler_type constant and no warmup.",
        },
    )
    lr_half_life_steps: Count | None = field(
        default=None,
        metadata={
            "help": "Half-life of the learning rate in optimizer steps, >= 1: after s steps it is learning_rate * "
            "0.5 ** (s / lr_half_life_steps); 50000 in the paper's VQA runs. Needs lr_scheduler_type constant and no "
            "warmup.",
        },
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Must be False: a loss that is not finite stops training."},
    )

    _unset_broadcasts = False  # whether ddp_broadcast_buffers was unset before separate forwards made it False

    def __post_init__(self) -> None:
        # A line without value in YAML gives None, from which transformers would make [None].
        if getattr(self, "report_to", None) is None:
            self.report_to = "none"
        is_rank = {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if (is_rank or self.bf16 or self.bf16_full_eval) and not torch.accelerator.is_available():
            # Otherwise accelerate would make each rank a run of its own, silently, and transformers would refuse bf16.
            self.use_cpu = True
        self.validate()
        direction = getattr(self, "greater_is_better", None)
        super().__post_init__()
        self.greater_is_better = direction  # None: the trainer decides, since it knows its metrics
        # accelerate sets the address if it was told to start several processes, even if it started only one.
        if {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys() and self.world_size == 1:
            logger.warning_once(
                "accelerate launch started one process only; for several on a CPU, use dair-hf train --launch "
                "cpu_processes, or a file of settings with distributed_type: MULTI_GPU and without use_cpu"
            )

    def validate(self) -> None:
        """Raise a `DataError` if a value is out of range, or two settings cannot be combined.

        The trainer calls this before each run, since attributes may change, for example in a hyperparameter search.
        """
        for name, value in vars(self).items():
            if isinstance(value, np.generic):
                setattr(self, name, value.item())  # JSON cannot hold numpy numbers
        self._read_objective()
        check_fields(self, LIMITS)
        self._check_objective()
        if self.max_tokens_per_batch:
            self._require("max_tokens_per_batch", pair_group_by_length=UNSET)
        if self.max_tokens_per_batch or self.pair_group_by_length:
            setting = "max_tokens_per_batch or pair_group_by_length, which order the rows"
            self._require(setting, train_sampling_strategy=("random",))
        if self.lr_drop_epochs:
            self._require("lr_drop_epochs", lr_half_life_steps=UNSET)
        if self.lr_drop_epochs or self.lr_half_life_steps:
            setting = "lr_drop_epochs or lr_half_life_steps, which are whole schedules"
            self._require(setting, lr_scheduler_type=("constant",), warmup_steps=UNSET)
        if self.share_prefixes is not None:
            self._require(
                "share_prefixes, whose batches hold whole groups",
                method=("dair", "da", "erm", "trades"),
                forward_mode=("joint",),
                pair_dropout=("independent",),
                gradient_cache=UNSET,
                pair_group_by_length=UNSET,
                train_sampling_strategy=("random",),
                neftune_noise_alpha=UNSET,  # scaled by the length of a sequence, here of a whole tree
                dataloader_drop_last=UNSET,
            )
        self._prepare_separate_forwards()

    def _prepare_separate_forwards(self) -> None:
        """Switch off buffer broadcasts if ranks may run different numbers of forwards: a broadcast would then hang."""
        if self.forward_mode == "separate":
            self._require("forward_mode separate", pair_dropout=("independent",))
        elif self.pair_dropout == "independent" and self.share_prefixes is None:
            if self._unset_broadcasts:
                self.ddp_broadcast_buffers, self._unset_broadcasts = None, False
            return
        self._require(
            "forward_mode separate, pair_dropout shared and share_prefixes: ranks run different numbers of forwards",
            fsdp=UNSET,
            deepspeed=UNSET,
            ddp_broadcast_buffers=UNSET,
        )
        self._unset_broadcasts |= self.ddp_broadcast_buffers is None
        self.ddp_broadcast_buffers = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, for example in each checkpoint's `training_args.bin`: all but the Hub token."""
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
