"""Evaluation of a classifier under attacks, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

from dair_hf.augment.attacks.pgd import Attack
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.evaluation.statistics import correctness_metrics
from dair_hf.vision.robustness import AttackConfig, _attack_originals, evaluate_attacks

CONFIG = AttackConfig(epsilon=0.2, step_size=0.05, train_steps=3, test_steps=5)
# The brighter of two pixels is the class, so an L-inf attack of radius e flips pixels less than 2 e apart.
PIXELS = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.5, 0.45], [0.2, 0.9], [0.3, 0.6], [0.45, 0.4], [0.8, 0.3]])
LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 0])


class Brighter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, pixel_values: Tensor) -> ImageClassifierOutput:
        return ImageClassifierOutput(logits=self.scale * pixel_values.flatten(1))


def pairs_with(partners: Tensor | None) -> TensorPairs:
    views = [{"pixel_values": PIXELS.view(-1, 1, 1, 2), "labels": LABELS}]
    if partners is not None:
        views.append({"pixel_values": partners, "labels": LABELS})
    return TensorPairs(*views)


def evaluate_pairs(pairs: TensorPairs, correct: Any, *, intervals: bool, data_name: str) -> dict[str, Any]:
    rows = torch.arange(len(pairs))
    found = []
    for augmented in (False, True):
        view = pairs.view(rows, augmented)
        logits: Sequence[Any] = list(Brighter()(view["pixel_values"]).logits.detach().numpy())
        found.append(correct(logits, view["labels"].tolist()))
    return correctness_metrics(*found, intervals=intervals)


def test_accuracy_and_cm_by_hand() -> None:
    metrics = evaluate_attacks(evaluate_pairs, Brighter(), pairs_with, CONFIG, intervals=False, progress=False)
    # Correct: all but row 5. More than 0.4 apart, so correct under attack: rows 0, 3 and 6.
    assert metrics["rows"] == 7
    assert metrics["accuracy"] == pytest.approx(6 / 7)
    for name in ("fgsm", "pgd"):
        assert metrics[f"accuracy_{name}"] == pytest.approx(3 / 7)
        assert metrics[f"cm_{name}"] == pytest.approx(3 / 6)
        assert (metrics[f"cm_numerator_{name}"], metrics["cm_denominator"]) == (3, 6)


def test_row_order_does_not_depend_on_the_batch_size() -> None:
    attack = Attack("linf", 0.2, 0.05, 5, random_start=False)
    whole = _attack_originals(Brighter(), pairs_with(None), attack)
    for size in (1, 2, 3, 7):
        assert torch.equal(_attack_originals(Brighter(), pairs_with(None), attack, batch_size=size), whole)
    moved = (whole.view(-1, 2) - PIXELS).numpy()
    np.testing.assert_allclose(moved[0], [-0.2, 0.1 + 0.1], atol=1e-6)


def test_training_and_evaluation_attacks() -> None:
    assert CONFIG.augmenter("erm") is None
    assert CONFIG.training_attack("trades").loss == "kl"
    assert CONFIG.training_attack("dair") == Attack("linf", 0.2, 0.05, 3)
    assert AttackConfig().evaluation_attacks()["pgd"] == Attack("linf", 8 / 255, 2 / 255, 20)
    assert AttackConfig().evaluation_attacks()["fgsm"] == Attack.fgsm(8 / 255)


def test_autoattack_on_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {}

    def flip_one(
        model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, norm: str, **settings: Any
    ) -> Tensor:
        calls.update(settings, rows=len(images), labels=labels.tolist(), epsilon=epsilon, norm=norm)
        images = images.clone()
        images[1] = images[1].flip(-1)
        return images

    monkeypatch.setattr("dair_hf.vision.robustness.auto_attack", flip_one)
    config = AttackConfig(epsilon=0.2, step_size=0.05, train_steps=3, test_steps=5, autoattack_rows=6)
    model = Brighter().train()
    metrics = evaluate_attacks(
        evaluate_pairs, model, pairs_with, config, seed=3, batch_size=4, intervals=False, progress=False
    )
    assert calls == {
        "rows": 6, "labels": LABELS[:6].tolist(), "epsilon": 0.2, "norm": "linf", "batch_size": 4, "seed": 3,
    }  # fmt: skip
    # Rows 1 (flipped) and 5 (misclassified anyway) of six are wrong.
    assert (metrics["autoattack_rows"], metrics["accuracy_autoattack"]) == (6, pytest.approx(4 / 6))
