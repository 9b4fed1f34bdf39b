"""Buckets and predictions: order, limits and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf import DataError
from dair_hf.data.held_rows import HeldRows
from dair_hf.evaluation.prediction import MORE_ROWS, _buckets, _predict_in_buckets, _tree_buckets
from dair_hf.evaluation.views import views_of
from tests.fixtures import tiny

MODEL = ("input_ids", "attention_mask", "labels")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 7))
def test_predictions_are_in_the_order_of_items(lengths: list[int], batch_size: int) -> None:
    batches: list[list[int]] = []

    def run(items: list[int]) -> list[int]:
        batches.append(items)
        return [100 + item for item in items]

    found = _predict_in_buckets(_buckets(lengths, batch_size), run, Accelerator(cpu=True), show_progress=False)
    assert found == [100 + item for item in range(len(lengths))]
    assert all(len(batch) <= MORE_ROWS * batch_size for batch in batches)
    seen = [lengths[item] for batch in batches for item in batch]
    assert seen == sorted(lengths, reverse=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_buckets_contain_every_item_once_within_the_limit(batch_size: int, ranks: int) -> None:
    random = np.random.default_rng(2)
    lengths = np.stack([random.integers(0, 30, 301), random.integers(0, 200, 301)], axis=1)
    tokens = lengths.sum(1)
    found = _buckets(lengths, batch_size, ranks)
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
    # The limit is 2 * 8 tokens: two items of 8; then four of 4 and not the fifth; then the rest.
    found = _buckets([4, 8, 4, 8, 4, 4, 1, 4], batch_size=2)
    assert [bucket.tolist() for bucket in found] == [[1, 3], [0, 2, 4, 5], [7, 6]]
    assert [bucket.tolist() for bucket in _buckets([0, 0, 0], batch_size=2)] == [[0, 1], [2]]
    assert _buckets([], batch_size=2) == []
    assert [len(bucket) for bucket in _buckets([1] * 20 + [1000], batch_size=2)] == [2, 8, 8, 3]
    assert [len(bucket) for bucket in _buckets([4] * 20, batch_size=2, longest_item=12)] == [6, 6, 6, 2]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_buckets_of_trees_are_limited_in_nodes_and_items(ranks: int) -> None:
    random = np.random.default_rng(3)
    first = random.integers(5, 40, 200)
    nodes = np.stack([random.integers(1, first + 1), first], axis=1)
    order = random.permutation(200)
    place = np.argsort(order)
    found = _tree_buckets(order, nodes, 100, 6, ranks)
    parts = [bucket[rank::ranks] for bucket in found for rank in range(ranks)]
    parts = [part[part >= 0] for part in parts]
    assert np.concatenate(parts).tolist() == order.tolist()
    sizes = [nodes[place[part[0]], 1] + nodes[place[part[1:]], 0].sum() for part in parts if len(part)]
    assert max(sizes) <= 100
    assert {len(part) for part in parts if len(part)} >= {4, 5, 6}
    # None could have taken the first item of the next.
    for part, following, size in zip(parts, parts[1:], sizes, strict=False):
        assert len(part) == 6 or len(following) == 0 or size + nodes[place[following[0]], 0] > 100
    assert _tree_buckets(np.arange(1), np.array([[400, 400]]), 100, 6)[0].tolist() == [0]  # too large, but alone


def tensors_of(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return a batch of rows with tensors instead of lists."""
    return {
        name: [torch.tensor(value) if isinstance(value, list) else value for value in values]
        for name, values in batch.items()
    }


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")  # by the collator
@pytest.mark.parametrize("form", ["torch", "numpy", "transform"])
def test_the_format_of_the_data_changes_neither_answers_nor_references(tmp_path: Path, form: str) -> None:
    given: list[tuple[list[Any], list[Any]]] = []

    def correct(predictions: list[Any], references: list[Any]) -> list[bool]:
        given.append((predictions, references))
        return [True] * len(predictions)

    data, made = tiny.pairs("t5", 6), tiny.trainer(tmp_path, "t5", None)
    for rows in (data, data.with_transform(tensors_of) if form == "transform" else data.with_format(form)):
        made.evaluate_pairs(rows, correct, intervals=False, max_new_tokens=2)
    assert given[0] == given[1]
    assert all(isinstance(reference, str) for reference in given[1][1])


def test_a_transform_may_make_other_columns_than_are_stored(tmp_path: Path) -> None:
    given: list[tuple[list[Any], list[Any]]] = []

    def correct(predictions: list[Any], references: list[Any]) -> list[bool]:
        given.append((predictions, references))
        return [True] * len(predictions)

    made = tiny.trainer(tmp_path, "t5", None, remove_unused_columns=False)
    data = tiny.pairs("t5", 6).select_columns(["row_id", *(f"{p}{c}" for p in ("", "augmented_") for c in MODEL)])
    stored = data.rename_columns({name: f"my_{name}" for name in data.column_names if name != "row_id"})
    stored = stored.add_column("dialogue", ["a", "a", "b", "b", "b", "c"])

    def renamed(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:  # fails without one of the stored columns
        return {name: batch[f"my_{name}"] for name in data.column_names if name != "row_id"}

    transformed = stored.with_transform(renamed)
    metrics = made.evaluate_pairs(transformed, correct, intervals=False, predictions_file=tmp_path / "p.jsonl")
    expected = made.evaluate_pairs(data, correct, intervals=False, predictions_file=tmp_path / "q.jsonl")
    assert given[0] == given[1] and len(given[0][0]) > 6, "the case must hold partners"
    assert metrics == expected and metrics["pairs"] < metrics["rows"], "and a row without one"
    assert (tmp_path / "p.jsonl").read_text() == (tmp_path / "q.jsonl").read_text()
    assert made.pair_losses(transformed)[0].tolist() == made.pair_losses(data)[0].tolist()
    views = views_of(HeldRows(transformed))
    assert views.values("dialogue") == stored["dialogue"][:] and len(views.originals()) == 6
    with pytest.raises(DataError, match="nope"):
        views.column("nope")


def test_mixed_precision_is_used_before_the_model_is_prepared(tmp_path: Path) -> None:
    """Logits before and after `evaluate`, which prepares the model."""
    seen: list[Any] = []

    def first_logits(outputs: Any, labels: Any) -> torch.Tensor:
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        seen.append(logits.dtype)
        return logits[:, 0, :8]

    def correct(predictions: list[Any], references: list[Any]) -> list[bool]:
        seen.append(np.stack(predictions))
        return [True] * len(predictions)

    data, built = tiny.pairs("gpt2", 4), tiny.model("gpt2", dtype=torch.float32)
    settings = {"predict_with_generate": False, "preprocess_logits_for_metrics": first_logits}
    trainer = tiny.trainer(tmp_path, "gpt2", None, built=built, bf16=True, **settings)
    trainer.evaluate_pairs(data, correct, intervals=False)
    before = seen[-1]
    assert set(seen[:-1]) == {torch.float32}
    trainer.evaluate(data)
    trainer.evaluate_pairs(data, correct, intervals=False)
    np.testing.assert_array_equal(before, seen[-1])
    full = tiny.trainer(tmp_path, "gpt2", None, built=tiny.model("gpt2", dtype=torch.float32), **settings)
    full.evaluate_pairs(data, correct, intervals=False)
    assert np.abs(before - seen[-1]).max() > 1e-4  # bfloat16 rounds


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_answers_are_generated_with_mixed_precision(tmp_path: Path, kind: str) -> None:
    data, built, seen = tiny.pairs(kind, 3), tiny.model(kind, dtype=torch.float32), []
    parts = [built, built.get_encoder()] if kind == "t5" else [built]
    for part in parts:
        part.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    for bf16 in (True, False):
        trainer = tiny.trainer(tmp_path, kind, None, built=built, bf16=bf16)
        trainer.evaluate_pairs(data, lambda answers, _: [True] * len(answers), intervals=False, max_new_tokens=2)
        assert len(seen) >= 2 and set(seen) == {bf16}
        seen.clear()


def test_a_rank_may_have_fewer_items_than_another() -> None:
    found = _predict_in_buckets(
        [np.array([2, -1, 0]), np.array([-1, 1])], lambda items: [10 * i for i in items], Accelerator(cpu=True)
    )
    assert found == [0, 10, 20]
