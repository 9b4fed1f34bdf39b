"""DAIRTrainer: a Seq2SeqTrainer that trains on, evaluates and reports pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from accelerate.utils import recursively_apply
from numpy.typing import ArrayLike
from torch import Tensor, nn
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    SequenceFeatureExtractor,
    default_data_collator,
)
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import view_mask
from dair_hf.data.checks import require_named_partners, require_pairs, require_rows
from dair_hf.data.collator import LABELS, LAYOUT, ROW_ID, VIEW_MASK, PairCollator, filled_positions
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.evaluation.generation import chosen_class, output_of
from dair_hf.evaluation.pair_predictor import PairPredictor, padded_array
from dair_hf.evaluation.tensor_views import TensorViews, views_of
from dair_hf.evaluation.views import PairViews
from dair_hf.io.files import require_file
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.forwards import split_pairs
from dair_hf.losses.objective import Counts, PairTerms
from dair_hf.losses.per_sample import SampleLoss, causal_nll
from dair_hf.training.checks import (
    CLASS_LOSSES,
    LANGUAGE_LOSSES,
    MODEL_LOSSES,
    base_model_of,
    can_generate,
    compare_with_own_loss,
    decoder_inputs_of,
    derived_sample_loss,
    dropout_rates,
    refuse_unsupported,
    refuse_unsupported_launch,
    resolve_sample_loss,
    row_rules,
)
from dair_hf.training.environments import BatchObjective, FreshOptimizer, PenalizedRisk
from dair_hf.training.finiteness import FinitenessCheck, negative_losses, undefined_roots
from dair_hf.training.forward import PairLoss, PairOutputs
from dair_hf.training.loading import Augmenter, EpochCallback, PairLoading
from dair_hf.training.model_card import PairReport, write_model_card
from dair_hf.training.schedules import epoch_drops, half_life
from dair_hf.training.train_metrics import mean_terms, sum_terms

logger = logging.get_logger(__name__)

OBJECTIVE_FILE = "objective.safetensors"
IsCorrect = Callable[[list[Any], list[Any]], ArrayLike]


class DAIRTrainer(PairLoading):
    """Trains on pairs with the DAIR objective; everything else is `Seq2SeqTrainer`.

    The objective (equations 1 to 4 of the paper, `objective.normalized_objective`) is normalised by the counts of the
    whole optimizer step: all micro-batches of the accumulation window and all ranks, a ragged last one included, so
    the same data gives the same update however it is cut.

    Without partners, with `normalization="token"`, one micro-batch a step and one process, an update is that of
    `Seq2SeqTrainer` bit for bit. With several micro-batches it still is for models that take `num_items_in_batch`, as
    decoder-only ones do; for the others (T5, BART) `Seq2SeqTrainer` averages the means of the micro-batches, in which a
    token of a short micro-batch weighs more. The default, `normalization="pair"`, divides by rows and not by tokens.

    Args:
        model: Any model whose forward returns what the sample loss needs (`logits` for the named ones).
        args: A `DAIRConfig`.
        data_collator: A `PairCollator`, or the task's own collator, which is then wrapped in one. None: with a
            tokenizer padding of inputs, and of labels where they are tokens; plain stacking otherwise.
        train_dataset: Paired rows: a `datasets.Dataset`, an `EpochPairs`, `TensorPairs`, or any torch data set of such
            rows.
        eval_dataset: Likewise.
        processing_class: The tokenizer; decodes predictions and labels.
        sample_loss: Loss of a row. None: the one that the model computes from its labels, derived from its class and
            configuration (`trainer_checks.derived_sample_loss`). A name of `sample_losses.SAMPLE_LOSSES`; one that a
            model may compute itself is compared with the model's own loss before the first step. Or a callable
            `(outputs, labels) -> [rows]`.
        is_correct: The task's correctness `(predictions, references) -> bool [N]`, of texts, classes or logits
            (`evaluate_pairs`). Where given, `evaluate` runs `evaluate_pairs` as well, so that
            `metric_for_best_model="eval_cm"` works.
        references: Column that holds the references of `is_correct` (its partner column is `augmented_<name>`);
            None: the labels, decoded for language models.
        objective: What is trained in place of the DAIR objective: a callable `(found, step) -> scalar` over one batch
            (`batch_objectives`: IRM, V-REx, Group DRO, ...). `method` then only says whether partners are run, and what
            is logged and evaluated stays the objective of `args`.
        augmenter: What makes partners while training: `(model, batch, generator) -> batch` with partners
            (`collator.add_partners`), called once a batch of `[B, V, ...]` columns on the device. An attack on the
            model, a generator, a transform of images; its draws come from `generator` alone.
        **kwargs: As in `Seq2SeqTrainer`.

    Raises:
        TypeError: `args` is no `DAIRConfig`.
        DataError: An unknown sample loss, one that cannot be derived, or an unsupported combination of settings.

    Example:
        >>> trainer = DAIRTrainer(model=model, args=DAIRConfig("out"), train_dataset=pairs)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """

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
        is_correct: IsCorrect | None = None,
        references: str | None = None,
        objective: BatchObjective | None = None,
        augmenter: Augmenter | None = None,
        **kwargs: Any,
    ) -> None:
        args = DAIRConfig("tmp_trainer") if args is None else args
        if not isinstance(args, DAIRConfig):
            raise TypeError(f"args is a {type(args).__name__}; DAIRTrainer needs a DAIRConfig, which has its fields")
        self.is_correct = is_correct
        self.references = references
        self.objective = objective
        self.augmenter = augmenter
        require_rows(train_dataset, "train_dataset")
        for data in eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]:
            require_rows(data, "eval_dataset")
        refuse_unsupported_launch(args, kwargs, train_dataset, augmenter)
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
        if data_collator is None:
            data_collator = self._default_collator()
        # A copy: the rules are those of this model.
        self.data_collator: PairCollator = (
            copy.copy(data_collator) if isinstance(data_collator, PairCollator) else PairCollator(data_collator)
        )
        self._set_row_rules()
        on_device = isinstance(train_dataset, TensorPairs) and train_dataset.device.type != "cpu"
        if self.args.device.type == "cpu" or on_device:
            self.args.dataloader_pin_memory = False  # there is nothing to pin memory for; torch would warn or refuse
        # `compute_loss` divides by the counts of the whole accumulation window itself.
        self.loss_is_scaled_for_ga = True
        self._pair_loss: PairLoss | None = None
        self._pair_loss_key: tuple[Any, ...] = ()
        _ = self.pair_loss  # a model that it cannot run is refused now
        # What an objective has learnt belongs to its model: `model_init` starts both anew.
        self._objective_start = copy.deepcopy(objective.state_dict()) if isinstance(objective, nn.Module) else None
        self._sums: Tensor | None = None
        self._said_dropout = False
        self._uncompared_loss = self.sample_loss_name if self.sample_loss_name in MODEL_LOSSES else None
        self._evaluated_rows: list[Tensor] = []
        self._rows_seen = 0
        self._answers: Tensor | None = None
        self._exists: Tensor | None = None
        self._judged: tuple[Any, dict[str, Any]] | None = None
        self.pair_reports: dict[str, PairReport] = {}
        self.add_callback(EpochCallback(self))
        self._finiteness = FinitenessCheck(args, objective)
        self.add_callback(self._finiteness)
        if isinstance(objective, PenalizedRisk):
            self.add_callback(FreshOptimizer(objective.anneal_steps))

    @property
    def pair_loss(self) -> PairLoss:
        """Losses and counts of batches; made anew where the model was replaced, as `model_init` does for each run."""
        args, model = self.args, self.model
        # A sum over pairs is trained part by part; for anything else all losses are needed before the first gradient.
        held = args.gradient_cache if self.objective is not None else None
        key = (model, args.chunked_loss, held)
        if self._pair_loss is None or self._pair_loss_key != key:
            chunked = ChunkedLoss(model, self.sample_loss is causal_nll) if args.chunked_loss else None
            self._pair_loss = PairLoss(args, self.sample_loss, decoder_inputs_of(model), chunked, held)
            self._pair_loss_key = key
        return self._pair_loss

    def _answers_in_text(self) -> bool:
        """Whether predictions are generated: as `predict_with_generate` says, or by the kind of the model."""
        writes, asked = can_generate(self.model), self.args.predict_with_generate
        if asked and not writes:
            raise DataError(
                f"predict_with_generate=True, but {type(base_model_of(self.model)).__name__} cannot generate; leave it "
                "unset"
            )
        language = {self.sample_loss_name, derived_sample_loss(self.model)}.intersection(LANGUAGE_LOSSES)
        return writes and bool(language) if asked is None else asked

    def _set_row_rules(self) -> None:
        name = self.sample_loss_name
        is_own = name in MODEL_LOSSES and name == derived_sample_loss(self.model)
        self.data_collator.rules = row_rules(self.model, self._loss_kind(), is_own)

    def _default_collator(self) -> Callable[..., Any]:
        """As `Trainer`'s, and labels that are tokens are padded as well."""
        tokenizer, kind = self.processing_class, self._loss_kind()
        if not isinstance(tokenizer, (PreTrainedTokenizerBase, SequenceFeatureExtractor)):
            return default_data_collator
        if kind in LANGUAGE_LOSSES and isinstance(tokenizer, PreTrainedTokenizerBase):
            return DataCollatorForSeq2Seq(tokenizer, model=None)
        if kind == "token_classification":
            return DataCollatorForTokenClassification(tokenizer)
        return DataCollatorWithPadding(tokenizer)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As `Seq2SeqTrainer.train`; says once where dropout alone makes R positive."""
        rates = dropout_rates(self.model)
        independent = self.args.method == "dair" and self.args.pair_dropout == "independent"
        if rates and independent and not self._said_dropout:
            self._said_dropout = True
            found = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
            logger.warning(
                f"Dropout is on ({found}): the views of a pair draw different masks, so R is above 0 even for "
                "identical views. Set pair_dropout='shared' to compare the views alone."
            )
        return super().train(*args, **kwargs)

    def _inner_training_loop(self, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """One run: nothing of the run before it is left, and settings that were assigned since are checked."""
        self.args.validate()
        refuse_unsupported_launch(self.args, {}, self.train_dataset, self.augmenter)
        refuse_unsupported(self.args, self.sample_loss, self.objective, self.augmenter, self.model)
        self._sums = None
        self._finiteness.clear()
        self._set_row_rules()  # embeddings may have been resized
        self._steps_watched, self._saw_here, self._read_to_end = 0, False, False
        self._saw_pair = not self.args.uses_partners or self.augmenter is not None
        if not self._saw_pair:
            data = self.train_dataset
            self._saw_pair = require_pairs(data, self._known_columns(data), self.args.method, "train_dataset")
        if self.model_init is not None and isinstance(self.objective, nn.Module) and self._objective_start is not None:
            self.objective.load_state_dict(self._objective_start)
        return super()._inner_training_loop(batch_size, *args, **kwargs)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """As `Seq2SeqTrainer.create_scheduler`, or the schedule of `lr_drop_epochs` or `lr_half_life_steps`."""
        args = self.args
        if getattr(self, "lr_scheduler", None) is None:
            if args.lr_drop_epochs is not None:
                self.lr_scheduler = epoch_drops(
                    optimizer or self.optimizer, args.lr_drop_epochs, args.num_train_epochs, num_training_steps
                )
            elif args.lr_half_life_steps is not None:
                self.lr_scheduler = half_life(optimizer or self.optimizer, args.lr_half_life_steps)
            self._created_lr_scheduler = getattr(self, "lr_scheduler", None) is not None
        return super().create_scheduler(num_training_steps, optimizer)

    # ---- checkpoints ----

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """As `Seq2SeqTrainer.save_model`, after the losses of all steps were found finite."""
        self._finiteness.check()
        super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if isinstance(self.objective, nn.Module) and self.objective.state_dict() and self.args.should_save:
            safetensors.torch.save_file(self.objective.state_dict(), Path(output_dir) / OBJECTIVE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and isinstance(self.objective, nn.Module) and self.objective.state_dict():
            path = Path(checkpoint) / OBJECTIVE_FILE
            if not path.exists():
                raise DataError(f"{path} is missing, so the state of the objective is lost; resume another checkpoint")
            self.objective.load_state_dict(safetensors.torch.load_file(path))

    # ---- loss ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """As `Seq2SeqTrainer.training_step`; with `gradient_cache` part by part, each with the counts of the step."""
        self._compare_loss_once(inputs)
        *others, last = split_pairs(inputs, self.args.gradient_cache if self.objective is None else None)
        loss: Any = 0.0
        state = self.accelerator.gradient_state
        syncs = state.sync_gradients
        for part in others:
            state._set_sync_gradients(False)
            with self.accelerator.no_sync(model):
                loss += super().training_step(model, part, num_items_in_batch)
        state._set_sync_gradients(syncs)
        return loss + super().training_step(model, last, num_items_in_batch)

    def _compare_loss_once(self, inputs: Mapping[str, Any]) -> None:
        """Before anything is trained with it, compare a named loss with the model's own."""
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
        """The share of the step's objective that this micro-batch contributes.

        Args:
            model: The (wrapped) model.
            inputs: A batch of `PairCollator`, on the device.
            return_outputs: Whether to return the model's outputs (rows in `[B, V]` order, existing views only; with
                `chunked_loss` their logits are a stand-in).
            num_items_in_batch: `Counts` of the optimizer step; None: those of this batch.

        Returns:
            A scalar; with `return_outputs` also the outputs.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite; the message names the rows. While training it is raised once
                that is known, without waiting for the device (`finiteness`).
        """
        found = self.pair_loss(model, inputs, with_partners=self.args.uses_partners)
        counts = self.pair_loss.count(inputs) if num_items_in_batch is None else num_items_in_batch
        if self.objective is not None and model.training:
            loss = self.objective(found, self.state.global_step)
        else:
            loss = self.pair_loss.objective(found.terms, counts)
        self._finiteness.add(loss, found.terms, inputs.get(ROW_ID), self.state.global_step)
        if not (self.is_in_train and model.training):
            self._finiteness.check()
        if model.training:
            self._add_to_log(found, inputs, counts)
        if num_items_in_batch is not None:
            # Data-parallel engines average the gradients of the ranks; the objective is their sum.
            loss = loss * self.accelerator.num_processes
        return (loss, found.outputs) if return_outputs else loss

    # ---- logging ----

    def _add_to_log(self, found: PairOutputs, batch: Mapping[str, Any], counts: Counts) -> None:
        with torch.no_grad():
            exists, was_run = view_mask(batch)[:, 0], found.was_run[:, 0]
            filled = filled_positions(batch, found.was_run)
            sums = sum_terms(found.terms, found.targets[:, 0], exists, counts, self.args, was_run, filled)
            self._sums = sums if self._sums is None else self._sums + sums

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; a training log also carries the terms since the last one, summed over ranks and then divided."""
        self._finiteness.check()
        if "loss" in logs and self._sums is not None:
            logs = {**logs, **mean_terms(self.accelerator.reduce(self._sums, "sum"), self.args)}
            self._sums = None
        super().log(logs, start_time)

    # ---- evaluation ----

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Terms of one evaluation batch, from all ranks; predictions and labels of its originals.

        Args:
            model: The (wrapped) model.
            inputs: A batch of `PairCollator`.
            prediction_loss_only: Whether to leave predictions and labels out.
            ignore_keys: Outputs that are no predictions; None: those that the model's configuration names.
            **gen_kwargs: Not looked at: answers are generated for all rows at once.

        Returns:
            The objective of the batch, None where it has no labels; predictions; labels.
        """
        batch = self._prepare_inputs(inputs)
        exists, labels = view_mask(batch)[:, 0], batch.get(LABELS)
        loss = None
        if labels is not None or self.sample_loss_name is None:
            with torch.no_grad(), self.compute_loss_context_manager():
                terms, targets, *_ = self.pair_loss(model, batch, with_partners=True)
                if (negative := undefined_roots(terms, self.args)).any():
                    raise negative_losses(terms, negative, batch.get(ROW_ID), "of the evaluation")
                loss = self.pair_loss.objective(terms, self.pair_loss.count(batch)).detach()
            augmented_targets = targets[:, 1] if targets.shape[1] == 2 else torch.zeros_like(targets[:, 0])
            columns = (*terms, targets[:, 0], augmented_targets, exists)
            rows = torch.stack([column.double() for column in columns], dim=1)
            self._evaluated_rows.append(self.accelerator.gather_for_metrics(rows).cpu())
        if prediction_loss_only:
            return loss, None, None
        self._exists = self.accelerator.gather_for_metrics(exists)
        if self._answers is None:
            predictions = self._original_outputs(model, batch, ignore_keys)
        else:
            # Ranks take turns with batches of equal size; the last ones begin again with the first rows.
            ranks, rank, size = self.accelerator.num_processes, self.accelerator.process_index, len(exists)
            places = torch.arange(self._rows_seen + rank * size, self._rows_seen + (rank + 1) * size)
            predictions = self._answers[places % len(self._answers)].to(exists.device)
            self._rows_seen += ranks * size
        if "inputs" in self.args.include_for_metrics:
            # `compute_metrics` is given the batch, or a column of it, as the plain trainer sees it.
            for name in (ROW_ID, VIEW_MASK, LAYOUT):
                inputs.pop(name, None)
            inputs.update({name: values[:, 0] for name, values in inputs.items()})
        return loss, predictions, None if labels is None else labels[:, 0]

    def _original_outputs(self, model: nn.Module, batch: Mapping[str, Any], ignore_keys: list[str] | None) -> Any:
        """Predictions of a batch of originals, as `Trainer` gathers them."""
        originals = {name: v[:, 0] for name, v in batch.items() if isinstance(v, Tensor) and name != VIEW_MASK}
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**self.pair_loss.model_inputs(originals)[0])
        return output_of(outputs, getattr(self.model, "config", None), ignore_keys)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As `Trainer.evaluation_loop` over the originals; objective and terms are those of the pairs."""
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only
        self._evaluated_rows, self._rows_seen, self._answers, self._exists = [], 0, None, None
        if self.generates and not prediction_loss_only:
            originals = views_of(dataloader.dataset).originals()
            answers = self._predictor().predict(self._model_columns(originals), dict(self._gen_kwargs or {}))
            self._answers = torch.from_numpy(padded_array(answers))
        self.gather_function = self._gather_rows
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics = dict(output.metrics or {})
        if self._evaluated_rows:
            metrics.update({f"{metric_key_prefix}_{k}": v for k, v in self._evaluation_terms().items()})
        if self._judged is not None:
            # Here and not after `evaluate`, so that callbacks (early stopping) see these metrics too.
            pairs, gen_kwargs = self._judged
            judged = self.evaluate_pairs(pairs, n_bootstrap=0, **gen_kwargs)
            metrics.update({f"{metric_key_prefix}_{key}": value for key, value in judged.items()})
        return output._replace(metrics=metrics)

    def _gather_rows(self, values: Any) -> Any:
        """Values of a batch from all ranks, without rows that are repeated or filled up to even them out."""
        exists, gathered = self._exists, self.accelerator.gather_for_metrics(values)
        if exists is None or bool(exists.all()):
            return gathered
        return recursively_apply(lambda found: found[exists], gathered)

    def _evaluation_terms(self) -> dict[str, float]:
        rows = torch.cat(self._evaluated_rows)
        rows = rows[rows[:, 6] > 0]
        terms = PairTerms(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].bool())
        paired = terms.has_partner if self.args.uses_partners else torch.zeros_like(terms.has_partner)
        tokens = rows[:, 4].sum() + rows[paired, 5].sum()
        counts = Counts(torch.tensor(len(rows)), paired.sum(), tokens)
        sums = sum_terms(terms, rows[:, 4], torch.ones(len(rows), dtype=torch.bool), counts, self.args)
        return {"loss": self.pair_loss.objective(terms, counts).item(), **mean_terms(sums, self.args)}

    def _predictor(self) -> PairPredictor:
        reduce = self.preprocess_logits_for_metrics
        if reduce is None and self._loss_kind() in CLASS_LOSSES:
            reduce = chosen_class
        return PairPredictor(
            self.model,
            self.args,
            self.data_collator,
            self.accelerator,
            self.processing_class,
            self.generates,
            reduce,
            self.pair_loss.model_inputs,
        )

    def _loss_kind(self) -> str | None:
        """Name of the sample loss; of a callable, that of the model's own loss."""
        return self.sample_loss_name or derived_sample_loss(self.model)

    def _model_columns(self, views: PairViews) -> PairViews:
        if isinstance(views, TensorViews):
            return views  # tensors of other columns are kept apart from those of the model
        return views.select_columns(super()._remove_unused_columns(views.dataset).column_names)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As `Seq2SeqTrainer.evaluate`; with `is_correct` also what `evaluate_pairs` finds, under the same prefix."""
        self._finiteness.check()
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            if not isinstance(self.eval_dataset, dict) or dataset not in self.eval_dataset:
                raise DataError(f"eval_dataset={dataset!r} names no evaluation set; pass a data set")
            dataset = self.eval_dataset[dataset]  # one of several evaluation sets, by its name
        if self.is_correct is not None and not isinstance(dataset, dict):
            self._judged = (dataset, gen_kwargs)
        if not isinstance(dataset, dict):
            require_rows(dataset, "eval_dataset")
        self.keeps_order = self.compute_metrics is not None and not self.args.prediction_loss_only
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        finally:
            self._judged, self.keeps_order = None, False

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As `Seq2SeqTrainer.predict`: predictions and labels of the originals, in the order of the data."""
        require_rows(test_dataset, "test_dataset")
        self.keeps_order = not self.args.prediction_loss_only
        try:
            return super().predict(test_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        finally:
            self.keeps_order = False

    def evaluate_pairs(
        self,
        dataset: Any = None,
        is_correct: IsCorrect | None = None,
        *,
        references: str | None = None,
        clusters: str | None = None,
        accuracy_name: str = "accuracy",
        preset: str | None = None,
        data_name: str = "evaluation data",
        n_bootstrap: int = 1000,
        predictions_file: str | Path | None = None,
        answers: Callable[[list[Any]], Sequence[Any]] | None = None,
        scores: Mapping[str, Callable[[list[Any], list[Any]], ArrayLike]] | None = None,
        subsets: Mapping[str, Any] | None = None,
        **gen_kwargs: Any,
    ) -> dict[str, Any]:
        """Predict every view once and compare: accuracy of both views, CM, flips, with clustered bootstrap intervals.

        CM = P(H(z~) = 1 | H(z) = 1) over the rows with a partner, H being `is_correct` (the paper's consistency
        metric). Views are run in batches of similar length, shared out over the ranks; a row without partner is
        predicted once.

        Args:
            dataset: Paired rows, tokenised; None: the trainer's `eval_dataset`.
            is_correct: `(predictions, references) -> [N]` of True or False, or exactly 1 or 0; None: the trainer's.
                A prediction is, of a model that generates, the decoded text (without a tokenizer the list of its ids);
                of a classifier (sample loss "classification" or "soft_score") the number of its class, a numpy integer;
                of "token_classification" an array `[T]` of such numbers, padding included; of any other model its
                logits, an array, or a float where there is one. With `preprocess_logits_for_metrics` it is what that
                function makes of a view instead: a classifier's logits with `lambda logits, labels: logits`.
            references: Column of the references; None: the trainer's, or the labels.
            clusters: Column whose equal values belong together in the bootstrap; None: `dialogue_id` where the data
                has it, else every row on its own.
            accuracy_name: What the task calls its accuracy, such as "joint_goal_accuracy".
            preset: Preset of that accuracy, named in the model card.
            data_name: Name of the data in the model card.
            n_bootstrap: Resamples of the intervals; 0 leaves them out.
            predictions_file: Where to write one JSON line a view: row_id, variant, prediction, reference, correct.
            answers: Predictions -> what was answered, hashable; adds the flips of the answers, right or wrong, and is
                written to `predictions_file` in the place of the predictions: thousands of logits a view would fill it.
            scores: Name -> graded correctness `(predictions, references) -> float [N]`; adds `original_<name>` and
                `augmented_<name>`, such as the soft accuracy of visual question answering beside the strict one.
            subsets: Name -> one bool for every row of the data: the same figures over these rows alone, their keys with
                `<name>_` in front, such as `attainable_cm`.
            **gen_kwargs: Arguments of `generate`. Without any length among them `max_new_tokens` is the longest target
                of the data plus 8. No answer goes beyond the positions of a model that has a table of them.

        Returns:
            As `evaluation.correctness_metrics`, with `accuracy_name` in the place of "accuracy": over the rows with a
            partner `cm`, `cm_numerator`, `cm_denominator`, `both_correct`, `pos_to_neg`, `neg_to_pos`, `neg_to_neg`,
            `original_<accuracy_name>_pairs`, `augmented_<accuracy_name>_pairs`; over all rows, one without partner
            counting as two identical views, `original_<accuracy_name>`, `augmented_<accuracy_name>`, `cm_all_rows`,
            `cm_all_rows_numerator`, `cm_all_rows_denominator`; `rows`, `pairs`; and `_low` / `_high` of each ratio.

        Raises:
            DataError: No data, a missing column, a `predictions_file` that is no regular file, labels as references
                that no generated answer can begin with, or an `is_correct` that answers for another number of rows or
                with anything but right and wrong.

        Warns:
            UndefinedMetricWarning: No row has a partner, so CM is NaN.

        Example:
            >>> found = trainer.evaluate_pairs(  # doctest: +SKIP
            ...     pairs,
            ...     is_correct=lambda predictions, references: [p == r for p, r in zip(predictions, references)],
            ...     subsets={"long": [len(ids) > 100 for ids in pairs["input_ids"]]},
            ... )
            >>> found["cm"], found["long_cm"]  # doctest: +SKIP
            (0.91, 0.84)
        """
        is_correct = is_correct or self.is_correct
        if is_correct is None:
            raise DataError(
                "evaluate_pairs needs is_correct=(predictions, references) -> bool [N]; pass it here or at once"
            )
        if predictions_file is not None:
            require_file(predictions_file)  # now and not after hours of generation
        data = self.eval_dataset if dataset is None else dataset
        require_rows(data, "dataset")
        views = views_of(data)
        views.require_unique_rows()
        if not isinstance(views, TensorViews):
            require_named_partners(views.column_names, self._known_columns(views.dataset), "dataset")
        predictor = self._predictor()
        if not self.generates and predictor.reduce is None and self._loss_kind() in LANGUAGE_LOSSES:
            raise DataError(
                "evaluate_pairs judges answers, but with predict_with_generate=False a language model gives none; "
                "leave it unset, or pass preprocess_logits_for_metrics=(logits, labels) -> predictions to DAIRTrainer"
            )
        references = references or self.references
        expected = predictor.references(views, references)
        predicted = predictor.predict(self._model_columns(views), gen_kwargs, equal_labels=references is None)
        predictions = predictor.decode(predicted)
        correct = views.correctness(is_correct(predictions, expected))
        answered = None if answers is None else answers(predictions)
        found = views.judge(
            correct,
            clusters,
            accuracy_name,
            n_bootstrap,
            answers=answered,
            scores={name: score(predictions, expected) for name, score in (scores or {}).items()},
            subsets=subsets,
        )
        if predictions_file is not None and self.is_world_process_zero():
            views.write(predictions_file, predictions if answered is None else answered, expected, correct)
        self.pair_reports[data_name] = PairReport(data_name, accuracy_name, preset, found)
        return found

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card: the Trainer's, with method, lambda and its unit, data and metrics of pairs."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            path, reports = Path(self.args.output_dir) / "README.md", list(self.pair_reports.values())
            objective = None if self.objective is None else repr(self.objective)
            # A function's repr would tell where in memory it was.
            augmenter = getattr(
                self.augmenter, "__qualname__", None if self.augmenter is None else repr(self.augmenter)
            )
            write_model_card(path, self.args, reports, objective, augmenter)
