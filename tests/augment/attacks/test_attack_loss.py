"""Gradients with respect to inputs against numpy, and restoring the model's state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dair_hf.augment.attacks.attack_loss import AttackLoss, frozen
from dair_hf.errors import DataError

CPU = torch.device("cpu")
WEIGHTS = np.random.default_rng(0).normal(size=(5, 3))
POINTS = np.random.default_rng(1).normal(size=(4, 5))
LABELS = np.array([0, 2, 1, 1])


def linear(points: torch.Tensor) -> torch.Tensor:
    return points @ torch.tensor(WEIGHTS, dtype=points.dtype)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def directions(gradients: Any) -> np.ndarray:
    rows = np.asarray(gradients).reshape(len(gradients), -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def attack_loss(loss: Any, original: np.ndarray = POINTS, labels: Any = LABELS) -> AttackLoss:
    tensor = None if labels is None else torch.tensor(labels)
    return AttackLoss(linear, tensor, loss, torch.tensor(original))


def test_gradient_of_the_cross_entropy() -> None:
    expected = (softmax(POINTS @ WEIGHTS) - np.eye(3)[LABELS]) @ WEIGHTS.T
    for name in ("cross_entropy", "classification"):
        found = attack_loss(name).gradient(torch.tensor(POINTS))
        np.testing.assert_allclose(directions(found), directions(expected), atol=1e-12)
    assert np.abs(directions(-expected) - directions(found)).max() > 0.1


def test_gradient_of_the_divergence_from_the_clean_output() -> None:
    """KL(p || q) has the gradient q - p at the logits of q."""
    moved = POINTS + 0.3
    expected = (softmax(moved @ WEIGHTS) - softmax(POINTS @ WEIGHTS)) @ WEIGHTS.T
    found = attack_loss("kl", labels=None).gradient(torch.tensor(moved))
    np.testing.assert_allclose(directions(found), directions(expected), atol=1e-10)


def test_gradients_of_sequences() -> None:
    """Token losses of a row are summed; positions without target are ignored."""
    labels = np.array([[0, 2, -100], [-100, 1, 1]])
    points = np.random.default_rng(2).normal(size=(2, 3, 5))
    loss = AttackLoss(linear, torch.tensor(labels), "seq2seq", torch.tensor(points))
    valid = labels != -100
    errors = softmax((points @ WEIGHTS).reshape(-1, 3)).reshape(2, 3, 3) - np.eye(3)[np.where(valid, labels, 0)]
    expected = (errors * valid[..., None]) @ WEIGHTS.T
    np.testing.assert_allclose(directions(loss.gradient(torch.tensor(points))), directions(expected), atol=1e-12)


def test_the_gradient_of_a_confident_row_survives_half_precision() -> None:
    """At p_y = 1 - 4e-9 the gradient at the logits underflows in float16 unless it is rescaled first."""
    weights = torch.tensor([[10.0, -10.0], [0.5, 0.5]], dtype=torch.float16)
    point, label = torch.tensor([[0.97, 0.5]], dtype=torch.float16), torch.tensor([0])

    def forward(points: torch.Tensor) -> torch.Tensor:
        return points.to(torch.float16) @ weights

    found = AttackLoss(forward, label, "cross_entropy", point.float()).gradient(point.float())
    assert found[0].tolist() == pytest.approx([-20.0, 0.0], rel=1e-2)
    plain = point.clone().requires_grad_()
    nn.functional.cross_entropy(forward(plain).float(), label).backward()
    assert plain.grad is not None and not plain.grad.any()


@pytest.mark.parametrize("loss", [lambda logits, labels: logits.sum(), lambda logits, labels: logits.sum(1).tolist()])
def test_losses_of_another_shape_are_refused(loss: Any) -> None:
    with pytest.raises(DataError, match="one loss per row"):
        attack_loss(loss).gradient(torch.tensor(POINTS))


class Draws(nn.Module):
    """Consumes random numbers in every forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * torch.randn(x.shape)


class Eager(nn.Linear):
    """Has a side effect in `train`."""

    def train(self, mode: bool = True) -> Eager:
        with torch.no_grad():
            self.weight.add_(1.0)
        return super().train(mode)


def some_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), Draws(), Eager(8, 3))
    model[1].eval()  # frozen statistics inside a model that trains
    model[0].bias.requires_grad_(False)
    return model


def state(model: nn.Module) -> Any:
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    flags = [p.requires_grad for p in model.parameters()]
    return tensors, gradients, [m.training for m in model.modules()], flags, torch.get_rng_state()


@pytest.mark.parametrize("fails", [False, True])
def test_state_is_restored(fails: bool) -> None:
    model = some_model()
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    model(torch.randn(6, 5)).sum().backward()
    before = state(model)
    try:
        with frozen(model, CPU), torch.no_grad():
            model(torch.randn(6, 5))
            if fails:
                raise KeyError
    except KeyError:
        pass
    torch.testing.assert_close(state(model), before, rtol=0, atol=0)
    # Outside of `frozen`, the same forward does change the state.
    model.train()
    model(torch.randn(6, 5))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(state(model), before, rtol=0, atol=0)


def test_attacks_do_not_change_training_gradients() -> None:
    """Also under autocast, which must not cache weights cast without a graph."""
    images, labels = torch.randn(8, 5), torch.randint(0, 3, (8,))
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    untouched = copy.deepcopy(model)
    for one in (model, untouched):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if one is model:
                with frozen(model, CPU):
                    AttackLoss(model, labels, "kl", images).gradient(images + 0.1)
            nn.functional.cross_entropy(one(images).float(), labels).backward()
    for one, other in zip(model.parameters(), untouched.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad) and bool(one.grad.any())
