"""The table of the automatic lambda, and what its page says about the share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from dair_hf.io.files import read_json, write_json
from reproduction.auto_lambda import LOGS, TASKS, summarize_logs, values
from tests.fixtures.paths import ROOT

RESULTS = ROOT / "results"


def test_runs_of_other_methods_and_lambdas_are_left_out(tmp_path: Path) -> None:
    for name, method, dair_lambda, value in (
        ("a", "dair", 1.0, 0.1), ("b", "dair", 1.0, 0.3), ("c", "dair", 2.0, 0.5), ("d", "kl", 1.0, 0.7),
    ):  # fmt: skip
        record = {"name": name, "method": method, "seed": ord(name), "metrics": {"x": value}}
        write_json(tmp_path / f"{name}.json", {**record, "config": {"training": {"dair_lambda": dair_lambda}}})
    assert values(tmp_path, "dair", "x", 1.0) == {97: 0.1, 98: 0.3}
    assert values(tmp_path, "dair", "x") == {97: 0.1, 98: 0.3, 99: 0.5}
    with pytest.raises(DataError, match="kl"):
        values(tmp_path, "kl", "x")


def test_logs_of_the_last_half_are_summarized(tmp_path: Path) -> None:
    history = [
        {"step": step, "dair_lambda": float(step), "gradient_share": 2.0 * step, "lambda_target": 4.0}
        for step in (1, 2, 3, 4)
    ]
    for task in TASKS[1:3]:
        folder = tmp_path / task.name / "runs" / "dair_seed0"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"loss": 1.0}, *history]}))
    summary = summarize_logs(tmp_path)
    assert list(summary) == [task.name for task in TASKS[1:3]]
    first = summary[TASKS[1].name]
    assert first["lambda_quartiles"] == [3.25, 3.75] and first["gradient_share"] == 7.0
    (tmp_path / TASKS[0].name).mkdir()
    with pytest.raises(DataError, match="lambda"):
        summarize_logs(tmp_path)


def test_the_share_is_within_four_percent_of_its_target() -> None:
    """Where the target was lowered during the runs, the mean share lies between its values, as the page says."""
    logs = read_json(RESULTS / LOGS)
    kept = {name: log for name, log in logs.items() if log["lambda_target"] == 2.0}
    assert logs.keys() - kept.keys() == {"counterfactual_nli"}
    for name, log in kept.items():
        assert abs(log["gradient_share"] / log["lambda_target"] - 1) <= 0.04, name
    assert logs["counterfactual_nli"]["lambda_target"] < logs["counterfactual_nli"]["gradient_share"] < 0.2
