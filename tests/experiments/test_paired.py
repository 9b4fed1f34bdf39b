"""Paired differences of a comparison, from the predictions of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from dair_hf.evaluation.statistics import correctness_metrics
from dair_hf.evaluation.view_index import PairIndex
from dair_hf.experiments.paired import paired_differences, write_paired
from dair_hf.io.pair_files import require_predictions_file

RNG = np.random.default_rng(1)


def record(method: str, seed: int) -> dict[str, Any]:
    name = f"{method}_seed{seed}"
    return {"name": name, "method": method, "seed": seed, "settings_fingerprint": f"of {name}"}


def write_run(
    folder: Path, run: dict[str, Any], original: np.ndarray, augmented: np.ndarray, clusters: list[str] | None = None
) -> None:
    path = folder / "runs" / run["name"] / "predictions.jsonl"
    path.parent.mkdir(parents=True)
    (path.parent / "settings_fingerprint.txt").write_text(run["settings_fingerprint"] + "\n")
    index = PairIndex(~np.isnan(augmented), [f"käse/{row}" for row in range(len(original))])
    correct = [original[r] if v == 0 else augmented[r, v - 1] for r, v in zip(index.rows, index.variants, strict=True)]
    index.write(path, correct, correct, [bool(value) for value in correct], clusters)
    require_predictions_file(path)


def test_differences_are_those_of_the_metrics(tmp_path: Path) -> None:
    """Rows with none, one or two partners; the metrics of each run are those of `correctness_metrics`."""
    absent = RNG.random((50, 2)) < 0.3
    means: dict[str, list[dict[str, float]]] = {"da": [], "dair": []}
    records = [record(method, seed) for method in means for seed in (3, 5)]
    for run in records:
        original = RNG.random(50) < 0.7
        augmented = np.where(absent, np.nan, RNG.random((50, 2)) < 0.6)
        write_run(tmp_path, run, original, augmented, [str(row // 5) for row in range(50)])
        metrics = correctness_metrics(original, np.nan_to_num(augmented) == 1, ~absent, n_bootstrap=0)
        means[run["method"]].append(metrics)
    paired = paired_differences(tmp_path, records)
    assert paired is not None
    assert (paired["baseline"], paired["rows"], paired["clusters"]) == ("da", 50, 10)
    assert list(paired["differences"]) == ["dair"] and paired["differences"]["dair"]["seeds"] == [3, 5]
    for key in ("original_accuracy", "augmented_accuracy_pairs", "cm", "both_correct"):
        expected = [np.mean([metrics[key] for metrics in means[method]]) for method in ("dair", "da")]
        found = paired["differences"]["dair"][key]
        assert found["difference"] == pytest.approx(expected[0] - expected[1]), key
        assert found["standard_error"] > 0


def test_only_methods_with_the_same_rows_and_seeds_are_compared(tmp_path: Path) -> None:
    right, rows = np.array([True, False] * 10), np.ones((20, 1))
    records = [record("da", 0), record("kl", 1), record("dair", 0), record("erm", 0)]
    write_run(tmp_path, records[0], right, rows)
    write_run(tmp_path, records[1], right, rows)  # another seed
    write_run(tmp_path, records[2], np.roll(right, 1), rows)
    write_run(tmp_path, records[3], right[:10], rows[:10])  # other rows
    paired = paired_differences(tmp_path, records)
    assert paired is not None and list(paired["differences"]) == ["dair"]


def test_files_of_an_earlier_comparison_do_not_stay(tmp_path: Path) -> None:
    records = [record("da", 0), record("dair", 0)]
    for run in records:
        write_run(tmp_path, run, np.array([True, False] * 5), np.ones((10, 1)))
    assert write_paired(tmp_path, records)
    assert (tmp_path / "paired.json").exists() and (tmp_path / "paired.md").exists()
    # The record was copied from elsewhere: the predictions at hand are those of another run.
    records[1]["settings_fingerprint"] = "other"
    assert write_paired(tmp_path, records) == ""
    assert not (tmp_path / "paired.json").exists() and not (tmp_path / "paired.md").exists()


def test_files_and_table(tmp_path: Path) -> None:
    records = [record("erm", 0), record("dair", 0)]
    write_run(tmp_path, records[0], np.array([True] * 10), np.array([[0.0]] * 10))
    write_run(tmp_path, records[1], np.array([True] * 10), np.array([[1.0]] * 9 + [[0.0]]))
    table = write_paired(tmp_path, records)
    assert table.splitlines()[2:] == [
        "| method | seeds | original | augmented | CM | both right |",
        "|---|---|---|---|---|---|",
        "| dair | 1 | +0.000 ± 0.000 | +0.900 ± 0.100 (+9.0) | +0.900 ± 0.100 (+9.0) | +0.900 ± 0.100 (+9.0) |",
    ]
    assert "Difference to erm, paired over 10 test rows" in (tmp_path / "paired.md").read_text()
    assert json.loads((tmp_path / "paired.json").read_text())["differences"]["dair"]["seeds"] == [0]


def test_evaluation_writes_the_clusters(tmp_path: Path) -> None:
    index = PairIndex(np.array([[True], [False]]), ["a", "b"])
    index.write(tmp_path / "p.jsonl", [1, 2, 3], [1, 2, 3], [True] * 3, ["x", "y"])
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [(line["row_id"], line["cluster"]) for line in lines] == [("a", "x"), ("b", "y"), ("a", "x")]
    assert Dataset.from_json(str(tmp_path / "p.jsonl"), cache_dir=str(tmp_path)).num_rows == 3
