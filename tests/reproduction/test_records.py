"""Records are read and selected by their content; missing keys are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from reproduction.records import metric_of, read_records, select


def put(folder: Path, file: str, **content: Any) -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": path.stem, "method": "erm", "seed": 0, "metrics": {}, **content}))
    return path


def test_other_json_files_are_not_records(tmp_path: Path) -> None:
    put(tmp_path, "b.json", seed=1)
    put(tmp_path, "noise/a.json")
    put(tmp_path, ".b.json.x1/b.json")
    (tmp_path / "comparison.json").write_text('{"title": "T", "runs": []}')
    (tmp_path / "list.json").write_text("[1]")
    assert [record.path.name for record in read_records(tmp_path)] == ["b.json", "a.json"]
    assert read_records(tmp_path / "absent") == []
    (tmp_path / "c.json").write_text('{"name": "c"')
    with pytest.raises(DataError, match=r"c\.json"):
        read_records(tmp_path)


def test_select_by_dotted_paths(tmp_path: Path) -> None:
    put(tmp_path, "c.json", method="dair", seed=2, config={"training": {"dair_lambda": 8.85}})
    put(tmp_path, "a.json", method="dair", seed=10, config={"training": {"dair_lambda": 8.85}})
    put(tmp_path, "b.json", method="dair", seed=2, config={"training": {"dair_lambda": 100}})
    put(tmp_path, "e.json", method="erm", config={})
    records = read_records(tmp_path)

    def names(**where: Any) -> list[str]:
        dotted = {key.replace("__", "."): value for key, value in where.items()}
        return [record.path.stem for record in select(records, dotted, "claim x.y")]

    # Ordered by seed, not by name.
    assert names(method="dair", config__training__dair_lambda=8.85) == ["c", "a"]
    assert names(method="dair", config__training__dair_lambda=100.0) == ["b"]
    assert names(method="da") == []
    with pytest.raises(DataError, match=r"claim x\.y: .*b\.json and .*c\.json"):
        names(method="dair")
    with pytest.raises(DataError, match=r"e\.json .*config\.training\.dair_lambda"):
        names(config__training__dair_lambda=8.85)


def test_metric_of_a_record(tmp_path: Path) -> None:
    put(tmp_path, "a.json", metrics={"accuracy": 0.5, "cm": None})
    (record,) = read_records(tmp_path)
    assert metric_of(record, "accuracy", "claim x.y") == 0.5
    assert metric_of(record, "cm", "claim x.y") is None
    with pytest.raises(DataError, match=r"claim x\.y: .*a\.json .*'rmse'"):
        metric_of(record, "rmse", "claim x.y")
