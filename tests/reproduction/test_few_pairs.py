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


def test_outcomes_are_those_of_the_metrics() -> None:
    """The differences are computed from them."""
    records = [read_json(path) for path in sorted((RESULTS / FOLDER).glob("*/final/*_seed*.json"))]
    assert len(records) > 50
    for record in records:
        outcomes, metrics = record["outcomes"], record["metrics"]
        pairs = list(zip(outcomes["original"], *outcomes["augmented"], strict=True))
        assert metrics["pairs"] == len(pairs) == sum("-" not in pair for pair in pairs)
        assert metrics["both_correct"] == pytest.approx(statistics.fmean(pair == ("1", "1") for pair in pairs))
        assert metrics["original_accuracy"] == pytest.approx(statistics.fmean(pair[0] == "1" for pair in pairs))
        assert metrics["augmented_accuracy_pairs"] == pytest.approx(statistics.fmean(pair[1] == "1" for pair in pairs))


def test_every_lambda_was_chosen_on_the_dev_split() -> None:
    """The best dev accuracy over both views in the stored search; ties go to either."""
    found = []
    for folder in sorted((RESULTS / FOLDER).iterdir()):
        finals = [read_json(path) for path in folder.glob("final/*_seed*.json")]
        for run in finals:
            training, method = run["config"]["training"], run["method"]
            if training["method"] == "dair" and training["dair_lambda"] != "auto":
                runs = [read_json(path) for path in folder.glob(f"search/{method}/*_seed*.json")]
                scores = {r["config"]["training"]["dair_lambda"]: r["metrics"]["both_views_accuracy"] for r in runs}
                assert len(scores) > 2 and scores[training["dair_lambda"]] == max(scores.values()), (folder, method)
                found.append(method)
    assert {"kl", "dair"} <= set(found)


def test_missing_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape("make results")):
        table(tmp_path)
    (tmp_path / FOLDER / "bilstm_30" / "final").mkdir(parents=True)
    with pytest.raises(DataError, match="has no run of da, dair"):
        table(tmp_path)
