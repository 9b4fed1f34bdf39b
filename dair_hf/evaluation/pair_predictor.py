"""What a trained model predicts for the views of paired data, and what it should have predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator
from torch import Tensor
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import PairCollator
from dair_hf.evaluation.generation import ClassNumber, ViewPredictor, chosen_class
from dair_hf.evaluation.prediction import predict_in_buckets, predict_in_stages
from dair_hf.evaluation.target_tokens import ROWS_CHECKED, check_targets, decoder_positions
from dair_hf.evaluation.views import PairViews
from dair_hf.losses.per_sample import IGNORE_INDEX

logger = logging.get_logger(__name__)

WIDER, WIDEST = 8, 128  # rows that write at once for each that is encoded at once, and at most


class PairPredictor:
    """Predictions and references of paired data, as a task's correctness wants them.

    Args:
        model: The trained model.
        args: Batch size and lengths of the evaluation.
        collator: The trainer's collator.
        accelerator: Knows device and ranks.
        processing_class: The tokenizer; None: ids stay ids.
        generates: Whether predictions are generated; else they come from one forward.
        reduce: What is made of a batch of outputs, as in `ViewPredictor`.
        model_inputs: The model's inputs of a batch, as in `ViewPredictor`.
    """

    def __init__(
        self,
        model: Any,
        args: DAIRConfig,
        collator: PairCollator,
        accelerator: Accelerator,
        processing_class: Any,
        generates: bool,
        reduce: Callable[[Any, Tensor | None], Any] | None = None,
        model_inputs: Callable[[Mapping[str, Tensor]], tuple[dict[str, Tensor], Tensor | None]] | None = None,
    ) -> None:
        self.model = model
        self.args = args
        self.collator = collator
        self.accelerator = accelerator
        self.processing_class = processing_class
        self.generates = generates
        self.reduce = reduce
        self.model_inputs = model_inputs

    def predict(self, views: PairViews, gen_kwargs: dict[str, Any], *, equal_labels: bool = False) -> list[Any]:
        """The model's prediction for every view, in their order; originals that are equal are run once.

        Args:
            views: Views with the model's columns only.
            gen_kwargs: Arguments of `generate`.
            equal_labels: Whether answers are right where they equal the labels.

        Returns:
            Lists of ids; numbers of classes where `reduce` is `chosen_class` (`ClassNumber`, of tokens arrays `[T]`);
            else what is kept of the logits.

        Raises:
            DataError: With `equal_labels`, no answer can ever begin as its label does.
        """
        items, place = views.distinct()
        predictor = ViewPredictor(
            self.model,
            self.collator.base_collator,
            self.accelerator,
            self.generates,
            self._pad_token_id(),
            self._generation(views, gen_kwargs) if self.generates else None,
            encoder_rows=self.args.eval_batch_size,
            reduce=self.reduce,
            model_inputs=self.model_inputs,
        )

        def features(chosen: Any) -> Any:
            return views.features(items[chosen].tolist(), self.collator.rules)

        if self.generates:
            check_targets(self.model, features(slice(ROWS_CHECKED)), predictor.generation, refuse=equal_labels)
        was_training = self.model.training
        self.model.eval()
        try:
            # Generation takes as many steps as the longest answer of its batch: rows that end together go together.
            kinds = [views.target_lengths(), views.lengths()] if self.generates else [views.lengths()]
            shared: dict[str, Any] = {
                "lengths": np.stack(kinds, axis=1)[items],
                "accelerator": self.accelerator,
                "batch_size": self._rows_at_once(predictor, views),
                "description": "Generating" if self.generates else "Predicting",
                "show_progress": not self.args.disable_tqdm,
            }
            if predictor.takes_stages:
                found: list[Any] = predict_in_stages(
                    advance=lambda chosen, begun, until: predictor.advance(features(chosen), begun, until),
                    limit=predictor.generation["max_new_tokens"],
                    resumed_tokens=self._resumed_tokens(predictor, views),
                    **shared,
                )
            else:
                found = predict_in_buckets(run=lambda chosen: predictor(features(chosen)), **shared)
            if self.reduce is chosen_class:
                found = [one if isinstance(one, np.ndarray) else ClassNumber(one) for one in found]
            return [found[number] for number in place]
        finally:
            self.model.train(was_training)

    def decode(self, predictions: list[Any]) -> list[Any]:
        """Generated ids as texts, where there is a tokenizer; everything else as it is."""
        generated = bool(predictions) and isinstance(predictions[0], list)
        if not generated or not hasattr(self.processing_class, "batch_decode"):
            return predictions
        return self.processing_class.batch_decode(predictions, skip_special_tokens=True)

    def references(self, views: PairViews, column: str | None) -> list[Any]:
        """The references of every view: of `column`, or the labels, decoded where answers are generated."""
        found = views.column(column or views.label_column)
        if column is None and self.generates and isinstance(found[0], list):
            found = self.decode([[token for token in labels if token != IGNORE_INDEX] for labels in found])
        return found

    def _generation(self, views: PairViews, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        given = dict(gen_kwargs)
        if self.args.generation_num_beams is not None:
            given.setdefault("num_beams", self.args.generation_num_beams)
        if self.args.generation_max_length is not None and "max_new_tokens" not in given:
            given.setdefault("max_length", self.args.generation_max_length)
        if "max_length" not in given and "max_new_tokens" not in given:
            configured = self.model.generation_config.max_new_tokens
            given["max_new_tokens"] = views.longest_target() + 8 if configured is None else configured
        limit, longest = given.get("max_new_tokens"), int(views.target_lengths().max())
        if limit is not None and limit < longest:
            logger.warning(
                f"answers end after max_new_tokens={limit}, but targets have up to {longest} tokens; give "
                "evaluate_pairs a higher max_new_tokens, or set model.generation_config.max_new_tokens to None"
            )
        positions = decoder_positions(self.model)
        used = views.target_lengths() if self.model.config.is_encoder_decoder else views.lengths()
        if positions is not None and (beyond := int((used > positions).sum())):
            logger.warning(
                f"{beyond} of {len(views)} views reach beyond the {positions} positions of "
                f"{type(self.model).__name__}, where their answers end; use shorter inputs and targets"
            )
        return given

    def _rows_at_once(self, predictor: ViewPredictor, views: PairViews) -> int:
        """Views of a batch: more where their inputs are encoded apart."""
        encoded = self.args.eval_batch_size
        if not predictor.encodes_apart(views.features([0])):
            return encoded
        return self.args.generation_batch_size or max(encoded, min(WIDER * encoded, WIDEST))

    def _resumed_tokens(self, predictor: ViewPredictor, views: PairViews) -> int | None:
        """Tokens of answers that an encoder-decoder takes up at once: as many as targets in a batch of losses."""
        return self.args.eval_batch_size * views.longest_target() if predictor.is_encoder_decoder else None

    def _pad_token_id(self) -> int | None:
        model = self.model
        configs = (getattr(model, "generation_config", None), getattr(model, "config", None))
        for holder in (self.processing_class, *configs):
            token = getattr(holder, "pad_token_id", None)
            if token is not None:
                return int(token)
        return None


def padded_array(values: list[Any]) -> np.ndarray:
    """One array of all values; lists of ids are padded to the longest with -100.

    Example:
        >>> padded_array([[5], [6, 7]])
        array([[   5, -100],
               [   6,    7]])
    """
    if not values or not isinstance(values[0], list):
        return np.asarray(values)
    padded = np.full((len(values), max(len(value) for value in values)), IGNORE_INDEX)
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
    return padded
