"""Predictions for every view of paired data: in batches of similar length, distributed over ranks, each view once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import convert_to_fp32, gather_object
from numpy.typing import ArrayLike
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import PairCollator
from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.evaluation.generation import AnswerGenerator, Features
from dair_hf.evaluation.generation_settings import decoder_positions, effective_config
from dair_hf.evaluation.target_tokens import ROWS_CHECKED, check_targets
from dair_hf.evaluation.views import PairViews
from dair_hf.losses.model_state import without_cudnn_attention
from dair_hf.losses.per_sample import IGNORE_INDEX

logger = logging.get_logger(__name__)

MORE_ROWS = 4  # a batch of short rows holds at most this many times the batch size
WIDER, WIDEST = 8, 128  # if inputs are encoded first: factor on the batch size for generation, and its upper limit
CHUNK = 1000  # views whose prompts are cut at once
TREE_ROWS = 2  # token limit of a bucket of prompt trees, in evaluation batches of the longest view
DEFAULT_NEW_TOKENS = 20  # if neither settings nor targets give a length, as in `generate`
PROMPTS_PER_ANSWER = 16  # limit of the prompts of a bucket, per such view


def _buckets(lengths: ArrayLike, batch_size: int, ranks: int = 1, longest_item: int = 0) -> list[np.ndarray]:
    """Group items of similar length into buckets, one batch per rank each.

    A bucket of the longest items holds `batch_size` items per rank. A bucket of shorter items holds more: at most as
    many tokens as `batch_size` of the longest items (or of `longest_item` tokens, if other buckets hold longer ones),
    and at most `MORE_ROWS * batch_size` items. The longest items come first: a lack of memory shows in the first batch.
    Lengths are numbers of tokens `[N]`, or `[N, K]` of K kinds: items are sorted by the first, then by the next.
    """
    kinds = np.asarray(lengths)
    kinds = kinds[:, None] if kinds.ndim == 1 else kinds
    order = np.lexsort(-kinds.T[::-1])
    tokens = np.maximum(kinds.sum(1), 1)[order]
    budget, most = batch_size * tokens.max(initial=max(longest_item, 1)), MORE_ROWS * batch_size
    result, start, longest = [], 0, 0
    for end in range(len(order) + 1):
        share = -(-(end + 1 - start) // ranks)  # items per rank if the bucket takes one more
        longest = max(longest, tokens[end]) if end < len(order) else longest
        if end == len(order) or share * longest > budget or share > most:
            if end > start:
                result.append(order[start:end])
            if end < len(order):
                start, longest = end, tokens[end]
    return result


def _tree_buckets(
    order: np.ndarray, nodes: np.ndarray, most_nodes: int, most_items: int, ranks: int = 1
) -> list[np.ndarray]:
    """Cut items that share prefixes with their neighbours into buckets, one batch of neighbours per rank each."""
    starts: list[int] = []
    total = 0
    for place, (following, first) in enumerate(nodes.tolist()):
        total += following
        if not starts or total > most_nodes or place - starts[-1] == most_items:
            starts.append(place)
            total = first
    parts = np.split(order, starts[1:])
    result = []
    for start in range(0, len(parts), ranks):
        bucket = np.full((max(map(len, parts[start : start + ranks])), ranks), -1)
        for rank, part in enumerate(parts[start : start + ranks]):
            bucket[: len(part), rank] = part
        result.append(bucket.ravel())
    return result


def _predict_in_buckets(
    item_buckets: Sequence[np.ndarray],
    run: Callable[[list[int]], Sequence[Any]],
    accelerator: Accelerator,
    description: str = "Predicting",
    show_progress: bool = True,
) -> list[Any]:
    """Predict all items of buckets, one batch of each bucket on every rank, so that sharded models stay in step."""
    ranks, rank = accelerator.num_processes, accelerator.process_index
    count = sum(int((bucket >= 0).sum()) for bucket in item_buckets)
    predicted: dict[int, Any] = {}
    hidden = not show_progress or not accelerator.is_main_process
    with tqdm(total=count, desc=description, unit="view", disable=hidden) as bar:
        for bucket in item_buckets:
            share = -(-len(bucket) // ranks)
            # A rank that would get one item less repeats one: sharded models need every rank in every forward.
            items = [item for item in np.resize(bucket, share * ranks)[rank::ranks].tolist() if item >= 0]
            predicted.update(zip(items, run(items) if items else [], strict=True))
            bar.update(int((bucket >= 0).sum()))
    for of_rank in gather_object([predicted]):
        predicted.update(of_rank)
    return [predicted[item] for item in range(count)]


@dataclass
class PairPredictor:
    """Predicts the views of paired data and reads their references."""

    model: Any
    args: DAIRConfig
    collator: PairCollator
    accelerator: Accelerator
    processing_class: Any
    generates: bool
    reduce: Callable[[Any, Tensor | None], Any] | None
    model_inputs: Callable[[Mapping[str, Tensor]], tuple[dict[str, Tensor], Tensor | None]]

    @without_cudnn_attention()
    def predict(self, views: PairViews, gen_kwargs: dict[str, Any], *, equal_labels: bool = False) -> list[Any]:
        """Return the prediction for every view, in their order. Originals that are equal are run once."""
        items, position = views.distinct()
        ranks = self.accelerator.num_processes

        def features(numbers: Any) -> Any:
            return views.features(items[numbers].tolist(), self.collator.rules)

        def from_features(predict: Callable[[Features], list[Any]]) -> Callable[[list[int]], list[Any]]:
            return lambda numbers: predict(features(numbers))

        was_training = self.model.training
        self.model.eval()
        try:
            if self.generates:
                generator = self._generator(views, gen_kwargs)
                check_targets(self.model, features(slice(ROWS_CHECKED)), generator.arguments, refuse=equal_labels)
                # Generation takes as many steps as the longest answer: rows that end together go together.
                lengths = np.stack([views.target_lengths(), views.lengths()], axis=1)[items]
                prompts = self._shared_prompts(generator, features, len(items))
                if prompts is None:
                    parts = _buckets(lengths, self._rows_at_once(generator, features([0])), ranks)
                    run = from_features(generator)
                else:
                    parts, run = self._trees_of_prompts(generator, prompts, lengths)
                # Only the forward of a prepared model uses mixed precision by itself, not that of its encoder.
                run, description = self.accelerator.autocast()(run), "Generating"
            else:
                parts, description = _buckets(views.lengths()[items], self.args.eval_batch_size, ranks), "Predicting"
                run = from_features(self._forward)
            predictions = _predict_in_buckets(
                parts, run, self.accelerator, description, show_progress=not self.args.disable_tqdm
            )
        finally:
            self.model.train(was_training)
        if self.reduce is chosen_class:
            predictions = [value if isinstance(value, np.ndarray) else _ClassNumber(value) for value in predictions]
        return [predictions[number] for number in position]

    def decode(self, predictions: list[Any]) -> list[Any]:
        """Return generated token ids as texts if there is a tokenizer, and everything else unchanged."""
        is_generated = bool(predictions) and isinstance(predictions[0], list)
        if not is_generated or not hasattr(self.processing_class, "batch_decode"):
            return predictions
        return self.processing_class.batch_decode(predictions, skip_special_tokens=True)

    def decode_labels(self, labels: list[Any]) -> list[Any]:
        """Return labels that are token ids as texts, without those that are ignored, and others unchanged."""
        # A transform of the data may return arrays or tensors.
        plain = [value.tolist() if hasattr(value, "tolist") else value for value in labels]
        if not isinstance(plain[0], list):
            return labels
        return self.decode([[token for token in row if token != IGNORE_INDEX] for row in plain])

    def _forward(self, features: Features) -> list[Any]:
        batch = features if isinstance(features, Mapping) else self.collator.base_collator(features)
        inputs, labels = self.model_inputs({name: v.to(self.accelerator.device) for name, v in batch.items()})
        with torch.inference_mode():
            with self.accelerator.autocast():
                outputs = self.model(**inputs)
            if self.accelerator.native_amp:
                outputs = convert_to_fp32(outputs)  # as of a prepared model
            if self.reduce is None:
                return _split_batch(outputs.logits)
            return _split_batch(self.reduce(output_of(outputs, getattr(self.model, "config", None)), labels))

    def _generator(self, views: PairViews, gen_kwargs: dict[str, Any]) -> AnswerGenerator:
        arguments = self._with_tokenizer(self._generation_arguments(views, gen_kwargs))
        generator = AnswerGenerator(
            self.model,
            self.collator.base_collator,
            self.accelerator.device,
            self._pad_token_id(arguments),
            arguments,
            self.args.eval_batch_size,
        )
        self._warn_of_cut_answers(views, generator.config.max_new_tokens)
        return generator

    def _generation_arguments(self, views: PairViews, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `generate` with the number of beams and the length of answers."""
        arguments, args = dict(gen_kwargs), self.args
        if args.generation_num_beams is not None and _passed(arguments, "num_beams") is None:
            arguments["num_beams"] = args.generation_num_beams
        if _passed(arguments, "max_new_tokens") is not None:
            return arguments
        max_length = _passed(arguments, "max_length")
        max_length = args.generation_max_length if max_length is None else max_length
        if max_length is not None:
            return {**arguments, "max_length": max_length, "max_new_tokens": None}
        limit = self.model.generation_config.max_new_tokens
        if limit is None:
            limit = DEFAULT_NEW_TOKENS
            if views.label_column in views.column_names:
                limit = int(views.target_lengths().max()) + 8
        return {**arguments, "max_new_tokens": limit}

    def _with_tokenizer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `generate` with the tokenizer that it needs to find `stop_strings`."""
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        needs_tokenizer = effective_config(self.model, arguments).stop_strings is not None
        if not needs_tokenizer or not isinstance(tokenizer, PreTrainedTokenizerBase):
            return arguments
        return {"tokenizer": tokenizer, **arguments}

    def _warn_of_cut_answers(self, views: PairViews, limit: int | None) -> None:
        longest = int(views.target_lengths().max())
        if limit is not None and limit < longest:
            logger.warning(f"answers end after max_new_tokens={limit}, but targets have up to {longest} tokens")
        positions = decoder_positions(self.model)
        used = views.target_lengths() if self.model.config.is_encoder_decoder else views.lengths()
        if positions is not None and (beyond := int((used > positions).sum())):
            logger.warning(
                f"{beyond} of {len(views)} views reach beyond the {positions} positions of "
                f"{type(self.model).__name__}, where their answers end"
            )

    def _shared_prompts(
        self, generator: AnswerGenerator, features: Callable[[slice], Features], count: int
    ) -> list[np.ndarray] | None:
        """Return the prompts of all views if their common prefixes can be read once; None to read them one by one.

        Each rank cuts a part of the prompts and tries the longest of them. If one rank refuses, all do.
        """
        if self.args.share_prefixes is None:
            return None
        from dair_hf.trees.prefill import trees_are_exact

        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        prompts: dict[int, np.ndarray] = {}
        exact, reason = True, ""
        try:
            for start in range(rank * CHUNK, count, ranks * CHUNK):
                prompts.update(enumerate(generator.shared_prompts(features(slice(start, start + CHUNK))), start))
            if prompts:
                with torch.inference_mode(), self.accelerator.autocast():
                    longest, tokenizer = max(prompts.values(), key=len), generator.arguments.get("tokenizer")
                    exact = trees_are_exact(self.model, longest, generator.pad_token_id, tokenizer)
        except DataError as error:
            exact, reason = False, str(error)
        for of_rank, is_exact, why in gather_object([(prompts, exact, reason)]):
            prompts, exact, reason = prompts | of_rank, exact and is_exact, reason or why
        if reason and self.accelerator.is_main_process:
            logger.warning(f"share_prefixes: prompts are read one by one: {reason}")
        return [prompts[number] for number in range(count)] if exact else None

    def _trees_of_prompts(
        self, generator: AnswerGenerator, prompts: list[np.ndarray], lengths: np.ndarray
    ) -> tuple[list[np.ndarray], Callable[[list[int]], list[Any]]]:
        """Return buckets of prompts that begin alike, and the function that answers those of one rank.

        The prompts of a bucket, and the answers that are written at once, have at most as many tokens as `TREE_ROWS`
        evaluation batches of the longest view.
        """
        from dair_hf.trees.prefill import nodes_of_neighbours

        rows = TREE_ROWS * self.args.eval_batch_size
        longest = int(lengths.sum(1).max())
        order, nodes = nodes_of_neighbours(prompts, self.model)
        most_items = PROMPTS_PER_ANSWER * rows
        parts = _tree_buckets(order, nodes, rows * longest, most_items, self.accelerator.num_processes)

        def answer(numbers: list[int]) -> list[list[int]]:
            batches = _buckets(lengths[numbers], self.args.generation_batch_size or rows, longest_item=longest)
            return generator.from_trees([prompts[number] for number in numbers], batches)

        return parts, answer

    def _rows_at_once(self, generator: AnswerGenerator, features: Features) -> int:
        """Return the number of answers written at once: more if their inputs are encoded in smaller batches."""
        encoded = self.args.eval_batch_size
        if not generator.encodes_first(features):
            return encoded
        rows = self.args.generation_batch_size or max(encoded, min(WIDER * encoded, WIDEST))
        return max(1, rows // (generator.config.num_beams or 1))

    def _pad_token_id(self, arguments: dict[str, Any]) -> int | None:
        configs = (getattr(self.model, "generation_config", None), getattr(self.model, "config", None))
        tokens = (getattr(holder, "pad_token_id", None) for holder in (self.processing_class, *configs))
        known = (token for token in (_passed(arguments, "pad_token_id"), *tokens) if token is not None)
        return next(map(int, known), None)


def _passed(arguments: Mapping[str, Any], name: str) -> Any:
    """Return a setting that a call of `generate` passes, by keyword or in its generation config; None if neither."""
    return arguments[name] if name in arguments else getattr(arguments.get("generation_config"), name, None)


class _ClassNumber(np.int64):
    """Class chosen by a classifier: an integer without `argmax`, which would be 0, whatever the class."""

    def argmax(self, *args: Any, **kwargs: Any) -> Any:
        raise DataError(
            f"argmax of the prediction {int(self)}: expected logits, got a class number; compare it with the "
            "references, or pass preprocess_logits_for_metrics=lambda logits, labels: logits to DAIRTrainer"
        )


def chosen_class(outputs: Any, labels: Tensor | None = None) -> Tensor:
    """Return the class with the largest logit, `[N, ..., C] -> [N, ...]`."""
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    if logits.isnan().any():
        raise NonFiniteLossError("a logit is NaN, so no class is the largest: the model diverged")
    return logits.argmax(-1)


def output_of(outputs: Any, config: Any, ignore_keys: Sequence[str] | None = None) -> Any:
    """Return the outputs that `Trainer` counts as predictions and passes to `preprocess_logits_for_metrics`."""
    if not isinstance(outputs, dict):
        return getattr(outputs, "logits", outputs)
    if ignore_keys is None:
        ignore_keys = getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])
    values = tuple(value for name, value in outputs.items() if name not in [*ignore_keys, "loss"])
    return values[0] if len(values) == 1 else values


def padded_array(values: list[Any]) -> np.ndarray:
    """Return all values as one array; lists of token ids are padded with -100."""
    if not values or not isinstance(values[0], list):
        return np.asarray(values)
    padded = np.full((len(values), max(len(value) for value in values)), IGNORE_INDEX)
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
    return padded


def _split_batch(values: Any) -> list[Any]:
    """Split predictions of a batch into one per row: numbers, arrays, or tuples of them."""
    if isinstance(values, (tuple, list)):
        return list(zip(*(_split_batch(part) for part in values), strict=True))
    values = values.detach().cpu()
    if values.is_floating_point():
        values = values.float()
    return values.tolist() if values.ndim == 1 else list(values.numpy())
