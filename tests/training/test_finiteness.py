"""Losses that are not finite: named rows, remedies, and the step at which a run stops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from dair_hf import DAIRTrainer, NonFiniteLossError, TensorPairs
from dair_hf.losses.objective import PairTerms, squared_root_consistency
from dair_hf.training import finiteness
from dair_hf.training.finiteness import FinitenessCheck
from tests.fixtures import points, tiny

IDS = ["a/0", "a/1", "b/0", "b/1"]
HUGE = 3e38  # near the largest number in float32


def terms(original: list[float], augmented: list[float]) -> PairTerms:
    left, right = torch.tensor(original), torch.tensor(augmented)
    return PairTerms(left, right, squared_root_consistency(left, right), torch.tensor([True] * len(original)))


def message_of(
    folder: Path, found: PairTerms, loss: float, objective: Any = None, losses: Tensor | None = None, **settings: Any
) -> str:
    check = FinitenessCheck(tiny.config(folder, **settings), objective)
    losses = torch.stack(found[:2], dim=1) if losses is None else losses
    check.add(torch.tensor(loss), found, losses, IDS, 3, check.args.dair_lambda)
    with pytest.raises(NonFiniteLossError) as caught:
        check.check()
    check.check()  # errors are raised once
    return str(caught.value)


@pytest.mark.parametrize(
    ("original", "augmented", "settings", "told"),
    [
        ([1, math.nan, 1, 1], [1, 1, 1, math.inf], {}, "not finite in 2 of 4 rows, ['a/1', 'b/1'], at step 3"),
        ([1, -2, 1, 1], [1, 1, 1, -0.5], {}, "sample_loss is negative in 2 of 4 rows, ['a/1', 'b/1'], down to -2"),
        ([1, HUGE, 1, HUGE], [1, HUGE, 1, HUGE], {}, "largest in 'a/1'"),
        ([1, 1, 1e38, 1], [1, 1, 0, 1], {"dair_lambda": 1e3}, "dair_lambda=1000.0, largest in 'b/0'"),
    ],
)
def test_the_error_names_rows_and_remedy(
    tmp_path: Path, original: list[float], augmented: list[float], settings: dict[str, Any], told: str
) -> None:
    assert told in message_of(tmp_path, terms(original, augmented), math.inf, **settings)


def test_a_negative_loss_of_one_of_several_partners_is_named(tmp_path: Path) -> None:
    found, losses = terms([1, 1], [2.5, 2.25]), torch.tensor([[1.0, 2.0, 3.0], [1.0, -0.5, 5.0]])
    told = message_of(tmp_path, found, math.nan, losses=losses)
    assert "negative in 1 of 2 rows, ['a/1'], down to -0.5" in told


def test_an_objective_that_is_not_finite_is_named(tmp_path: Path) -> None:
    class Log(torch.nn.Module):
        pass

    message = message_of(tmp_path, terms([1, 2, 3, 4], [5, 2, 2, 2]), math.nan, Log(), method="da")
    assert "objective=Log is nan" in message


# ---- in the trainer ----


def breaking(row: int) -> TensorPairs:
    """Return eight pairs, one of them with NaN inputs."""
    x, partners, labels = points.points(8)
    x[row] = math.nan
    return TensorPairs({"x": x, "labels": labels}, {"x": partners, "labels": labels})


def trainer(folder: Path, data: Any, **settings: Any) -> DAIRTrainer:
    defaults = {"train_sampling_strategy": "sequential", "num_train_epochs": 1, "logging_steps": 100}
    return points.trainer(folder, data, **{**defaults, **settings})


@pytest.mark.parametrize("size", [8, 3])
def test_rows_are_named_in_any_micro_batch_and_weights_do_not_change(tmp_path: Path, size: int) -> None:
    parts = {"per_device_train_batch_size": size, "gradient_accumulation_steps": -(-8 // size)}
    made = trainer(tmp_path, breaking(5), **parts)
    before = points.weights(made)
    with pytest.raises(NonFiniteLossError, match=r"not finite in 1 of \d rows, \['5'\], at step 0"):
        made.train()
    assert torch.equal(points.weights(made), before)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_steps": 3},  # noticed before the next step
        {"max_steps": 1},  # at the end of the run
        {"max_steps": 3, "logging_steps": 1},
        {"max_steps": 3, "save_strategy": "steps", "save_steps": 1},
    ],
)
def test_logging_saving_and_the_end_of_training_wait_for_late_flags(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a device whose copies have not arrived when the optimizer takes a step."""
    monkeypatch.setattr(finiteness._Flag, "is_ready", lambda self: False)
    made = trainer(tmp_path, breaking(1), per_device_train_batch_size=2, **settings)
    taken: list[int] = []
    made.add_callback(Steps(taken))
    with pytest.raises(NonFiniteLossError, match=r"not finite in 1 of 2 rows, \['1'\], at step 0"):
        made.train()
    assert len(taken) == 1
    assert not list(tmp_path.glob("checkpoint-*"))
    assert not made.state.log_history


def test_evaluation_and_saving_check_losses_first(tmp_path: Path) -> None:
    made = trainer(tmp_path, points.pairs(2))
    for asked in (lambda: made.evaluate(points.pairs(2)), lambda: made.save_model(str(tmp_path / "saved"))):
        broken = terms([math.nan], [1.0])
        made._finiteness.add(torch.tensor(math.nan), broken, torch.stack(broken[:2], dim=1), ["x"], 0, 0.5)
        with pytest.raises(NonFiniteLossError, match=r"\['x'\]"):
            asked()
    assert not (tmp_path / "saved").exists()
    batch = {**breaking(1).__getitems__([0, 1]), "row_id": ["y", "z"]}
    with pytest.raises(NonFiniteLossError, match=r"\['z'\]"):
        made.compute_loss(made.model, batch)  # outside a run the check is immediate


def distance(outputs: Any, labels: Tensor) -> Tensor:
    """A loss that may be negative."""
    return outputs.logits.flatten() - labels


def own_loss(folder: Path, data: TensorPairs, **settings: Any) -> DAIRTrainer:
    args = trainer(folder, data, **{"logging_steps": 1, **settings}).args
    return DAIRTrainer(points.model(), args, points.stack, data, sample_loss=distance)


def test_negative_losses_are_refused_under_the_root_in_training_and_evaluation(tmp_path: Path) -> None:
    data = points.pairs(4)
    made = own_loss(tmp_path, data, dair_lambda=0.1)
    losses = [made.pair_loss(made.model, data.__getitems__([row]), True).terms for row in range(4)]
    negative = [str(row) for row, found in enumerate(losses) if min(found.original, found.augmented) < 0]
    assert 0 < len(negative) < 4
    named = str(negative).replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(NonFiniteLossError, match=f"sample_loss is negative in {len(negative)} of 4 rows, {named}"):
        made.train()
    with pytest.raises(NonFiniteLossError, match=f"{named}, down to -.*'l1'"):
        made.evaluate(data)


@pytest.mark.parametrize("settings", [{"regularizer": "l1"}, {"method": "da"}, {"method": "erm"}, {}])
def test_negative_losses_are_trained_without_a_root(tmp_path: Path, settings: dict[str, Any]) -> None:
    nobody = torch.zeros(4, dtype=torch.bool)
    nobody[3] = True  # a row with positive losses
    data = points.pairs(4, None if settings else nobody)
    made = own_loss(tmp_path, data, **settings)
    made.train()
    (log,) = [log for log in made.state.log_history if "loss" in log]
    assert torch.isfinite(points.weights(made)).all()
    assert ("consistency" in log) == (settings in ({"regularizer": "l1"}, {}))
    assert math.isfinite(made.evaluate(data)["eval_loss"])


class Steps(TrainerCallback):
    """Notes the optimizer steps."""

    def __init__(self, taken: list[int]) -> None:
        self.taken = taken

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.taken.append(state.global_step)


def test_values_of_r_that_are_not_finite_are_its_own_fault(tmp_path: Path) -> None:
    def undefined(one: Tensor, other: Tensor) -> Tensor:
        return (one - other).square() * math.nan

    made = points.trainer(tmp_path, points.pairs(8), regularizer=undefined, train_sampling_strategy="sequential")
    with pytest.raises(NonFiniteLossError) as caught:
        made.train()
    assert str(caught.value).startswith("R is not finite in 4 of 4 rows, ['0', '1', '2', '3'] though their losses are")
    assert "undefined" in str(caught.value)


def test_a_gradient_that_overflows_stops_the_run_before_the_step(tmp_path: Path) -> None:
    # In double precision the square of 1e200 overflows, but R, lambda R and each slope are finite.
    made = points.trainer(tmp_path, points.pairs(8), dair_lambda=1e200)
    before = points.weights(made)
    with pytest.raises(NonFiniteLossError, match=r"^the norm of the gradient is inf .* dair_lambda \(now 1e\+200\)"):
        made.train()
    assert torch.equal(points.weights(made), before)


def test_a_slope_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    def rooted(one: Tensor, other: Tensor) -> Tensor:
        return ((one - other) * 0).square().sqrt()  # 0, with the slope 0 / 0

    with pytest.raises(NonFiniteLossError, match="the norm of the gradient is nan"):
        points.trainer(tmp_path, points.pairs(8), regularizer=rooted).train()
