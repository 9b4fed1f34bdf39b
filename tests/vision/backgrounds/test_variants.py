"""Variants: order and direction of columns; accuracies, gap and CM by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variants import CLASSES, MIXED, VARIANTS, _variant_metrics, evaluate_variants


def test_columns_are_ordered_as_in_the_paper() -> None:
    paper = ["Original", "M-Rand", "M-Same", "M-Next", "BG-B ↓", "BG-T ↓", "No-FG", "Only-FG"]
    assert [variant.heading for variant in VARIANTS.values()] == paper
    assert {name for name, variant in VARIANTS.items() if not variant.higher_is_better} == {"only_bg_b", "only_bg_t"}
    assert set(MIXED) == {name for name in VARIANTS if name.startswith("mixed_")}


def test_metrics_by_hand() -> None:
    correct = {
        "original": [1, 1, 1, 1, 0],
        "mixed_rand": [1, 0, 0, 1, 1],
        "mixed_same": [1, 1, 0, 1, 1],
        "only_bg_b": [0, 0, 0, 1, 0],
    }
    assert _variant_metrics(correct, intervals=False) == pytest.approx(
        {
            "rows": 5,
            "accuracy_original": 0.8,
            "accuracy_mixed_rand": 0.6,
            "accuracy_mixed_same": 0.8,
            "accuracy_only_bg_b": 0.2,
            "background_gap": 0.2,
            "cm": 0.5,  # two of the four correct originals
            "cm_numerator": 2,
            "cm_denominator": 4,
            "both_correct": 2 / 5,
        }
    )


def test_the_gap_has_the_interval_of_paired_rows() -> None:
    draws = np.random.default_rng(0)
    same = draws.random(3200) < 0.7
    rand = np.where(draws.random(3200) < 0.9, same, draws.random(3200) < 0.4)
    found = _variant_metrics({"original": same, "mixed_same": same, "mixed_rand": rand})
    for key in ("accuracy_original", "accuracy_mixed_rand", "background_gap", "cm"):
        assert found[f"{key}_low"] < found[key] < found[f"{key}_high"]
    gap = same.astype(float) - rand
    width = found["background_gap_high"] - found["background_gap_low"]
    assert width == pytest.approx(2 * 1.96 * gap.std() / np.sqrt(3200), rel=0.15)


class Trainer:
    """Stub that predicts the first number of each row and records its arguments."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def evaluate_pairs(self, rows: list[tuple[int, int]], is_correct: Any, **settings: Any) -> dict[str, Any]:
        found = is_correct([np.eye(CLASSES)[predicted] for predicted, _ in rows], [label for _, label in rows])
        self.calls.append({**settings, "correct": found.tolist()})
        return {"original_accuracy": float(np.mean(found))}


def test_each_variant_is_predicted_once() -> None:
    tests = {
        "original": [(0, 0), (1, 1), (2, 2)],
        "mixed_rand": [(0, 0), (5, 1), (5, 2)],
        "only_bg_t": [(7, 0), (7, 1), (7, 2)],
    }
    trainer = Trainer()
    found = evaluate_variants(trainer.evaluate_pairs, tests, "stripes", intervals=False)
    correct = {"original": [1, 1, 1], "mixed_rand": [1, 0, 0], "only_bg_t": [0, 0, 0]}
    assert found == _variant_metrics(correct, intervals=False)
    assert [call["correct"] for call in trainer.calls] == list(correct.values())
    assert [call["data_name"] for call in trainer.calls] == [f"stripes, {variant}" for variant in tests]
    assert "accuracy_original_low" in evaluate_variants(trainer.evaluate_pairs, tests)


def test_rows_with_partners_are_refused() -> None:
    def both_views(rows: list[Any], is_correct: Any, **settings: Any) -> None:
        is_correct([np.eye(CLASSES)[0]] * 2 * len(rows), [0] * 2 * len(rows))

    with pytest.raises(DataError, match="original"):
        evaluate_variants(both_views, {"original": [0, 0, 0]})
