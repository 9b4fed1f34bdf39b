"""AutoAttack of its authors: stronger than PGD, within the ball, and free of side effects."""

from __future__ import annotations

import sys
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from dair_hf import DataError
from dair_hf.augment.attacks.adversarial import perturb
from dair_hf.augment.attacks.autoattack import auto_attack
from dair_hf.augment.attacks.pgd import Attack

IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
EPSILON = 0.1


def network() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


def labels_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IMAGES).argmax(1)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_is_at_least_as_strong_as_pgd_and_stays_in_the_ball(norm: str) -> None:
    pytest.importorskip("pyautoattack", reason="the extra `attacks` is not installed")
    model = network()
    labels = labels_of(model).clone()
    labels[0] = (labels[0] + 1) % 4  # already misclassified: returned unchanged
    model.train()
    state = torch.get_rng_state()
    epsilon = EPSILON if norm == "linf" else 15 * EPSILON  # images that resist the other attacks take Square minutes
    found = auto_attack(model, IMAGES, labels, epsilon, norm)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters()) and torch.equal(
        torch.get_rng_state(), state
    )
    assert torch.equal(found[0], IMAGES[0]) and found.dtype == IMAGES.dtype
    assert bool(((found >= 0) & (found <= 1)).all())
    size = (found - IMAGES).flatten(1).norm(dim=1, p=float("inf") if norm == "linf" else 2)
    assert float(size.max()) <= epsilon * (1 + 1e-5)
    assert torch.equal(found, auto_attack(model, IMAGES, labels, epsilon, norm))
    weaker = perturb(model, IMAGES, labels, Attack(norm, epsilon, epsilon / 4, 20), torch.Generator().manual_seed(0))
    model.eval()
    with torch.no_grad():
        left = [int((model(images).argmax(1) == labels).sum()) for images in (IMAGES, weaker, found)]
    assert left[2] <= left[1] and left[2] < left[0] == 5


@pytest.mark.parametrize(("factor", "classes", "match"), [(255, 4, "0..1"), (1, 3, "4 classes, got 3")])
def test_what_the_attacks_cannot_take_is_refused(
    monkeypatch: pytest.MonkeyPatch, factor: int, classes: int, match: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", Mock())
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    with pytest.raises(DataError, match=match):
        auto_attack(model, IMAGES * factor, labels_of(model), EPSILON)
    assert len(auto_attack(model, IMAGES[:0], torch.empty(0), EPSILON)) == 0


def test_half_precision_is_rounded_towards_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    toolbox = Mock()  # moves each pixel by epsilon
    toolbox.AutoAttack().run_standard_evaluation = lambda images, labels, batch_size: (images + EPSILON, None)
    monkeypatch.setitem(sys.modules, "pyautoattack", toolbox)
    images = (IMAGES / 2).bfloat16()
    found = auto_attack(network().bfloat16(), images, torch.zeros(6), EPSILON)
    assert EPSILON / 2 < (found.double() - images.double()).abs().max().item() <= EPSILON + 1e-7
