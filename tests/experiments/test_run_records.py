"""Records of runs: their content, and how finished runs are recognized by their settings."""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dair_hf.errors import DataError
from dair_hf.experiments import run_records
from dair_hf.experiments.comparison import ComparisonConfig, with_settings
from dair_hf.experiments.run_records import (
    Run,
    fingerprint,
    finished_records,
    run_record,
    with_models,
)
from dair_hf.io.files import write_json
from dair_hf.modeling import ModelConfig
from tests.fixtures import tiny


def test_fingerprint_identifies_settings(tmp_path: Path) -> None:
    args = tiny.config(tmp_path)
    assert fingerprint(args, {"b": 1, "a": Path("x")}) == fingerprint(with_settings(args), {"a": Path("x"), "b": 1})
    changed = [{"dair_lambda": 0.6}, {"method": "da"}, {"learning_rate": 0.5}, {"max_steps": 3}, {"seed": 6}]
    fingerprints = {fingerprint(args), *(fingerprint(with_settings(args, **change)) for change in changed)}
    assert len(fingerprints) == 1 + len(changed)
    assert fingerprint(ComparisonConfig(seeds=[1])) != fingerprint(ComparisonConfig(seeds=[2]))


def find(folder: Path, run: Run, config: Any, data: Any) -> Any:
    return finished_records(folder, [run], config, data)[run.name]


def test_finished_record(tmp_path: Path) -> None:
    run = Run("erm", 0, tiny.config(tmp_path / "runs"))
    path, config = tmp_path / "erm_seed0.json", {"a": 1}
    assert find(tmp_path, run, config, {}) is None
    record = {"settings_fingerprint": fingerprint(config, run.args, {}), "metrics": {"x": 1}}
    path.write_text(json.dumps(record))
    assert find(tmp_path, run, config, {}) == record
    path.write_text('{"settings_fing')
    with pytest.raises(DataError, match=r"erm_seed0\.json"):
        find(tmp_path, run, config, {})


def test_a_model_in_a_local_folder_is_known_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    run, config = Run("erm", 0, tiny.config(tmp_path / "runs")), {"model": ModelConfig(str(folder))}
    (folder / "model.safetensors").write_text("old")
    record = {"settings_fingerprint": fingerprint(config, run.args, with_models({}, config))}
    (tmp_path / "erm_seed0.json").write_text(json.dumps(record))
    assert find(tmp_path, run, config, {}) == record
    (folder / "model.safetensors").write_text("new")
    with pytest.raises(DataError, match="other settings or data"):
        find(tmp_path, run, config, {})
    assert with_models({"x": "y"}, {"model": ModelConfig("org/name")}) == {"x": "y"}


@dataclass
class Shared:
    """Settings with a path."""

    PATH_FIELDS: ClassVar = ("folder",)
    folder: str = "a"
    rows: int = 3
    sizes: tuple[int, ...] = (1, 2)


def test_a_run_is_found_again_if_only_paths_differ(tmp_path: Path) -> None:
    run, data = Run("erm", 0, tiny.config(tmp_path / "runs")), {"train": "d"}
    before = record(config={"data": Shared(), "training": run.args}, data=data)
    path = write_json(tmp_path / "erm_seed0.json", before)
    moved = Run("erm", 0, tiny.config(tmp_path / "elsewhere", disable_tqdm=False))
    for kept in (data, {**data, "names": "n"}):  # which the run did not record
        assert find(tmp_path, moved, {"data": Shared("b")}, kept) == json.loads(json.dumps(before))
    for other, settings, content in (
        (run, Shared(rows=4), data),
        (run, Shared(), {"train": "e"}),
        (Run("erm", 0, with_settings(run.args, learning_rate=0.5)), Shared(), data),
    ):
        with pytest.raises(DataError, match=r"erm_seed0\.json"):
            find(tmp_path, other, {"data": settings}, content)
    path.write_text(json.dumps({"settings_fingerprint": "older", "metrics": {}}))  # cannot be compared
    with pytest.raises(DataError, match=r"erm_seed0\.json"):
        find(tmp_path, run, {}, {})


@dataclass
class ExampleSettings:
    path: str = "here"
    count: int = 3


def record(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "name": "dair_seed1",
        "method": "dair",
        "seed": 1,
        "config": {"data": ExampleSettings(), "plain": 5},
        "metrics": {"cm": 0.5, "undefined": math.nan, "infinite": math.inf, "rows": 3},
        "seconds": {"training": 1.23456},
        "data": {"train": "abc"},
        "settings_fingerprint": "1234abcd",
    }
    return run_record(**{**arguments, **changes})


def test_record_describes_the_run() -> None:
    result = record()
    assert result["config"] == {"data": {"path": "here", "count": 3}, "plain": 5}
    assert result["metrics"] == {"cm": 0.5, "undefined": None, "infinite": None, "rows": 3}
    assert result["seconds"] == {"training": 1.23}
    assert [result[key] for key in ("name", "method", "seed")] == ["dair_seed1", "dair", 1]
    assert result["data"] == {"train": "abc"}
    assert set(result["versions"]) == {"python", *run_records.PACKAGES}
    assert {"torch", "transformers"} <= {name for name, version in result["versions"].items() if version[0].isdigit()}
    assert result["hardware"]["cores"] >= 1
    assert result["finished"].endswith("Z")
    # Strict JSON, without NaN.
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_record_of_arguments_has_no_secrets(tmp_path: Path) -> None:
    args = tiny.config(tmp_path, hub_token="hf_secret", dair_lambda=0.75)
    result = record(config={"training": args})
    assert result["config"]["training"]["dair_lambda"] == 0.75
    assert "hf_secret" not in json.dumps(result)


def git(folder: Path, *commands: str) -> None:
    for command in commands:
        subprocess.run(["git", "-c", "user.email=a@b", "-c", "user.name=a", *command.split()], cwd=folder, check=True)


def revision() -> str | None:
    """The revision as it is now; the function caches it."""
    run_records.git_revision.cache_clear()
    found = run_records.git_revision()
    run_records.git_revision.cache_clear()
    return found


def test_revision_of_another_project_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a project whose virtual environment holds the library."""
    copy = tmp_path / ".venv" / "run_records.py"
    copy.parent.mkdir()
    copy.write_text("")
    (tmp_path / ".gitignore").write_text(".venv\n")
    git(tmp_path, "init -q", "add .", "commit -qm project")
    monkeypatch.setattr(run_records, "__file__", str(copy))
    assert revision() is None
    git(tmp_path, "add -f .venv")
    assert str(revision()).endswith("-dirty")
    git(tmp_path, "commit -qm library")
    assert re.fullmatch("[0-9a-f]{7,}", str(revision()))


def test_revision_is_dirty_only_if_files_changed_that_influence_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "dair_hf" / "experiments" / "run_records.py"
    records = [tmp_path / name for name in ("results/demo/erm_seed0.json", "results/RESULTS.md", "docs/demo.png")]
    sources = [tmp_path / name for name in ("recipes/demo.py", "recipes/configs/demo.yaml", "recipes/results/a.py")]
    for path in (library, *records, *sources):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    git(tmp_path, "init -q", "add .", "commit -qm library")
    monkeypatch.setattr(run_records, "__file__", str(library))
    (tmp_path / "results" / "new.json").write_text("untracked")
    for path in records:
        path.write_text("changed")
    records[0].unlink()
    clean = revision()
    assert re.fullmatch("[0-9a-f]{7,}", str(clean))
    for path in (library, *sources):
        path.write_text("changed")
        assert revision() == f"{clean}-dirty", path
        path.write_text("")
        assert revision() == clean, path
