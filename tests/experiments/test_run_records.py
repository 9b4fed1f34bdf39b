"""Finished runs are known by their settings: which changed, and which a record lacks because they came later."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dair_hf.errors import DataError
from dair_hf.experiments.comparison import ComparisonConfig, Run, with_settings
from dair_hf.experiments.report import SECRETS, plain_config
from dair_hf.experiments.run_records import changed_settings, fingerprint, finished_record
from dair_hf.io.files import write_json
from tests.fixtures import tiny


def test_fingerprint_tells_settings_apart(tmp_path: Path) -> None:
    args = tiny.config(tmp_path)
    assert fingerprint(args, {"b": 1, "a": Path("x")}) == fingerprint(with_settings(args), {"a": Path("x"), "b": 1})
    changed = [{"dair_lambda": 0.6}, {"method": "da"}, {"learning_rate": 0.5}, {"max_steps": 3}, {"seed": 6}]
    marks = {fingerprint(args), *(fingerprint(with_settings(args, **change)) for change in changed)}
    assert len(marks) == 1 + len(changed)
    assert fingerprint(ComparisonConfig(seeds=[1])) != fingerprint(ComparisonConfig(seeds=[2]))


def test_finished_record(tmp_path: Path) -> None:
    run = Run("erm", 0, tiny.config(tmp_path / "runs"))
    path, mark = tmp_path / "erm_seed0.json", fingerprint({"a": 1}, run.args, {})

    def found() -> Any:
        return finished_record(tmp_path, run, {"a": 1}, {})

    assert found() is None
    path.write_text(json.dumps({"settings_fingerprint": mark, "x": 1}))
    assert found() == {"settings_fingerprint": mark, "x": 1}
    shared = {key: value for key, value in run.args.to_dict().items() if key not in SECRETS}
    before = {"a": 2, "b": 3, "training": json.loads(json.dumps(shared, default=str))}
    path.write_text(json.dumps({"settings_fingerprint": "cd", "config": before}))
    said = r"of other settings \(a was 2, is 1; b was 3, is absent\); name another output_dir, or move this one away"
    with pytest.raises(DataError, match=said):
        found()
    for content, said in (('{"settings_fing', "line 1, column 2: not valid JSON"), ("[1]", "is no record of a run")):
        path.write_text(content)
        with pytest.raises(DataError, match=rf"erm_seed0\.json: {said}"):
            found()


@dataclass
class Shared:
    """Settings with a field that a later version added, and a place."""

    PLACES: ClassVar = ("folder",)
    folder: str = "a"
    rows: int = 3
    added: tuple[int, ...] = (1, 2)


def test_what_changed_between_a_record_and_today(tmp_path: Path) -> None:
    run = Run("erm", 0, tiny.config(tmp_path / "runs"))
    config, data = {"data": Shared(rows=4)}, {"train": "d"}
    training = json.loads(json.dumps(plain_config({"args": run.args})["args"], default=str))
    training |= {"output_dir": "elsewhere"}
    del training["chunked_loss"], training["gradient_cache"]
    before = {"config": {"data": {"folder": "b", "rows": 4}, "training": training}, "data": data}

    def changed(record: Any, **now: Any) -> list[str]:
        return list(changed_settings(record, run, {"data": replace(config["data"], **now)}, data).values())

    # What was added has its default, and places are no settings.
    assert changed(before) == []
    write_json(tmp_path / "erm_seed0.json", {"settings_fingerprint": "older", **before})
    assert finished_record(tmp_path, run, config, data) == {"settings_fingerprint": "older", **before}
    assert changed(before, added=(1, 3)) == ["data.added was [1, 2], is [1, 3]"]
    assert changed(before, rows=3) == ["data.rows was 4, is 3"]
    assert changed({**before, "data": {"train": "e"}}) == ['fingerprint of data.train was "e", is "d"']
    gone = {**before["config"], "training": {**training, "gone": 1}}
    assert changed({**before, "config": gone}) == ["training.gone was 1, is absent"]
    # A record without settings says nothing.
    write_json(tmp_path / "erm_seed0.json", {"settings_fingerprint": "older"})
    with pytest.raises(DataError, match="of other settings"):
        finished_record(tmp_path, run, {}, {})
