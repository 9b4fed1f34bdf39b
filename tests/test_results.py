"""The shipped claims and experiments: every printed figure once, and a recipe behind each that is run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dair_hf.claims import Claim, Section, read_claims
from dair_hf.experiments import read_experiments
from dair_hf.ledger import ledger
from dair_hf.ledger_plots import series_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SECTIONS: list[Section] = read_claims(RESULTS / "claims.yaml")
EXPERIMENTS = read_experiments(RESULTS / "experiments.yaml")


def claims_of(*prefixes: str) -> list[Claim]:
    return [claim for section in SECTIONS for claim in section.claims if claim.id.split(".")[0] in prefixes]


def test_claims_of_each_section() -> None:
    counts = {section.title.split(".")[0]: len(section.claims) for section in SECTIONS}
    assert counts == {"1": 12, "2": 50, "3": 23, "4": 24, "5": 54, "6": 48, "7": 43, "8": 32, "9": 27}


# The paper's tables, row by row, apart from claims.yaml. Deviations stand behind a "+-".
TABLES = {
    ("dialog",): """
        0.5483 0.4844 0.8206  0.5915 0.5311 0.8354  0.5124 0.4053 0.8298  0.5998 0.5609 0.8902""",
    ("cv_vqa",): "45.89 0.5792  48.32 0.5631  48.20 0.3479  49.75 0.7161",
    ("iv_vqa",): """
        64.18 0.9456 8.64 3.45 3.00 2.2   64.66 0.9543 7.47 2.92 2.73 2.73
        64.57 0.9582 7.07 2.73 2.50 1.84  64.75 0.9606 6.33 2.54 2.22 1.57""",
    ("iv_vqa_trade_off",): """
        64.89 95.89 6.67  64.75 96.06 6.33  63.90 96.19 5.78  62.51 96.63 5.23  60.03 97.22 4.45  57.70 97.67 3.91""",
    ("colored_adv",): """
        32.70+-0.45 77.76+-1.01  40.91+-0.45 84.60+-0.60  72.58+-0.11 99.39+-0.11  66.90 37.40 68.70""",
    ("colored_rnd",): "32.70+-0.45 63.50+-1.92  29.61+-0.80 88.15+-0.18  73.10+-0.12 99.88+-0.01",
    ("rotated_weak",): "16.85+-1.08 64.14+-2.69  71.98+-1.70 88.28+-0.27  86.57+-0.55 94.98+-0.29",
    ("rotated_weak_digits",): """
        86.19 95.61 98.44  0.15 82.79 96.09  29.84 76.68 86.21  0.63 78.84 86.60  1.97 51.09 79.67
        5.53 65.02 83.26   0.66 67.43 84.79  16.67 56.29 78.11  10.92 74.50 90.55 17.08 69.54 80.84""",
    ("rotated_epochs",): "79.09 80.19  85.89 86.60  82.66 89.22  46.95 69.37",
    ("qsar_l2", "qsar_huber", "qsar_term"): """
        1.97 1.36 1.23  4.33 2.52 2.04  5.30 3.47 2.99  1.23
        1.84 1.27 1.24  2.93 1.50 1.39  4.40 2.18 1.70  1.16
        1.74 1.26 1.25  1.87 1.27 1.27  2.01 1.33 1.31  1.23""",
    ("cifar",): """
        82.89 55.38 48.40  82.45 55.33 48.95 60.05  83.04 57.57 50.68 62.66
        78.98 55.58 52.30 60.56  81.67 57.78 52.90 63.14  81.29 58.58 53.37 67.51""",
    ("cifar_second",): """
        84.57 45.04 83.43 52.82  82.63 51.12 77.00 54.83  82.87 50.95 82.13 53.98
        86.45 56.51 85.25 57.53  86.16 56.68 85.24 57.22""",
    ("imagenet9",): """
        69.43 38.57 59.63 34.27 25.83 31.06 37.04 44.00  64.02 58.05 58.81 48.17 16.91 22.27 28.44 56.62
        70.84 65.36 68.79 64.07 13.23 20.81 26.77 67.48  72.91 63.48 69.16 62.02 17.19 24.02 31.88 66.15""",
    ("logistic_toy",): "81 91 89 102 108 152 196 803",
}  # fmt: skip
# Rows that hold a figure of another row against another reading of the setup.
SECOND_READING = re.compile(r"_(?:c3|released|squared)$")


@pytest.mark.parametrize("groups", TABLES, ids=lambda groups: groups[0])
def test_every_printed_figure_is_there_once(groups: tuple[str, ...]) -> None:
    first = [claim for claim in claims_of(*groups) if claim.relation is None and not SECOND_READING.search(claim.id)]
    assert Counter(claim.paper.replace(" ", "") for claim in first) == Counter(TABLES[groups].split())


def test_a_second_reading_repeats_a_figure() -> None:
    by_id = {claim.id: claim for section in SECTIONS for claim in section.claims}
    second = [claim for claim in by_id.values() if SECOND_READING.search(claim.id)]
    # Two CMs of three methods in two setups; DA-ERM and DAIR at three levels of noise for three losses; eight lambdas.
    assert len(second) == 6 + 18 + 8
    assert all(claim.paper == by_id[SECOND_READING.sub("", claim.id)].paper for claim in second)


def test_what_is_not_run_says_why() -> None:
    silent = {section.title.split(".")[0] for section in SECTIONS if all(c.source is None for c in section.claims)}
    assert silent == {"1", "2", "7", "8"}
    assert all(claim.not_run for section in SECTIONS for claim in section.claims if claim.source is None)


def test_errors_and_flips_are_better_when_lower() -> None:
    for claim in (claim for section in SECTIONS for claim in section.claims if claim.figure is not None):
        lower = re.search(r"RMSE|flipped|->|^BG-", claim.quantity) is not None
        if claim.better != "neither":
            assert (claim.better == "lower") == lower, claim.id
        assert claim.better != "neither" or claim.id.split(".")[0] in {
            "six_nine", "rotated_noise", "linear_toy", "logistic_toy",
        }, claim.id  # fmt: skip


def test_every_claim_has_an_experiment_and_every_experiment_a_claim_or_a_plot() -> None:
    sources = {source.experiment.split("/")[0] for section in SECTIONS for claim in section.claims
               for source in (claim.source, claim.other) if source is not None}  # fmt: skip
    drawn = {plot.file.split("/")[0] for section in SECTIONS for plot in section.plots} - {"plots"}
    folders = {experiment.name.split("/")[0] for experiment in EXPERIMENTS}
    assert sources <= folders
    assert folders == sources | drawn


def test_commands_name_files_that_are_there() -> None:
    for experiment in EXPERIMENTS:
        files = [part for part in experiment.command if part.startswith("recipes/")]
        assert files[0].endswith(".py"), experiment.name
        assert [file for file in files if not (ROOT / file).is_file()] == [], experiment.name


def test_plots_say_how_they_are_drawn(tmp_path: Path) -> None:
    for plot in (plot for section in SECTIONS for plot in section.plots if plot.draw is not None):
        assert series_of(plot, tmp_path) == {}


def test_the_shipped_ledger_is_that_of_the_shipped_records() -> None:
    """Whoever changes claims or records runs `make results`."""
    assert (RESULTS / "RESULTS.md").read_text(encoding="utf-8") == ledger(SECTIONS, RESULTS)
