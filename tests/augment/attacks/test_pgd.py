"""PGD: settings, iterates against numpy, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.augment.attacks.attack_loss import AttackLoss, LpBall
from dair_hf.augment.attacks.pgd import Attack, pgd
from dair_hf.errors import DataError, NonFiniteLossError
from tests.augment.attacks.test_lp_ball import generator

WEIGHTS = np.random.default_rng(0).normal(size=(6, 3))
POINTS = np.random.default_rng(1).uniform(size=(5, 6))
LABELS = np.array([0, 2, 1, 1, 0])


def gradient(points: np.ndarray) -> np.ndarray:
    """Gradient of the cross-entropy for logits `(x W)^2`, whose direction changes along the path."""
    hidden = points @ WEIGHTS
    logits = hidden**2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return ((p - np.eye(3)[LABELS]) * 2 * hidden) @ WEIGHTS.T


def squares(points: torch.Tensor) -> torch.Tensor:
    return (points @ torch.tensor(WEIGHTS, dtype=points.dtype)) ** 2


def path(norm: str, epsilon: float, size: float, steps: int) -> np.ndarray:
    """PGD as written in the paper."""
    points = POINTS.copy()
    for _ in range(steps):
        slope = gradient(points)
        if norm == "linf":
            points = np.clip(points + size * np.sign(slope), 0, 1)
            points = np.clip(points, POINTS - epsilon, POINTS + epsilon)
        else:
            points = np.clip(points + size * slope / np.linalg.norm(slope, axis=1, keepdims=True), 0, 1)
            offset = points - POINTS
            length = np.linalg.norm(offset, axis=1, keepdims=True)
            points = POINTS + offset * np.minimum(1, epsilon / length)
    return points


def search(attack: Attack, forward: Any = squares, labels: Any = LABELS, points: np.ndarray = POINTS) -> torch.Tensor:
    center = torch.tensor(points)
    ball = LpBall.around(center, attack.norm, attack.epsilon, lower=attack.lower, upper=attack.upper)
    loss = AttackLoss(forward, torch.tensor(labels), attack.loss, center)
    return pgd(loss, ball, attack, generator(), [f"train/{row}" for row in range(len(points))])


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "l1"}, {"epsilon": -0.1}, {"epsilon": float("nan")}, {"epsilon": float("inf")}, {"epsilon": "8/255"},
        {"step_size": 0}, {"steps": 0}, {"steps": 2.0}, {"steps": True},
        {"upper": float("nan")},
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=list(settings)[-1]):
        Attack(**settings)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_iterates_match_the_paper(norm: str) -> None:
    attack = Attack(norm, 0.3, 0.11, 7, random_start=False)
    expected = path(norm, 0.3, 0.11, 7)
    np.testing.assert_allclose(search(attack), expected, atol=1e-9)
    assert np.abs(expected - path(norm, 0.3, 0.11, 6)).max() > 1e-3


def first(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits[:, 0]


@pytest.mark.parametrize("size", [1e-12, 1e12])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_scale_of_the_gradient_does_not_matter(norm: str, size: float) -> None:
    attack = Attack(norm, 0.3, 0.11, 7, random_start=False, loss=first)
    np.testing.assert_allclose(search(attack, lambda x: squares(x) * size), search(attack), atol=1e-9)


def test_an_all_zero_gradient_is_an_error() -> None:
    with pytest.raises(DataError, match="0 in every row"):
        search(Attack(), lambda points: squares(points).round() + 0 * points[:, :3])
    # Single rows may have a zero gradient; they stay at their start.
    dead = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None]
    found = search(Attack(random_start=False), lambda points: squares(points * dead))
    moved = (found != torch.tensor(POINTS)).any(1)
    assert moved.tolist() == [False, True, True, True, True]


def test_a_nan_gradient_names_the_rows() -> None:
    def broken(points: torch.Tensor) -> torch.Tensor:
        spoilt = squares(points)
        factor = torch.ones_like(spoilt)
        factor[3] = torch.nan
        return spoilt * factor

    with pytest.raises(NonFiniteLossError, match=r"\['train/3'\]"):
        search(Attack(), broken)
