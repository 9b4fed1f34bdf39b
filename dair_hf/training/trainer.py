"""DAIRTrainer: a Seq2SeqTrainer that trains on, evaluates and reports pairs."""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import safetensors.torch
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    ImageProcessingMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    SequenceFeatureExtractor,
    default_data_collator,
)
from transformers.utils import logging

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.data.batch_layout import LayoutCollator, trained_partners, view_mask
from dair_hf.data.checks import columns_of, no_pairs, require_pairs, require_rows
from dair_hf.data.collator import (
    LABELS,
    LAYOUT,
    PADDING_ROW,
    ROW_ID,
    VIEW_MASK,
    ImageCollator,
    PairCollator,
    collate_or_pad,
    collate_originals,
    collate_unless_ready,
    count_positions,
    flatten_views,
    on_device,
)
from dair_hf.data.held_rows import is_transformed
from dair_hf.data.sampling import PaddedStream, PairLengthSampler, TokenBatchSampler
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import is_augmented
from dair_hf.errors import DataError, explained
from dair_hf.evaluation.evaluator import Correct, PairEvaluator, as_evaluator
from dair_hf.evaluation.target_tokens import check_targets
from dair_hf.io.checkpoints import load_weights, require_adapters, resumable_checkpoint
from dair_hf.io.files import explain_write_errors
from dair_hf.io.processes import gather_results
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.objective import Counts
from dair_hf.losses.per_sample import SampleLoss, causal_nll
from dair_hf.pair_report.history import PairHistory
from dair_hf.training.cards.model_card import TrainingFacts, description_of, write_model_card
from dair_hf.training.cards.model_use import ModelFacts
from dair_hf.training.checks import (
    check_best_metric,
    dropout_rates,
    refuse_scheduler,
    refuse_unsupported,
    refuse_unsupported_launch,
    require_gradient,
    require_groups,
    require_model,
    require_scalar,
    warn_of_unused_target,
)
from dair_hf.training.environments import BatchObjective, FreshOptimizer, PenalizedRisk
from dair_hf.training.finiteness import FinitenessCheck
from dair_hf.training.forward.pair_loss import PairLoss, PairOutputs
from dair_hf.training.lambda_control import LambdaControl, root_gradients
from dair_hf.training.loading import (
    NO_PAIRS,
    NO_TARGETS,
    STEPS_WATCHED,
    EpochCallback,
    OnlineAugmenter,
    add_known_partners,
    add_online_partners,
    collate_known_partners,
    mask_repeated_rows,
    train_sampler,
)
from dair_hf.training.pair_evaluation import PairEvaluationTrainer
from dair_hf.training.run_settings import save_classes, warn_of_earlier_run
from dair_hf.training.sample_loss import (
    LANGUAGE_LOSSES,
    MODEL_LOSSES,
    base_model_of,
    can_generate,
    compare_with_own_loss,
    decoder_inputs_of,
    derived_sample_loss,
    resolve_sample_loss,
    row_rules,
)
from dair_hf.training.schedules import epoch_drops, half_life
from dair_hf.training.texts.rows import TextRows
from dair_hf.training.train_metrics import lowest_slopes, mean_terms, sum_terms
from dair_hf.trees.attention import nodes_at_once
from dair_hf.trees.batches import ForestCollator, GroupBatchSampler
from dair_hf.trees.forest import FOREST

logger = logging.get_logger(__name__)

OBJECTIVE_FILE = "objective.safetensors"
LAMBDA_FILE = "lambda.safetensors"
OTHER_MODEL = "is of another model; resume with the model that it was made with, or name another output_dir"


class DAIRTrainer(PairEvaluationTrainer):
    """`Seq2SeqTrainer` that trains on pairs with the DAIR objective.

    The objective (equations 1 to 4 of the paper, `objective.normalized_objective`) is normalized by the counts of the
    whole optimizer step: all micro-batches of the accumulation window and all ranks, also in an incomplete last step.
    The same data thus gives the same update, however it is split into micro-batches and ranks.

    Without partners, with `normalization="token"`, one micro-batch per step and one process, updates equal those of
    `Seq2SeqTrainer` bit for bit. With several micro-batches the same holds for models that take `num_items_in_batch`,
    such as decoder-only models. For others (T5, BART) `Seq2SeqTrainer` averages the means of the micro-batches, so that
    a token of a short micro-batch weighs more. The default, `normalization="pair"`, divides by rows instead of tokens.

    Args:
        model: Model whose forward returns the inputs of the sample loss (`logits` for the named losses).
        args: A `DAIRConfig`.
        data_collator: A `PairCollator`, or a collator of single views, which is wrapped in one. None: padding of inputs
            and of token labels if there is a tokenizer, else plain stacking.
        train_dataset: Paired rows: a `datasets.Dataset`, `EpochPairs`, `TensorPairs`, or any torch data set of such
            rows. Rows of text in a known form (`pairs_from_jsonl`) are tokenized, also those of other arguments.
        eval_dataset: Paired rows, or a dictionary of several evaluation sets.
        processing_class: Tokenizer, which encodes texts and decodes predictions and labels.
        sample_loss: Loss of a row: a name in `per_sample.SAMPLE_LOSSES`, or a callable `(outputs, labels) -> [rows]`.
            None: the loss that the model computes from its labels (`sample_loss.derived_sample_loss`). Before the first
            step, a named loss is compared with the model's own.
        evaluator: A `PairEvaluator`, or its `correct` alone: `(predictions, references) -> [N]` bool. If given,
            `evaluate` also runs `evaluate_pairs`, so that `metric_for_best_model="both_correct"` works. Classifiers and
            regressions need none.
        objective: Objective of a whole batch that replaces the DAIR objective in training, `(outputs, step) -> scalar`
            (`environments`: IRM, V-REx, Group DRO, ...). `method` then only decides whether partners are run. The
            logged and evaluated objective is still that of `args`.
        augmenter: Makes partners during training: `(model, batch, generator) -> batch` with partners
            (`collator.add_partners`). It is called once per batch of `[B, V, ...]` columns on the device and draws
            random numbers from `generator` only. Examples are attacks on the model, generators and image transforms.
        **kwargs: As in `Seq2SeqTrainer`.

    Raises:
        TypeError: `args` is no `DAIRConfig`.
        DataError: The sample loss is unknown or cannot be derived, settings cannot be combined, or an argument is of
            another kind.

    Example:
        >>> trainer = DAIRTrainer(model=model, args=DAIRConfig("out"), train_dataset=pairs)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """

    args: DAIRConfig
    lr_scheduler: Any
    _created_lr_scheduler: bool
    pair_sampler: PairLengthSampler | TokenBatchSampler | GroupBatchSampler | None = None
    has_targets, has_pairs = False, False  # whether a row of the run had one so far, or one in both views
    _epoch_steps: int | None = None  # optimizer steps of an epoch
    awaits_pairs = False  # whether it is unknown if the data have a partner

    def __init__(
        self,
        model: Any = None,
        args: DAIRConfig | None = None,
        data_collator: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        sample_loss: str | SampleLoss | None = None,
        evaluator: PairEvaluator | Correct | None = None,
        objective: BatchObjective | None = None,
        augmenter: OnlineAugmenter | None = None,
        **kwargs: Any,
    ) -> None:
        args = DAIRConfig("tmp_trainer") if args is None else args
        if not isinstance(args, DAIRConfig):
            raise TypeError(f"args is a {type(args).__name__}; DAIRTrainer needs a DAIRConfig")
        self.evaluator = None if evaluator is None else as_evaluator(evaluator)
        self.batch_objective = objective  # not `objective`, to which `hyperparameter_search` assigns the best value
        self.augmenter = augmenter
        require_model(model, augmenter)
        require_rows(train_dataset, "train_dataset")
        for data in eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]:
            require_rows(data, "eval_dataset")
        refuse_unsupported_launch(args, kwargs, train_dataset, augmenter)
        if args.should_save:
            with explain_write_errors(args.output_dir):
                os.makedirs(args.output_dir, exist_ok=True)
        # Such as an unknown tracker, or `eval_strategy` without rows to evaluate.
        with explained("the trainer cannot be set up", ValueError, ImportError, RuntimeError):
            super().__init__(
                model=model,
                args=args,
                data_collator=data_collator,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                **kwargs,
            )
        self.sample_loss, self.sample_loss_name = resolve_sample_loss(sample_loss, self.model)
        if sample_loss is None:
            name = type(base_model_of(self.model)).__name__
            logger.info(f"sample_loss={self.sample_loss_name!r}, derived from {name}")
        refuse_unsupported(args, self.sample_loss, objective, augmenter, self.model)
        self.generates = self._answers_in_text()
        self._tokenize_own(data_collator)
        if data_collator is None:
            data_collator = self._default_collator()
        # A copy, since its rules are those of this model.
        self.data_collator: PairCollator = (
            copy.copy(data_collator) if isinstance(data_collator, PairCollator) else PairCollator(data_collator)
        )
        self._set_row_rules()
        is_on_device = isinstance(train_dataset, TensorPairs) and train_dataset.device.type != "cpu"
        if self.args.device.type == "cpu" or is_on_device:
            self.args.dataloader_pin_memory = False  # there is no copy to pin memory for; torch would warn or refuse
        # `compute_loss` divides by the counts of the whole accumulation window itself.
        self.loss_is_scaled_for_ga = True
        self._pair_loss: PairLoss | None = None
        self._pair_loss_key: tuple[Any, ...] = ()
        _ = self.pair_loss  # refuses unsupported models now
        # `model_init` resets the state of an objective, too.
        self._initial_objective = copy.deepcopy(objective.state_dict()) if isinstance(objective, nn.Module) else None
        self._sums: Tensor | None = None
        self._warned_of_dropout = False
        self._checked_targets = False
        self._uncompared_loss = self.sample_loss_name if self.sample_loss_name in MODEL_LOSSES else None
        self.pair_history = PairHistory()
        self.add_callback(self.pair_history)
        self.add_callback(EpochCallback(self))
        self._finiteness = FinitenessCheck(args, objective)
        self.add_callback(self._finiteness)
        self.lambda_control = LambdaControl(args, self.accelerator)
        self.add_callback(self.lambda_control)
        if isinstance(objective, PenalizedRisk):
            self.add_callback(FreshOptimizer(objective.anneal_steps))

    @property
    def pair_loss(self) -> PairLoss:
        """Losses and counts of batches; created anew if the model was replaced, for example by `model_init`."""
        args, model = self.args, self.model
        key = (model, args.chunked_loss, args.gradient_cache)
        if self._pair_loss is None or self._pair_loss_key != key:
            chunked = ChunkedLoss(model, self.sample_loss is causal_nll) if args.chunked_loss else None
            self._pair_loss = PairLoss(args, self.sample_loss, decoder_inputs_of(model), chunked)
            self._pair_loss_key = key
        return self._pair_loss

    def _tokenize_own(self, data_collator: Any) -> None:
        """Tokenize the text data of the trainer, before collator and data loaders are made for them."""
        base = getattr(data_collator, "base_collator", data_collator) or default_data_collator
        self._text_rows = TextRows(
            lambda: self.model, self.processing_class, self._loss_name(), self.args, base, self.length_option
        )
        self.train_dataset = self.tokenize(self.train_dataset, "train_dataset")
        self.eval_dataset = self.tokenize(self.eval_dataset, "eval_dataset")

    def _answers_in_text(self) -> bool:
        """Return whether predictions are generated: by `predict_with_generate`, or by the kind of model."""
        generates, setting = can_generate(self.model), self.args.predict_with_generate
        if setting and not generates:
            raise DataError(
                f"predict_with_generate=True, but {type(base_model_of(self.model)).__name__} cannot generate; leave it "
                "unset"
            )
        losses = {self.sample_loss_name, derived_sample_loss(self.model)}
        return generates and not losses.isdisjoint(LANGUAGE_LOSSES) if setting is None else setting

    def _set_row_rules(self) -> None:
        name = self.sample_loss_name
        is_model_loss = name in MODEL_LOSSES and name == derived_sample_loss(self.model)
        self.data_collator.rules = row_rules(self.model, self._loss_name(), is_model_loss)

    def _default_collator(self) -> Callable[..., Any]:
        """Return the default collator of `Trainer`, or one that also pads token labels."""
        tokenizer, loss_name = self.processing_class, self._loss_name()
        if isinstance(tokenizer, ImageProcessingMixin):
            return ImageCollator(tokenizer, getattr(base_model_of(self.model).config, "num_channels", 3))
        if not isinstance(tokenizer, (PreTrainedTokenizerBase, SequenceFeatureExtractor)):
            return default_data_collator
        if loss_name in LANGUAGE_LOSSES and isinstance(tokenizer, PreTrainedTokenizerBase):
            if loss_name == "causal" and tokenizer.padding_side != "right":
                # Of a model with absolute positions, padding on the left would change the loss of the row.
                tokenizer = copy.copy(tokenizer)
                tokenizer.padding_side = "right"
            return DataCollatorForSeq2Seq(tokenizer, model=None)
        if loss_name == "token_classification":
            return DataCollatorForTokenClassification(tokenizer)
        return DataCollatorWithPadding(tokenizer)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as `Seq2SeqTrainer` does; warn once if dropout makes R positive for identical views.

        Args:
            resume_from_checkpoint: Path of a checkpoint; True: the last complete one in `args.output_dir`, with a
                warning that names newer ones, which were cut off while they were saved. The saved optimizer keeps its
                settings, such as the learning rate. None, False: from the start, with a warning if `args.output_dir`
                holds those of an earlier run.
            trial: As in `Seq2SeqTrainer`.
            *args: As in `Seq2SeqTrainer`.
            **kwargs: As in `Seq2SeqTrainer`.

        Raises:
            DataError: There is no complete checkpoint, or it lacks a weight of the model.
        """
        rates = dropout_rates(self.model)
        independent = self.args.uses_regularizer and self.args.pair_dropout == "independent"
        if rates and independent and not self._warned_of_dropout:
            self._warned_of_dropout = True
            settings = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
            logger.warning(
                f"Dropout is on ({settings}): the views of a pair get different masks, so R is above 0 even for "
                "identical views. Set pair_dropout='shared' to use the same masks."
            )
        warn_of_unused_target(self.args)
        self.has_targets = self.has_pairs = bool(resume_from_checkpoint)  # the run before had some
        if resume_from_checkpoint:
            resume_from_checkpoint = resumable_checkpoint(resume_from_checkpoint, self.args.output_dir)
        elif trial is None:  # trials of a search have folders of their own
            warn_of_earlier_run(self.args)
        return super().train(resume_from_checkpoint, trial, *args, **kwargs)

    def _hp_search_setup(self, trial: Any) -> None:
        """Set the values of a trial; lambda may change between numbers and "auto"."""
        args: Any = self.args
        # `Trainer` casts a value to the type of the old one, unless that is None.
        old, args.dair_lambda = args.dair_lambda, None
        try:
            super()._hp_search_setup(trial)
        finally:
            if args.dair_lambda is None:
                args.dair_lambda = old

    def _inner_training_loop(self, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Run the training loop with fresh state, after a check of settings that may have been assigned since."""
        self.args.validate()
        if self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.broadcast_buffers = self.args.ddp_broadcast_buffers is not False
        refuse_unsupported_launch(self.args, {}, self.train_dataset, self.augmenter)
        refuse_unsupported(self.args, self.sample_loss, self.batch_objective, self.augmenter, self.model)
        self._sums = None
        self._finiteness.clear()
        self.lambda_control.reset()
        self._set_row_rules()  # embeddings may have been resized
        self.train_dataset = self.tokenize(self.train_dataset, "train_dataset")  # it may have been assigned since
        require_groups(self.args, self.train_dataset, self.eval_dataset)
        makes_metrics = self.compute_metrics is not None or type(self).evaluate is not PairEvaluationTrainer.evaluate
        sets = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        evaluates = all(map(self._may_evaluate_pairs, sets))
        check_best_metric(
            self.args,
            self.evaluator or (self._default_evaluator() if evaluates else None),
            self.eval_dataset,
            makes_metrics,
        )
        data, needs_pairs = self.train_dataset, self.args.uses_partners and self.augmenter is None
        self._require_inputs(data, "train_dataset")
        self.awaits_pairs = needs_pairs and not require_pairs(
            data, self._known_columns(data), self.args.method, "train_dataset"
        )
        objective, initial = self.batch_objective, self._initial_objective
        if self.model_init is not None and isinstance(objective, nn.Module) and initial is not None:
            objective.load_state_dict(initial)
        return super()._inner_training_loop(batch_size, *args, **kwargs)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return the lengths of the run, and keep the epoch's for `lr_drop_epochs`; data without a length have none."""
        if args.lr_drop_epochs is not None:
            self._epoch_steps = math.ceil(len(dataloader) / args.gradient_accumulation_steps)
        return super().set_initial_training_values(args, dataloader)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule of `lr_drop_epochs` or `lr_half_life_steps`, else that of `Seq2SeqTrainer`."""
        args = self.args
        if not self._created_lr_scheduler and not self.is_deepspeed_enabled:
            refuse_scheduler(args, self.lr_scheduler)
        if self.lr_scheduler is None:
            if args.lr_drop_epochs is not None:
                self.lr_scheduler = epoch_drops(
                    optimizer or self.optimizer,
                    args.lr_drop_epochs,
                    self._epoch_steps or math.ceil(num_training_steps / args.num_train_epochs),
                )
            elif args.lr_half_life_steps is not None:
                self.lr_scheduler = half_life(optimizer or self.optimizer, args.lr_half_life_steps)
            self._created_lr_scheduler = self.lr_scheduler is not None
        return super().create_scheduler(num_training_steps, optimizer)

    # ---- data ----

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            known: list[str] = vars(self)["_signature_columns"]
            # A collator may read columns that the model does not take (paths of images, texts); losses read labels.
            known += [LABELS, *getattr(self.data_collator.base_collator, "columns", ())]
            self._view_columns = frozenset(known)
            known += [ROW_ID, PADDING_ROW]
            if self.args.share_prefixes is not None:
                known.append(self.args.share_prefixes)

    def _note_partners(self, columns: Iterable[str]) -> list[str]:
        """Add the columns of partners in some data to the columns that are read, and return all of these."""
        self._set_signature_columns_if_needed()
        known: list[str] = vars(self)["_signature_columns"]
        return add_known_partners(known, self._view_columns, columns)

    def _known_columns(self, data: Any) -> list[str]:
        """Return the columns that are read: all, or those of the model and the collator for all views."""
        columns = columns_of(data) or []
        return list(self._note_partners(columns)) if self.args.remove_unused_columns else columns

    def _trains_originals(self, description: str | None) -> bool:
        """Return whether a data loader is that of an ERM run, which neither reads nor collates partners."""
        return not self.args.uses_partners and description is not None and description.lower() == "training"

    def _remove_unused_columns(self, dataset: datasets.Dataset, description: str | None = None) -> datasets.Dataset:
        if is_transformed(dataset):
            return dataset  # the transform may need any stored column; those that it makes are dropped in batches
        if self._trains_originals(description):
            dataset = dataset.select_columns([name for name in dataset.column_names if not is_augmented(name)])
        if self.args.remove_unused_columns:
            self._note_partners(dataset.column_names)
        return super()._remove_unused_columns(dataset, description=description)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        collator = super()._get_collator_with_removed_columns(data_collator, description)
        if self.args.remove_unused_columns:
            collator = partial(collate_known_partners, collator, self._view_columns)
        return partial(collate_unless_ready, collator)

    def _get_dataloader(self, dataset: Any, description: str, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        if description == "Training":
            self.pair_sampler = None  # that of an earlier run
        if self._trains_originals(description) and isinstance(dataset, TensorPairs):
            dataset = dataset.originals()
        if isinstance(dataset, torch.utils.data.IterableDataset):
            if (ranks := self.accelerator.num_processes) > 1:
                dataset = PaddedStream(dataset, batch_size * ranks)
        loader = super()._get_dataloader(dataset, description, batch_size, *args, **kwargs)
        # Here and not in the collator: `TensorPairs` make batches without one.
        inner = getattr(loader, "base_dataloader", loader)
        if is_transformed(dataset):
            inner.collate_fn = self._get_collator_with_removed_columns(inner.collate_fn, description)
        if self._trains_originals(description):
            inner.collate_fn = partial(collate_originals, inner.collate_fn)
        sampler = self.pair_sampler if description == "Training" else None
        if isinstance(sampler, TokenBatchSampler) and sampler.has_empty_batches:
            inner.collate_fn = partial(collate_or_pad, inner.collate_fn, inner.dataset[0])
        inner.collate_fn = LayoutCollator(inner.collate_fn, self.pair_loss.target_rule)
        if self.args.share_prefixes is not None:
            inner.collate_fn = ForestCollator(inner.collate_fn, self.args.share_prefixes, nodes_at_once(self.model))
        return loader

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with explained(f"{resume_from_checkpoint}: {OTHER_MODEL}", RuntimeError):
            if isinstance(self.model, PreTrainedModel) and not self.is_fsdp_enabled:
                load_weights(self.model, Path(resume_from_checkpoint))
                return
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            if isinstance(self.model, PeftModel):
                require_adapters(self.model, Path(resume_from_checkpoint))

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Compare an evaluation with the best one; log that a metric without a value cannot be compared."""
        name = f"eval_{(self.args.metric_for_best_model or '').removeprefix('eval_')}"
        if np.isnan(metrics.get(name, 0.0)):
            logger.warning(f"{name} is NaN at step {self.state.global_step}, which therefore cannot be the best.")
        return bool(super()._determine_best_metric(metrics, trial))

    def _load_best_model(self) -> None:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        args = self.args
        if not args.pair_group_by_length and args.max_tokens_per_batch is None and args.share_prefixes is None:
            return super()._get_train_sampler(train_dataset)
        dataset = train_dataset if train_dataset is not None else self.train_dataset
        self.pair_sampler = train_sampler(dataset, args, self._train_batch_size)
        self.pair_loss.longest_row = getattr(self.pair_sampler, "longest_row", 0)
        return self.pair_sampler

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of one optimizer step, and the counts of all of them over all ranks."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        if not batches:
            return batches, None
        last, layout = batches[-1], self.pair_loss.layout(batches[-1])
        mask_repeated_rows(last, layout, self.accelerator)
        if len(batches) < num_batches:
            # A stream ended. `Trainer` would add the gradient of the incomplete step to the next.
            empty = {**last, VIEW_MASK: torch.zeros_like(view_mask(last)), LAYOUT: layout.first(0)}
            batches += [empty] * (num_batches - len(batches))
        self._check_targets_once(batches[0])
        if self.augmenter is not None and self.args.uses_partners:
            batches = [self._with_online_partners(batch, number) for number, batch in enumerate(batches)]
        local = np.sum([self.pair_loss.layout(batch).counts(self.args.uses_partners) for batch in batches], axis=0)
        counts = Counts(*self.accelerator.reduce(on_device(local, device), "sum"))
        # The sums over ranks stay on the device, unless this rank has no row, or had no target yet.
        if local[0] == 0 and counts.rows == 0:
            # Each worker of a stream pads its part: these rows are all padding.
            return self.get_batch_samples(epoch_iterator, num_batches, device)
        self.has_targets = self.has_targets or bool(local[2] or counts.tokens)
        self.has_pairs = self.has_pairs or not self.args.uses_partners or bool(local[1] or counts.pairs)
        steps = self.state.global_step + 1
        if not self.has_targets:
            logger.warning_once(f"In the first steps {NO_TARGETS}")
        elif not self.has_pairs and steps in (STEPS_WATCHED, self.state.max_steps):
            logger.warning(f"In the first {steps} steps {NO_PAIRS}")
        if steps == STEPS_WATCHED:
            self.require_pairs_and_targets()
        return batches, counts

    def require_pairs_and_targets(self) -> None:
        """Refuse to go on if no row had a target so far, or a partner, if it was unknown whether the data have one."""
        if not self.has_targets:
            raise DataError(f"train_dataset: {NO_TARGETS}")
        if self.awaits_pairs and not self.has_pairs:
            data, known = self.train_dataset, self._known_columns(self.train_dataset)
            raise DataError(no_pairs("train_dataset", columns_of(data), known, self.args.method))

    def _check_targets_once(self, batch: Mapping[str, Any]) -> None:
        if self._checked_targets:
            return
        self._checked_targets = True
        columns = {name: batch.get(name) for name in ("input_ids", LABELS)}
        originals = {name: values[:, 0] for name, values in columns.items() if isinstance(values, Tensor)}
        # On all ranks together, so that no rank waits for one that raised an error.
        gather_results(lambda: check_targets(self.model, originals, refuse=self.generates))

    def _with_online_partners(self, batch: dict[str, Any], number: int) -> dict[str, Any]:
        assert self.augmenter is not None
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        key = (seed, "augmenter", self.state.global_step, self.accelerator.process_index, number)
        with self.compute_loss_context_manager():
            return add_online_partners(self.augmenter, self.model, self._prepare_inputs(batch), self.args.device, *key)

    # ---- checkpoints ----

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as `Seq2SeqTrainer` does, after checking that all losses were finite."""
        self._finiteness.check()
        super().save_model(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        save_classes(self.model, Path(output_dir or self.args.output_dir))

    def _states(self) -> dict[str, Any]:
        """Return the stateful parts of a run that checkpoints contain, by file name."""
        states: dict[str, Any] = {}
        if isinstance(self.batch_objective, nn.Module) and self.batch_objective.state_dict():
            states[OBJECTIVE_FILE] = self.batch_objective
        if self.args.dair_lambda == AUTO and self.args.uses_regularizer:
            states[LAMBDA_FILE] = self.lambda_control
        return states

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            for file, part in self._states().items():
                safetensors.torch.save_file(part.state_dict(), Path(output_dir) / file)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with explained(f"{checkpoint}: {OTHER_MODEL}", ValueError):
            super()._load_optimizer_and_scheduler(checkpoint)
        for file, part in self._states().items() if checkpoint is not None else ():
            path = Path(str(checkpoint)) / file
            if not path.exists():
                if file == LAMBDA_FILE:
                    raise DataError(
                        f"{path} is missing: the run of this checkpoint had a fixed lambda, so that dair_lambda='auto' "
                        "has no state to go on from, or the file was lost; resume with the dair_lambda of that run, or "
                        "resume another checkpoint"
                    )
                raise DataError(
                    f"{path} is missing, so the state of the {path.stem} is lost; resume another checkpoint"
                )
            part.load_state_dict(safetensors.torch.load_file(path))

    # ---- loss ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run a step of `Seq2SeqTrainer`; the first call compares a named sample loss with the model's own."""
        self._compare_loss_once(inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def _compare_loss_once(self, inputs: Mapping[str, Any]) -> None:
        name, self._uncompared_loss = self._uncompared_loss, None
        if name is None or self.is_deepspeed_enabled:
            return
        model: Any = getattr(self.model, "_orig_mod", self.model)
        with self.compute_loss_context_manager():
            compare_with_own_loss(model, self._prepare_inputs(inputs), self.pair_loss, name)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the contribution of a micro-batch to the objective of the optimizer step.

        In training it is multiplied by the number of ranks, since engines average gradients over ranks.

        Args:
            model: The (wrapped) model.
            inputs: A batch of `PairCollator`, on the device.
            return_outputs: Whether to return the outputs of the model, for existing views in `[B, V]` order. With
                `chunked_loss` their logits are zeros.
            num_items_in_batch: `Counts` of the optimizer step; None: those of this batch.

        Returns:
            A scalar; with `return_outputs` also the outputs.

        Raises:
            DataError: The objective of the batch returned something else than a scalar tensor, or no gradient reaches
                the model.
            NonFiniteLossError: A loss is NaN or infinite; the message names the rows. In training it may be raised some
                steps later, since the host does not wait for the device (`finiteness`).
        """
        outputs = self.pair_loss(model, inputs, with_partners=self.args.uses_partners)
        counts = self.pair_loss.count(inputs) if num_items_in_batch is None else num_items_in_batch
        is_training = self.is_in_train and model.training
        dair_lambda = self._lambda(counts, is_training)
        if self.batch_objective is not None and model.training and outputs.layout.targets[:, 0].any():
            loss = require_scalar(self.batch_objective(outputs, self.state.global_step), self.batch_objective)
        else:
            loss = self.pair_loss.objective(outputs.terms, counts, dair_lambda)
        if is_training and torch.is_grad_enabled():
            require_gradient(loss, outputs.terms.original, model, self.batch_objective, self.sample_loss)
        step = self.state.global_step
        self._finiteness.add(loss, outputs.terms, inputs.get(ROW_ID), step, dair_lambda, outputs.losses)
        if not is_training:
            self._finiteness.check()
        if model.training:
            self._add_to_log(outputs, inputs, counts, dair_lambda)
            if self.args.pair_history and outputs.layout.paired.any():
                were_run = outputs.was_run[:, :1] & outputs.was_run[:, 1:] & trained_partners(outputs.targets)
                self.pair_history.add(inputs.get(ROW_ID), outputs.losses, were_run)
        if num_items_in_batch is not None:
            # Data-parallel engines average the gradients of the ranks; the objective is their sum.
            loss = loss * self.accelerator.num_processes
        return (loss, outputs.outputs) if return_outputs else loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of the gradient of the step, after it was handed to the check that it is finite."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # Under a scaler of half precision, overflows are expected: the step is skipped and the scale lowered.
        if isinstance(norm, Tensor) and self.accelerator.scaler is None and not self.is_deepspeed_enabled:
            whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of FSDP
            self._finiteness.add_norm(whole, self.state.global_step)
        return norm

    def _lambda(self, counts: Counts, is_training: bool) -> float | Tensor:
        """Return lambda of the training step, or of an evaluation between two steps."""
        control = self.lambda_control
        return control.at_step(self.state.global_step, counts) if is_training else control.in_evaluation

    # ---- logging ----

    def _track_num_input_tokens(self, inputs: Mapping[str, Any]) -> None:
        """Count the input tokens of the views that were run; absent views are filled, but not run."""
        if self.args.include_num_input_tokens_seen != "no":
            views = self.pair_loss.trained_views(self.pair_loss.layout(inputs))
            super()._track_num_input_tokens(flatten_views(inputs, views))

    def _add_to_log(
        self, outputs: PairOutputs, batch: Mapping[str, Any], counts: Counts, dair_lambda: float | Tensor
    ) -> None:
        with torch.no_grad():
            exists, was_run = view_mask(batch)[:, 0], outputs.was_run[:, 0]
            forest = batch.get(FOREST)
            positions = count_positions(batch, outputs.was_run)
            if forest is not None:
                positions = on_device(np.array([forest.tokens, forest.nodes]), exists.device)
            terms, targets, slopes = outputs.terms, outputs.targets[:, 0], self.pair_loss.slopes(outputs)
            gradients = root_gradients(outputs.losses, outputs.terms, slopes, self.args)
            if self.is_in_train:
                self.lambda_control.add(gradients, terms)
            lowest = lowest_slopes(slopes, terms)
            sums = sum_terms(
                terms, targets, exists, counts, self.args, dair_lambda, lowest, gradients, was_run, positions
            )
            self._sums = sums if self._sums is None else self._sums + sums

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; training logs also contain the metrics since the last log, over all ranks (`train_metrics`)."""
        self._finiteness.check()
        if "loss" in logs and self._sums is not None:
            terms = mean_terms(self.accelerator.reduce(self._sums, "sum"), self.args)
            logs = {**logs, **terms, **self.lambda_control.logs()}
            self._sums = None
        super().log(logs, start_time)

    # ---- model card ----

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card: the Trainer's, with model, use, method, lambda and its unit, data and metrics."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            training = TrainingFacts.of(self.train_dataset, kwargs.get("dataset"))
            training.final_lambda = self.lambda_control.latest
            training.objective = description_of(self.batch_objective)
            training.augmenter = description_of(self.augmenter)
            repo = getattr(self, "hub_model_id", None) or self.args.hub_model_id  # the former has the user's name
            model = ModelFacts(self.accelerator.unwrap_model(self.model), self.processing_class, repo)
            path, reports = Path(self.args.output_dir) / "README.md", list(self.pair_results.values())
            write_model_card(path, self.args, reports, training, model)
