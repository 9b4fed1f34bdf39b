"""The tables of few pairs are those of the stored runs."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from dair_hf.io.files import read_json
from reproduction.few_pairs import FOLDER, table
from tests.fixtures.paths import ROOT

RESULTS = ROOT / "results"


def test_the_page_shows_the_table_of_the_stored_runs() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    lines = table(RESULTS).splitlines()
    assert len(lines) > 4
    assert "\n".join(lines) in page


def test_paired_differences_are_those_of_the_records() -> None:
    """Of the means over seeds; `paired.json` was computed from predictions, which are not stored."""
    folders = sorted((RESULTS / FOLDER).glob("*/final"))
    assert folders
    for folder in folders:
        metrics: dict[str, dict[int, dict[str, float]]] = {}
        for path in folder.glob("*_seed*.json"):
            record = read_json(path)
            metrics.setdefault(record["method"], {})[record["seed"]] = record["metrics"]
        for method, found in read_json(folder / "paired.json")["differences"].items():
            seeds = found.pop("seeds")
            assert seeds == sorted(metrics[method]) == sorted(metrics["da"]) == [0, 1, 2, 3, 4]
            for key, value in found.items():
                means = [statistics.fmean(runs[key] for runs in metrics[name].values()) for name in (method, "da")]
                assert value["difference"] == pytest.approx(means[0] - means[1]), (folder, method, key)


def test_every_lambda_was_chosen_on_the_dev_split() -> None:
    """The best dev accuracy over both views in the stored search; ties go to either."""
    for folder in sorted((RESULTS / FOLDER).iterdir()):
        for method in ("kl", "dair"):
            runs = [read_json(path) for path in folder.glob(f"search/{method}/*_seed*.json")]
            finals = [read_json(path) for path in folder.glob(f"final/{method}_seed*.json")]
            scores = {run["config"]["training"]["dair_lambda"]: run["metrics"]["both_views_accuracy"] for run in runs}
            for run in finals:
                assert scores[run["config"]["training"]["dair_lambda"]] == max(scores.values()), folder
        assert finals


def test_missing_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape("make results")):
        table(tmp_path)
    (tmp_path / FOLDER / "bilstm_30" / "final").mkdir(parents=True)
    with pytest.raises(DataError, match="has no run of da, dair"):
        table(tmp_path)
