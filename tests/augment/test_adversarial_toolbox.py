"""Attacks on a small network against the Adversarial Robustness Toolbox."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dair_hf.augment.attacks.adversarial import perturb
from dair_hf.augment.attacks.pgd import Attack

pytest.importorskip("art", reason="the Adversarial Robustness Toolbox is not installed")

pytestmark = pytest.mark.slow
DRAWN = torch.Generator().manual_seed(0)
IMAGES = torch.rand(50, 1, 8, 8, generator=DRAWN)
LABELS = torch.randint(0, 4, (50,), generator=DRAWN)


def network() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("attack", "norm"),
    [
        (Attack.fgsm(0.03), np.inf),
        (Attack("linf", 0.04, 0.01, 11, random_start=False), np.inf),
        (Attack("l2", 0.25, 0.06, 11, random_start=False), 2),
    ],
)
def test_attacked_images(attack: Attack, norm: float) -> None:
    from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescentNumpy
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(network(), nn.CrossEntropyLoss(), (1, 8, 8), 4, clip_values=(0.0, 1.0))
    settings: dict[str, Any] = {"norm": norm, "eps": attack.epsilon}
    if attack.steps > 1:
        settings |= {"eps_step": attack.step_size, "max_iter": attack.steps, "verbose": False}
    toolbox = (ProjectedGradientDescentNumpy if attack.steps > 1 else FastGradientMethod)(classifier, **settings)
    expected = torch.from_numpy(toolbox.generate(IMAGES.numpy(), LABELS.numpy()))
    found = perturb(network(), IMAGES, LABELS, attack, DRAWN)
    # The sign of a gradient near 0 depends on rounding.
    assert ((found - expected).abs() < 1e-5).double().mean().item() > 0.99
    assert (expected - IMAGES).flatten(1).norm(dim=1).min().item() > 0.1
