"""The recipe on word problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from dair_hf.text import chat_data
from dair_hf.text.chat_data import TEMPLATES, ChatConfig, load_chat_data
from tests.fixtures.recipe_runs import predictions, read, run

RECIPE = "chat_pairs"


def few_problems(monkeypatch: pytest.MonkeyPatch, train: int, test: int) -> None:
    monkeypatch.setattr(chat_data, "TRAIN_PROBLEMS", train)
    monkeypatch.setattr(chat_data, "TEST_PROBLEMS", test)


def test_test_numbers_occur_nowhere_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    few_problems(monkeypatch, 300, 60)
    data = load_chat_data(ChatConfig())
    texts = [prefix + name for prefix in ("", "augmented_") for name in ("prompt", "completion")]
    of_train = {number for row in data.train for name in texts for number in numbers(row[name])}
    known = {number for row in data.train for number in numbers(row["prompt"])}
    unseen = {number for row in data.test for number in numbers(row["augmented_prompt"])}
    assert unseen and not unseen & of_train and len(of_train) > len(known) == 15
    assert {number for row in data.test for number in numbers(row["prompt"])} <= known
    # Unseen numbers are a random choice, not the lowest ones.
    assert max(unseen) > 80 and min(unseen) < 30
    for row in data.test:
        for prefix in ("", "augmented_"):
            answer = row[prefix + "completion"]
            left, equals, right = answer.partition("=")
            assert not equals or eval(left) == int(right)
            assert {"n1": not equals, "n1 + n2": "+" in left, "n1 - n2": "-" in left}[row["formula"]]
    assert len({row["formula"] for row in data.test}) == len(TEMPLATES) - 1


def numbers(text: str | None) -> set[int]:
    return {int(word) for word in (text or "").split() if word.isdigit() and len(word) == 2}


@pytest.mark.slow
def test_generated_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_problems(monkeypatch, 60, 12)
    options = ["--max_steps", "4", "--warmup_steps", "1"]
    run(RECIPE, "arithmetic", tmp_path, *options, "--per_device_train_batch_size", "4", "--methods", "erm", "kl")
    for method in ("erm", "kl"):
        metrics = read(tmp_path / f"{method}_seed0.json")["metrics"]
        found = predictions(tmp_path / "runs" / f"{method}_seed0")
        assert len(found) == 24 and metrics["pairs"] == 12
        assert metrics["original_accuracy"] == sum(v["correct"] for v in found if v["variant"] == "original") / 12
    assert "test: 12 of 12 rows have a partner" in (tmp_path / "comparison.md").read_text()
