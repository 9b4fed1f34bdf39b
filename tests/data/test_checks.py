"""Invalid data: no rows, no pairs, misspelt columns, duplicate row ids, invalid rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from dair_hf import DataError, EpochPairs, TensorPairs
from dair_hf.data.checks import require_pairs, require_rows, warn_of_inherited_labels
from tests.fixtures import points, tiny

KNOWN = ["input_ids", "attention_mask", "labels", "label", "label_ids", "row_id"]
KNOWN += [f"augmented_{name}" for name in KNOWN]


def made_rows() -> Iterator[dict[str, Any]]:
    yield from tiny.pairs("gpt2", 4)


def same(predictions: list[Any], references: list[Any]) -> list[bool]:
    return [True] * len(predictions)


NO_ROWS = [
    (datasets.DatasetDict(train=tiny.pairs("gpt2", 2)), r"DatasetDict with the splits \['train'\]; .* data\['train'\]"),
    (datasets.IterableDatasetDict(), r"IterableDatasetDict with the splits \[\]; pass one of them$"),
    ({"train": [], "test": []}, r"dict with the splits \['train', 'test'\]; pass one of them, such as data\['train'\]"),
    (made_rows(), r"generator; pass a datasets.Dataset, or .*IterableDataset.from_generator"),
    ("wiki", "str; pass a datasets.Dataset"),
    (datasets.Dataset.from_dict({"x": []}), "empty; check the split and the filters before it"),
    ([], "empty"),
    (TensorPairs({"x": torch.ones(0, 2)}), "empty"),
]


@pytest.mark.parametrize(("data", "message"), NO_ROWS)
def test_data_without_rows_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"train_dataset is (a|an)? ?{message}"):
        tiny.trainer(tmp_path, "gpt2", data)
    made = tiny.trainer(tmp_path, "gpt2", None)
    for name, read in (("test_dataset", made.predict), ("dataset", lambda data: made.evaluate_pairs(data, same))):
        with pytest.raises(DataError, match=f"^{name} is (a|an)? ?{message}"):
            read(data)
    if not isinstance(data, dict):  # a dictionary of evaluation sets, as in Trainer
        with pytest.raises(DataError, match=f"eval_dataset is (a|an)? ?{message}"):
            made.evaluate(data)


def test_all_kinds_of_data_sets_pass() -> None:
    data = tiny.pairs("gpt2", 2)
    torch_data = torch.utils.data.Subset(data, [0])
    for given in (None, data, data.to_iterable_dataset(), list(data), EpochPairs(lambda epoch: data), torch_data):
        require_rows(given, "train_dataset")


def test_partners_that_may_have_a_label_of_another_name(caplog: pytest.LogCaptureFixture) -> None:
    columns = ["input_ids", "labels", "augmented_input_ids"]
    for name in ("augmented_sentiment", "augmented_2_sentiment"):
        warn_of_inherited_labels([*columns, name], KNOWN, f"data of {name}")
        prefix = name.removesuffix("sentiment")
        assert (
            f"data of {name} has the column '{name}', which belongs to none of the originals, and no '{prefix}labels': "
            "partners have the 'labels' of their originals"
        ) in caplog.text
    caplog.clear()
    # They have labels, the originals have the column, or there is no such column.
    warn_of_inherited_labels([*columns, "augmented_labels", "augmented_by"], [*KNOWN, "augmented_labels"], "a")
    warn_of_inherited_labels([*columns, "by", "augmented_by"], KNOWN, "b")
    warn_of_inherited_labels([*columns, "by"], KNOWN, "c")
    assert caplog.text == ""


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


def test_the_error_describes_the_data(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 2, partner=lambda row: False)
    with pytest.raises(DataError, match="augmented_input_ids, augmented_attention_mask, augmented_labels are None"):
        require_pairs(data, KNOWN, "da", "train_dataset")
    with pytest.raises(DataError, match="no column begins with 'augmented_', it has input_ids, labels"):
        require_pairs([{"input_ids": [1], "labels": [2]}], KNOWN, "da", "train_dataset")
    with pytest.raises(DataError, match="no row of train_dataset has a partner"):
        require_pairs(TensorPairs({"x": torch.ones(2)}), ["x"], "da", "train_dataset")


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
    with pytest.raises(DataError, match="method='da' trains on pairs"):
        points.trainer(tmp_path, TensorPairs({"x": x, "labels": labels}), method="da").train()


def test_duplicate_row_ids_are_refused_in_evaluation(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 3)
    data = datasets.concatenate_datasets([data, data.select([1])])
    made = tiny.trainer(tmp_path, "gpt2", None)
    with pytest.raises(DataError, match="row_id 'T000/1' names row 1 and row 3 of the data; give each row an id"):
        made.evaluate_pairs(data, same)


@pytest.mark.parametrize(
    ("kind", "column", "value", "message"),
    [
        ("bart", "input_ids", [5, 24, 5], "row 'T000/2': input_ids holds 24, but valid ids are 0 to 23"),
        ("bart", "augmented_labels", [5, 99], "row 'T000/2': augmented_labels holds 99, but valid ids are 0 to 23"),
        ("gpt2", "input_ids", [], "row 'T000/2': input_ids is empty"),
        ("gpt2", "attention_mask", [1], "row 'T000/2': attention_mask has 1 entries for"),
        ("gpt2", "labels", [5, 6], "row 'T000/2': labels has 2 entries for"),
    ],
)
def test_bad_rows_are_named_in_training_and_evaluation(
    tmp_path: Path, kind: str, column: str, value: list[int], message: str
) -> None:
    rows = list(tiny.pairs(kind, 4))
    rows[2][column] = value
    data = datasets.Dataset.from_list(rows)
    made = tiny.trainer(tmp_path, kind, data)
    with pytest.raises(DataError, match=message):
        made.train()
    with pytest.raises(DataError, match=message):
        made.evaluate(data)
    if "labels" not in column:  # answers are generated from the inputs, which may be prompts
        with pytest.raises(DataError, match=message):
            made.evaluate_pairs(data, same, max_new_tokens=2)


def test_text_instead_of_ids_is_named(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"row_id": ["ü"], "input_ids": ["what is"], "labels": [[4]]})
    with pytest.raises(DataError, match="row 'ü': input_ids is the text 'what is'; tokenize it"):
        tiny.trainer(tmp_path, "bart", data, method="erm").train()


def test_a_table_of_pandas_is_refused() -> None:
    frame = datasets.Dataset.from_dict({"x": [1]}).to_pandas()
    with pytest.raises(DataError, match=r"train_dataset is a DataFrame; pass datasets.Dataset.from_pandas\(data\)"):
        require_rows(frame, "train_dataset")


# ---- several partners ----


def test_a_second_partner_alone_makes_a_pair() -> None:
    rows = {"input_ids": [[1], [2]], "augmented_input_ids": [None, None], "augmented_2_input_ids": [None, [3]]}
    known = list(rows)
    data = datasets.Dataset.from_dict(rows)
    assert require_pairs(data, known, "da", "train_dataset")
    assert require_pairs(list(data), known, "da", "train_dataset")
    with pytest.raises(DataError, match="augmented_input_ids, augmented_2_input_ids are None"):
        require_pairs(data.select([0]), known, "da", "train_dataset")
