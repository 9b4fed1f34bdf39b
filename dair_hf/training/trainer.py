"""DAIRTrainer: a Seq2SeqTrainer that trains on, evaluates and reports pairs."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import safetensors.torch
import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    ImageProcessingMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    SequenceFeatureExtractor,
    TrainerCallback,
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
    PairCollator,
    collate_or_pad,
    collate_originals,
    collate_unless_ready,
    flatten_views,
    on_device,
)
from dair_hf.data.counter_rng import generator_for
from dair_hf.data.held_rows import is_transformed
from dair_hf.data.sampling import PaddedStream, TokenBatchSampler
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import is_augmented
from dair_hf.errors import DataError
from dair_hf.io.processes import gather_results
from dair_hf.losses.model_state import without_cudnn_attention
from dair_hf.losses.objective import Counts
from dair_hf.losses.per_sample import IGNORE_INDEX, SampleLoss, causal_nll
from dair_hf.losses.target_logits import needs_no_padding_mask, output_projection
from dair_hf.training.checks import (
    check_best_metric,
    dropout_rates,
    refuse_unsupported,
    refuse_unsupported_launch,
    require_columns,
)
from dair_hf.training.finiteness import FinitenessCheck
from dair_hf.training.forward.pair_loss import PairLoss, PairOutputs
from dair_hf.training.lambda_control import LambdaControl, root_gradients
from dair_hf.training.loading import (
    EpochCallback,
    OnlineAugmenter,
    add_known_partners,
    collate_known_partners,
    mask_repeated_rows,
    prepare_model,
    train_sampler,
)
from dair_hf.training.pair_evaluation import PairEvaluationTrainer
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
from dair_hf.training.text_rows import TextRows
from dair_hf.training.train_metrics import lowest_slopes, mean_terms, print_log, sum_terms

if TYPE_CHECKING:
    from dair_hf.evaluation.evaluator import Correct, PairEvaluator
    from dair_hf.training.environments import BatchObjective

logger = logging.get_logger(__name__)

OBJECTIVE_FILE = "objective.safetensors"
LAMBDA_FILE = "lambda.safetensors"
STEPS_WATCHED = 100  # optimizer steps after which a run without a target, or a stream without a pair, is stopped


class DAIRTrainer(PairEvaluationTrainer):
    """`Seq2SeqTrainer` that trains on pairs with the DAIR objective.

    The objective (equations 1 to 4 of the paper, `objective.normalized_objective`) is normalized by the counts of the
    whole optimizer step: all micro-batches of the accumulation window and all ranks, also in an incomplete last step.
    The same data gives the same update, however it is split into micro-batches and ranks.

    Without partners, with `normalization="token"`, one micro-batch per step and one process, updates equal
    `Seq2SeqTrainer`'s bit for bit. With several micro-batches the same holds for models that take `num_items_in_batch`,
    such as decoder-only models. For others (T5, BART) `Seq2SeqTrainer` adds or averages the means of micro-batches, so
    that a token of a short one weighs more. The default, `normalization="pair"`, divides by rows instead of tokens.

    Args:
        model: Model whose forward returns the inputs of the sample loss (`logits` for the named losses). Or its name on
            the Hub or folder, which is loaded in float32, as the class that its configuration names; with `text` and
            `label` in `train_dataset` as a classifier of texts, whose new output layer has the classes of the data.
        args: A `DAIRConfig`.
        data_collator: A `PairCollator`, or a collator of single views, which is wrapped in one. None: padding of inputs
            and of token labels if there is a tokenizer, else plain stacking.
        train_dataset: Paired rows: a `datasets.Dataset`, a list of dictionaries, `EpochPairs`, `TensorPairs`, or any
            torch data set of such rows. Rows of text in a known form (`pairs_from_jsonl`) are tokenized, also in other
            arguments. Of a `DatasetDict`, "train" is trained on, and "validation" is the default of `eval_dataset`.
        eval_dataset: Paired rows, or a dictionary of several evaluation sets.
        processing_class: Tokenizer, which encodes texts and decodes predictions and labels, or image processor. None:
            that of the model's name or folder, if it has one.
        sample_loss: Loss of a row: a name in `per_sample.SAMPLE_LOSSES`, or a callable `(outputs, labels) -> [rows]`.
            None: the loss that the model computes from its labels (`sample_loss.derived_sample_loss`). Before the first
            step, a named loss is compared with the model's own.
        evaluator: A `PairEvaluator`, or its `correct` alone: `(predictions, references) -> [N]` bool. If given,
            `evaluate` also runs `evaluate_pairs`, so that `metric_for_best_model="both_correct"` works. Classifiers and
            regressions need none.
        objective: Objective of a whole batch that replaces the DAIR objective in training, `(outputs, step) -> scalar`
            (`environments`: IRM, V-REx, Group DRO, ...). `method` then only decides whether partners are run. The
            logged and evaluated objective still follows `args`.
        augmenter: Makes partners during training: `(model, batch, generator) -> batch` with partners
            (`collator.add_partners`). It is called once per batch of `[B, V, ...]` columns on the device and draws
            random numbers from `generator` only. Examples are attacks on the model, generators and image transforms.
        peft_config: Adapters that are added to the model, such as `peft.LoraConfig(r=16)`.
        **kwargs: As in `Seq2SeqTrainer`.

    Raises:
        DataError: The model cannot be loaded, the sample loss is unknown or cannot be derived, or settings cannot be
            combined.

    Example:
        >>> trainer = DAIRTrainer(model=model, args=DAIRConfig("out"), train_dataset=pairs)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """

    args: DAIRConfig
    lr_scheduler: Any
    _created_lr_scheduler: bool
    pair_sampler: Any = None
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
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(train_dataset, dict):
            eval_dataset = train_dataset.get("validation") if eval_dataset is None else eval_dataset
            train_dataset = train_dataset["train"]
        require_rows(train_dataset, "train_dataset")
        args = DAIRConfig("tmp_trainer") if args is None else args
        model, processing_class = prepare_model(model, peft_config, processing_class, train_dataset, args.seed)
        self.evaluator: PairEvaluator | None = None
        if evaluator is not None:
            from dair_hf.evaluation.evaluator import as_evaluator

            self.evaluator = as_evaluator(evaluator)
        self.batch_objective = objective  # not `objective`, to which `hyperparameter_search` assigns the best value
        self.augmenter = augmenter
        refuse_unsupported_launch(args, train_dataset, kwargs.get("compute_loss_func"))
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        columns = columns_of(train_dataset)
        self.sample_loss, self.sample_loss_name = resolve_sample_loss(sample_loss, self.model, columns)
        if sample_loss is None:
            name = type(base_model_of(self.model)).__name__
            logger.info(f"sample_loss={self.sample_loss_name!r}, derived from {name}")
        refuse_unsupported(args, self.sample_loss, objective, self.model, augmenter)
        self.generates = self._answers_in_text()
        base = getattr(data_collator, "base_collator", data_collator) or default_data_collator
        self._text_rows = TextRows(
            lambda: self.model, processing_class, self._loss_name(), args, base, self.length_option
        )
        self.train_dataset = self.tokenize(self.train_dataset, "train_dataset")
        if isinstance(eval_dataset, dict):
            self.eval_dataset = {
                name: self.tokenize(data, f"eval_dataset[{name!r}]") for name, data in eval_dataset.items()
            }
        else:
            self.eval_dataset = self.tokenize(self.eval_dataset, "eval_dataset")
        if data_collator is None:
            data_collator = self._default_collator()
        # A copy, since its rules follow this model.
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
        self._add_callbacks()

    def _add_callbacks(self) -> None:
        from dair_hf.pair_report.history import PairHistory

        self.pair_history = PairHistory()
        self._finiteness = FinitenessCheck(self.args, self.batch_objective)
        self.lambda_control = LambdaControl(self.args, self.accelerator)
        for callback in (self.pair_history, EpochCallback(self), self._finiteness, self.lambda_control):
            self.add_callback(callback)
        handler: Any = self.callback_handler
        for console in handler.callbacks:
            if type(console) in (PrinterCallback, ProgressCallback):
                console.on_log = partial(print_log, console.on_log)
        if isinstance(self.batch_objective, TrainerCallback):
            self.add_callback(self.batch_objective)

    @property
    def pair_loss(self) -> PairLoss:
        """Losses and counts of batches; created again if the model was replaced, for example by `model_init`."""
        args, model = self.args, self.model
        key = (model, args.chunked_loss, args.share_prefixes)
        if self._pair_loss is None or self._pair_loss_key != key:
            chunked: Any = None
            trees: Any = None
            if args.chunked_loss:
                from dair_hf.losses.chunked import ChunkedLoss

                chunked = ChunkedLoss(model, self.sample_loss is causal_nll)
            if args.share_prefixes is not None:
                from dair_hf.trees.tree_loss import TreeForward

                trees = TreeForward(chunked)
            projection = None
            if self.sample_loss is causal_nll and self.batch_objective is None:  # an objective may read all logits
                projection = output_projection(model)
            # On a GPU, kernels of causal attention without a mask skip what no token sees.
            drops_masks = args.device.type == "cuda" and needs_no_padding_mask(model)
            self._pair_loss = PairLoss(
                args, self.sample_loss, decoder_inputs_of(model), chunked, trees, projection, drops_masks
            )
            self._pair_loss_key = key
        return self._pair_loss

    def _answers_in_text(self) -> bool:
        """Return whether predictions are generated: by `predict_with_generate`, else by the kind of model."""
        generates, setting = can_generate(self.model), self.args.predict_with_generate
        if setting and not generates:
            name = type(base_model_of(self.model)).__name__
            raise DataError(f"predict_with_generate=True: expected a model that generates, got {name}")
        if setting is not None:
            return setting
        losses = {self.sample_loss_name, derived_sample_loss(self.model)}
        reads_logits = self.preprocess_logits_for_metrics is not None and self.evaluator is None
        return generates and not losses.isdisjoint(LANGUAGE_LOSSES) and not reads_logits

    def _set_row_rules(self) -> None:
        name = self.sample_loss_name
        is_model_loss = name in MODEL_LOSSES and name == derived_sample_loss(self.model)
        self.data_collator.rules = row_rules(self.model, self._loss_name(), is_model_loss)

    def _default_collator(self) -> Callable[..., Any]:
        """Return the default collator of `Trainer`, or one that also pads token labels."""
        tokenizer, loss_name = self.processing_class, self._loss_name()
        if isinstance(tokenizer, ImageProcessingMixin):
            from dair_hf.data.collator import ImageCollator

            return ImageCollator(tokenizer, getattr(base_model_of(self.model).config, "num_channels", 3))
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            is_extractor = isinstance(tokenizer, SequenceFeatureExtractor)
            return DataCollatorWithPadding(tokenizer) if is_extractor else default_data_collator
        config = getattr(base_model_of(self.model), "config", None)
        if getattr(config, "model_type", None) != "xlnet":  # which reads the last position
            # Padding on the left would move absolute positions and the start of labels, and so change a row's loss.
            tokenizer = copy.copy(tokenizer)
            tokenizer.padding_side = "right"
        if loss_name in LANGUAGE_LOSSES:
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
                holds checkpoints of an earlier run.
            trial: As in `Seq2SeqTrainer`.
            *args: As in `Seq2SeqTrainer`.
            **kwargs: As in `Seq2SeqTrainer`.

        Raises:
            DataError: There is no complete checkpoint.
            RuntimeError: The checkpoint lacks a weight of the model.
        """
        from dair_hf.io.checkpoints import finished_checkpoints, resumable_checkpoint

        rates = dropout_rates(self.model)
        independent = self.args.uses_regularizer and self.args.pair_dropout == "independent"
        if rates and independent and not self._warned_of_dropout:
            self._warned_of_dropout = True
            settings = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
            logger.warning(
                f"Dropout is on ({settings}): the views of a pair get different masks, so R is above 0 even for "
                "identical views. Set pair_dropout='shared' to use the same masks."
            )
        self.has_targets = self.has_pairs = bool(resume_from_checkpoint)  # the run before had some
        if resume_from_checkpoint:
            resume_from_checkpoint = resumable_checkpoint(resume_from_checkpoint, self.args.output_dir)
        elif trial is None and (earlier := finished_checkpoints(Path(self.args.output_dir))) and self.args.should_log:
            logger.warning(
                f"{self.args.output_dir} holds {len(earlier)} checkpoints of an earlier run, such as "
                f"{earlier[-1].name}, which resume_from_checkpoint=True may take; better name another output_dir."
            )
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
        refuse_unsupported_launch(self.args, self.train_dataset, self.compute_loss_func, self.model)
        refuse_unsupported(self.args, self.sample_loss, self.batch_objective, self.model, self.augmenter)
        self._sums = None
        self._finiteness.held.clear()
        self.lambda_control.reset()
        self._set_row_rules()  # embeddings may have been resized
        self.train_dataset = self.tokenize(self.train_dataset, "train_dataset")  # it may have been assigned since
        self._check_data()
        objective, initial = self.batch_objective, self._initial_objective
        if self.model_init is not None and isinstance(objective, nn.Module) and initial is not None:
            objective.load_state_dict(initial)
        return super()._inner_training_loop(batch_size, *args, **kwargs)

    def _check_data(self) -> None:
        """Refuse data that cannot be trained on, or evaluated after an epoch, and a metric that cannot exist."""
        self._require_columns(self.train_dataset, "train_dataset")
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        for name, data in sets.items() if self.args.eval_strategy != "no" else ():
            where = f"eval_dataset {name}".strip()
            require_columns(self.args, self.model, data, (), where)  # it may still be text
            is_stored = isinstance(data, datasets.Dataset | datasets.IterableDataset) and not is_transformed(data)
            if self.evaluator is not None and is_stored:
                views, _ = self._views_to_evaluate(self.tokenize(data, where), self.evaluator, where)
                self.evaluator.units_and_masks(views, None)
        makes_metrics = self.compute_metrics is not None or type(self).evaluate is not PairEvaluationTrainer.evaluate
        evaluator = self.evaluator
        if evaluator is None and all(map(self._may_evaluate_pairs, sets.values())):
            evaluator = self._default_evaluator()
        check_best_metric(self.args, evaluator, self.eval_dataset, makes_metrics)
        data, method = self.train_dataset, self.args.method
        needs_pairs = self.args.uses_partners and self.augmenter is None
        self.awaits_pairs = needs_pairs and not require_pairs(data, self._known_columns(data), method, "train_dataset")

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return the lengths of the run, and keep the epoch's for `lr_drop_epochs`, which needs data with a length."""
        if args.lr_drop_epochs is not None:
            self._epoch_steps = math.ceil(len(dataloader) / args.gradient_accumulation_steps)
        return super().set_initial_training_values(args, dataloader)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule of `lr_drop_epochs` or `lr_half_life_steps`, else `Seq2SeqTrainer`'s."""
        args = self.args
        factor: Callable[[int], float] | None = None
        if args.lr_drop_epochs is not None:
            epoch_steps = self._epoch_steps or math.ceil(num_training_steps / args.num_train_epochs)
            factor = partial(_drop_factor, drop_steps=[round(epoch * epoch_steps) for epoch in args.lr_drop_epochs])
        elif args.lr_half_life_steps is not None:
            factor = partial(_half_life_factor, half_life_steps=args.lr_half_life_steps)
        if factor is not None:
            if self.lr_scheduler is None:
                self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
                self._created_lr_scheduler = True
            elif not self._created_lr_scheduler and not self.is_deepspeed_enabled:
                raise DataError(
                    "lr_drop_epochs, lr_half_life_steps: expected optimizers=(optimizer, None), got a scheduler"
                )
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
        """Return the columns that are read: all, or what model and collator read of all views."""
        columns = columns_of(data) or []
        return list(self._note_partners(columns)) if self.args.remove_unused_columns else columns

    def _require_columns(self, data: Any, name: str) -> None:
        require_columns(self.args, self.model, data, self._known_columns(data), name)

    def _trains_originals(self, description: str | None) -> bool:
        """Return whether a data loader is for an ERM run, which neither reads nor collates partners."""
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
            self.pair_sampler = None  # the sampler of an earlier run
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
            from dair_hf.trees.attention import nodes_at_once
            from dair_hf.trees.batches import ForestCollator

            limit = nodes_at_once(self.model, self.args.device.type, self.args.torch_compile)
            inner.collate_fn = ForestCollator(inner.collate_fn, self.args.share_prefixes, limit)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        args = self.args
        if not args.pair_group_by_length and args.max_tokens_per_batch is None and args.share_prefixes is None:
            return super()._get_train_sampler(train_dataset)
        dataset = train_dataset if train_dataset is not None else self.train_dataset
        self.pair_sampler = train_sampler(dataset, args, self._train_batch_size)
        if args.share_prefixes is not None:
            self.pair_loss.trees.longest_row = self.pair_sampler.longest_row
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
        if self.state.global_step + 1 == STEPS_WATCHED:
            self.require_pairs_and_targets(expects_pairs=self.awaits_pairs)
        return batches, counts

    def require_pairs_and_targets(self, expects_pairs: bool) -> None:
        """Stop a run in which no row had a target so far, or no partner although one is expected by now."""
        if not self.has_targets:
            raise DataError(f"train_dataset: expected targets, got labels that are all {IGNORE_INDEX}; truncate inputs")
        if expects_pairs and not self.has_pairs:
            data, known = self.train_dataset, self._known_columns(self.train_dataset)
            raise DataError(no_pairs("train_dataset", columns_of(data), known, self.args.method))

    def _check_targets_once(self, batch: Mapping[str, Any]) -> None:
        if self._checked_targets:
            return
        from dair_hf.evaluation.target_tokens import check_targets

        self._checked_targets = True
        columns = {name: batch.get(name) for name in ("input_ids", LABELS)}
        originals = {name: values[:, 0] for name, values in columns.items() if isinstance(values, Tensor)}
        # On all ranks together, so that no rank waits for one that raised an error.
        gather_results(lambda: check_targets(self.model, originals, refuse=self.generates))

    def _with_online_partners(self, batch: dict[str, Any], number: int) -> dict[str, Any]:
        """Return a batch with the partners of the augmenter, without the layout of the batch before."""
        assert self.augmenter is not None
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        key = (seed, "augmenter", self.state.global_step, self.accelerator.process_index, number)
        with self.compute_loss_context_manager():
            prepared, generator = self._prepare_inputs(batch), generator_for(self.args.device, *key)
            augmented = self.augmenter(self.model, prepared, generator)
        return {name: values for name, values in augmented.items() if name != LAYOUT}

    def hyperparameter_search(
        self, hp_space: Any = None, compute_objective: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Search as `Trainer` does, by a metric that is named: its default would add up all of them, counts too."""
        if compute_objective is None:
            example = "lambda metrics: metrics['eval_both_correct'] with direction='maximize'"
            raise DataError(f"compute_objective: expected one, such as {example}")
        return super().hyperparameter_search(hp_space, compute_objective, *args, **kwargs)

    # ---- checkpoints ----

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as `Seq2SeqTrainer` does, after checking that all losses were finite."""
        self._finiteness.check()
        super().save_model(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if isinstance(self.model, PeftModel):
            from dair_hf.training.model_card import save_classes

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
        super()._load_optimizer_and_scheduler(checkpoint)
        for file, part in self._states().items() if checkpoint is not None else ():
            part.load_state_dict(safetensors.torch.load_file(Path(str(checkpoint)) / file))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        from dair_hf.io.checkpoints import load_weights, require_adapters

        if isinstance(self.model, PreTrainedModel) and not self.is_fsdp_enabled:
            load_weights(self.model, Path(resume_from_checkpoint))
            return
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if isinstance(self.model, PeftModel):
            require_adapters(self.model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Compare an evaluation with the best one; log that a metric without a value cannot be compared."""
        name = f"eval_{(self.args.metric_for_best_model or '').removeprefix('eval_')}"
        if np.isnan(metrics.get(name, 0.0)):
            logger.warning(f"{name} is NaN at step {self.state.global_step}, which therefore cannot be the best.")
        return bool(super()._determine_best_metric(metrics, trial))

    # ---- loss ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run a step of `Seq2SeqTrainer`; the first call compares a named sample loss with the model's own."""
        name, self._uncompared_loss = self._uncompared_loss, None
        if name is not None and not self.is_deepspeed_enabled:
            with self.compute_loss_context_manager():
                bare: Any = getattr(self.model, "_orig_mod", self.model)
                compare_with_own_loss(bare, self._prepare_inputs(inputs), self.pair_loss, name)
        # Trees come in few sizes.
        with without_cudnn_attention() if self.args.share_prefixes is None else contextlib.nullcontext():
            return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the contribution of a micro-batch to the objective of the optimizer step.

        `num_items_in_batch` are the `Counts` of the step, in which the contribution is multiplied by the number of
        ranks, since engines average gradients over ranks. A loss that is not finite may raise its error some steps
        later, since the host does not wait for the device.
        """
        outputs = self.pair_loss(model, inputs, with_partners=self.args.uses_partners)
        counts = self.pair_loss.count(inputs) if num_items_in_batch is None else num_items_in_batch
        is_training, step = self.is_in_train and model.training, self.state.global_step
        control = self.lambda_control
        dair_lambda = control.at_step(step, counts) if is_training else control.in_evaluation
        if self.batch_objective is not None and model.training and outputs.layout.targets[:, 0].any():
            loss = self.batch_objective(outputs, step)
        else:
            loss = self.pair_loss.objective(outputs.terms, counts, dair_lambda)
        self._finiteness.add(loss, outputs.terms, outputs.losses, inputs.get(ROW_ID), step, dair_lambda)
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
            positions = self.pair_loss.positions(batch, outputs.was_run)
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
            from dair_hf.training.model_card import ModelFacts, TrainingFacts, write_model_card

            training = TrainingFacts.of(self.train_dataset, kwargs.get("dataset"))
            training.final_lambda = self.lambda_control.latest
            training.objective, training.augmenter = self.batch_objective, self.augmenter
            repo = getattr(self, "hub_model_id", None) or self.args.hub_model_id  # the former has the user's name
            model = ModelFacts(self.accelerator.unwrap_model(self.model), self.processing_class, repo)
            path, reports = Path(self.args.output_dir) / "README.md", list(self.pair_results.values())
            write_model_card(path, self.args, reports, training, model)


def _drop_factor(step: int, drop_steps: list[int]) -> float:
    """Return the factor of the learning rate after `step` optimizer steps: 0.1 to the power of past drops."""
    return 0.1 ** sum(step >= drop for drop in drop_steps)


def _half_life_factor(step: int, half_life_steps: int) -> float:
    return 0.5 ** (step / half_life_steps)
