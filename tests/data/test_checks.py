"""Invalid data: no rows, no pairs, columns of partners alone, duplicate row ids, invalid rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from dair_hf import DataError, EpochPairs, TensorPairs
from dair_hf.data.checks import require_pairs, require_rows
from tests.fixtures import tiny

KNOWN = ["input_ids", "attention_mask", "labels", "label", "label_ids", "row_id"]
KNOWN += [f"augmented_{name}" for name in KNOWN]


def made_rows() -> Iterator[dict[str, Any]]:
    yield from tiny.pairs("gpt2", 4)


def same(predictions: list[Any], references: list[Any]) -> list[bool]:
    return [True] * len(predictions)


NO_ROWS = [
    datasets.DatasetDict(train=tiny.pairs("gpt2", 2)),
    datasets.IterableDatasetDict(),
    made_rows(),
    "wiki",
    datasets.Dataset.from_dict({"x": []}),
    [],
    TensorPairs({"x": torch.ones(0, 2)}),
    datasets.Dataset.from_dict({"x": [1], "augmented_y": [1]}),
]


@pytest.mark.parametrize("data", NO_ROWS, ids=lambda data: type(data).__name__)
def test_what_is_not_paired_rows_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="^train_dataset"):
        require_rows(data, "train_dataset")


def test_all_data_of_a_trainer_are_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^train_dataset"):
        tiny.trainer(tmp_path, "gpt2", [])
    made = tiny.trainer(tmp_path, "gpt2", None)
    reads = {"test_dataset": made.predict, "eval_dataset": made.evaluate}
    for name, read in {**reads, "dataset": lambda data: made.evaluate_pairs(data, same)}.items():
        with pytest.raises(DataError, match=f"^{name}"):
            read([])


def test_all_kinds_of_data_sets_pass() -> None:
    data = tiny.pairs("gpt2", 2)
    transformed = data.with_transform(dict, columns=["augmented_labels"])
    assert not require_pairs(transformed, KNOWN, "da", "train_dataset")  # its columns are those that it returns
    torch_data = torch.utils.data.Subset(data, [0])
    for given in (None, data, data.to_iterable_dataset(), list(data), EpochPairs(lambda epoch: data), torch_data):
        require_rows(given, "train_dataset")


ALONE = tiny.pairs("gpt2", 6, partner=lambda row: False)
ORIGINALS = ALONE.select_columns(["row_id", "input_ids", "attention_mask", "labels"])
HIDDEN = tiny.pairs("gpt2", 6).with_format("torch", columns=["input_ids", "attention_mask", "labels"])


@pytest.mark.parametrize(
    "data",
    [ALONE, ORIGINALS, HIDDEN, list(ALONE), EpochPairs(lambda epoch: ORIGINALS), TensorPairs({"x": torch.ones(2)})],
)
def test_data_without_pairs_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match="^train_dataset: method='da'"):
        require_pairs(data, KNOWN, "da", "train_dataset")


@pytest.mark.parametrize("kind", ["rows", "stream", "epochs"])
def test_training_on_data_without_pairs_fails_at_once_or_at_the_end_of_the_data(tmp_path: Path, kind: str) -> None:
    data = {"rows": ALONE, "stream": ALONE.to_iterable_dataset(), "epochs": EpochPairs(lambda epoch: ALONE)}[kind]
    settings = {"max_steps": 5, "num_train_epochs": 1}  # two are an epoch
    made = tiny.trainer(tmp_path, "gpt2", data, **settings)
    with pytest.raises(DataError, match="method='dair'"):
        made.train()
    assert made.state.global_step == (0 if kind == "rows" else 2)
    if kind == "stream":
        tiny.trainer(tmp_path, "gpt2", data, method="erm", **settings).train()


def test_late_and_rare_pairs_are_found() -> None:
    data = tiny.pairs("gpt2", 30, partner=lambda row: row == 29)
    for searched in (data, list(data)):
        assert require_pairs(searched, KNOWN, "dair", "train_dataset")
    transformed = data.with_transform(lambda rows: {name: rows[name] for name in rows})
    torch_data = torch.utils.data.Subset(data, range(6))
    for watched in (data.to_iterable_dataset(), EpochPairs(lambda epoch: data), torch_data, transformed):
        assert not require_pairs(watched, KNOWN, "dair", "train_dataset")


def test_a_resumed_stream_is_not_refused_if_its_pairs_came_before(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 24, partner=lambda row: row == 3).to_iterable_dataset()
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 3}
    whole, resumed = (tiny.trainer(tmp_path, "gpt2", data, **settings) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert tiny.distance(tiny.weights(whole.model), tiny.weights(resumed.model)) == 0.0


def test_duplicate_row_ids_are_refused_in_evaluation(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 3)
    data = datasets.concatenate_datasets([data, data.select([1])])
    made = tiny.trainer(tmp_path, "gpt2", None)
    with pytest.raises(DataError, match="row_id 'T000/1'"):
        made.evaluate_pairs(data, same)


@pytest.mark.parametrize(("kind", "column", "value"), [("bart", "input_ids", [5, 24, 5]), ("gpt2", "labels", [5, 6])])
def test_bad_rows_are_named_in_training_and_evaluation(
    tmp_path: Path, kind: str, column: str, value: list[int]
) -> None:
    rows = list(tiny.pairs(kind, 4))
    rows[2][column] = value
    data = datasets.Dataset.from_list(rows)
    made = tiny.trainer(tmp_path, kind, data)
    message = f"row 'T000/2': .*{column}"
    with pytest.raises(DataError, match=message):
        made.train()
    with pytest.raises(DataError, match=message):
        made.evaluate(data)
    if "labels" not in column:  # answers are generated from the inputs, which may be prompts
        with pytest.raises(DataError, match=message):
            made.evaluate_pairs(data, same, max_new_tokens=2)


# ---- several partners ----


def test_a_second_partner_alone_makes_a_pair() -> None:
    rows = {"input_ids": [[1], [2]], "augmented_input_ids": [None, None], "augmented_2_input_ids": [None, [3]]}
    known = list(rows)
    data = datasets.Dataset.from_dict(rows)
    assert require_pairs(data, known, "da", "train_dataset")
    assert require_pairs(list(data), known, "da", "train_dataset")
    with pytest.raises(DataError, match="train_dataset"):
        require_pairs(data.select([0]), known, "da", "train_dataset")
