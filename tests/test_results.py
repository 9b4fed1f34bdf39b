"""The shipped claims and experiments: every printed figure once, and a recipe behind each that is run."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from dair_hf.claims import Claim, Section, read_claims
from dair_hf.experiments import read_experiments
from dair_hf.ledger import ledger
from dair_hf.ledger_plots import series_of
from tests.fixtures.paper_tables import FIGURES, LABELS, figures_in

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SECTIONS: list[Section] = read_claims(RESULTS / "claims.yaml")
EXPERIMENTS = read_experiments(RESULTS / "experiments.yaml")


def claims_of(*prefixes: str) -> list[Claim]:
    return [claim for section in SECTIONS for claim in section.claims if claim.id.split(".")[0] in prefixes]


def test_claims_of_each_section() -> None:
    counts = {section.title.split(".")[0]: len(section.claims) for section in SECTIONS}
    assert counts == {"1": 12, "2": 68, "3": 27, "4": 26, "5": 87, "6": 48, "7": 43, "8": 40, "9": 27}


# Rows that hold a figure of another row against another reading of the setup.
SECOND_READING = re.compile(r"_(?:c3|released|squared)$")
# A figure of the text, not of a table.
OF_THE_TEXT = {"colored_adv.kl_accuracy", "colored_rnd.kl_accuracy"}


def test_the_tables_hold_290_figures() -> None:
    figures = [figure for table in FIGURES.values() for figure in table.split()]
    assert (len(figures), sum("+-" in figure for figure in figures)) == (290, 116)


@pytest.mark.parametrize("label", LABELS)
def test_the_figures_are_those_of_the_source(label: str) -> None:
    """DAIR_PAPER names the LaTeX source of the paper, which is not part of the repository."""
    if "DAIR_PAPER" not in os.environ:
        pytest.skip("DAIR_PAPER is not set")
    latex = Path(os.environ["DAIR_PAPER"]).read_text(encoding="utf-8")
    assert figures_in(latex, label) == FIGURES[label].split()


@pytest.mark.parametrize("label", LABELS)
def test_every_printed_figure_is_there_once(label: str) -> None:
    groups, _ = LABELS[label]
    first = [
        claim
        for claim in claims_of(*groups)
        if claim.relation is None and not SECOND_READING.search(claim.id) and claim.id not in OF_THE_TEXT
    ]
    assert Counter(claim.paper.replace(" ", "") for claim in first) == Counter(FIGURES[label].split())


def test_a_printed_deviation_is_of_so_many_runs() -> None:
    runs = {c.id.split(".")[0]: c.paper_runs for s in SECTIONS for c in s.claims if "+-" in c.paper}
    assert runs == {
        "colored_adv": 10, "colored_rnd": 10, "rotated_weak": 10, "rotated_weak_digits": 10,
        "qsar_l2": 5, "qsar_huber": 5, "qsar_term": 5, "logistic_toy": 20,
    }  # fmt: skip


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
