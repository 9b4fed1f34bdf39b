"""Attacks on a small network against the Adversarial Robustness Toolbox."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dair_hf.augment.attacks.adversarial import perturb
from dair_hf.augment.attacks.pgd import Attack

pytest.importorskip("art", reason="the Adversarial Robustness Toolbox is not installed")

pytestmark = pytest.mark.slow
ROWS = 3000
TOLERANCE = 0.2  # points of accuracy
BATCH = 1000


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, then test images and labels: ten noisy patterns."""
    drawn = generator(0)
    patterns = torch.rand(10, 1, 8, 8, generator=drawn)
    labels = torch.randint(0, 10, (2000 + ROWS,), generator=drawn)
    noise = 0.15 * torch.randn(len(labels), 1, 8, 8, generator=drawn)
    images = (0.35 + 0.3 * patterns[labels] + noise).clamp(0, 1)
    return images[:2000], labels[:2000], images[2000:], labels[2000:]


@cache
def network() -> nn.Module:
    images, labels, _, _ = data()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
        model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(100):
        rows = torch.randint(0, len(images), (128,), generator=generator(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return model.eval()


def accuracy(images: torch.Tensor) -> float:
    """Accuracy in percent."""
    with torch.no_grad():
        return 100 * (network()(images).argmax(1) == data()[3]).double().mean().item()


def ours(attack: Attack, seed: int = 0) -> torch.Tensor:
    _, _, images, labels = data()
    drawn = generator(seed)
    parts = zip(images.split(BATCH), labels.split(BATCH), strict=True)
    return torch.cat([perturb(network(), some, their, attack, drawn) for some, their in parts])


def theirs(make: Callable[..., Any], seed: int = 0, **settings: Any) -> torch.Tensor:
    from art.estimators.classification import PyTorchClassifier

    _, _, images, labels = data()
    classifier = PyTorchClassifier(network(), nn.CrossEntropyLoss(), (1, 8, 8), 10, clip_values=(0.0, 1.0))
    np.random.seed(seed)
    found = make(classifier, batch_size=BATCH, **settings).generate(images.numpy(), labels.numpy())
    return torch.from_numpy(found)


def toolbox_pgd(norm: float, attack: Attack, **settings: Any) -> torch.Tensor:
    from art.attacks.evasion import ProjectedGradientDescentNumpy

    return theirs(
        ProjectedGradientDescentNumpy,
        norm=norm,
        eps=attack.epsilon,
        eps_step=attack.step_size,
        max_iter=attack.steps,
        verbose=False,
        **settings,
    )


def assert_same_accuracy(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    clean, mine, reference = accuracy(data()[2]), np.mean([*map(accuracy, ours)]), np.mean([*map(accuracy, theirs)])
    print(f"clean {clean:.2f}, ours {mine:.2f}, toolbox {reference:.2f}")
    assert mine == pytest.approx(reference, abs=TOLERANCE)
    assert 15 < reference < clean - 20, "the attack must be neither too weak nor too strong to compare"


@pytest.mark.parametrize("epsilon", [0.03, 0.05])
def test_fgsm(epsilon: float) -> None:
    from art.attacks.evasion import FastGradientMethod

    one, other = ours(Attack.fgsm(epsilon)), theirs(FastGradientMethod, norm=np.inf, eps=epsilon)
    assert_same_accuracy([one], [other])
    # They differ in rows with tiny gradients; there ours match the float64 gradient.
    assert 0.99 < ((one - other).abs() < 1e-6).double().mean().item() < 1.0
    _, _, images, labels = data()
    exact = images.double().requires_grad_()
    nn.functional.cross_entropy(copy.deepcopy(network()).double()(exact), labels, reduction="sum").backward()
    expected = (exact.detach() + epsilon * exact.grad.sign()).clamp(0, 1)
    assert (one.double() - expected).abs().max().item() < 1e-6


@pytest.mark.parametrize(("norm", "order", "epsilon"), [("linf", np.inf, 0.04), ("l2", 2, 0.25)])
@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_pgd_from_the_original(norm: str, order: float, epsilon: float, momentum: float) -> None:
    attack = Attack(norm, epsilon, epsilon / 4, 11, random_start=False, momentum=momentum)
    assert_same_accuracy([ours(attack)], [toolbox_pgd(order, attack, decay=momentum or None)])


@pytest.mark.parametrize(("norm", "order", "epsilon"), [("linf", np.inf, 0.04), ("l2", 2, 0.25)])
def test_pgd_from_random_starts(norm: str, order: float, epsilon: float) -> None:
    """Mean of three seeds each, since a single one varies by a tenth of a point."""
    attack = Attack(norm, epsilon, epsilon / 4, 10, restarts=2)
    reference = [toolbox_pgd(order, attack, seed=seed, num_random_init=2) for seed in range(3)]
    assert_same_accuracy([ours(attack, seed) for seed in range(3)], reference)
