"""The search: paths against numpy, several starts, and what stops it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.augment.attacks.ascent import ascend, require_usable
from dair_hf.augment.attacks.attack import Attack
from dair_hf.augment.attacks.ball import Ball
from dair_hf.augment.attacks.input_loss import InputLoss
from dair_hf.errors import DataError, NonFiniteLossError

WEIGHTS = np.random.default_rng(0).normal(size=(6, 3))
POINTS = np.random.default_rng(1).uniform(size=(5, 6))
LABELS = np.array([0, 2, 1, 1, 0])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradient(points: np.ndarray) -> np.ndarray:
    """Of the cross-entropy of a linear model with a square in it, so that it turns on the way."""
    hidden = points @ WEIGHTS
    logits = hidden**2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return ((p - np.eye(3)[LABELS]) * 2 * hidden) @ WEIGHTS.T


def squares(points: torch.Tensor) -> torch.Tensor:
    return (points @ torch.tensor(WEIGHTS, dtype=points.dtype)) ** 2


def path(norm: str, epsilon: float, size: float, steps: int, momentum: float) -> np.ndarray:
    """Projected ascent as the papers write it."""
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
    ball = Ball.around(center, attack.norm, attack.epsilon, (1,), lower=attack.lower, upper=attack.upper)
    loss = InputLoss(forward, torch.tensor(labels), attack.loss, center, "pixel_values")
    return ascend(loss, ball, attack, generator(), [f"train/{row}" for row in range(len(points))])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_the_path_is_that_of_the_papers(norm: str, momentum: float) -> None:
    attack = Attack(norm, 0.3, 0.11, 7, random_start=False, momentum=momentum)
    expected = path(norm, 0.3, 0.11, 7, momentum)
    np.testing.assert_allclose(search(attack), expected, atol=1e-9)
    assert np.abs(expected - path(norm, 0.3, 0.11, 6, momentum)).max() > 1e-3


def test_momentum_takes_another_path() -> None:
    assert np.abs(path("l2", 0.3, 0.11, 7, 0.0) - path("l2", 0.3, 0.11, 7, 1.0)).max() > 1e-3


@pytest.mark.parametrize("size", [1e-12, 1e12])
@pytest.mark.parametrize("momentum", [0.0, 1.0])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_size_of_the_gradient_does_not_matter(norm: str, momentum: float, size: float) -> None:
    def first(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits[:, 0]

    attack = Attack(norm, 0.3, 0.11, 7, random_start=False, momentum=momentum, loss=first)
    np.testing.assert_allclose(search(attack, lambda x: squares(x) * size), search(attack), atol=1e-9)


# --- several starts -------------------------------------------------------------------------------------------------


def hills(points: torch.Tensor) -> torch.Tensor:
    """Two classes; along one entry in -1..1 the first has hills, so that where a climb ends depends on its start."""
    return torch.cat([torch.cos(9 * points) + points, torch.zeros_like(points)], dim=1)


def climbs(restarts: int, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where 40 climbs end and the height of that: the attack makes the logit of the first class large."""
    attack = Attack("linf", 1.0, 0.01, 30, restarts=restarts, loss=loss, lower=None, upper=None)
    found = search(attack, hills, np.ones(40, dtype=np.int64), np.zeros((40, 1))).numpy()
    return found, np.cos(9 * found) + found


def test_more_starts_find_worse_inputs_and_never_better_ones() -> None:
    def height(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits[:, 0]

    one, several = climbs(1, height)[1], climbs(4, height)[1]
    # The first of four starts is the only one of one.
    assert bool((several >= one - 1e-9).all())
    assert bool((several > one + 0.1).any())
    at_best = climbs(30, height)[1]
    assert at_best.min() > 1.6  # the highest hill is near 2 pi / 9


def test_a_wrong_class_is_kept_whatever_its_loss() -> None:
    """The loss is large where the class is right: were it all that counts, starts would make the model look better."""

    def lures(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -logits[:, 0]

    def wrong(found: np.ndarray) -> np.ndarray:
        return np.cos(9 * found) + found > 0

    def either(points: torch.Tensor) -> torch.Tensor:
        return hills(points) + 0 * points

    attack = Attack("linf", 1.0, 1e-6, 1, restarts=1, loss=lures, lower=None, upper=None)
    ones, points = np.ones(40, dtype=np.int64), np.zeros((40, 1))
    # One step of nothing: what is compared are the starts.
    shares = []
    for restarts in (1, 2, 5, 20):
        several = Attack("linf", 1.0, 1e-6, 1, restarts=restarts, loss=lures, lower=None, upper=None)
        shares.append(wrong(search(several, either, ones, points).numpy()).mean())
    assert shares == sorted(shares) and shares[0] < 0.7 and shares[-1] == 1.0
    assert torch.equal(search(attack, either, ones, points), search(attack, either, ones, points))


def test_every_start_is_another() -> None:
    starts: list[torch.Tensor] = []

    def remember(points: torch.Tensor) -> torch.Tensor:
        starts.append(points.detach().clone())
        return squares(points)

    search(Attack(epsilon=0.2, steps=1, restarts=3), remember)
    asked = [starts[place] for place in (0, 2, 4)]  # each climb of one step is followed by the score of its end
    assert len({point.numpy().tobytes() for point in asked}) == 3


# --- what stops it --------------------------------------------------------------------------------------------------


def test_a_gradient_of_zero_everywhere_is_refused() -> None:
    with pytest.raises(DataError, match="no gradient with respect to pixel_values: it is 0 everywhere"):
        search(Attack(), lambda points: squares(points).round() + 0 * points[:, :3])
    # Of some rows it may be: these stay where they started.
    dead = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None]
    found = search(Attack(random_start=False), lambda points: squares(points * dead))
    moved = (found != torch.tensor(POINTS)).any(1)
    assert moved.tolist() == [False, True, True, True, True]


def test_a_broken_gradient_names_the_rows() -> None:
    def broken(points: torch.Tensor) -> torch.Tensor:
        spoilt = squares(points)
        factor = torch.ones_like(spoilt)
        factor[3] = torch.nan
        return spoilt * factor

    with pytest.raises(NonFiniteLossError, match=r"NaN or infinite in 1 rows, such as \['train/3'\]"):
        search(Attack(), broken)


def test_values_that_cannot_be_attacked_are_refused() -> None:
    attack = Attack()
    with pytest.raises(DataError, match=r"pixel_values is torch.uint8 \[2, 1\]; floating \[N, ...\] can be attacked"):
        require_usable(torch.zeros(2, 1, dtype=torch.uint8), attack, generator(), "pixel_values")
    with pytest.raises(DataError, match=r"pixel_values is torch.float32 \[2\]"):
        require_usable(torch.zeros(2), attack, generator(), "pixel_values")
    with pytest.raises(DataError, match="random_start needs a generator"):
        require_usable(torch.zeros(2, 1), attack, None, "pixel_values")
    with pytest.raises(DataError, match=r"the generator is on cpu, pixel_values on meta; .*torch.Generator\('meta'\)"):
        require_usable(torch.zeros(2, 1, device="meta"), attack, generator(), "pixel_values")
    with torch.inference_mode():
        made_there = torch.zeros(2, 1)
    with pytest.raises(DataError, match="made under torch.inference_mode"):
        require_usable(made_there, attack, generator(), "pixel_values")
    require_usable(torch.zeros(2, 1), Attack(random_start=False), None, "pixel_values")
