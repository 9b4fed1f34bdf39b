"""The recipe on counterfactual texts, run on a few rows for a few epochs."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dair_hf.text.models import BagOfWordsForSequenceClassification
from tests.fixtures import counterfactuals
from tests.fixtures.recipe_runs import predictions, read, run

RECIPE, SENTIMENT, NLI = "counterfactual_text", "counterfactual_sentiment", "counterfactual_nli"
SHORT = ["--num_train_epochs", "2", "--seeds", "0", "--per_device_train_batch_size", "8"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cad(tmp_path_factory: pytest.TempPathFactory) -> str:
    content = counterfactuals.files({"train": 40, "dev": 16, "test": 12})
    return str(counterfactuals.write_zip(tmp_path_factory.mktemp("cad") / "cad.zip", content))


def shares(folder: Path) -> dict[str, float]:
    """The columns of the table, counted from the predictions of a run."""
    right: dict[str, dict[str, bool]] = {}
    for line in predictions(folder):
        assert line["correct"] == (line["prediction"] == line["reference"])
        right.setdefault(line["row_id"], {})[line["variant"]] = line["correct"]
    first, second = (sum(views[name] for views in right.values()) for name in ("original", "augmented"))
    both = sum(all(views.values()) for views in right.values())
    return {
        "original_accuracy": first / len(right), "augmented_accuracy": second / len(right),
        "cm_numerator": both, "cm_denominator": first, "reverse_cm_numerator": both, "reverse_cm_denominator": second,
        "both_correct": both / len(right), "pairs": len(right),
    }  # fmt: skip


def test_reviews_with_every_method(cad: str, tmp_path: Path) -> None:
    methods = ["erm", "da", "kl", "dair"]
    # At a high learning rate accuracy goes up and down, so that the best epoch is not the last of every run.
    options = ["--cad", cad, *SHORT, "--num_train_epochs", "4", "--learning_rate", "0.3", "--methods", *methods]
    run(RECIPE, SENTIMENT, tmp_path, *options)
    for method in methods:
        metrics = read(tmp_path / f"{method}_seed0.json")["metrics"]
        folder = tmp_path / "runs" / f"{method}_seed0"
        assert metrics.items() >= shares(folder).items() and metrics["pairs"] == 12
        state = read(folder / "trainer_state.json")
        by_epoch = [log["eval_both_views_accuracy"] for log in state["log_history"] if "eval_cm" in log]
        assert len(by_epoch) == 4 and state["best_metric"] == max(by_epoch)
        assert isinstance(
            AutoModelForSequenceClassification.from_pretrained(folder), BagOfWordsForSequenceClassification
        )
        assert AutoTokenizer.from_pretrained(folder).tokenize("the FILM<br />") != []
    paired = read(tmp_path / "paired.json")["differences"]
    means = {name: read(tmp_path / f"{name}_seed0.json")["metrics"]["both_correct"] for name in methods}
    for name in ("erm", "kl", "dair"):
        assert paired[name]["both_correct"]["difference"] == pytest.approx(means[name] - means["da"])


def test_the_best_epoch_is_evaluated(cad: str, tmp_path: Path) -> None:
    options = ["--cad", cad, *SHORT, "--learning_rate", "0.3", "--methods", "dair", "--search_lambdas", "1", "10"]
    run(RECIPE, SENTIMENT, tmp_path, *options, "--num_train_epochs", "3")
    trials = {value: read(tmp_path / "search" / "dair" / f"dair_lambda{value}_seed0.json") for value in (1, 10)}
    for value, record in trials.items():
        folder = tmp_path / "search" / "dair" / "runs" / f"dair_lambda{value}_seed0"
        assert record["metrics"]["both_views_accuracy"] == read(folder / "trainer_state.json")["best_metric"]
        assert record["metrics"]["pairs"] == 16
    chosen = read(tmp_path / "search" / "dair" / "choice.json")["value"]
    assert chosen == min(trials, key=lambda value: (-trials[value]["metrics"]["both_views_accuracy"], value))
    final = read(tmp_path / "final" / "dair_seed0.json")
    assert (final["config"]["training"]["dair_lambda"], final["metrics"]["pairs"]) == (chosen, 12)


def test_few_pairs_and_all_revisions(cad: str, tmp_path: Path) -> None:
    options = ["--cad", cad, *SHORT, "--methods", "dair", "--logging_steps", "1", "--num_train_epochs", "1"]
    run(RECIPE, NLI, tmp_path, *options, "--pair_share", "0.1")
    assert read(tmp_path / "dair_seed0.json")["metrics"]["pairs"] == 48
    logs = read(tmp_path / "runs" / "dair_seed0" / "trainer_state.json")["log_history"]
    assert sum(log.get("pairs", 0) for log in logs) == 16 and sum(log.get("rows", 0) for log in logs) == 160


def test_words_of_removed_revisions_are_unknown(cad: str, tmp_path: Path) -> None:
    vocabulary = {}
    for share in ("0.1", "1"):
        options = ["--cad", cad, *SHORT, "--methods", "erm", "--num_train_epochs", "1", "--min_count", "1"]
        run(RECIPE, SENTIMENT, tmp_path / share, *options, "--pair_share", share)
        vocabulary[share] = set(AutoTokenizer.from_pretrained(tmp_path / share / "runs" / "erm_seed0").get_vocab())
    assert vocabulary["0.1"] < vocabulary["1"]
