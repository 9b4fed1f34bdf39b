"""Predictions keep their order and their rows, however they are bucketed, padded and cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorForSeq2Seq

from dair_hf import DataError
from dair_hf.prediction import (
    MORE_ROWS,
    ViewPredictor,
    buckets,
    pad_left,
    predict_in_buckets,
    predict_in_stages,
    prompt_of,
    strip_generated,
)
from tests.fixtures import tiny


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 7))
def test_buckets_give_every_item_its_own_prediction(lengths: list[int], batch_size: int) -> None:
    batches: list[list[int]] = []

    def run(items: list[int]) -> list[int]:
        batches.append(items)
        return [100 + item for item in items]

    found = predict_in_buckets(lengths, run, Accelerator(cpu=True), batch_size, show_progress=False)
    assert found == [100 + item for item in range(len(lengths))]
    assert all(len(batch) <= MORE_ROWS * batch_size for batch in batches)
    seen = [lengths[item] for batch in batches for item in batch]
    assert seen == sorted(lengths, reverse=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_buckets_hold_every_item_once_within_the_budget_of_the_longest(batch_size: int, ranks: int) -> None:
    random = np.random.default_rng(2)
    lengths = np.stack([random.integers(0, 30, 301), random.integers(0, 200, 301)], axis=1)
    tokens = lengths.sum(1)
    found = buckets(lengths, batch_size, ranks)
    assert sorted(item for bucket in found for item in bucket) == list(range(301))
    for bucket in found:
        rows = -(-len(bucket) // ranks)
        assert rows <= MORE_ROWS * batch_size
        assert rows * tokens[bucket].max() <= batch_size * tokens.max() or rows == 1
    firsts = np.concatenate(found)
    assert (np.diff(lengths[firsts, 0]) <= 0).all()
    same = np.diff(lengths[firsts, 0]) == 0
    assert (np.diff(lengths[firsts, 1])[same] <= 0).all()
    assert len(found) < -(-301 // (batch_size * ranks)) or batch_size == 64


def test_buckets_by_hand() -> None:
    # The longest makes a budget of 2 * 8 tokens: two of 8; then 4 of 4 and not the fifth; then the rest.
    found = buckets([4, 8, 4, 8, 4, 4, 1, 4], batch_size=2)
    assert [bucket.tolist() for bucket in found] == [[1, 3], [0, 2, 4, 5], [7, 6]]
    assert [bucket.tolist() for bucket in buckets([0, 0, 0], batch_size=2)] == [[0, 1], [2]]
    assert buckets([], batch_size=2) == []
    assert [len(bucket) for bucket in buckets([1] * 20 + [1000], batch_size=2)] == [2, 8, 8, 3]


def test_a_prediction_function_that_loses_one_is_refused() -> None:
    message = "Generating: 1 predictions came back for 2 views; a prediction function returns one for each"
    with pytest.raises(DataError, match=message):
        predict_in_buckets([1, 1], lambda items: items[:1], Accelerator(cpu=True), 2, "Generating", show_progress=False)


def test_the_prompt_ends_before_the_first_target() -> None:
    feature = {"input_ids": [5, 6, 7, 8], "attention_mask": [1, 1, 1, 1], "labels": [-100, -100, 7, 8], "note": "n"}
    assert prompt_of(feature) == {"input_ids": [5, 6], "attention_mask": [1, 1], "note": "n"}
    without = {"input_ids": [5, 6], "labels": [-100, -100]}
    assert prompt_of(without) == {"input_ids": [5, 6]}
    assert prompt_of({"input_ids": [5], "labels": [5]}) == {"input_ids": []}


def test_prompts_are_padded_on_the_left() -> None:
    found = pad_left([{"input_ids": [5]}, {"input_ids": [6, 7, 8]}, {"input_ids": []}], 9)
    assert found["input_ids"].tolist() == [[9, 9, 5], [6, 7, 8], [9, 9, 9]]
    assert found["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 0]]


def test_generated_ids_stop_at_the_first_end() -> None:
    tokens = torch.tensor([[3, 5, 6, 1, 7], [3, 5, 2, 8, 1], [3, 0, 5, 5, 5], [3, 5, 6, 7, 8]])
    assert strip_generated(tokens, 1, [1, 2], 0) == [[5, 6], [5], [], [5, 6, 7, 8]]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_padded_generation_of_a_decoder_only_model_is_the_unpadded_one_row_by_row(kind: str) -> None:
    model = tiny.model(kind).eval()
    data = tiny.pairs(kind, 9, partner=lambda row: False).select_columns(["input_ids", "attention_mask", "labels"])
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": 5})
    together = predictor(list(data))
    for row, found in zip(data, together, strict=True):
        prompt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100]
        ids = list(prompt)
        for _ in range(5):  # greedy decoding written out, without generate, cache or padding
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in (tiny.EOS, tiny.PAD):
                ids.pop()
                break
        assert found == ids[len(prompt) :]
    assert len({len(row["input_ids"]) for row in data}) > 1
    assert any(together)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_padded_generation_of_an_encoder_decoder_is_the_unpadded_one(kind: str) -> None:
    model = tiny.model(kind).eval()
    data = list(
        tiny.pairs(kind, 6, partner=lambda row: False).select_columns(["input_ids", "attention_mask", "labels"])
    )
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": 5})
    assert predictor(data) == [predictor([row])[0] for row in data]


class Echo:
    """A decoder-only model that writes 5, 6 and the end token, and remembers what it was given."""

    config = SimpleNamespace(is_encoder_decoder=False)
    generation_config = SimpleNamespace(eos_token_id=[1, 7])

    def generate(self, **inputs: Any) -> torch.Tensor:
        self.given = inputs
        return torch.cat([inputs["input_ids"], torch.tensor([[5, 6, 7]] * len(inputs["input_ids"]))], dim=1)


def staged(predictor: ViewPredictor, features: list[Any], batch_size: int) -> list[list[int]]:
    """Answers of a predictor in stages; every batch of a stage must have begun alike."""

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        assert len({len(answer) for answer in begun}) == 1
        return predictor.advance([features[item] for item in items], begun, until)

    lengths = np.array([[item % 3, len(feature["input_ids"])] for item, feature in enumerate(features)])
    return predict_in_stages(lengths, advance, Accelerator(cpu=True), batch_size, show_progress=False)


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
@pytest.mark.parametrize("limit", [1, 2, 3, 9, 16])
def test_answers_in_stages_are_those_in_one_piece(kind: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dair_hf.prediction.MARGIN", 1)
    model = tiny.model(kind).eval()
    if kind == "bart":
        model.generation_config.forced_eos_token_id = 5  # the last token at the limit, and at no break before it
    rows = tiny.pairs(kind, 24, target_lengths=(1, 3), seed=4)
    features = [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows]
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": limit})
    assert predictor.takes_stages
    whole = [predictor([feature])[0] for feature in features]
    assert staged(predictor, features, 5) == whole
    assert len({len(answer) for answer in whole}) > 1 or limit == 1 or kind == "bart"  # which never ends by itself
    if limit > 2:
        assert max(map(len, whole)) > 2  # taken up at least once
    if kind == "bart":
        assert {answer[-1] for answer in whole if len(answer) == limit} <= {5}


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 9},
        {"max_new_tokens": 9, "num_beams": 2},
        {"max_new_tokens": 9, "do_sample": True},
        {"max_new_tokens": 9, "min_new_tokens": 2},
        {"max_new_tokens": 9, "cache_implementation": "static"},
    ],
)
def test_whatever_is_not_greedy_goes_in_one_piece(settings: dict[str, Any]) -> None:
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    model = tiny.model("t5")
    assert not ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, settings).takes_stages
    model.generation_config.num_beams = 3
    assert not ViewPredictor(model, collator, Accelerator(cpu=True), True, 0, {"max_new_tokens": 9}).takes_stages


def test_ended_answers_wait_for_nobody() -> None:
    """Steps that are run, counted by hand: those of a row that runs on are its own."""
    wanted, targets, steps_run = [3, 3, 3, 3, 3, 3, 3, 60], [3, 3, 3, 3, 9, 3, 3, 3], []

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        before = len(begun[0])
        steps_run.append(len(items) * (min(until, max(wanted[item] for item in items)) - before))
        grown = [min(until, wanted[item]) for item in items]
        return [([7] * size, size == wanted[item]) for item, size in zip(items, grown, strict=True)]

    lengths = np.array([[target, 1] for target in targets])
    found = predict_in_stages(lengths, advance, Accelerator(cpu=True), 8, show_progress=False)
    assert [len(answer) for answer in found] == wanted
    # All until 9 + 8 are due; the one that runs on until 34, and until it ends at 60.
    assert steps_run == [8 * 17, 17, 60 - 34]


def test_answers_of_different_length_are_taken_up_from_the_shortest() -> None:
    seen: list[list[int]] = []

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        seen.append([len(answer) for answer in begun])
        return [([item] * min(until, 100), until >= 100) for item in items]

    lengths = np.array([[1, 1], [40, 1], [0, 1]])
    found = predict_in_stages(lengths, advance, Accelerator(cpu=True), 1, show_progress=False)
    assert found == [[0] * 100, [1] * 100, [2] * 100]
    assert all(len(set(begun)) == 1 for begun in seen)
    assert seen[0] == [0]


def test_a_collator_says_what_else_a_model_is_given_to_generate() -> None:
    class Pictures:
        def __call__(self, views: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            raise AssertionError("a batch to train on has the targets in it")

        def prompts(self, views: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            seen.append([view["question"] for view in views])
            return {"input_ids": torch.tensor([[0, 3], [4, 3]]), "pixel_values": torch.ones(2, 3, 4, 4)}

    seen: list[list[str]] = []
    model = Echo()
    predictor = ViewPredictor(model, Pictures(), Accelerator(cpu=True), True, 0, {"max_new_tokens": 3})
    assert predictor([{"question": "a"}, {"question": "b"}]) == [[5, 6], [5, 6]]
    assert seen == [["a", "b"]]
    assert set(model.given) == {"input_ids", "pixel_values", "max_new_tokens"}


def test_without_generation_the_logits_are_the_prediction() -> None:
    torch.manual_seed(0)
    model = tiny.NormedClassifier(tiny.NormedConfig()).eval()
    features = [{"features": [1.0, 2.0, 3.0], "labels": 0}, {"features": [0.0, 0.0, 1.0], "labels": 1}]
    seen: list[set[str]] = []

    def stack(rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        seen.append(set(rows[0]))
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    found = ViewPredictor(model, stack, Accelerator(cpu=True), generates=False)(features)
    expected = model(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]])).logits.detach().numpy()
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-6)
    assert seen == [{"features", "labels"}]


def test_generation_without_a_padding_token_is_refused() -> None:
    message = (
        "neither the processing class nor the model's generation config has a pad_token_id; pass processing_class="
    )
    with pytest.raises(DataError, match=message):
        ViewPredictor(tiny.model("gpt2"), dict, Accelerator(cpu=True), generates=True)
