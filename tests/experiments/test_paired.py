"""Paired differences of a comparison, from the outcomes of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation.paired import paired_difference
from dair_hf.evaluation.statistics import correctness_metrics
from dair_hf.evaluation.views import PairIndex
from dair_hf.experiments.paired import _Outcomes, _paired_table, paired_differences, read_outcomes, write_paired
from dair_hf.io.records import require_predictions_file

RNG = np.random.default_rng(1)


def run(
    folder: Path,
    method: str,
    seed: int,
    original: np.ndarray,
    augmented: np.ndarray,
    clusters: list[str] | None = None,
    dair_lambda: float | str = 1.0,
    changed: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the record of a run, with the outcomes of the predictions that it wrote."""
    path = folder / f"{method}_{seed}_{dair_lambda}.jsonl"
    augmented = np.asarray(augmented, dtype=float).reshape(len(original), -1)
    # U+2028 and U+0085 end a line for str.splitlines, not in JSON lines.
    index = PairIndex(~np.isnan(augmented), [f"k\u2028\x85äse/{row}" for row in range(len(original))])
    correct = [original[r] if v == 0 else augmented[r, v - 1] for r, v in zip(index.rows, index.variants, strict=True)]
    changes = np.zeros_like(augmented) if changed is None else changed
    references = [0 if v == 0 else changes[r, v - 1] for r, v in zip(index.rows, index.variants, strict=True)]
    index.write(path, correct, references, [bool(value) for value in correct], clusters)
    require_predictions_file(path)
    outcomes = read_outcomes(path)
    stored = json.loads(json.dumps(outcomes.to_json()))
    again = _Outcomes.from_json(stored)
    np.testing.assert_array_equal(again.original, np.asarray(original, dtype=float))
    np.testing.assert_array_equal(again.augmented, augmented)
    assert again.same_answer is not None
    np.testing.assert_array_equal(again.same_answer, np.where(np.isnan(augmented), np.nan, 1 - changes))
    kind = "dair" if method in ("kl", "dair") else method
    config = {"training": {"method": kind, "dair_lambda": dair_lambda}}
    return {"method": method, "seed": seed, "config": config, "outcomes": stored}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_differences_are_those_of_the_metrics(tmp_path: Path, share: float) -> None:
    """Rows with none, one or two partners; the metrics of each run are those of `correctness_metrics`."""
    absent = RNG.random((100, 2)) < 0.3
    changed = RNG.random((100, 2)) < share  # references
    means: dict[str, list[dict[str, float]]] = {"da": [], "dair": []}
    clusters, records, correct = [str(row // 5) for row in range(100)], [], {}
    for method in means:
        for seed in (3, 5):
            original = RNG.random(100) < 0.7
            augmented = np.where(absent, np.nan, RNG.random((100, 2)) < 0.6)
            records.append(run(tmp_path, method, seed, original, augmented, clusters, changed=changed.astype(float)))
            correct[method, seed] = original.astype(float)
            means[method].append(
                correctness_metrics(
                    original,
                    np.nan_to_num(augmented) == 1,
                    ~absent,
                    same_answer=~changed if share else None,
                    intervals=False,
                )
            )
    paired = paired_differences(records)
    assert paired is not None
    assert (paired["baseline"], paired["rows"], paired["clusters"], paired["left_out"]) == ("da", 100, 20, {})
    assert list(paired["differences"]) == ["dair"] and paired["differences"]["dair"]["seeds"] == [3, 5]
    for key in ("original_accuracy", "augmented_accuracy_pairs", "cm", "both_correct"):
        expected = [np.mean([metrics[key] for metrics in means[method]]) for method in ("dair", "da")]
        found = paired["differences"]["dair"][key]
        assert found["difference"] == pytest.approx(expected[0] - expected[1]), key
        assert found["half_width"] > found["standard_error"] > 0
    everything = np.ones((2, 100))
    first, second = [(np.stack([correct[method, seed] for seed in (3, 5)]), everything) for method in ("dair", "da")]
    assert paired["differences"]["dair"]["original_accuracy"] == paired_difference(first, second, clusters)._asdict()


def test_only_methods_with_the_same_rows_and_seeds_are_compared(tmp_path: Path) -> None:
    right, rows = np.array([True, False] * 10), np.ones(20)
    records = [
        run(tmp_path, "da", 0, right, rows),
        run(tmp_path, "kl", 1, right, rows),  # another seed
        run(tmp_path, "dair", 0, np.roll(right, 1), rows),
        run(tmp_path, "erm", 0, right[:10], rows[:10]),  # other rows
        run(tmp_path, "irm", 0, right, rows, ["one"] * 20),  # other clusters
        {"method": "js", "seed": 0},  # a record without outcomes
    ]
    paired = paired_differences(records)
    assert paired is not None and list(paired["differences"]) == ["dair"]
    other, js = "was tested on other rows", "has no outcomes in its records"
    assert paired["left_out"] == {"js": js, "kl": "has no seed in common with da", "erm": other, "irm": other}
    assert _paired_table(paired).endswith(f"js {js}.\nkl has no seed in common with da.\nerm {other}.\nirm {other}.")


def test_seeds_of_the_baseline_must_have_the_same_rows(tmp_path: Path) -> None:
    right, rows = np.array([True, False] * 5), np.ones(10)
    records = [run(tmp_path, "da", seed, right[:stop], rows[:stop]) for seed, stop in ((0, 10), (1, 8))]
    paired = paired_differences([*records, *(run(tmp_path, "dair", seed, right, rows) for seed in (0, 1))])
    assert paired is not None and paired["left_out"] == {"dair": "was tested on other rows"}


def test_runs_with_different_lambdas_are_different_methods(tmp_path: Path) -> None:
    right, wrong = np.array([True, False] * 5), np.zeros(10)
    records = [
        run(tmp_path, "da", 0, right, wrong, dair_lambda=1.0),
        run(tmp_path, "da", 1, right, wrong, dair_lambda=2.0),  # unused by DA-ERM
        run(tmp_path, "dair", 0, right, wrong, dair_lambda=1.0),
        run(tmp_path, "dair", 1, right, right, dair_lambda="auto"),
    ]
    paired = paired_differences(records)
    assert paired is not None
    found = {name: found["augmented_accuracy_pairs"]["difference"] for name, found in paired["differences"].items()}
    assert found == {"dair, lambda 1": 0.0, "dair, lambda auto": 0.5}


def test_lambdas_of_one_method_are_no_methods(tmp_path: Path) -> None:
    """A search tries lambdas of one method, none of which the others could be compared with."""
    right, augmented = np.array([True, False] * 5), np.zeros(10)

    def trial(method: str, value: float, regularizer: str) -> dict[str, Any]:
        record = run(tmp_path, f"{method}_lambda{value:g}", 0, right, augmented, dair_lambda=value)
        record["config"]["training"] |= {"method": "dair", "regularizer": regularizer}
        return record

    search = [trial("dair", value, "sq") for value in (0.1, 1.0)]
    assert paired_differences(search) is None and write_paired(tmp_path, search) == ""
    assert paired_differences([*search, trial("kl", 0.1, "kl"), trial("kl", 1.0, "kl")]) is None
    for other, name in ((trial("kl", 3.0, "kl"), "kl_lambda3"), (run(tmp_path, "erm", 0, right, augmented), "erm")):
        paired = paired_differences([*search, other])
        assert paired is not None and paired["baseline"] == name
        assert list(paired["differences"]) == ["dair_lambda0.1", "dair_lambda1"]


@pytest.mark.parametrize("right", [(0, 1), (1, 0), (1, 1)])
def test_cm_that_is_undefined_or_of_few_pairs_has_no_difference(tmp_path: Path, right: tuple[int, int]) -> None:
    runs = zip(("da", "dair"), right, strict=True)
    paired = paired_differences(
        [run(tmp_path, name, 0, np.full(29, float(value)), np.ones(29)) for name, value in runs]
    )
    assert paired is not None
    metrics = ["seeds", "original_accuracy", "augmented_accuracy_pairs", "both_correct"]
    assert sorted(paired["differences"]["dair"]) == sorted(metrics)


def test_files_of_an_earlier_comparison_do_not_stay(tmp_path: Path) -> None:
    records = [run(tmp_path, method, 0, np.array([True, False] * 5), np.ones(10)) for method in ("da", "dair")]
    assert write_paired(tmp_path, records)
    assert (tmp_path / "paired.json").exists() and (tmp_path / "paired.md").exists()
    assert write_paired(tmp_path, records[:1]) == ""
    assert not (tmp_path / "paired.json").exists() and not (tmp_path / "paired.md").exists()


def test_files_and_table(tmp_path: Path) -> None:
    right = np.array([True] * 40)
    records = [run(tmp_path, "erm", seed, right, np.zeros(40)) for seed in (0, 1)]
    most = np.array([1.0] * 36 + [0.0] * 4)
    records += [
        run(tmp_path, "dair", 0, right, most),
        run(tmp_path, "kl", 0, right, most),
        run(tmp_path, "kl", 1, right, most),
    ]
    table = write_paired(tmp_path, records)
    # Rows differ alone: t(39) = 2.023 times the standard error, sqrt(.09 / 39) = 0.048.
    assert table.splitlines()[2:] == [
        "| method | seeds | original | augmented | CM | both right |",
        "|---|---|---|---|---|---|",
        "| dair | 1 | +0.000 | +0.900 | +0.900 | +0.900 |",
        "| kl | 2 | +0.000 | **+0.900 ± 0.097** | **+0.900 ± 0.097** | **+0.900 ± 0.097** |",
        "",
        "One seed says nothing about others: no interval.",
        "",
        # Of the originals, which both methods have right.
        "Several seeds without an interval: the difference is the same in every row and seed, which leaves no variance "
        "to estimate one from.",
    ]
    assert "Difference to erm, paired over 40 test rows" in (tmp_path / "paired.md").read_text()
    assert json.loads((tmp_path / "paired.json").read_text())["differences"]["kl"]["seeds"] == [0, 1]


@pytest.mark.parametrize(
    "edit", [lambda lines: [*lines, lines[-1]], lambda lines: [*lines, lines[-1].replace("augmented", "other")]]
)
def test_views_that_would_replace_another_are_refused(tmp_path: Path, edit: Any) -> None:
    path = tmp_path / "p.jsonl"
    PairIndex(np.array([[True], [True]]), ["a", "b"]).write(path, [1] * 4, [1] * 4, [True] * 4, ["x", "y"])
    path.write_text("\n".join(edit(path.read_text().splitlines())))
    with pytest.raises(DataError, match="p.jsonl.*'b'"):
        read_outcomes(path)
