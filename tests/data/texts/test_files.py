"""`pairs_from_jsonl`: what it reads, and what it refuses, with line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

import dair_hf
from dair_hf import DataError, pairs_from_jsonl

COMPLETION: dict[str, Any] = {
    "prompt": "2 + 3 =", "completion": "5", "augmented_prompt": "7 + 1 =", "augmented_completion": "8",
}  # fmt: skip
ALONE = {**COMPLETION, "augmented_prompt": None, "augmented_completion": None}
USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


def written(folder: Path, *rows: Any, name: str = "pairs.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_rows_with_and_without_partners(tmp_path: Path) -> None:
    """A partner is absent if its columns are null or missing; row ids go through all files."""
    first = written(tmp_path, COMPLETION, "", ALONE, {"prompt": "1", "completion": "1"})
    second = written(
        tmp_path, {**COMPLETION, "augmented_prompt": "2 + 3 =", "augmented_completion": "5"}, name="b.jsonl"
    )
    rows = pairs_from_jsonl([first, second])
    assert isinstance(rows, datasets.Dataset) and rows["row_id"][:] == ["0", "1", "2", "3"]
    assert rows["augmented_prompt"][:] == ["7 + 1 =", None, None, "2 + 3 ="]
    assert pairs_from_jsonl(str(first)).to_list() == rows.to_list()[:3]
    assert "pairs_from_jsonl" in dair_hf.__all__


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_other_kinds_of_files(tmp_path: Path, kind: str) -> None:
    row = {"text": "a", "text_pair": "b", "label": "no", "augmented_text_pair": "c", "augmented_2_text_pair": "d"}
    path = tmp_path / f"pairs.{kind}"
    frame = pd.DataFrame([{**row, "row_id": "x"}])
    if kind == "json":
        path.write_text(json.dumps([{**row, "row_id": "x"}]))
    elif kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    assert pairs_from_jsonl(path).to_list() == [{**row, "row_id": "x"}]


def test_messages_with_different_fields(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    rows = pairs_from_jsonl(
        written(
            tmp_path, {"messages": [USER, ANSWER], "augmented_messages": [USER, call]}, {"messages": [USER, ANSWER]}
        )
    )
    assert rows[0]["messages"][1]["content"] == "Hello" and rows[1]["augmented_messages"] is None


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([COMPLETION, "", {**COMPLETION, "completion": 5.5}], "line 3, column 'completion'"),
        ([COMPLETION, {**COMPLETION, "prompt": None}], "line 2, column 'prompt'"),
        ([COMPLETION, {**COMPLETION, "augmented_completion": None}], "line 2, column 'augmented_completion'"),
        ([COMPLETION, {**COMPLETION, "augmented_prompt": None}], "line 2, column 'augmented_prompt'"),
        ([{**COMPLETION, "prompt": [USER]}], "line 1, column 'completion'"),
        ([{"messages": [], "augmented_messages": [USER]}], "line 1, column 'messages'"),
        ([{"messages": "Hi", "augmented_messages": "Ho"}], "line 1, column 'messages'"),
        ([{"messages": [{"from": "user"}], "augmented_messages": [USER]}], "line 1, column 'messages'"),
        ([{"messages": [{"role": "user"}], "augmented_messages": [USER]}], "line 1, column 'messages'"),
        ([{"text": "a", "label": None, "augmented_text": "b"}], "line 1, column 'label'"),
        ([COMPLETION, '{"prompt": '], "line 2"),
        ([{"prompt": "a", "completion": "b", "augmented_completion": "c"}], "augmented_prompt"),
        ([{**COMPLETION, "augmented_2_prompt": "x"}], "augmented_2_prompt"),
        ([{"prompt": "a", "completion": "b"}], "augmented_"),
        ([{"question": "a", "augmented_question": "b"}], "question"),
        ([{"prompt": "a", "completion": "b", "aug_prompt": "c", "augmented_completion": "d"}], "augmented_prompt"),
    ],
)
def test_mistakes_are_named_with_line_and_field(tmp_path: Path, rows: list[Any], place: str) -> None:
    path = written(tmp_path, *rows)
    with pytest.raises(DataError) as refused:
        pairs_from_jsonl(path)
    assert str(refused.value).startswith(str(path)) and place in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    first, second = written(tmp_path, COMPLETION), written(tmp_path, {**COMPLETION, "topic": "a"}, name="b.jsonl")
    with pytest.raises(DataError, match=r"b\.jsonl: .*topic"):
        pairs_from_jsonl([first, second])
    with pytest.raises(DataError, match="no such file"):
        pairs_from_jsonl(tmp_path / "none.jsonl")


TEXTS_LIKE_VALUES = ["2024-05-02", "007", "5", "1e3", "true", "null", "NA", '{"a": 1}', "2024-05-02T10:00:00Z"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_texts_that_look_like_dates_numbers_or_json_stay_as_they_are(tmp_path: Path, kind: str) -> None:
    for text in TEXTS_LIKE_VALUES:
        row = dict.fromkeys(("prompt", "completion", "augmented_prompt", "augmented_completion", "row_id"), text)
        path = tmp_path / f"pairs.{kind}"
        if kind == "csv":
            pd.DataFrame([row]).to_csv(path, index=False)
        else:
            path.write_text(json.dumps([row] if kind == "json" else row))
        assert pairs_from_jsonl(path).to_list() == [row]


def test_contents_of_messages_stay_as_they_are(tmp_path: Path) -> None:
    """Also next to contents of another type, which `datasets` stores as JSON."""
    parts = {"role": "user", "content": [{"type": "text", "text": "7"}]}
    for text in TEXTS_LIKE_VALUES:
        chat = [parts, {"role": "assistant", "content": text}]
        (row,) = pairs_from_jsonl(written(tmp_path, {"messages": chat, "augmented_messages": chat})).to_list()
        assert row["messages"] == row["augmented_messages"] == chat
    chat[1]["content"] = 5
    with pytest.raises(DataError, match="line 1, column 'messages'"):
        pairs_from_jsonl(written(tmp_path, {"messages": chat, "augmented_messages": chat}))


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_columns_may_begin_empty_or_with_numbers(tmp_path: Path, kind: str) -> None:
    """The first partner, and the first completion that is no number, come after the first batch of a writer."""
    count = 1_500
    rows = [{"prompt": "a", "completion": "7", "augmented_prompt": None, "augmented_completion": None}] * count
    rows.append({"prompt": "b", "completion": "none", "augmented_prompt": "c", "augmented_completion": "8"})
    if kind == "csv":
        path = tmp_path / "pairs.csv"
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        path = written(tmp_path, *rows)
    pairs = pairs_from_jsonl(path)
    assert len(pairs) == count + 1
    assert pairs[0] == {**rows[0], "row_id": "0"} and pairs[count] == {**rows[-1], "row_id": str(count)}


def test_files_of_different_kinds_follow_one_another(tmp_path: Path) -> None:
    row = {"text": "a", "label": 1, "augmented_text": "b", "augmented_label": 0}
    table = tmp_path / "pairs.csv"
    pd.DataFrame([row, {**row, "augmented_text": None, "augmented_label": None}]).to_csv(table, index=False)
    pairs = pairs_from_jsonl([table, written(tmp_path, row)])
    assert pairs["label"][:] == [1, 1, 1] and pairs["augmented_label"][:] == [0, None, 0]
    assert pairs["augmented_text"][:] == ["b", None, "b"]


def test_ids_of_a_table_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"row_id,tweet,text,label,augmented_text\n001,{10**18},a,1,b\n1,{10**18 + 1},c,0,d\n")
    rows = pairs_from_jsonl(path)
    assert rows["row_id"][:] == ["001", "1"]
    assert rows["tweet"][:] == [str(10**18), str(10**18 + 1)]  # equal as floats


def test_labels_of_a_table_are_numbers_only_if_all_are(tmp_path: Path) -> None:
    for cells, expected in (
        (("1", ""), [1, None]), (("-1.5", "2"), [-1.5, 2.0]), (("1", "two"), ["1", "two"]), (("01", "2"), ["01", "2"]),
        (("true", "false"), ["true", "false"]), (("nan", "1"), ["nan", "1"]), (("1_0", "2"), ["1_0", "2"]),
    ):  # fmt: skip
        lines = [f"a,1,{'b' if cell else ''},{cell}" for cell in cells]
        path = tmp_path / "pairs.csv"
        path.write_text("\n".join(["text,label,augmented_text,augmented_label", *lines]))
        assert pairs_from_jsonl(path)["augmented_label"][:] == expected
