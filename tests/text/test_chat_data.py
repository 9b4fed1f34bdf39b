"""Generated word problems."""

from __future__ import annotations

import pytest

from dair_hf.text import chat_data
from dair_hf.text.chat_data import TEMPLATES, ChatConfig, load_chat_data


def test_test_numbers_occur_nowhere_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_data, "TRAIN_PROBLEMS", 300)
    monkeypatch.setattr(chat_data, "TEST_PROBLEMS", 60)
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
