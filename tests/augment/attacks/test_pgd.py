"""PGD: settings, iterates against numpy, random restarts and errors."""

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


def path(norm: str, epsilon: float, size: float, steps: int, momentum: float) -> np.ndarray:
    """PGD and MI-FGSM as written in the papers."""
    points, velocity = POINTS.copy(), np.zeros_like(POINTS)
    for _ in range(steps):
        slope = gradient(points)
        if momentum:
            velocity = momentum * velocity + slope / np.abs(slope).sum(1, keepdims=True)
            slope = velocity
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
        {"step_size": 0}, {"momentum": -0.5}, {"steps": 0}, {"steps": 2.0}, {"steps": True}, {"restarts": 0},
        {"upper": float("nan")}, {"mean": (0.5,)}, {"std": (0.5,)}, {"mean": (0.5,), "std": (0.5, 0.5)},
        {"mean": (0.5,), "std": (0.0,)}, {"std": (1.0,), "mean": (float("inf"),)},
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=list(settings)[-1]):
        Attack(**settings)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_iterates_match_the_papers(norm: str, momentum: float) -> None:
    attack = Attack(norm, 0.3, 0.11, 7, random_start=False, momentum=momentum)
    expected = path(norm, 0.3, 0.11, 7, momentum)
    np.testing.assert_allclose(search(attack), expected, atol=1e-9)
    assert np.abs(expected - path(norm, 0.3, 0.11, 6, momentum)).max() > 1e-3


def first(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits[:, 0]


@pytest.mark.parametrize("size", [1e-12, 1e12])
@pytest.mark.parametrize("momentum", [0.0, 1.0])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_scale_of_the_gradient_does_not_matter(norm: str, momentum: float, size: float) -> None:
    attack = Attack(norm, 0.3, 0.11, 7, random_start=False, momentum=momentum, loss=first)
    np.testing.assert_allclose(search(attack, lambda x: squares(x) * size), search(attack), atol=1e-9)


def hills(points: torch.Tensor) -> torch.Tensor:
    """Logits of two classes; the first has several local maxima, so the end of a run depends on its start."""
    return torch.cat([torch.cos(9 * points) + points, torch.zeros_like(points)], dim=1)


def climbs(restarts: int) -> np.ndarray:
    """The logit of the first class, which the attack maximizes, at the ends of 40 runs."""
    attack = Attack("linf", 1.0, 0.01, 30, restarts=restarts, loss=first, lower=None, upper=None)
    return hills(search(attack, hills, np.ones(40, dtype=np.int64), np.zeros((40, 1))))[:, 0].numpy()


def test_more_restarts_never_lower_the_loss() -> None:
    one, several, at_best = (climbs(restarts) for restarts in (1, 4, 30))
    # The first of four starts equals the single start.
    assert bool((several >= one - 1e-9).all())
    assert bool((several > one + 0.1).any())
    assert at_best.min() > 1.6  # the global maximum is near 2 pi / 9


def test_a_misclassified_point_is_kept_at_any_loss() -> None:
    """With a loss that is large for correct predictions, more restarts must not raise the accuracy."""

    def lures(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -logits[:, 0]

    ones, points = np.ones(40, dtype=np.int64), np.zeros((40, 1))
    # Steps are negligible, so this compares the starts.
    shares = []
    for restarts in (1, 2, 5, 20):
        several = Attack("linf", 1.0, 1e-6, 1, restarts=restarts, loss=lures, lower=None, upper=None)
        shares.append((hills(search(several, hills, ones, points))[:, 0] > 0).double().mean().item())
    assert shares == sorted(shares) and shares[0] < 0.7 and shares[-1] == 1.0


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
