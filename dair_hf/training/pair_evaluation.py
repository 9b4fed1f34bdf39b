"""Evaluation of pairs by a trainer: objective and terms, predictions of all views, pair reports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.data.batch_layout import view_mask
from dair_hf.data.checks import columns_of, require_equal_classes, require_rows
from dair_hf.data.collator import LABELS, ROW_ID, VIEW_MASK, PairCollator
from dair_hf.data.held_rows import held_rows, is_transformed
from dair_hf.data.texts.forms import label_of
from dair_hf.data.view_columns import is_augmented
from dair_hf.errors import DataError
from dair_hf.losses.model_state import without_cudnn_attention
from dair_hf.losses.objective import Counts
from dair_hf.losses.per_sample import full_precision
from dair_hf.training.finiteness import FinitenessCheck
from dair_hf.training.forward.pair_loss import PairLoss
from dair_hf.training.lambda_control import LambdaControl, root_gradients
from dair_hf.training.loading import eval_order
from dair_hf.training.sample_loss import CLASS_LOSSES, LANGUAGE_LOSSES, base_model_of, derived_sample_loss
from dair_hf.training.text_rows import TextRows
from dair_hf.training.train_metrics import SHARES_OF_LAMBDA, EvaluatedRows, lowest_slopes, mean_terms, sum_terms

if TYPE_CHECKING:
    from dair_hf.evaluation.evaluator import Correct, PairEvaluation, PairEvaluator
    from dair_hf.evaluation.prediction import PairPredictor
    from dair_hf.evaluation.views import PairViews
    from dair_hf.pair_report.build import Groups
    from dair_hf.pair_report.report import PairReport
    from dair_hf.training.model_card import PairResult

# Losses of models that have an evaluator by default.
LABEL_LOSSES, NUMBER_LOSSES = (*CLASS_LOSSES, "binary", "multi_label"), ("squared", "huber")


class PairEvaluationTrainer(Seq2SeqTrainer):
    """Base class of `DAIRTrainer`: a `Seq2SeqTrainer` that evaluates and reports pairs.

    `DAIRTrainer` adds the training, and sets the attributes that are declared here.
    """

    length_option = "max_length"  # name under which the user sets `args.max_length`, for messages

    args: DAIRConfig
    train_dataset: Any
    eval_dataset: Any
    data_collator: PairCollator
    evaluator: PairEvaluator | None
    sample_loss_name: str | None
    generates: bool
    lambda_control: LambdaControl
    _finiteness: FinitenessCheck
    _text_rows: TextRows

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pair_results: dict[str, PairResult] = {}
        # Whether evaluation rows may be read in any order, since no predictions are returned.
        self._sorts_by_length = False
        self._evaluate_pairs_args: tuple[Any, dict[str, Any]] | None = None
        # Of the evaluation that is running:
        self._evaluated_rows: list[Tensor] = []
        self._kept_views = 0  # views of every row whose losses are kept, for `pair_losses`
        self._rows_seen = 0
        self._answered: Any = None  # rows to which answers are generated
        self._answers: Tensor | None = None
        self._answer_labels: Tensor | None = None  # of `_answered`
        self._exists: Tensor | None = None

    @property
    def pair_loss(self) -> PairLoss:
        """Losses and counts of batches."""
        raise NotImplementedError

    def _known_columns(self, data: Any) -> list[str]:
        """Return the columns of some data that are read."""
        raise NotImplementedError

    def _require_columns(self, data: Any, name: str) -> None:
        """Refuse data without the columns that are read."""
        raise NotImplementedError

    def tokenize(self, dataset: Any, name: str = "dataset", *, prompts: bool = False) -> Any:
        """Return rows of text as rows with the model's columns; other data as they are.

        Training and evaluation do so themselves, once for each object. Texts in the columns of a known form
        (`pairs_from_jsonl`) are tokenized, unless there are `input_ids` or the collator reads the texts. With
        `prompts`, answers may be missing.
        """
        require_rows(dataset, name)
        has_classes = self._loss_name() in ("classification", "token_classification")
        config = getattr(base_model_of(self.model), "config", None)
        require_equal_classes(dataset, (getattr(config, "label2id", None) or {}) if has_classes else {}, name)
        return self._text_rows(dataset, name, prompts)

    # ---- loop over the originals ----

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        order = eval_order(eval_dataset, self.args.share_prefixes) if self._sorts_by_length else None
        return torch.utils.data.SequentialSampler(eval_dataset) if order is None else order

    @without_cudnn_attention()
    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Evaluate one batch: collect its terms from all ranks, return predictions and labels of its originals."""
        batch = self._prepare_inputs(inputs)
        exists, labels = view_mask(batch)[:, 0], batch.get(LABELS)
        loss = outputs = None
        if labels is not None or self.sample_loss_name is None:
            # Only some callables need no labels.
            without_labels = (TypeError, AttributeError) if labels is None else ()
            with torch.no_grad(), self.compute_loss_context_manager(), contextlib.suppress(*without_labels):
                outputs = self.pair_loss(model, batch, with_partners=True)
        if outputs is not None:
            terms, targets, losses = outputs.terms, outputs.targets, outputs.losses
            with torch.no_grad(), self.compute_loss_context_manager():
                self._finiteness.require_roots(terms, losses, batch.get(ROW_ID))
                counts = self.pair_loss.count(batch)
                loss = self.pair_loss.objective(terms, counts, self.lambda_control.in_evaluation).detach()
            # Every rank gathers the same number of columns.
            slopes = self.pair_loss.slopes(outputs)
            gradients = root_gradients(outputs.losses, outputs.terms, slopes, self.args)
            counted = targets[:, 0], targets[:, 1:].sum(1), exists
            columns = EvaluatedRows(*terms, *counted, *lowest_slopes(slopes, terms), *gradients.unbind(1))
            # In float64 on the host only, since MPS lacks it.
            rows = torch.stack([column.to(full_precision(terms.original).dtype) for column in columns], dim=1)
            if self._kept_views:
                absent = (0, max(0, self._kept_views - losses.shape[1]))
                of_views = [pad(values[:, : self._kept_views], absent).to(rows) for values in (losses, targets)]
                rows = torch.cat([rows, *of_views], dim=1)
            self._evaluated_rows.append(self.accelerator.gather_for_metrics(rows).cpu().double())
        if prediction_loss_only:
            return loss, None, None
        self._exists = self.accelerator.gather_for_metrics(exists)
        label_ids = None if labels is None else labels[:, 0]
        if self._answers is None:
            predictions = self._original_outputs(model, batch, ignore_keys)
        else:
            # Ranks take turns with batches of equal size; the last batches repeat the first rows.
            ranks, rank, size = self.accelerator.num_processes, self.accelerator.process_index, len(exists)
            row_numbers = torch.arange(self._rows_seen + rank * size, self._rows_seen + (rank + 1) * size)
            row_numbers %= len(self._answers)
            predictions = self._answers[row_numbers].to(exists.device)
            if self._answer_labels is not None:
                label_ids = self._answer_labels[row_numbers].to(exists.device)
            self._rows_seen += ranks * size
        if "inputs" in self.args.include_for_metrics:
            # `compute_metrics` gets the original views in the format of `Trainer`.
            originals = {name: v[:, 0] for name, v in inputs.items() if isinstance(v, Tensor) and name != VIEW_MASK}
            inputs.clear()
            inputs.update(originals)
        return loss, predictions, label_ids

    def _original_outputs(self, model: nn.Module, batch: Mapping[str, Any], ignore_keys: list[str] | None) -> Any:
        """Return the outputs for the originals of a batch that `Trainer` gathers as predictions."""
        from dair_hf.evaluation.prediction import output_of

        names = [name for name, values in batch.items() if isinstance(values, Tensor) and name != VIEW_MASK]
        originals = {name: batch[name][:, 0].contiguous() for name in names}
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
        """Run the loop of `Trainer` over the originals; objective and terms cover the pairs."""
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only
        from dair_hf.evaluation.prediction import padded_array
        from dair_hf.evaluation.views import views_of

        self._evaluated_rows, self._rows_seen, self._exists = [], 0, None
        self._answers = self._answer_labels = None
        if self.generates and not prediction_loss_only:
            answered = dataloader.dataset if self._answered is None else self._answered
            originals = views_of(held_rows(answered, self.args)).originals()
            answers = self._predictor().predict(self._model_columns(originals), dict(self._gen_kwargs or {}))
            self._answers = torch.from_numpy(padded_array(answers))
            if self._answered is not None:
                self._answer_labels = torch.from_numpy(padded_array(originals.column(LABELS)))
        self.gather_function = self._gather_rows
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics = dict(output.metrics or {})
        if self._evaluated_rows:
            metrics.update({f"{metric_key_prefix}_{k}": v for k, v in self._evaluation_terms().items()})
        if self._evaluate_pairs_args is not None:
            # Here and not after `evaluate`, so that callbacks (early stopping) see these metrics too.
            pairs, gen_kwargs = self._evaluate_pairs_args
            pair_metrics = self.evaluate_pairs(pairs, intervals=False, **gen_kwargs)
            # Those of `compute_metrics` come first.
            metrics = {f"{metric_key_prefix}_{key}": value for key, value in pair_metrics.items()} | metrics
        return output._replace(metrics=metrics)

    def _gather_rows(self, values: Any) -> Any:
        """Gather values of a batch from all ranks, without repeated and padding rows."""
        exists, gathered = self._exists, self.accelerator.gather_for_metrics(values)
        if exists is None or bool(exists.all()):
            return gathered
        return recursively_apply(lambda tensor: tensor[exists], gathered)

    def _evaluation_terms(self) -> dict[str, float]:
        rows = EvaluatedRows.of_table(torch.cat(self._evaluated_rows))
        terms, exists = rows.terms, rows.exists > 0
        paired = terms.has_partner if self.args.uses_partners else torch.zeros_like(terms.has_partner)
        tokens = rows.targets.sum() + rows.partner_targets[paired].sum()
        counts = Counts(exists.sum(), paired.sum(), tokens)
        dair_lambda, slopes = self.lambda_control.in_evaluation, (rows.slope, rows.lowest_slope)
        gradients = torch.stack([rows.regularizer_gradient, rows.loss_gradient], dim=1)
        sums = sum_terms(terms, rows.targets, exists, counts, self.args, dair_lambda, slopes, gradients)
        means = mean_terms(sums, self.args)
        if self.args.dair_lambda == AUTO:
            means = {name: value for name, value in means.items() if name not in SHARES_OF_LAMBDA}
        return {"loss": self.pair_loss.objective(terms, counts, dair_lambda).item(), **means}

    # ---- metrics and predictions ----

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        *,
        data_name: str | None = None,
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate as `Seq2SeqTrainer` does; add the metrics of `evaluate_pairs` if there is an evaluator.

        Classifiers and regressions have one for data with partners and labels.
        """
        self._finiteness.check()
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, dict):
            metrics: dict[str, float] = {}
            for name, rows in dataset.items():
                # By its name, under which the Trainer keeps the data loader of persistent workers.
                chosen, prefix = name if eval_dataset is None else rows, f"{metric_key_prefix}_{name}"
                named = name if data_name is None else f"{data_name} {name}"
                metrics.update(self.evaluate(chosen, ignore_keys, prefix, data_name=named, **gen_kwargs))
            return metrics
        if isinstance(dataset, str):
            data_name = dataset if data_name is None else data_name
            dataset = self.eval_dataset.get(dataset, dataset) if isinstance(self.eval_dataset, dict) else dataset
        given = self.tokenize(dataset, "eval_dataset")
        evaluates_pairs = self.evaluator is not None or self._default_evaluator() is not None
        dataset = held_rows(given, self.args) if evaluates_pairs and not self.args.prediction_loss_only else given
        args = self.args
        returns_predictions = self.compute_metrics is not None and not args.prediction_loss_only
        # Dropped rows must not be the shortest; the loader of persistent workers is used again for predictions.
        persistent = args.dataloader_persistent_workers
        keeps_order = returns_predictions or args.dataloader_drop_last or persistent
        self._sorts_by_length = not keeps_order
        chosen = eval_dataset if isinstance(eval_dataset, str) and dataset is given else dataset
        # The Trainer would keep the loader of any rows without a name, and evaluate them again in place of others.
        is_kept = dataset is given and (eval_dataset is None or isinstance(eval_dataset, str))
        args.dataloader_persistent_workers = persistent and is_kept
        try:
            if self._evaluates_pairs(dataset):
                in_card = {} if data_name is None else {"data_name": data_name}
                self._evaluate_pairs_args = (dataset, {**in_card, **gen_kwargs})
            if self.generates and returns_predictions:
                answered = self._text_rows.for_answers(dataset, "eval_dataset")
                self._answered = None if answered is dataset else answered
            return super().evaluate(chosen, ignore_keys, metric_key_prefix, **gen_kwargs)
        finally:
            self._evaluate_pairs_args, self._sorts_by_length, self._answered = None, False, None
            args.dataloader_persistent_workers = persistent

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict as `Seq2SeqTrainer` does: predictions and labels of the originals, in the order of the data.

        Labels, targets of texts and the last answer of a chat may be missing. In chats that end with an answer, that
        turn is predicted.
        """
        test_dataset = self.tokenize(test_dataset, "test_dataset", prompts=True)
        if self.generates and not self.args.prediction_loss_only:
            test_dataset = held_rows(self._text_rows.for_answers(test_dataset, "test_dataset"), self.args)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)

    def evaluate_pairs(
        self,
        dataset: Any = None,
        evaluator: PairEvaluator | Correct | None = None,
        *,
        subsets: Mapping[str, Any] | None = None,
        intervals: bool = True,
        predictions_file: str | Path | None = None,
        data_name: str | None = "evaluation data",
        answers: str | Path | None = None,
        **gen_kwargs: Any,
    ) -> dict[str, Any]:
        """Predict and evaluate every view once: accuracy of both views, CM, flips, with intervals over clusters.

        Views are run in batches of similar length, distributed over the ranks. A row without a partner is predicted
        once. A prediction, as the evaluator gets it, is

        - the decoded text if the model generates (the token ids without a tokenizer);
        - the class number, a numpy integer, for a classifier (sample loss "classification" or "soft_score"), and an
          array `[T]` of them, padding included, for "token_classification";
        - the logits, an array, or a float if there is only one, for any other model;
        - with `preprocess_logits_for_metrics` the return value of that function, such as a classifier's logits with
          `lambda logits, labels: logits`.

        Or it is read from `answers`, a file of another program: a text if the model generates, the name or number of a
        class for a classifier. The model card does not mention the metrics of such answers.
        """
        from dair_hf.io.records import require_predictions_file
        from dair_hf.training.model_card import PairResult

        if predictions_file is not None:
            require_predictions_file(predictions_file)  # before hours of generation
        chosen: dict[str, Any] = {"subsets": subsets, "intervals": intervals, "answers": answers}
        found = self.evaluate_views(dataset, evaluator, **chosen, **gen_kwargs)
        if predictions_file is not None and self.is_world_process_zero():
            found.views.write(predictions_file, found.answers, found.references, found.correct, found.clusters)
        if data_name is not None and answers is None:
            names = found.evaluator.accuracy_name, found.evaluator.preset
            self.pair_results[data_name] = PairResult(data_name, *names, found.metrics)
        return found.metrics

    def evaluate_views(
        self,
        dataset: Any = None,
        evaluator: PairEvaluator | Correct | None = None,
        *,
        subsets: Mapping[str, Any] | None = None,
        intervals: bool = True,
        answers: str | Path | None = None,
        **gen_kwargs: Any,
    ) -> PairEvaluation:
        """Predict and evaluate every view once, as `evaluate_pairs` does, and return predictions and correctness too.

        Nothing is written, and the model card does not mention the metrics.
        """
        from dair_hf.evaluation.evaluator import PairEvaluator, as_evaluator

        data = self.tokenize(self.eval_dataset if dataset is None else dataset)
        evaluator = self.evaluator if evaluator is None else as_evaluator(evaluator)
        if evaluator is None and self.generates and self._text_rows.is_text(data):
            from dair_hf.evaluation.answers import same_texts

            evaluator = PairEvaluator(same_texts)
        evaluator = self._default_evaluator() if evaluator is None else evaluator
        if evaluator is None:
            raise DataError("evaluate_pairs: expected an evaluator, here or in DAIRTrainer")
        self._require_generation_arguments(gen_kwargs, self.generates and answers is None)
        views, references = self._views_to_evaluate(data, evaluator, "dataset")
        units, masks = evaluator.units_and_masks(views, subsets)
        predictor = self._predictor()
        if not self.generates and predictor.reduce is None and self._loss_name() in LANGUAGE_LOSSES:
            raise DataError(
                "evaluate_pairs: expected predict_with_generate unset for a language model, or "
                "preprocess_logits_for_metrics=(logits, labels) -> predictions"
            )
        if evaluator.references is None and self.generates:
            references = predictor.decode_labels(references)
        equal_labels = evaluator.references is None
        if answers is None:
            predicted = predictor.predict(self._model_columns(views), gen_kwargs, equal_labels=equal_labels)
            predictions = predictor.decode(predicted)
        else:
            predictions = self._read_answers(views, answers)
        return evaluator.evaluate_views(views, predictions, references, units, masks, intervals)

    def _views_to_evaluate(self, data: Any, evaluator: PairEvaluator, name: str) -> tuple[PairViews, list[Any]]:
        """Return the views of tokenized data, and the reference of each; refuse data that lack what is read."""
        from dair_hf.evaluation.views import views_of

        inherits = self._text_rows.is_target(data, evaluator.references)
        if self.generates:
            data = self._text_rows.for_answers(data, name)
        data = held_rows(data, self.args)
        self._require_columns(data, name)
        views = views_of(data)
        return views, views.column(evaluator.references or views.label_column, inherits)

    def _read_answers(self, views: PairViews, path: str | Path) -> list[Any]:
        """Return the answers of a file in the form of the model's predictions."""
        answers, loss = views.read_answers(path), "classification"
        if self._loss_name() != loss or self.preprocess_logits_for_metrics is not None:
            return list(map(str, answers)) if self.generates else answers
        config: Any = base_model_of(self.model).config
        names, size = config.label2id or {}, config.num_labels
        return [label_of(a, loss, names, size, views.describe_view(n), "answer") for n, a in enumerate(answers)]

    def pair_losses(self, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses of all views of every row by the model as it is, on every process."""
        from dair_hf.evaluation.views import views_of

        dataset = held_rows(self.tokenize(dataset), self.args)
        self._kept_views = count = 1 + views_of(dataset).partners.shape[1]
        try:
            self.evaluation_loop(self.get_test_dataloader(dataset), "Losses of pairs", prediction_loss_only=True)
        finally:
            self._kept_views = 0
        rows = torch.cat(self._evaluated_rows).numpy()
        if len(rows) != len(dataset):
            raise DataError(f"dataloader_drop_last=True: expected the losses of {len(dataset)} rows, got {len(rows)}")
        return rows[:, -2 * count : -count], rows[:, -count:].astype(np.int64)

    def pair_report(
        self,
        dataset: Any = None,
        evaluator: PairEvaluator | Correct | None = None,
        *,
        folder: str | Path,
        groups: Groups = None,
        texts: str | Sequence[str] | None = None,
        title: str = "Pair report",
        worst: int = 100,
        **gen_kwargs: Any,
    ) -> PairReport:
        """Write a page and a JSON file that show where the views of pairs disagree, and the pairs that never agree.

        The pairs are ranked by `(mean of sqrt(l) - sqrt(l~))^2` (`pair_report.scores.disagreement`): over the steps of
        the last training and the final model, if they are those that the model was trained on, else by the final model
        alone. Pairs with a faulty label are among the first. Every process must call this method; the main one writes.
        """
        from dair_hf.evaluation.evaluator import as_evaluator
        from dair_hf.io.processes import on_first_rank
        from dair_hf.pair_report.build import ReportOptions, build_report
        from dair_hf.pair_report.page import require_report_folder, write_report

        data = self.train_dataset if dataset is None else dataset
        data = held_rows(self.tokenize(data), self.args)
        options = ReportOptions(title, groups, texts, worst)
        evaluator = None if evaluator is None else as_evaluator(evaluator)
        self._require_generation_arguments(gen_kwargs, self.generates and evaluator is not None)
        on_first_rank(lambda: require_report_folder(folder))
        report = build_report(self, data, evaluator, options, **gen_kwargs)
        on_first_rank(lambda: write_report(report, folder))
        return report

    def _require_generation_arguments(self, gen_kwargs: Mapping[str, Any], generates: bool) -> None:
        """Refuse arguments of `generate` where no answer is generated, since they would be ignored."""
        if gen_kwargs and not generates:
            raise DataError(f"{', '.join(gen_kwargs)}: expected no such arguments, since no answer is generated")

    def _predictor(self) -> PairPredictor:
        from dair_hf.evaluation.prediction import PairPredictor, chosen_class

        if (self.args.bf16_full_eval or self.args.fp16_full_eval) and not self.is_in_train:  # as `Trainer` does
            self.model.to(self.args.device, torch.bfloat16 if self.args.bf16_full_eval else torch.float16)
        reduce = self.preprocess_logits_for_metrics
        if reduce is None and self._loss_name() in CLASS_LOSSES:
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

    def _default_evaluator(self) -> PairEvaluator | None:
        """Return what counts as right for a classifier or a regression; None for other models and predictions."""
        from dair_hf.evaluation.answers import absolute_errors, same_classes, same_numbers
        from dair_hf.evaluation.evaluator import PairEvaluator

        loss = self._loss_name()
        if self.generates or self.preprocess_logits_for_metrics is not None:
            return None
        if loss in NUMBER_LOSSES:
            return PairEvaluator(same_numbers, scores={"mae": absolute_errors})
        return PairEvaluator(same_classes) if loss in LABEL_LOSSES else None

    def _may_evaluate_pairs(self, data: Any) -> bool:
        """Return whether the default evaluator can evaluate some data: rows, not losses alone, with partners."""
        is_stream = isinstance(data, torch.utils.data.IterableDataset | datasets.IterableDataset)
        columns = columns_of(data)
        has_partners = columns is None or is_transformed(data) or any(map(is_augmented, columns))
        return has_partners and not (self._default_evaluator() is None or self.args.prediction_loss_only or is_stream)

    def _evaluates_pairs(self, data: Any) -> bool:
        """Return whether `evaluate` also evaluates the pairs of some data: with an evaluator, or pairs with labels."""
        if self.evaluator is not None:
            return True
        if not self._may_evaluate_pairs(data):
            return False
        from dair_hf.evaluation.views import views_of

        views = views_of(data)
        return bool(views.has_partner.any()) and views.label_column in views.column_names

    def _loss_name(self) -> str | None:
        """Return the name of the sample loss, or of the model's own loss if the sample loss is a callable."""
        return self.sample_loss_name or derived_sample_loss(self.model)

    def _model_columns(self, views: PairViews) -> PairViews:
        known = set(self._known_columns(views)) - {self.args.share_prefixes}
        return views.select_columns([name for name in views.column_names if name in known])
