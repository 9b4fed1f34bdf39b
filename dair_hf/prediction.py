"""Predictions for every view of a paired data set: bucketed by length, sharded over ranks, each view once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import ArrayLike
from torch import Tensor
from tqdm.auto import tqdm
from transformers import StoppingCriteria, StoppingCriteriaList

from dair_hf.errors import DataError
from dair_hf.sample_losses import IGNORE_INDEX

Feature = dict[str, Any]
# Settings of `generate` under which the next token depends on the tokens before it and on nothing else.
GREEDY: dict[str, Any] = {
    "num_beams": 1, "do_sample": False, "num_return_sequences": 1, "min_length": 0, "min_new_tokens": None,
    "begin_suppress_tokens": None, "exponential_decay_length_penalty": None, "penalty_alpha": None,
}  # fmt: skip
MARGIN = 8  # tokens that an answer may hold beyond its target before it is taken for one that runs on
MORE_ROWS = 4  # what a batch of short rows may hold beyond the batch size: what is kept of a row has its share too


def buckets(lengths: ArrayLike, batch_size: int, ranks: int = 1) -> list[np.ndarray]:
    """Items of similar length, for all ranks together, each bucket to be run in one batch a rank.

    A bucket of the longest items holds `batch_size` items a rank. One of shorter items holds more, as long as no more
    tokens come together than `batch_size` of the longest make, and at most `MORE_ROWS` times as many.

    Args:
        lengths: Tokens of every item, `[N]`, or `[N, K]` of K kinds, whose sum counts; items are sorted by the first
            kind, then by the next: what costs most first.
        batch_size: Items of a batch on each rank.
        ranks: Processes.

    Returns:
        Item numbers, longest first (so that memory runs out at once or never).

    Example:
        >>> [bucket.tolist() for bucket in buckets([2, 8, 4, 2], batch_size=1)]
        [[1], [2, 0], [3]]
    """
    kinds = np.asarray(lengths)
    kinds = kinds[:, None] if kinds.ndim == 1 else kinds
    order = np.lexsort(-kinds.T[::-1])
    tokens = np.maximum(kinds.sum(1), 1)[order]
    budget = batch_size * tokens.max(initial=1)
    found, start, longest = [], 0, 0
    for end in range(len(order) + 1):
        # Shared out, each rank gets this many: the bucket and one item more.
        share = -(-(end + 1 - start) // ranks)
        longest = max(longest, tokens[end]) if end < len(order) else longest
        if end == len(order) or share * longest > budget or share > MORE_ROWS * batch_size:
            if end > start:
                found.append(order[start:end])
            if end < len(order):
                start, longest = end, tokens[end]
    return found


def predict_in_buckets(
    lengths: ArrayLike,
    run: Callable[[list[int]], Sequence[Any]],
    accelerator: Accelerator,
    batch_size: int,
    description: str = "Predicting",
    show_progress: bool = True,
) -> list[Any]:
    """Predictions of all items, in their own order, computed in batches of similar length and shared out over ranks.

    The items of a bucket (`buckets`) are dealt to the ranks in turn; every rank runs the same number of batches, so
    that sharded models stay in step.

    Args:
        lengths: Length of every item, `[N]` or `[N, K]`, as in `buckets`.
        run: Item numbers -> one prediction for each. Called on each rank with that rank's items.
        accelerator: Knows the ranks.
        batch_size: Items a call on each rank; more where they are short.
        description: Label of the progress bar, which the main process shows.
        show_progress: Whether to show it.

    Returns:
        N predictions, on every rank.

    Raises:
        DataError: `run` returned another number of predictions than it got items.

    Example:
        >>> predict_in_buckets([1, 3, 2], lambda items: [10 * i for i in items], Accelerator(), 2, show_progress=False)
        [0, 10, 20]
    """
    ranks, rank = accelerator.num_processes, accelerator.process_index
    count = len(np.asarray(lengths))
    found: dict[int, Any] = {}
    with tqdm(
        total=count, desc=description, unit="view", disable=not show_progress or not accelerator.is_main_process
    ) as bar:
        for bucket in buckets(lengths, batch_size, ranks):
            share = -(-len(bucket) // ranks)
            # A rank that would get one item less repeats one: sharded models need every rank at every forward.
            items = np.resize(bucket, share * ranks)[rank::ranks].tolist()
            predictions = run(items)
            if len(predictions) != len(items):
                raise DataError(
                    f"{description}: {len(predictions)} predictions came back for {len(items)} views; "
                    "a prediction function returns one for each"
                )
            found.update(zip(items, predictions, strict=True))
            bar.update(len(bucket))
    for other in gather_object([found]):
        found.update(other)
    return [found[item] for item in range(count)]


def predict_in_stages(
    lengths: np.ndarray,
    advance: Callable[[list[int], list[list[int]], int], Sequence[tuple[list[int], bool]]],
    accelerator: Accelerator,
    batch_size: int,
    description: str = "Generating",
    show_progress: bool = True,
) -> list[list[int]]:
    """Answers of all items, written some tokens at a time: those that have ended do not wait for the others.

    First every batch runs until its longest answer is due (its targets, and `MARGIN` tokens more). Answers that have
    not ended then are put into new batches, by what they hold so far, and may double in length; and so on. Each round
    ends with all ranks knowing all answers, so that they run the same batches.

    Args:
        lengths: `[N, 2]`: tokens of the targets, 0 where they are not known, and of the input.
        advance: (item numbers, their answers so far, tokens to reach) -> answers so far, and whether they have ended.
            Answers so far are of one length in a call.
        accelerator: Knows the ranks.
        batch_size: Items a call on each rank; more where they are short.
        description: Label of the progress bars.
        show_progress: Whether to show them.

    Returns:
        N answers, on every rank.

    Example:
        >>> def count(items, begun, until):
        ...     return [([1] * min(until, 9 * item), until >= 9 * item) for item in items]
        >>> found = predict_in_stages(np.array([[0, 1]] * 3), count, Accelerator(), 2, show_progress=False)
        >>> [len(answer) for answer in found]
        [0, 9, 18]
    """
    answers: list[list[int]] = [[] for _ in range(len(lengths))]
    waiting, due = np.arange(len(lengths)), lengths[:, 0] + MARGIN
    label = description
    while len(waiting):

        def run(places: list[int], waiting: np.ndarray = waiting, due: np.ndarray = due) -> Any:
            items = waiting[places].tolist()
            shortest = min(len(answers[item]) for item in items)
            return advance(items, [answers[item][:shortest] for item in items], int(due[items].max()))

        kinds = np.stack([due, lengths[:, 1]], axis=1)[waiting]
        found = predict_in_buckets(kinds, run, accelerator, batch_size, label, show_progress)
        for item, (answer, _) in zip(waiting.tolist(), found, strict=True):
            answers[item] = answer
        waiting = waiting[[not ended for _, ended in found]]
        due = np.array([2 * len(answer) for answer in answers])
        label = f"{description} on"
    return answers


def prompt_of(feature: Mapping[str, Any]) -> Feature:
    """What a decoder-only model is given at generation: the tokens before the first target.

    Args:
        feature: One view with `input_ids` and `labels` of the same length, -100 on the prompt.

    Returns:
        The view with its token columns cut before the first target and without labels. A view without any target keeps
        all its tokens.

    Example:
        >>> prompt_of({"input_ids": [5, 6, 7], "labels": [-100, -100, 7]})
        {'input_ids': [5, 6]}
    """
    labels = list(feature["labels"])
    length = next((place for place, label in enumerate(labels) if label != IGNORE_INDEX), len(labels))
    return {
        name: values[:length] if hasattr(values, "__len__") and len(values) == len(labels) else values
        for name, values in feature.items()
        if name != "labels"
    }


def pad_left(prompts: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, Tensor]:
    """Left-padded prompts, so that every row ends where generation begins.

    Args:
        prompts: Views with `input_ids`, each of its own length.
        pad_token_id: What fills the left side.

    Returns:
        `input_ids` and `attention_mask`, `[N, T]`.

    Example:
        >>> pad_left([{"input_ids": [5]}, {"input_ids": [6, 7]}], 0)["input_ids"]
        tensor([[0, 5],
                [6, 7]])
    """
    longest = max(len(prompt["input_ids"]) for prompt in prompts)
    input_ids = torch.full((len(prompts), longest), pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        tokens = torch.as_tensor(prompt["input_ids"])
        if len(tokens):
            input_ids[row, -len(tokens) :] = tokens
            attention_mask[row, -len(tokens) :] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def strip_generated(
    tokens: Tensor, prompt_length: int, end_token_ids: Sequence[int], pad_token_id: int
) -> list[list[int]]:
    """The generated ids of every row: after the prompt, up to and without the first end token, without padding.

    Args:
        tokens: `[N, T]`, as `generate` returns them.
        prompt_length: Leading positions that are no output (the prompt, or the decoder's start token).
        end_token_ids: Ids that end a row.
        pad_token_id: Fills the rows that ended early.

    Returns:
        N lists of ids.

    Example:
        >>> strip_generated(torch.tensor([[0, 5, 6, 1, 0], [0, 7, 1, 0, 0]]), 1, [1], 0)
        [[5, 6], [7]]
    """
    ends = set(end_token_ids) | {pad_token_id}
    rows = []
    for row in tokens[:, prompt_length:].tolist():
        length = next((place for place, token in enumerate(row) if token in ends), len(row))
        rows.append(row[:length])
    return rows


class ViewPredictor:
    """What a model predicts for single views: generated ids for language models, logits otherwise.

    Args:
        model: The model, prepared for evaluation.
        collator: Collates single views. What a decoder-only model is given at generation is the tokens of a view before
            its first target (`prompt_of`), padded on the left; a collator whose model is given more (images) says what,
            in a method `prompts(views)` that returns the inputs of `generate`, tokens likewise padded on the left.
        accelerator: Knows device and ranks.
        generates: Whether to call `generate`; else the forward pass's logits are the prediction.
        pad_token_id: Padding of prompts and outputs; needed to generate.
        generation: Arguments of `generate`.

    Example:
        >>> predictor = ViewPredictor(model, collator, accelerator, generates=True, pad_token_id=0)  # doctest: +SKIP
        >>> predictor([{"input_ids": [5, 6], "labels": [7, 1]}])  # doctest: +SKIP
        [[7]]
    """

    def __init__(
        self,
        model: Any,
        collator: Callable[[list[Feature]], Mapping[str, Any]],
        accelerator: Accelerator,
        generates: bool,
        pad_token_id: int | None = None,
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        if generates and pad_token_id is None:
            raise DataError(
                "generation pads its rows, but neither the processing class nor the model's generation config has a "
                "pad_token_id; pass processing_class=tokenizer with tokenizer.pad_token set"
            )
        self.model = model
        self.collator = collator
        self.accelerator = accelerator
        self.generates = generates
        self.pad_token_id = pad_token_id
        self.generation = dict(generation or {})
        self.is_encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))

    def __call__(self, features: list[Feature] | Mapping[str, Tensor]) -> list[Any]:
        """One prediction a view: a list of ids, or an array of logits.

        Args:
            features: Views under the model's column names, one by one or as a batch already.

        Returns:
            As many predictions as views.
        """
        return self._generated(features, self.generation) if self.generates else self._logits(features)

    @property
    def takes_stages(self) -> bool:
        """Whether an answer that is broken off and taken up again (`advance`) is the one that would come at once.

        So it is for the most likely next token, with a limit on the new tokens. Beams, samples, and whatever counts
        tokens from the beginning of an answer, go in one piece.
        """
        if not self.generates or "max_new_tokens" not in self.generation:
            return False
        asked = {name: value for name, value in self.generation.items() if value != GREEDY.get(name, ...)}
        configured = self.model.generation_config
        plain = all(getattr(configured, name, None) in (value, None) for name, value in GREEDY.items())
        return set(asked) == {"max_new_tokens"} and plain and not hasattr(self.collator, "prompts")

    def advance(
        self, features: list[Feature] | Mapping[str, Tensor], begun: list[list[int]], until: int
    ) -> list[tuple[list[int], bool]]:
        """Answers taken up where they were broken off, until they hold so many tokens.

        Args:
            features: Views under the model's own column names.
            begun: The answers so far, all of one length.
            until: Tokens of an answer after which it is broken off again.

        Returns:
            For each view the answer so far and whether it has ended.
        """
        before, limit = len(begun[0]), self.generation["max_new_tokens"]
        settings: dict[str, Any] = {**self.generation, "max_new_tokens": limit - before}
        if until < limit:
            # Not a shorter limit: some models end their answers at the limit by force.
            settings["stopping_criteria"] = StoppingCriteriaList([_After(until - before)])
        answers = self._generated(features, settings, begun)
        return [(answer, len(answer) < until or until >= limit) for answer in answers]

    def _generated(
        self,
        features: list[Feature] | Mapping[str, Tensor],
        settings: Mapping[str, Any],
        begun: Sequence[list[int]] = (),
    ) -> list[list[int]]:
        inputs = self._generation_inputs(features)
        prompt_length = 1 if self.is_encoder_decoder else inputs["input_ids"].shape[1]
        if begun and begun[0]:
            tokens = torch.tensor(begun, device=inputs["input_ids"].device)
            if self.is_encoder_decoder:
                start = tokens.new_full((len(tokens), 1), self._decoder_start())
                inputs["decoder_input_ids"] = torch.cat([start, tokens], dim=1)
            else:
                inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
                inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
        with torch.inference_mode():
            tokens = self.model.generate(**inputs, **settings)
        end = self.model.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end] if end is not None else []
        return strip_generated(tokens, prompt_length, ends, self.pad_token_id if self.pad_token_id is not None else -1)

    def _decoder_start(self) -> int:
        configured = self.model.generation_config
        start = configured.decoder_start_token_id
        return int(configured.bos_token_id if start is None else start)

    def _collate(self, features: list[Feature] | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return features if isinstance(features, Mapping) else self.collator(features)

    def _generation_inputs(self, features: list[Feature] | Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.is_encoder_decoder:
            inputs = {
                name: values
                for name, values in self._collate(features).items()
                if name not in ("labels", "decoder_input_ids", "decoder_attention_mask")
            }
        elif not isinstance(features, Mapping) and hasattr(self.collator, "prompts"):
            inputs = self.collator.prompts(features)
        else:
            assert self.pad_token_id is not None
            if isinstance(features, Mapping):
                names, rows = list(features), zip(*features.values(), strict=True)
                features = [dict(zip(names, row, strict=True)) for row in rows]
            inputs = pad_left([prompt_of(feature) for feature in features], self.pad_token_id)
        return {name: values.to(self.accelerator.device) for name, values in inputs.items()}

    def _logits(self, features: list[Feature] | Mapping[str, Tensor]) -> list[np.ndarray]:
        batch = {
            name: values.to(self.accelerator.device)
            for name, values in self._collate(features).items()
            if name != "labels"
        }
        with torch.inference_mode():
            logits = self.model(**batch).logits
        return list(logits.float().cpu().numpy())


class _After(StoppingCriteria):
    """Breaks all answers of a batch off after so many tokens."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taken = 0

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        self.taken += 1
        return torch.full((len(input_ids),), self.taken >= self.steps, device=input_ids.device, dtype=torch.bool)
