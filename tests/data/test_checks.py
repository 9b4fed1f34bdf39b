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
from tests.fixtures import points, tiny

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
def test_what_is_not_paired_rows_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(ValueError, match="train_dataset"):  # of a stream without a length by transformers
        tiny.trainer(tmp_path, "gpt2", data)
    made = tiny.trainer(tmp_path, "gpt2", None)
    for name, read in (("test_dataset", made.predict), ("dataset", lambda data: made.evaluate_pairs(data, same))):
        with pytest.raises(DataError, match=f"^{name}"):
            read(data)
    if not isinstance(data, dict):  # a dictionary of evaluation sets, as in Trainer
        with pytest.raises(DataError, match="^eval_dataset"):
            made.evaluate(data)


def test_all_kinds_of_data_sets_pass() -> None:
    data = tiny.pairs("gpt2", 2)
    torch_data = torch.utils.data.Subset(data, [0])
    for given in (None, data, data.to_iterable_dataset(), list(data), EpochPairs(lambda epoch: data), torch_data):
        require_rows(given, "train_dataset")


def without_partners(kind: str) -> Any:
    data = tiny.pairs("gpt2", 6, partner=lambda row: False)
    return {
        "data set": data,
        "data set without columns": data.select_columns(["row_id", "input_ids", "attention_mask", "labels"]),
        "list": list(data),
        "torch data set": torch.utils.data.Subset(data, range(6)),
        "stream": data.to_iterable_dataset(),
        "epochs": EpochPairs(lambda epoch: data),
        "transformed": data.with_transform(lambda rows: {name: rows[name] for name in rows}),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["data set", "data set without columns", "list", "torch data set", "stream", "epochs", "transformed"],
)
def test_methods_that_use_pairs_refuse_data_without_pairs(tmp_path: Path, kind: str) -> None:
    data = without_partners(kind)
    settings = {"max_steps": 2} if kind == "stream" else {"num_train_epochs": 1}
    made = tiny.trainer(tmp_path, "gpt2", data, **settings)
    with pytest.raises(DataError, match="method='dair'"):
        made.train()
    assert made.state.global_step in (0, 2)  # at once, or at the end of the data
    tiny.trainer(tmp_path, "gpt2", data, method="erm", **settings).train()


def test_data_without_pairs_are_refused() -> None:
    data = tiny.pairs("gpt2", 2, partner=lambda row: False)
    for rows in (data, [{"input_ids": [1], "labels": [2]}], TensorPairs({"x": torch.ones(2)})):
        with pytest.raises(DataError, match="^train_dataset: method='da'"):
            require_pairs(rows, KNOWN, "da", "train_dataset")


def test_late_and_rare_pairs_are_found(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 30, partner=lambda row: row == 29)
    assert require_pairs(data, KNOWN, "dair", "train_dataset")
    assert require_pairs(list(data), KNOWN, "dair", "train_dataset")
    assert not require_pairs(data.to_iterable_dataset(), KNOWN, "dair", "train_dataset")  # to be watched
    settings = {"per_device_train_batch_size": 3, "max_steps": 10, "train_sampling_strategy": "sequential"}
    tiny.trainer(tmp_path, "gpt2", data.to_iterable_dataset(), **settings).train()


def test_a_resumed_stream_is_not_refused_if_its_pairs_came_before(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 60, partner=lambda row: row == 3).to_iterable_dataset()
    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 6}
    whole, resumed = (tiny.trainer(tmp_path, "gpt2", data, **settings) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert tiny.distance(tiny.weights(whole.model), tiny.weights(resumed.model)) == 0.0


def test_an_augmenter_needs_no_partners_in_the_data(tmp_path: Path) -> None:
    from tests.training.test_online_partners import shifted, trainer

    trainer(tmp_path, shifted).train()
    x, _, labels = points.points(4)
    points.trainer(tmp_path, TensorPairs({"x": x, "labels": labels}), method="erm").train()
    with pytest.raises(DataError, match="method='da'"):
        points.trainer(tmp_path, TensorPairs({"x": x, "labels": labels}), method="da").train()


def test_duplicate_row_ids_are_refused_in_evaluation(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 3)
    data = datasets.concatenate_datasets([data, data.select([1])])
    made = tiny.trainer(tmp_path, "gpt2", None)
    with pytest.raises(DataError, match="row_id 'T000/1'"):
        made.evaluate_pairs(data, same)


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [("bart", "input_ids", [5, 24, 5]), ("bart", "augmented_labels", [5, 99]), ("gpt2", "labels", [5, 6])],
)
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
