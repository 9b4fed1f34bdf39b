"""Adversarial images: bounds, side effects, errors, and partners for the trainer."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dair_hf.augment.attacks.adversarial import AttackAugmenter, perturb
from dair_hf.augment.attacks.pgd import Attack
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from tests.augment.attacks.test_lp_ball import generator
from tests.fixtures import points

ATTACKS = {
    "fgsm": Attack.fgsm(8 / 255),
    "linf": Attack(),
    "l2": Attack("l2", epsilon=0.5, step_size=0.2),
    "kl": Attack(loss="kl"),
}


def images(rows: int = 6, channels: int = 3) -> torch.Tensor:
    """Random bytes over 255, including black and white."""
    drawn = torch.randint(0, 256, (rows, channels, 8, 8), generator=generator())
    drawn[0, 0], drawn[1, 0] = 0, 255
    return drawn.float() / 255


LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def network(channels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)),
    )
    model(torch.rand(64, channels, 8, 8))  # running statistics away from their defaults
    return model


class Keywords(nn.Module):
    """Model with keyword inputs and outputs with logits, as in transformers."""

    def __init__(self, column: str = "pixel_values") -> None:
        super().__init__()
        self.column = column
        self.inner = network()
        self.seen: list[dict[str, Any]] = []

    def forward(self, **inputs: Any) -> Any:
        self.seen.append({name: values.shape for name, values in inputs.items()})
        return SimpleNamespace(logits=self.inner(inputs[self.column]))


def losses(model: nn.Module, pixels: torch.Tensor, labels: torch.Tensor = LABELS) -> torch.Tensor:
    with torch.no_grad():
        return nn.functional.cross_entropy(copy.deepcopy(model).eval()(pixels), labels, reduction="none")


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_results_are_within_the_ball_and_the_range(name: str, dtype: torch.dtype) -> None:
    attack, x = ATTACKS[name], images().to(dtype)
    found = perturb(network().to(dtype), x, LABELS, attack, generator())
    assert found.dtype == dtype and found.shape == x.shape and not found.requires_grad
    assert bool((found >= 0).all() and (found <= 1).all())
    p = 2 if attack.norm == "l2" else float("inf")
    size = (found.double() - x.double()).flatten(1).norm(p, dim=1)
    share = 0.99 if dtype in (torch.float32, torch.float64) else 0.5
    assert share * attack.epsilon < size.min().item() <= size.max().item() <= attack.epsilon
    if share > 0.5:
        assert (found - x).flatten(1).norm(p, dim=1).max().item() <= attack.epsilon


@pytest.mark.parametrize("name", ATTACKS)
def test_epsilon_zero_returns_an_exact_copy(name: str) -> None:
    attack = ATTACKS[name]
    attack = Attack(attack.norm, 0.0, 0.1, attack.steps, loss=attack.loss)
    x = images()
    x[2, 0, 0, 0] = -0.0
    found = perturb(network(), x, LABELS, attack, generator())
    assert found.view(torch.int32).equal(x.view(torch.int32))
    assert found.data_ptr() != x.data_ptr()


def test_autocast_keeps_the_perturbation_in_float32() -> None:
    seen: list[torch.dtype] = []
    model, x = network(), images()
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = perturb(model, x, LABELS, Attack(), generator())
    assert found.dtype == torch.float32
    assert set(seen) == {torch.bfloat16} and len(seen) == 11
    assert bool(((found - x).abs() <= 8 / 255).all())
    # The values are finer than the resolution of bfloat16 near 1.
    assert bool(((found * 256).frac() != 0).any())
    assert bool((losses(model, found) > losses(model, x)).all())
    seen.clear()
    perturb(model, x, LABELS, Attack(), generator())
    assert set(seen) == {torch.float32}


def test_the_model_is_attacked_in_evaluation_mode_and_left_as_it_was() -> None:
    """Dropout, batch statistics and `no_grad` have no influence."""
    found = []
    for mode, gradients_on in ((True, True), (False, True), (True, False)):
        model = network().train(mode)
        random = torch.get_rng_state()
        with torch.set_grad_enabled(gradients_on):
            found.append(perturb(model, images(), LABELS, Attack(steps=3), generator()))
        assert torch.equal(torch.get_rng_state(), random) and model.training == mode
        assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_pixels_outside_the_range_are_refused() -> None:
    x = images()
    for value in (-0.01, 1.0001, float("nan"), float("inf")):
        x[4, 1, 2, 3] = value
        with pytest.raises(DataError, match=rf"row 'train/4': pixel_values holds {value:g};"):
            perturb(network(), x, LABELS, Attack(), generator(), row_ids=[f"train/{row}" for row in range(6)])


def batch_of(labels: torch.Tensor = LABELS, **columns: torch.Tensor) -> dict[str, Any]:
    pairs = TensorPairs({"pixel_values": images(), "labels": labels, **columns}, row_ids=[f"a/{n}" for n in range(6)])
    return pairs.__getitems__(list(range(6)))


def test_the_partner_is_the_attacked_original() -> None:
    model, attack = Keywords(), Attack(steps=3)
    batch = batch_of(weights=torch.arange(6.0))
    found = AttackAugmenter(attack)(model, batch, generator())
    assert found.pop("row_id").tolist() == [f"a/{row}" for row in range(6)]
    assert {name: value.shape for name, value in found.items()} == {
        "pixel_values": (6, 2, 3, 8, 8),
        "labels": (6, 2),
        "weights": (6, 2),
        "view_mask": (6, 2),
    }
    assert torch.equal(found["pixel_values"][:, 0], images())
    expected = perturb(model.inner, images(), LABELS, attack, generator())
    assert torch.equal(found["pixel_values"][:, 1], expected)
    assert torch.equal(found["labels"], LABELS[:, None].expand(6, 2))
    assert bool(found["view_mask"].all())
    assert model.seen[0] == {"pixel_values": (6, 3, 8, 8), "weights": (6,)}
    assert batch["pixel_values"].shape == (6, 1, 3, 8, 8), "the input batch is unchanged"


def test_padding_rows_and_rows_without_target_get_no_partner() -> None:
    model = Keywords()
    batch = batch_of(torch.tensor([0, -100, 2, 3, 0, 1]), weights=torch.arange(6.0))
    batch["view_mask"][4] = False
    found = AttackAugmenter(Attack(steps=2))(model, batch, generator())
    assert found["view_mask"].tolist() == [[True, row not in (1, 4)] if row != 4 else [False] * 2 for row in range(6)]
    assert {inputs["pixel_values"] for inputs in model.seen} == {(4, 3, 8, 8)}
    changed = (found["pixel_values"][:, 0] != found["pixel_values"][:, 1]).flatten(1).any(1)
    assert changed.tolist() == [True, False, True, True, False, True]
    chosen = torch.tensor([0, 2, 3, 5])
    expected = perturb(model.inner, images()[chosen], LABELS[chosen], Attack(steps=2), generator())
    assert torch.equal(found["pixel_values"][chosen, 1], expected)
    model.seen.clear()
    batch["view_mask"][:] = False
    none = AttackAugmenter(Attack())(model, batch, generator())
    assert not none["view_mask"].any() and none["pixel_values"].shape[1] == 2 and model.seen == []


def test_targets_of_float_and_token_labels() -> None:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.sum(1)

    augmenter = AttackAugmenter(Attack(loss=loss, steps=1))
    scores = augmenter(Keywords(), batch_of(torch.zeros(6, 4)), generator())
    assert bool(scores["view_mask"].all())
    tokens = torch.full((6, 3), -100)
    tokens[2, 1] = 5
    found = augmenter(Keywords(), batch_of(tokens), generator())["view_mask"][:, 1]
    assert found.tolist() == [False, False, True, False, False, False]


def test_existing_partners_are_replaced() -> None:
    data = TensorPairs({"pixel_values": images(), "labels": LABELS}, {"pixel_values": 1 - images(), "labels": LABELS})
    model, augmenter = Keywords(), AttackAugmenter(Attack(steps=2))
    found = augmenter(model, data.__getitems__(list(range(6))), generator())
    alone = augmenter(model, data.originals().__getitems__(list(range(6))), generator())
    assert torch.equal(found["pixel_values"], alone["pixel_values"])


def test_an_attack_on_a_linear_model_is_optimal() -> None:
    """Optimal is epsilon along the weights, away from the label."""
    x, _, labels = points.points(12)
    attack = Attack("l2", 0.5, 0.2, 4, random_start=False, loss="binary", lower=None, upper=None)
    start = points.model()
    weight = start.linear.weight.detach()[0]
    best = x - 0.5 * (2 * labels - 1)[:, None] * weight / weight.norm()
    np.testing.assert_allclose(perturb(start, x, labels, attack, column="x"), best, atol=1e-9)
