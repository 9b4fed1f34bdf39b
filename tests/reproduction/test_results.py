"""The shipped claims, experiments and records: every printed value once, a recipe for each, and matching pages."""

from __future__ import annotations

import json
import os
import re
import statistics
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dair_hf.experiments.trials import report_trials
from reproduction import tracker_errors
from reproduction.claims import Claim, Section, read_claims
from reproduction.experiments import read_experiments
from reproduction.ledger import ledger
from reproduction.plots import series_of
from tests.fixtures.paper_tables import FIGURES, LABELS, figures_in
from tests.fixtures.paths import ROOT

RESULTS = ROOT / "results"
METHODS = ("erm", "da", "kl", "dair")
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
        section.title for section in SECTIONS if section.claims and all(c.source is None for c in section.claims)
    }
    assert without_runs == {
        "Adversarial robustness", "Image backgrounds", "MultiWOZ 2.2 with BART", "Visual questions",
    }  # fmt: skip
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


def test_every_claim_has_an_experiment_and_every_experiment_is_on_a_page() -> None:
    sources = {source.experiment.split("/")[0] for section in SECTIONS for claim in section.claims
               for source in (claim.source, claim.other) if source is not None}  # fmt: skip
    drawn = {plot.file.split("/")[0] for section in SECTIONS for plot in section.plots} - {"plots"}
    folders = {experiment.name.split("/")[0] for experiment in EXPERIMENTS}
    assert sources <= folders
    compared = {folder.split("/")[0] for section in SECTIONS for folder in section.tables}
    assert folders | {tracker_errors.FOLDER} == sources | drawn | compared  # counted from the runs of an experiment


def test_commands_name_existing_files() -> None:
    for experiment in EXPERIMENTS:
        first, second, *_ = experiment.command
        script = f"{second.replace('.', '/')}.py" if first == "-m" else first
        files = [script, *(part for part in experiment.command if part.startswith("recipes/"))]
        assert script.endswith(".py"), experiment.name
        assert [file for file in files if not (ROOT / file).is_file()] == [], experiment.name


def test_every_described_curve_has_records() -> None:
    for plot in (plot for section in SECTIONS for plot in section.plots if plot.draw is not None):
        assert list(series_of(plot, RESULTS)) == [series["label"] for series in plot.draw["series"]]


def test_shipped_pages_match_the_shipped_records() -> None:
    """After a change of claims or records, run `make results`."""
    files = [RESULTS / "RESULTS.md", *(RESULTS / "pages").iterdir()]
    pages = {str(file.relative_to(RESULTS)): file.read_text(encoding="utf-8") for file in files}
    assert pages == ledger(SECTIONS, RESULTS)
    assert "\nNo table: " not in "".join(pages.values())


def records_below(folder: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / folder).rglob("*_seed*.json"))]


def test_stored_records_distinguish_pairs_from_all_rows() -> None:
    """CM and flips count rows with a partner, `cm_all_rows` counts all rows; the others of these are correct rows."""
    checked = 0
    for record in records_below("."):
        metrics = record.get("metrics", {})  # the counts of errors of trackers have none
        same = [metrics.get(f"cm_same_answer_{part}", 0) for part in ("numerator", "denominator")]
        if {"cm_numerator", "both_correct", "pairs"} <= metrics.keys() and metrics["pairs"]:
            both, right = metrics["cm_numerator"], metrics["cm_denominator"]
            pairs = metrics.get("partners", metrics["pairs"])  # a row with several partners is as many pairs
            assert metrics["both_correct"] == pytest.approx((both + same[0]) / pairs)
            assert metrics["cm"] == (pytest.approx(both / right) if right else None)
            checked += 1
        if "cm_all_rows" in metrics:
            unpaired = metrics["cm_all_rows_numerator"] - metrics["cm_numerator"] - same[0]
            assert unpaired == metrics["cm_all_rows_denominator"] - metrics["cm_denominator"] - same[1]
            assert 0 <= unpaired <= metrics["rows"] - metrics["pairs"]
            flips = [metrics[key] for key in ("both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")]
            assert flips == [None] * 4 if metrics["pairs"] == 0 else sum(flips) == pytest.approx(1)
    assert checked > 200


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


# Row of docs/results.md -> experiment, metrics, scale, the paper's claim on DAIR.
BOTH = ["original_accuracy", "both_correct"]
STATES = ["original_joint_goal_accuracy", "both_correct"]
ANSWERS = ["vqa_accuracy", "both_correct"]
EXPERIMENT_ROWS: dict[str, tuple[str, list[str], float, str | None]] = {
    "Generated dialogues": ("demo_confirmed/dair", ["original_joint_goal_accuracy", "all_correct"], 100, None),
    "Reviews, all pairs, bag": ("counterfactual_sentiment/bag_of_words_100/final", BOTH, 100, None),
    "Reviews, 30 % of the pairs, bag": ("counterfactual_sentiment/bag_of_words_30/final", BOTH, 100, None),
    "Reviews, the same, tuned": ("counterfactual_sentiment/bag_of_words_30_confirmed/weight_dair", BOTH, 100, None),
    "Reviews, 30 % of the pairs, BiLSTM": ("counterfactual_sentiment/bilstm_30/final", BOTH, 100, None),
    "Reviews, 30 % of the pairs, MiniLM": ("pretrained_encoder/reviews_30/final", BOTH, 100, None),
    "Reviews, all pairs, MiniLM": ("pretrained_encoder/reviews_100/final", BOTH, 100, None),
    "Inference, all": ("counterfactual_nli/embeddings_100/final", BOTH, 100, None),
    "Inference, revised premises": ("pretrained_encoder/premises_30/final", BOTH, 100, None),
    "Inference, the same, tuned": ("pretrained_encoder/premises_30_weight_dair/final", BOTH, 100, None),
    "WOZ 2.0, 30 %": ("woz2/share_30", STATES, 100, None),
    "WOZ 2.0, SmolLM2": ("woz2_smollm2/dair", STATES, 100, None),
    "MultiWOZ 2.1": ("multiwoz21_small", STATES, 100, None),
    "Colored MNIST, adversarial": ("colored_mnist_adv/methods", ["accuracy_c3"], 100, "colored_adv.dair_accuracy"),
    "Colored MNIST, random": ("colored_mnist_rnd/methods", ["accuracy_c3"], 100, "colored_rnd.dair_accuracy"),
    "Rotated MNIST, weak": ("rotated_mnist_weak", ["original_accuracy"], 100, "rotated_weak.dair_accuracy"),
    "6 and 9": ("rotated_6_9", ["accuracy_theta_45"], 100, None),
    "QSAR, L2, 20 %": ("robust_regression_l2/written_20", ["rmse"], 1, "qsar_l2.dair_20"),
    "QSAR, Huber, 20 %": ("robust_regression_huber/written_20", ["rmse"], 1, "qsar_huber.dair_20"),
    "QSAR, Huber, 40 %": ("robust_regression_huber/written_40", ["rmse"], 1, "qsar_huber.dair_40"),
    "QSAR, TERM, 20 %": ("robust_regression_term/written_20", ["rmse"], 1, "qsar_term.dair_20"),
    "Counting scenes, the answer changes": ("counting_scenes/cv", ANSWERS, 100, None),
    "Counting scenes, the answer stays": ("counting_scenes/iv", ANSWERS, 100, None),
    "Drawn backgrounds": ("backgrounds", ["accuracy_mixed_rand", "both_correct"], 100, None),
}
# ERM depends on neither the share of the pairs nor their weight.
_CONFIRMED = "counterfactual_sentiment/bag_of_words_30_confirmed"
_PREMISES = "pretrained_encoder/premises_30"
ELSEWHERE = {
    ("demo_confirmed/dair", "erm"): "demo_confirmed/erm",
    ("demo_confirmed/dair", "da"): "demo_confirmed/da",
    ("rotated_6_9", "dair"): "rotated_6_9_search/final",
    ("pretrained_encoder/reviews_100/final", "erm"): "pretrained_encoder/reviews_30/final",
    ("woz2/share_30", "erm"): "woz2/share_10",
    ("woz2_smollm2/dair", "erm"): "woz2_smollm2/erm",
    ("woz2_smollm2/dair", "da"): "woz2_smollm2/da",
    (f"{_CONFIRMED}/weight_dair", "erm"): f"{_CONFIRMED}/erm",
    (f"{_CONFIRMED}/weight_dair", "da"): f"{_CONFIRMED}/weight",
    (f"{_PREMISES}_weight_dair/final", "erm"): f"{_PREMISES}/final",
    (f"{_PREMISES}_weight_dair/final", "da"): f"{_PREMISES}_weight/final",
}


def test_page_says_which_differences_are_significant() -> None:
    """Means match the records, words Holm's correction of paired t-tests over seeds, the paper's values the claims."""
    lines = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    rows = [cells_of(line) for line in lines if line.startswith("| [")]
    printed_in_paper = {claim.id: claim.printed for section in SECTIONS for claim in section.claims}
    assert len(rows) == len(EXPERIMENT_ROWS)
    compared: list[tuple[float, str, str]] = []  # p, the word if it is significant, the page's word
    for (label, seeds, *cells, words, paper), (start, row) in zip(rows, EXPERIMENT_ROWS.items(), strict=True):
        experiment, keys, scale, claim = row
        assert re.sub(r"\[(.*)\]\(.*\)", r"\1", label).startswith(start)
        shown = {method: cell.split(" / ") for method, cell in zip(("erm", "da", "dair"), cells, strict=True)}
        for index, (key, word) in enumerate(zip(keys, words.split(" / "), strict=True)):
            values = {}
            for method, numbers in shown.items():
                runs = records_below(ELSEWHERE.get((experiment, method), experiment))
                values[method] = {run["seed"]: scale * run["metrics"][key] for run in runs if run["method"] == method}
                unit = 10.0 ** -len(numbers[index].partition(".")[2])
                mean = statistics.fmean(values[method].values())
                assert float(numbers[index]) == pytest.approx(mean, abs=0.501 * unit)
            assert {frozenset(found) for found in values.values()} == {frozenset(values["da"])}
            assert int(seeds) == len(values["da"])
            dair, da = ([values[method][seed] for seed in sorted(values["da"])] for method in ("dair", "da"))
            gain = (statistics.fmean(dair) - statistics.fmean(da)) * (-1 if key == "rmse" else 1)
            compared.append((stats.ttest_rel(dair, da).pvalue, "better" if gain > 0 else "worse", word))
        assert (paper == "-") == (claim is None)
        if claim is not None:
            assert float(paper) == pytest.approx(printed_in_paper[claim].value, abs=0.501 * unit)
    is_significant = True  # Holm: the k-th smallest p of m is compared with 5 % / (m - k + 1), until one is larger
    for rank, (p, word, stated) in enumerate(sorted(compared)):
        is_significant &= p < 0.05 / (len(compared) - rank)
        assert stated == (word if is_significant else "inconclusive")


def test_page_states_the_planned_test_of_the_demo() -> None:
    runs = [sorted(records_below(f"demo_confirmed/{method}"), key=lambda run: run["seed"]) for method in ("dair", "da")]
    dair, da = ([100 * run["metrics"]["all_correct"] for run in of_method] for of_method in runs)
    low, high = (found := stats.ttest_rel(dair, da)).confidence_interval()
    stated = f"DAIR is {(low + high) / 2:.0f} ± {(high - low) / 2:.0f} points above (p = {found.pvalue:.3f}"
    assert stated.replace("0.", ".") in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_page_states_the_planned_test_of_the_tracker() -> None:
    page = (RESULTS / "pages" / "woz_2_0.md").read_text(encoding="utf-8").replace("*", "")
    row = next(cells_of(line) for line in page.splitlines() if line.startswith("| primary"))
    gain, width = (100 * float(number) for number in row[3].split(" ± "))
    stated = f"DAIR is {gain:.1f} ± {width:.1f} points above (p = {row[4][1:]}"
    assert stated in " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())


def test_readme_is_short_and_its_table_is_that_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 650
    rows = [line.replace("*", "").split(" | ")[1:] for line in readme.splitlines() if line.startswith("| ")][1:]
    paper = {claim.id: claim.printed.value for claim in claims_of("colored_adv", "dialog") if claim.printed}
    sources = ("demo_confirmed/dair all_correct -", "colored_mnist_adv/methods accuracy_c3 colored_adv.{}_accuracy",
               "woz2_smollm2/dair both_correct -",
               f"{_CONFIRMED}/weight_dair both_correct -",
               f"{_PREMISES}_weight_dair/final both_correct -",
               "counterfactual_sentiment/bag_of_words_100/final both_correct -",
               "multiwoz21_small original_joint_goal_accuracy dialog.{}_jga")  # fmt: skip
    for (*means, printed), (folder, metric, claim) in zip(rows, map(str.split, sources), strict=True):
        for index, method in enumerate(("erm", "da", "dair")):
            found = records_below(ELSEWHERE.get((folder, method), folder))
            runs = [record["metrics"][metric] for record in found if record["method"] == method]
            assert int(means[index]) == round(100 * statistics.fmean(runs))
            if claim != "-":
                value = paper[claim.format(method)]
                assert int(printed.split(", ")[index][:2]) == round(value if value > 1 else 100 * value)


def test_readme_and_quickstart_show_what_compare_found(tmp_path: Path) -> None:
    records = sorted(records_below("compare_reviews"), key=lambda record: METHODS.index(record["method"]))
    labels = {record["method"]: record["name"].rpartition("_seed")[0] for record in records}
    table, sentences = report_trials(tmp_path, "", records, labels, []).split("\n\n")
    assert textwrap.indent(table, "    ") in (ROOT / "README.md").read_text(encoding="utf-8")
    sentence = sentences.partition("\nChosen on dev")[0]
    assert textwrap.indent(sentence, "    ") in (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_stated_runs_of_the_demo_are_those_of_its_records() -> None:
    """The expectation in the header of demo.yaml: known, unseen, misleading and all right, for each method."""
    lines = (ROOT / "recipes" / "configs" / "demo.yaml").read_text(encoding="utf-8").splitlines()
    header = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    partners = [f"augmented_joint_goal_accuracy_partner_{number}" for number in (1, 2)]
    keys = ["original_joint_goal_accuracy", *partners, "all_correct"]
    for name, method in (("ERM", "erm"), ("DA-ERM", "da"), ("KL", "kl"), ("DAIR", "dair")):
        runs = [record["metrics"] for record in records_below("demo") if record["method"] == method]
        stated = ", ".join(f"{statistics.fmean(run[key] for run in runs):.3f}" for key in keys)
        assert len(runs) == 5 and f" {name} {stated}" in header
