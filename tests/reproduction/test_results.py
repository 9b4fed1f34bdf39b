"""The shipped claims, experiments and records: every printed value once, a recipe for each, and matching pages."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from reproduction.claims import Claim, Section, read_claims
from reproduction.experiments import read_experiments
from reproduction.ledger import ledger
from reproduction.plots import series_of
from tests.fixtures.paper_tables import FIGURES, LABELS, figures_in
from tests.fixtures.paths import ROOT

RESULTS = ROOT / "results"
SECTIONS: list[Section] = read_claims(RESULTS / "claims.yaml")
EXPERIMENTS = read_experiments(RESULTS / "experiments.yaml")


def claims_of(*prefixes: str) -> list[Claim]:
    return [claim for section in SECTIONS for claim in section.claims if claim.id.split(".")[0] in prefixes]


# Rows that compare a value of another row under another reading of the setup.
SECOND_READING = re.compile(r"_(?:c3|released|squared)$")
# Values from the text, not from a table.
FROM_THE_TEXT = {"colored_adv.kl_accuracy", "colored_rnd.kl_accuracy"}


@pytest.mark.parametrize("label", LABELS)
def test_values_are_those_of_the_source(label: str) -> None:
    """DAIR_PAPER names the LaTeX source of the paper, which is not part of the repository."""
    if "DAIR_PAPER" not in os.environ:
        pytest.skip("DAIR_PAPER is not set")
    latex = Path(os.environ["DAIR_PAPER"]).read_text(encoding="utf-8")
    assert figures_in(latex, label) == FIGURES[label].split()


@pytest.mark.parametrize("label", LABELS)
def test_every_printed_value_has_one_claim(label: str) -> None:
    groups, _ = LABELS[label]
    first = [
        claim
        for claim in claims_of(*groups)
        if claim.relation is None and not SECOND_READING.search(claim.id) and claim.id not in FROM_THE_TEXT
    ]
    assert Counter(claim.paper.replace(" ", "") for claim in first) == Counter(FIGURES[label].split())


def test_second_readings_repeat_a_value() -> None:
    by_id = {claim.id: claim for section in SECTIONS for claim in section.claims}
    second = [claim for claim in by_id.values() if SECOND_READING.search(claim.id)]
    # Two CMs of three methods in two setups; colours as released; DA-ERM and DAIR
    # at three noise levels for three losses; eight lambdas.
    assert len(second) == 6 + 6 + 18 + 8
    assert all(claim.paper == by_id[SECOND_READING.sub("", claim.id)].paper for claim in second)


def test_claims_without_runs_state_the_reason() -> None:
    without_runs = {
        section.title.split(".")[0]
        for section in SECTIONS
        if section.claims and all(c.source is None for c in section.claims)
    }
    assert without_runs == {"1", "2", "7", "8"}
    assert all(claim.not_run for section in SECTIONS for claim in section.claims if claim.source is None)


def test_errors_and_flips_are_better_when_lower() -> None:
    for claim in (claim for section in SECTIONS for claim in section.claims if claim.printed is not None):
        lower = re.search(r"RMSE|flipped|->|^BG-", claim.quantity) is not None
        if claim.better != "neither":
            assert (claim.better == "lower") == lower, claim.id
        if claim.quantity.startswith("No-FG"):
            assert claim.better == "neither", claim.id  # printed without an arrow
            continue
        assert claim.better != "neither" or claim.id.split(".")[0] in {
            "six_nine", "rotated_noise", "linear_toy", "logistic_toy",
        }, claim.id  # fmt: skip


def test_every_claim_has_an_experiment_and_every_experiment_a_claim_or_a_plot() -> None:
    sources = {source.experiment.split("/")[0] for section in SECTIONS for claim in section.claims
               for source in (claim.source, claim.other) if source is not None}  # fmt: skip
    drawn = {plot.file.split("/")[0] for section in SECTIONS for plot in section.plots} - {"plots"}
    folders = {experiment.name.split("/")[0] for experiment in EXPERIMENTS}
    assert sources <= folders
    # docs/results.md shows these, and docs/lambda.md auto_lambda.
    shown = {"demo", "mnist_adversarial_epochs", "multiwoz21_small", "woz2"}
    by_lambda = {f"{name}_by_lambda" for name in ("backgrounds", "demo", "multiwoz21")}
    assert folders == sources | drawn | shown | by_lambda | {"auto_lambda"}


def test_commands_name_existing_files() -> None:
    for experiment in EXPERIMENTS:
        first, second, *_ = experiment.command
        script = f"{second.replace('.', '/')}.py" if first == "-m" else first
        files = [script, *(part for part in experiment.command if part.startswith("recipes/"))]
        assert script.endswith(".py"), experiment.name
        assert [file for file in files if not (ROOT / file).is_file()] == [], experiment.name


def test_descriptions_of_plots_are_valid(tmp_path: Path) -> None:
    for plot in (plot for section in SECTIONS for plot in section.plots if plot.draw is not None):
        assert series_of(plot, tmp_path) == {}


def test_shipped_ledger_matches_the_shipped_records() -> None:
    """After a change of claims or records, run `make results`."""
    assert (RESULTS / "RESULTS.md").read_text(encoding="utf-8") == ledger(SECTIONS, RESULTS)


def records_below(folder: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / folder).rglob("*_seed*.json"))]


def test_stored_records_distinguish_pairs_from_all_rows() -> None:
    """CM and flips count rows with a partner, `cm_all_rows` counts all rows; the others of these are correct rows."""
    checked = 0
    for record in records_below("."):
        metrics = record["metrics"]
        assert "compared" not in metrics, record["name"]
        if {"cm_numerator", "both_correct", "pairs"} <= metrics.keys() and metrics["pairs"]:
            both, right = metrics["cm_numerator"], metrics["cm_denominator"]
            pairs = metrics.get("partners", metrics["pairs"])  # a row with several partners is as many pairs
            assert metrics["both_correct"] == pytest.approx(both / pairs)
            assert metrics["cm"] == (pytest.approx(both / right) if right else None)
            checked += 1
        if "cm_all_rows" in metrics:
            unpaired = metrics["cm_all_rows_numerator"] - metrics["cm_numerator"]
            assert unpaired == metrics["cm_all_rows_denominator"] - metrics["cm_denominator"]
            assert 0 <= unpaired <= metrics["rows"] - metrics["pairs"]
            flips = [metrics[key] for key in ("both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")]
            assert flips == [None] * 4 if metrics["pairs"] == 0 else sum(flips) == pytest.approx(1)
    assert checked > 200


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def table_rows(heading: str) -> list[list[str]]:
    """Return the cells of the table of docs/results.md whose header starts with `heading`."""
    lines = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    (start,) = (index + 2 for index, line in enumerate(lines) if line.startswith(heading))
    stop = next(index for index in range(start, len(lines)) if not lines[index].startswith("|"))
    return [cells_of(line) for line in lines[start:stop]]


@pytest.mark.parametrize(
    ("folder", "heading"),
    [
        ("demo", "| method | seeds | JGA known | JGA unseen |"),
        ("multiwoz21_small", "| method | seeds | JGA | JGA, SGD names | CM, changed pairs |"),
    ],
)
def test_page_shows_the_dialogue_tables(folder: str, heading: str) -> None:
    lines = (RESULTS / folder / "comparison.md").read_text(encoding="utf-8").splitlines()
    stored = {row[0]: row[1:] for row in map(cells_of, lines) if len(row) > 3}
    methods = {"ERM": "erm", "DA-ERM": "da", "KL": "kl", "DAIR": "dair"}
    first = 0 if "seeds" in heading else 1  # the stored tables begin with the number of runs
    for method, *cells in table_rows(heading):
        expected = stored[methods[method]][first : first + len(cells)]
        assert [cell.split(" (")[0] for cell in cells] == [cell.split(" (")[0] for cell in expected], method


# Row of the page -> experiment, metrics, scale.
EXPERIMENT_ROWS: dict[str, tuple[str, list[str], float]] = {
    "Colored MNIST, Adv.": ("colored_mnist_adv/methods", ["accuracy_c3"], 100),
    "Colored MNIST, Rnd.": ("colored_mnist_rnd/methods", ["accuracy_c3"], 100),
    "Rotated MNIST, weak": ("rotated_mnist_weak", ["original_accuracy"], 100),
    "6 and 9": ("rotated_6_9", ["accuracy_theta_45"], 100),
    "QSAR, L2, 20 %": ("robust_regression_l2/written_20", ["rmse"], 1),
    "QSAR, Huber, 20 %": ("robust_regression_huber/written_20", ["rmse"], 1),
    "QSAR, Huber, 40 %": ("robust_regression_huber/written_40", ["rmse"], 1),
    "counting scenes, relevant": ("counting_scenes/cv", ["vqa_accuracy", "cm", "both_correct"], 1),
    "counting scenes, irrelevant": ("counting_scenes/iv", ["vqa_accuracy", "cm", "both_correct"], 1),
    "drawn backgrounds": ("backgrounds", ["accuracy_mixed_rand", "cm", "both_correct"], 1),
    "MNIST under attack": ("mnist_adversarial", ["accuracy", "accuracy_pgd"], 100),
}


def test_page_is_bold_where_differences_are_significant() -> None:
    """Means match the records. DAIR is bold if and only if it is significantly better than ERM and DA-ERM (t-test)."""
    rows = table_rows("| experiment | seeds | ERM | DA-ERM | DAIR |")
    assert len(rows) == len(EXPERIMENT_ROWS)
    for label, _, *cells, _ in rows:
        ((experiment, keys, scale),) = (row for start, row in EXPERIMENT_ROWS.items() if label.startswith(start))
        printed = {method: cell.split(" / ") for method, cell in zip(("erm", "da", "dair"), cells, strict=True)}
        for index, key in enumerate(keys):
            values = {}
            for method in ("erm", "da", "dair"):
                folder = "rotated_6_9_search/final" if (experiment, method) == ("rotated_6_9", "dair") else experiment
                named = "dair_lambda1" if (experiment, method) == ("mnist_adversarial", "dair") else method
                runs = [record for record in records_below(folder) if record["method"] == named]
                if runs:
                    values[method] = [scale * run["metrics"][key] for run in runs]
                    shown = printed[method][index].strip("*")
                    digits = len(shown.partition(".")[2])
                    assert float(shown) == pytest.approx(statistics.fmean(values[method]), abs=0.501 * 10**-digits)
            dair = values.pop("dair")
            sign = -1 if key == "rmse" else 1
            better = [
                len(dair) > 1
                and sign * (statistics.fmean(dair) - statistics.fmean(other)) > 0
                and stats.ttest_ind(dair, other, equal_var=False).pvalue < 0.05
                for other in values.values()
            ]
            assert ("**" in printed["dair"][index]) == all(better), (label, key)
            assert "**" not in printed["erm"][index]


def test_readme_is_short_and_its_table_is_that_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 650
    rows = [line.replace("*", "").split(" | ")[1:] for line in readme.splitlines() if line.startswith("| ")][1:]
    paper = {claim.id: claim.printed.value for claim in claims_of("colored_adv", "dialog") if claim.printed}
    sources = ("demo all_correct -", "colored_mnist_adv/methods accuracy_c3 colored_adv.{}_accuracy",
               "counterfactual_sentiment/bag_of_words_100/final both_correct -",
               "multiwoz21_small original_joint_goal_accuracy dialog.{}_jga")  # fmt: skip
    for (*means, printed), (folder, metric, claim) in zip(rows, map(str.split, sources), strict=True):
        for index, method in enumerate(("erm", "da", "dair")):
            runs = [record["metrics"][metric] for record in records_below(folder) if record["method"] == method]
            assert int(means[index]) == round(100 * statistics.fmean(runs))
            if claim != "-":
                value = paper[claim.format(method)]
                assert int(printed.split(", ")[index][:2]) == round(value if value > 1 else 100 * value)


def test_stated_runs_of_the_demo_are_those_of_its_records() -> None:
    """The expectation in the header of demo.yaml: known, unseen, misleading and all right, for each method."""
    lines = (ROOT / "recipes" / "configs" / "demo.yaml").read_text(encoding="utf-8").splitlines()
    header = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    partners = [f"augmented_joint_goal_accuracy_partner_{number}" for number in (1, 2)]
    keys = ["original_joint_goal_accuracy", *partners, "all_correct"]
    for name, method in (("ERM", "erm"), ("DA-ERM", "da"), ("KL", "kl"), ("DAIR", "dair")):
        runs = [record["metrics"] for record in records_below("demo") if record["method"] == method]
        stated = ", ".join(f"{statistics.fmean(run[key] for run in runs):.3f}" for key in keys)
        assert len(runs) == 3 and f" {name} {stated}" in header
