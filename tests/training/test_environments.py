"""Objectives of a whole batch against cases by hand, numpy and finite differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dair_hf import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import binary_cross_entropy
from dair_hf.training.environments import IRM, AggregatedDAIR, GroupDRO, VREx, _environment_risks
from dair_hf.training.forward.pair_loss import PairLoss, PairOutputs
from tests.fixtures import points
from tests.training.test_synchronizations import counted


def found_in(tmp_path: Path, has_partner: Tensor | None = None, rows: int = 6, **settings: Any) -> PairOutputs:
    batch = points.pairs(rows, has_partner).__getitems__(range(rows))
    args = DAIRConfig(str(tmp_path), use_cpu=True, **settings)
    return PairLoss(args, binary_cross_entropy)(points.model(), batch, with_partners=True)


def logits_and_labels(rows: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, partners, labels = points.points(rows)
    weight = points.model().linear.weight.detach().numpy()[0]
    bias = points.model().linear.bias.item()
    return x.numpy() @ weight + bias, partners.numpy() @ weight + bias, labels.numpy()


def bce(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    probability = 1 / (1 + np.exp(-logits))
    return -(labels * np.log(probability) + (1 - labels) * np.log(1 - probability))


def test_risks_are_means_over_the_rows_of_each_environment() -> None:
    losses = torch.tensor([[1.0, 9.0], [3.0, 0.0], [8.0, 5.0]])
    exists = np.array([[True, True], [True, False], [True, True]])
    assert _environment_risks(losses, exists).tolist() == [4.0, 7.0]
    assert _environment_risks(losses, exists & [True, False]).tolist() == [4.0]
    assert _environment_risks(losses, exists & [False, True]).tolist() == [7.0]


@pytest.mark.parametrize(
    "objective", [IRM(50.0), VREx(20.0), GroupDRO(0.7), AggregatedDAIR(torch.mean, "dair", 3.0)], ids=repr
)
def test_objectives_do_not_wait_for_the_device(tmp_path: Path, objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    partners = [None, torch.zeros(6, dtype=torch.bool)]
    if not isinstance(objective, AggregatedDAIR):  # which refuses batches with a partner in some rows only
        partners.append(torch.tensor([True, False] * 3))
    for has_partner in partners:
        outputs = found_in(tmp_path, has_partner)
        with counted(monkeypatch) as found:
            objective(outputs, 0)
        assert not found


def derivatives(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the derivatives of row losses by a scale of the logits, at 1."""
    step = 1e-5
    return (bce((1 + step) * logits, labels) - bce((1 - step) * logits, labels)) / (2 * step)


@pytest.mark.parametrize("partners", ["111111", "101101", "000010", "000000"])
def test_irm_is_the_product_of_the_derivatives_of_two_halves(tmp_path: Path, partners: str) -> None:
    original, augmented, labels = logits_and_labels()
    paired = np.array([partner == "1" for partner in partners])
    environments = [(original, labels), (augmented[paired], labels[paired])]
    risk = np.mean([bce(*environment).mean() for environment in environments if len(environment[0])])
    slopes = [derivatives(*environment) for environment in environments]
    # An environment of a single row has no second half and no penalty.
    penalty = np.mean([slope[0::2].mean() * slope[1::2].mean() for slope in slopes if len(slope) > 1])
    objective, weight = IRM(penalty_weight=50.0, anneal_steps=3), 50.0
    has_partner = torch.tensor(paired)
    found = objective(found_in(tmp_path, has_partner), 3).item()
    assert found == pytest.approx((risk + weight * penalty) / weight, rel=1e-8)
    assert objective(found_in(tmp_path, has_partner), 2).item() == pytest.approx(risk + penalty, rel=1e-8)


def test_irm_penalty_is_unbiased(tmp_path: Path) -> None:
    """The mean over all batches of two rows, with replacement, is the squared derivative of the whole risk."""
    original, augmented, labels = logits_and_labels(4)
    whole = np.mean([derivatives(logits, labels).mean() ** 2 for logits in (original, augmented)])
    loss, data = PairLoss(DAIRConfig(str(tmp_path), use_cpu=True), binary_cross_entropy), points.pairs(4)
    objective, penalties = IRM(penalty_weight=1.0), []
    for rows in np.ndindex(4, 4):
        found = loss(points.model(), data.__getitems__(list(rows)), with_partners=True)
        risks = _environment_risks(torch.stack(found.terms[:2], 1), found.targets.numpy() > 0)
        penalties.append((objective(found, 0) - risks.mean()).item())
    assert np.mean(penalties) == pytest.approx(whole, rel=1e-6)
    assert min(penalties) < 0 < max(penalties)


def test_irm_gradient_reaches_the_parameters_through_the_penalty(tmp_path: Path) -> None:
    model = points.model()
    batch = points.pairs(6).__getitems__(range(6))
    loss = PairLoss(DAIRConfig(str(tmp_path), use_cpu=True), binary_cross_entropy)
    objective = IRM(penalty_weight=1.0)

    def value() -> Tensor:
        return objective(loss(model, batch, with_partners=True), 0)

    (gradient,) = torch.autograd.grad(value(), [model.linear.weight])
    for place in range(2):
        step = 1e-6
        with torch.no_grad():
            model.linear.weight[0, place] += step
        above = value().item()
        with torch.no_grad():
            model.linear.weight[0, place] -= 2 * step
        slope = (above - value().item()) / (2 * step)
        with torch.no_grad():
            model.linear.weight[0, place] += step
        assert gradient[0, place].item() == pytest.approx(slope, rel=1e-6)


def test_rex_is_the_variance_of_the_risks(tmp_path: Path) -> None:
    original, augmented, labels = logits_and_labels()
    risks = np.array([bce(original, labels).mean(), bce(augmented, labels).mean()])
    found = found_in(tmp_path)
    expected = (risks.mean() + 20 * (risks[0] - risks[1]) ** 2 / 4) / 20
    assert VREx(20.0)(found, 0).item() == pytest.approx(expected, rel=1e-10)
    annealed = VREx(20.0, anneal_steps=1)(found, 0).item()
    assert annealed == pytest.approx(risks.mean() + (risks[0] - risks[1]) ** 2 / 4, rel=1e-10)


def test_group_weights_grow_for_the_worse_group(tmp_path: Path) -> None:
    original, augmented, labels = logits_and_labels()
    risks = np.array([bce(original, labels).mean(), bce(augmented, labels).mean()])
    objective, weights = GroupDRO(step_size=0.7), np.array([0.5, 0.5])
    for step in range(3):
        weights = weights * np.exp(0.7 * risks)
        weights /= weights.sum()
        assert objective(found_in(tmp_path), step).item() == pytest.approx(weights @ risks, rel=1e-6)
    assert objective.weights.tolist() == pytest.approx(weights.tolist(), rel=1e-6)
    assert (weights[0] > weights[1]) == (risks[0] > risks[1])


def test_a_batch_of_one_group_does_not_change_the_weights(tmp_path: Path) -> None:
    objective = GroupDRO(step_size=0.7)
    original, _, labels = logits_and_labels()
    alone = found_in(tmp_path, torch.zeros(6, dtype=torch.bool))
    assert objective(alone, 0).item() == pytest.approx(bce(original, labels).mean(), rel=1e-10)
    assert objective.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("consistency", ["sample", "batch"])
def test_aggregated_dair_by_hand(tmp_path: Path, consistency: str) -> None:
    original, augmented, labels = logits_and_labels()
    first, second = bce(original, labels), bce(augmented, labels)

    def tilted(losses: Any) -> Any:
        module: Any = torch if isinstance(losses, Tensor) else np
        return module.log(module.exp(-2 * losses).mean()) / -2

    base = 0.5 * tilted(first) + 0.5 * tilted(second)
    gap = (np.sqrt(tilted(first)) - np.sqrt(tilted(second))) ** 2
    if consistency == "sample":
        gap = ((np.sqrt(first) - np.sqrt(second)) ** 2).mean()
    found = found_in(tmp_path)
    for method, expected in (("erm", tilted(first)), ("da", base), ("dair", base + 3 * gap)):
        objective = AggregatedDAIR(tilted, method, 3.0, consistency, epsilon=1e-12)
        assert objective(found, 0).item() == pytest.approx(expected, rel=1e-6)


def test_aggregates_of_different_rows_are_refused(tmp_path: Path) -> None:
    found = found_in(tmp_path, torch.tensor([True, False, True, True, False, True]))
    with pytest.raises(DataError, match="AggregatedDAIR"):
        AggregatedDAIR(torch.mean, "da")(found, 0)
    assert torch.isfinite(AggregatedDAIR(torch.mean, "erm")(found, 0))


# ---- in the trainer ----


def test_group_weights_are_restored_on_resume(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 3, "method": "da"}
    whole, resumed = (points.trainer(tmp_path, points.pairs(12), GroupDRO(step_size=5.0), **settings) for _ in range(2))
    assert torch.equal(points.trained(whole), points.trained(resumed, tmp_path / "checkpoint-3"))
    assert torch.equal(whole.batch_objective.weights, resumed.batch_objective.weights)


def test_the_optimizer_state_is_cleared_after_annealing(tmp_path: Path) -> None:
    x, partners, labels = points.points(12)
    settings = {"save_strategy": "steps", "save_steps": 3, "method": "da", "max_steps": 6, "optim": "adamw_torch",
                "per_device_train_batch_size": 12, "lr_scheduler_type": "constant", "max_grad_norm": 0}  # fmt: skip

    def by_hand(fresh_at: int | None) -> Tensor:
        model, adam = points.model(), None
        for step in range(6):
            if adam is None or step == fresh_at:
                adam = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
            first, second = (
                torch.nn.functional.binary_cross_entropy_with_logits(model(view).logits[:, 0], labels)
                for view in (x, partners)
            )
            weight = 20.0 if step >= 3 else 1.0
            adam.zero_grad()
            (((first + second) / 2 + weight * (first - second) ** 2 / 4) / weight).backward()
            adam.step()
        return torch.cat([value.detach().flatten() for value in model.state_dict().values()])

    trained, resumed = (
        points.trained(points.trainer(tmp_path, points.pairs(12), VREx(20.0, anneal_steps=3), **settings), checkpoint)
        for checkpoint in (None, tmp_path / "checkpoint-3")
    )
    assert torch.allclose(trained, by_hand(fresh_at=3), atol=1e-12, rtol=0)
    assert (trained - by_hand(fresh_at=None)).abs().max() > 1e-3
    assert torch.equal(trained, resumed)
