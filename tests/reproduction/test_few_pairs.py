"""Tables of few pairs; tests/reproduction/test_results.py compares the page with the stored runs."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dair_hf.errors import DataError
from dair_hf.io.files import read_json, write_json
from reproduction import compare_reviews
from reproduction.few_pairs import (
    DIALOGS,
    INFERENCE,
    METRICS,
    OWN,
    PLANS,
    PRETRAINED,
    REVIEWS,
    TRACKER,
    _differences,
    _p_text,
    _p_value,
    _runs_of,
    _weights,
    dialog_table,
    holm,
    planned_table,
    text_table,
)
from reproduction.records import read_records
from tests.fixtures.paths import ROOT

RESULTS = ROOT / "results"


@pytest.mark.parametrize("task", [REVIEWS, INFERENCE])
def test_outcomes_are_those_of_the_metrics(task: str) -> None:
    """The differences are computed from them."""
    records = [read_json(path) for path in sorted((RESULTS / task).rglob("*_seed*.json")) if "search" not in path.parts]
    assert len(records) > 50
    for record in records:
        outcomes, metrics = record["outcomes"], record["metrics"]
        pairs = list(zip(outcomes["original"], *outcomes["augmented"], strict=True))
        assert metrics["pairs"] == len(pairs) == sum("-" not in pair for pair in pairs)
        assert metrics["both_correct"] == pytest.approx(statistics.fmean(pair == ("1", "1") for pair in pairs))
        assert metrics["original_accuracy"] == pytest.approx(statistics.fmean(pair[0] == "1" for pair in pairs))
        assert metrics["augmented_accuracy_pairs"] == pytest.approx(statistics.fmean(pair[1] == "1" for pair in pairs))


@pytest.mark.parametrize("task", [REVIEWS, INFERENCE])
def test_every_lambda_was_chosen_on_the_dev_split(task: str) -> None:
    """The best dev accuracy over both views in the stored search; ties go to either."""
    found = []
    for folder in sorted((RESULTS / task).iterdir()):
        finals = [read_json(path) for path in folder.glob("final/*_seed*.json")]
        for run in finals:
            training, method = run["config"]["training"], run["method"]
            if training["method"] == "dair" and training["dair_lambda"] != "auto":
                runs = [read_json(path) for path in folder.glob(f"search/{method}/*_seed*.json")]
                scores = {r["config"]["training"]["dair_lambda"]: r["metrics"]["both_views_accuracy"] for r in runs}
                assert len(scores) > 2 and scores[training["dair_lambda"]] == max(scores.values()), (folder, method)
                found.append(method)
    assert {"kl", "dair"} <= set(found)


def test_holm_is_that_of_its_definition() -> None:
    """Sorted, .005 .01 .03 .04 are compared with .05 / 4, / 3, / 2, / 1; a later one is never below an earlier one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.02]) == pytest.approx([0.6, 0.04]) and holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


# Folder -> the differences to DA-ERM with its own weight that its plan names, the primary one first.
PLANNED = {
    "pretrained_encoder/premises_30": [
        "DAIR both", "auto both", "DAIR originals", "DAIR partners", "DAIR CM", "DAIR, DA's weight both",
    ],
    "counterfactual_sentiment/bag_of_words_30_confirmed": [
        "DAIR, DA's weight both", "DAIR, DA's weight originals", "DAIR, DA's weight partners", "DAIR both", "auto both",
    ],
    "woz2_smollm2": ["DAIR both", "DAIR originals", "DAIR partners", "DAIR CM"],
}  # fmt: skip


@pytest.mark.parametrize("experiment", PLANS)
def test_planned_tests_are_those_of_the_records(experiment: str) -> None:
    runs = _runs_of(RESULTS / experiment, PLANS[experiment][0])
    lines = planned_table(RESULTS, experiment).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| primary", "| secondary"))]
    assert [row[0] for row in rows] == ["primary"] + ["secondary"] * (len(rows) - 1)
    assert [f"{row[1].removesuffix(f' - {OWN}')} {row[2]}" for row in rows] == PLANNED[experiment]
    keys = {title: key for key, title in METRICS.items()}
    if experiment == TRACKER:
        keys |= {"originals": "original_joint_goal_accuracy", "partners": "augmented_joint_goal_accuracy_pairs"}
    for _, difference, metric, value, _ in rows:
        ours, theirs = (
            {r.content["seed"]: r.content["metrics"][keys[metric]] for r in runs[side]}
            for side in (difference.removesuffix(f" - {OWN}"), OWN)
        )
        assert ours.keys() == theirs.keys() and len(ours) >= (2 if experiment == TRACKER else 5)
        mean = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
        assert float(value.strip("*").partition(" ")[0]) == pytest.approx(mean, abs=0.0006)
    primary, *others = (_p_value(_differences(runs, name, OWN)[key]) for name, key in PLANS[experiment][1])
    assert [row[4].strip("*") for row in rows] == [_p_text(p).strip("*") for p in (primary, *holm(others))]


def test_dair_with_the_weight_of_da_has_it() -> None:
    for folder in (*RESULTS.glob("*/*_weight_dair"), *RESULTS.glob("*/*_weight_auto")):
        own = Path(f"{folder.with_name(folder.name.rpartition('_')[0])}/final")
        weights = [{tuple(_weights(run) or ()) for run in read_records(place)} for place in (folder, own)]
        assert len(weights[0]) == 1 and weights[0] == weights[1], folder
    assert weights[0]


def test_if_das_own_weight_is_the_default_no_difference_is_given_twice() -> None:
    _, _, table = text_table(RESULTS, PRETRAINED).partition("\n\n")
    lines = [line.partition(" | ")[0] for line in table.splitlines()]
    assert lines.count("| reviews, 30 %") == 3 and lines.count("| revised premises, 30 %") == 6


def test_only_runs_with_the_same_seeds_are_compared(tmp_path: Path) -> None:
    for end in ("/final", "_weight/final", "_auto"):
        name = f"{REVIEWS}/bag_of_words_30{end}"
        shutil.copytree(RESULTS / name, tmp_path / name)
    assert _differences(_runs_of(tmp_path / REVIEWS / "bag_of_words_30"), "auto", "DAIR")["both_correct"]
    assert " | auto - DA, own weight | " in text_table(tmp_path, REVIEWS)
    next((tmp_path / REVIEWS / "bag_of_words_30_auto").rglob("*_seed14.json")).unlink()
    with pytest.raises(DataError, match="auto cannot be paired with DA, own weight"):
        text_table(tmp_path, REVIEWS)


def test_a_planned_test_that_was_not_run_has_no_p_value(tmp_path: Path) -> None:
    for end in ("/final", "_weight/final"):
        shutil.copytree(RESULTS / f"{PRETRAINED}/premises_30{end}", tmp_path / f"{PRETRAINED}/premises_30{end}")
    assert "| auto - DA, own weight | both | - | - |" in planned_table(tmp_path, f"{PRETRAINED}/premises_30")


def test_an_undefined_metric_is_no_zero(tmp_path: Path) -> None:
    name = f"{REVIEWS}/bag_of_words_10"
    shutil.copytree(RESULTS / name / "final", tmp_path / name / "final")
    file = min((tmp_path / name / "final").glob("erm_seed*.json"))
    record = read_json(file)
    record["metrics"]["both_correct"] = None
    write_json(file, record)
    with pytest.raises(DataError, match="both_correct"):
        text_table(tmp_path, REVIEWS)


def test_differences_of_dialogues_are_paired_over_seeds(tmp_path: Path) -> None:
    """The interval is that of scipy's paired t test over the seeds that both methods have."""
    values = {"da": {0: 0.50, 1: 0.61, 2: 0.43, 7: 0.9}, "dair": {0: 0.56, 1: 0.64, 2: 0.48}, "erm": {0: 0.2, 1: 0.3}}
    folder = tmp_path / DIALOGS / "share_30"
    metrics = ("original_joint_goal_accuracy", "augmented_joint_goal_accuracy", "cm", "both_correct")
    for method, seeds in values.items():
        for seed, value in seeds.items():
            record = {"name": f"{method}_seed{seed}", "method": method, "seed": seed}
            write_json(folder / f"{method}_seed{seed}.json", {**record, "metrics": dict.fromkeys(metrics, value)})
    ours, theirs = ([values[name][seed] for seed in (0, 1, 2)] for name in ("dair", "da"))
    interval = stats.ttest_rel(ours, theirs).confidence_interval()
    mean, half_width = (interval.high + interval.low) / 2, (interval.high - interval.low) / 2
    assert mean > half_width
    lines = dialog_table(tmp_path).splitlines()
    assert lines[-1] == "| 30 % | DAIR - DA | 3 |" + f" **{mean:+.3f} ± {half_width:.3f}** |" * 4
    assert lines[2] == "| - | ERM | 2 |" + " 0.250 ± 0.071 |" * 4
    for seed in (1, 2):
        (folder / f"dair_seed{seed}.json").unlink()
    with pytest.raises(DataError, match="seeds"):
        dialog_table(tmp_path)
    write_json(folder / "dair_seed0.json", {"name": "x", "method": "dair", "seed": 0, "metrics": {metrics[0]: None}})
    with pytest.raises(DataError, match="undefined"):
        dialog_table(tmp_path)
    again = {"name": "x", "method": "dair", "seed": 0, "metrics": dict.fromkeys(metrics, 0.5)}
    for name in ("dair_seed0.json", "again_seed0.json"):
        write_json(folder / name, again)
    with pytest.raises(DataError, match="seed"):
        dialog_table(tmp_path)


@pytest.mark.realdata
def test_compare_reviews_compares_on_500(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--cad", str(real_data / "cad" / "cad.zip"), "--output_dir", str(tmp_path / "found")]
    monkeypatch.setattr("sys.argv", ["", *options])
    monkeypatch.setattr(compare_reviews, "run", lambda arguments: arguments)
    command: Any = compare_reviews.main()
    assert command[-1] == options[-1] and len(Path(command[2]).read_text(encoding="utf-8").splitlines()) == 500
