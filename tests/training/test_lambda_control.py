"""Lambda at every step: the gradient share by autograd, the rule by numpy, schedules by hand, exactness and resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from dair_hf.losses.objective import Counts, PairTerms
from dair_hf.losses.per_sample import cross_entropy
from dair_hf.training.forward.pair_loss import PairLoss
from dair_hf.training.lambda_control import LAMBDA_MAX, LambdaControl, root_gradients
from dair_hf.training.trainer import LAMBDA_FILE
from tests.fixtures import points, tiny

LOGGED = {"logging_strategy": "steps", "logging_steps": 1}


REGULARIZERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sq": lambda left, right: (left - right) ** 2,  # of the roots of the losses
    "l1": lambda left, right: (left**2 - right**2).abs(),
    "product": lambda left, right: -(left**2) * right**2,  # negative
}


def product(original: Tensor, augmented: Tensor) -> Tensor:
    return -original * augmented


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize("regularizer", sorted(REGULARIZERS))
@pytest.mark.parametrize("view_weights", [None, [0.8, 0.2], [0.0, 1.0]])
def test_squared_norms_are_those_of_autograd_at_the_roots_of_the_losses(
    tmp_path: Path, view_weights: list[float] | None, regularizer: str, normalization: str
) -> None:
    """Rows with one, two and no partner; a partner of each number is absent somewhere."""
    random, weights = np.random.default_rng(0), view_weights or [0.5, 0.5]
    exists = torch.tensor([[True, True], [True, False], [False, False], [False, True], [True, True]])
    losses = torch.tensor(random.uniform(0.1, 9.0, (5, 3)))
    losses[:, 1:] *= exists
    root = losses.sqrt().requires_grad_()
    of_r, of_losses = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for row, numbers in enumerate(exists):
        partners = [1 + number for number, there in enumerate(numbers) if there]
        for partner in partners:
            of_r = of_r + REGULARIZERS[regularizer](root[row, 0], root[row, partner]) / len(partners)
            # Token normalization divides the sum of all losses by the tokens.
            share = 1 if normalization == "token" else 1 / len(partners)
            of_losses = of_losses + weights[1] * share * root[row, partner] ** 2
        if partners:
            of_losses = of_losses + weights[0] * root[row, 0] ** 2
    expected = [torch.autograd.grad(value, root, retain_graph=True)[0].square().sum() for value in (of_r, of_losses)]

    settings = {"view_weights": view_weights, "normalization": normalization}
    chosen = product if regularizer == "product" else regularizer
    args = tiny.config(tmp_path, regularizer=chosen, loss_epsilon=1e-300, **settings)
    pair_loss = PairLoss(args, cross_entropy)
    terms, targets = pair_loss.terms_of_losses(losses, exists), torch.cat([torch.ones(5, 1), exists], dim=1).long()
    slopes = pair_loss.slopes(SimpleNamespace(losses=losses, targets=targets))  # type: ignore[arg-type]
    found = root_gradients(losses, terms, slopes, args)
    assert (found[2] == 0).all()
    torch.testing.assert_close(found.sum(0), torch.stack(expected), rtol=1e-12, atol=0)


def test_output_distributions_count_as_r_of_losses_would(tmp_path: Path) -> None:
    ones, exists = torch.ones(2), torch.tensor([True, False])
    terms = PairTerms(4 * ones, ones * exists, 3 * ones * exists, exists)
    found = root_gradients(torch.stack(terms[:2], dim=1), terms, None, tiny.config(tmp_path, regularizer="kl"))
    assert found.tolist() == [[8 * 3, 4 + 1], [0, 0]]


# ---- the rule ----


def controlled(folder: Path, steps: list[tuple[float, float]], **settings: Any) -> list[float]:
    """Return lambda of every step of a control that sees these sums of R and of the losses, one pair a step."""
    args = tiny.config(folder, dair_lambda="auto", lambda_warmup_steps=0, **settings)
    control = LambdaControl(args, Accelerator(cpu=True))
    counts, found = Counts(*torch.tensor([1, 1, 10])), []
    for step, (consistency, losses) in enumerate([*steps, (0.0, 0.0)]):
        found.append(float(control.at_step(step, counts)))
        # Of R_sq and of half the losses of a pair that has this R and twice this loss.
        control.add(torch.tensor([[8 * consistency, 2 * losses]], dtype=torch.float64), terms([1.0], [2.0]))
        control.on_step_end(args, SimpleNamespace(global_step=step + 1), None)
    return found


def terms(original: list[float], augmented: list[float], partners: list[int] | None = None) -> PairTerms:
    left, right = torch.tensor(original, dtype=torch.float64), torch.tensor(augmented, dtype=torch.float64)
    return PairTerms(left, right, (left - right) ** 2, torch.tensor(partners or [1] * len(left)))


def test_lambda_is_the_target_over_the_share_at_lambda_1(tmp_path: Path) -> None:
    # rho = 1 / 4 and 1 / 16: lambda = target / (2 sqrt(rho)).
    assert controlled(tmp_path, [(1.0, 4.0)], lambda_target=3.0) == [0.0, pytest.approx(3.0)]
    assert controlled(tmp_path, [(1.0, 16.0)], lambda_target=3.0) == [0.0, pytest.approx(6.0)]
    # Means of the sums, which start at 0: 2 R is 0.05 (0.95 * 2 + 6), the losses 0.05 (0.95 * 2 + 4).
    assert controlled(tmp_path, [(1.0, 4.0), (3.0, 8.0)], lambda_target=2.0)[2] == pytest.approx(
        2 * math.sqrt(5.9 / 7.9)
    )
    # Twice the losses and R: the same lambda, so the target has no unit.
    assert controlled(tmp_path, [(2.0, 8.0)], lambda_target=3.0)[1] == pytest.approx(3.0)


def test_lambda_is_bounded_where_nothing_can_be_measured(tmp_path: Path) -> None:
    # R is 0 at the start of a model whose last layer is 0: an infinite lambda in the second step would do harm.
    assert controlled(tmp_path, [(0.0, 4.0)]) == [0.0, 0.0]
    assert controlled(tmp_path, [(0.0, 0.0)]) == [0.0, 0.0]
    assert controlled(tmp_path, [(1e-9, 4.0)]) == [0.0, LAMBDA_MAX]
    overflow = controlled(tmp_path, [(1.0, 4.0), (float("inf"), 4.0), (1.0, float("nan"))], lambda_target=3.0)
    assert overflow == [0.0, *[pytest.approx(3.0)] * 3]


def lowered_targets(folder: Path, losses: list[PairTerms], warmup: int = 0) -> list[float]:
    """Return the target of every step of a control that sees these losses; at the end of the warmup it is 2."""
    args = tiny.config(folder, dair_lambda="auto", lambda_warmup_steps=warmup, max_steps=len(losses))
    control, targets = LambdaControl(args, Accelerator(cpu=True)), []
    control.on_train_begin(args, SimpleNamespace(max_steps=len(losses)), None)
    for step, found in enumerate(losses):
        control.at_step(step, Counts(*torch.tensor([1, 1, 10])))
        targets.append(float(control._latest_target))
        for row in range(len(found.original)):  # a micro-batch each
            row_terms = PairTerms(*(column[row : row + 1] for column in found))
            control.add(torch.ones(1, 2, dtype=torch.float64), row_terms)
        control.on_step_end(args, SimpleNamespace(global_step=step + 1), None)
    return targets


def test_the_target_falls_while_all_losses_are_nearly_the_same(tmp_path: Path) -> None:
    """Steps with no, one and seven pairs, and rows without a partner, whose losses do not count."""
    random, steps, expected = np.random.default_rng(0), [], []
    means, factor, lowered = np.zeros(3), 1.0, []
    for step in range(200):
        spread = 0.2 if step < 40 or step >= 150 else 0.002
        pairs = [7, 0, 1][step % 3]
        of_pairs = 1.1 + spread * random.uniform(-1, 1, (2, pairs))
        steps.append(terms([*of_pairs[0], 50.0], [*of_pairs[1], 0.0], [1] * pairs + [0]))
        expected.append(2 * min(1.0, step / 10) * factor)
        means = 0.95 * means + 0.05 * np.array([of_pairs.size, of_pairs.sum(), (of_pairs**2).sum()])
        mean = means[1] / means[0]
        if step + 1 > 10 and math.sqrt(max(means[2] / means[0] - mean**2, 0)) < 0.02 * mean:
            factor *= 0.98
            lowered.append(step)
    assert lowered_targets(tmp_path, steps, warmup=10) == pytest.approx(expected)
    # The means forget the losses of the first 40 steps slowly; at the end the target stays low.
    assert 80 < lowered[0] < 120 and lowered == list(range(lowered[0], lowered[-1] + 1)) and lowered[-1] < 155
    assert expected[-1] == expected[160] < 1.5


@pytest.mark.parametrize(("deviation", "falls"), [(0.0199, True), (0.0201, False)])
def test_nearly_the_same_means_a_deviation_below_two_hundredths(tmp_path: Path, deviation: float, falls: bool) -> None:
    losses = terms([3 * (1 + deviation)], [3 * (1 - deviation)])
    targets = lowered_targets(tmp_path, [losses] * 10)
    assert targets == pytest.approx([2 * 0.98**step if falls else 2.0 for step in range(10)])


def test_the_target_does_not_fall_in_the_warmup_nor_where_losses_are_0_or_overflow(tmp_path: Path) -> None:
    same, zero, overflow = terms([1.1], [1.1]), terms([0.0], [0.0]), terms([float("inf")], [1.1])
    assert lowered_targets(tmp_path, [same] * 12, warmup=10)[10:] == [2.0, 2 * 0.98]
    assert lowered_targets(tmp_path, [zero] * 4) == [2.0] * 4
    # A step that overflows is left out of the means; those before it decide.
    assert lowered_targets(tmp_path, [overflow, same, overflow, same])[2:] == pytest.approx([2 * 0.98, 2 * 0.98**2])


def test_token_units_are_those_of_the_step_and_the_largest_lambda_is_per_pair(tmp_path: Path) -> None:
    # lambda_pair = lambda_token * tokens / (2 pairs), with 10 tokens and 1 pair.
    for consistency, settings, expected in ((1.0, {"lambda_target": 3.0}, 3.0), (1e-9, {}, LAMBDA_MAX)):
        found = controlled(tmp_path, [(consistency, 4.0)], normalization="token", **settings)
        assert found[1] == pytest.approx(expected * 2 / 10)


def test_ranks_add_their_sums(tmp_path: Path) -> None:
    args = tiny.config(tmp_path, dair_lambda="auto", lambda_warmup_steps=0)
    one, other, whole = (LambdaControl(args, Accelerator(cpu=True)) for _ in range(3))
    parts = [
        (torch.tensor([[8.0, 4.0]], dtype=torch.float64), terms([1.0], [2.0])),
        (torch.tensor([[1.0, 9.0]], dtype=torch.float64), terms([3.0], [3.0])),
    ]
    for control, seen in ((one, parts[:1]), (other, parts[1:]), (whole, parts)):
        for part in seen:
            control.add(*part)
    sums = other._sums
    one.accelerator = SimpleNamespace(  # type: ignore[assignment]
        device="cpu", reduce=lambda own, how: {"sum": own + sums}[how]
    )
    for control in (one, other, whole):
        control.on_step_end(args, SimpleNamespace(global_step=1), None)
    of_rank, alone, expected = (float(c.at_step(1, Counts(*torch.tensor([2, 2, 20])))) for c in (one, other, whole))
    assert of_rank == pytest.approx(expected) == pytest.approx(2 * math.sqrt(13 / 9)) and alone > expected


@pytest.mark.parametrize("settings", [{}, {"normalization": "token"}, {"regularizer": "kl"}])
def test_lambda_of_every_step_follows_from_the_logged_terms(tmp_path: Path, settings: dict[str, Any]) -> None:
    made = tiny.trainer(
        tmp_path, "gpt2", tiny.pairs("gpt2", 13), dair_lambda="auto", lambda_target=2.0, **LOGGED, **settings
    )
    made.train()
    logs = [log for log in made.state.log_history if "dair_lambda" in log]
    warmup = math.ceil(0.25 * made.state.max_steps)
    assert (len(logs), warmup) == (8, 2)
    means = None
    for step, log in enumerate(logs):
        # Up to the epsilon inside the roots of R_sq.
        sums = np.array([8 * log["consistency"], 2 * log["consistency"] / log["inconsistency"]]) * log["pairs"]
        target = 2.0 * min(1.0, step / warmup)
        share = 0.0 if means is None else math.sqrt(means[0] / means[1])
        expected = target / share if share else 0.0
        assert log["lambda_target"] == pytest.approx(target)
        if settings.get("normalization") != "token":
            assert log["dair_lambda"] == pytest.approx(expected, rel=1e-6)
        assert log["gradient_share"] == pytest.approx(expected * math.sqrt(sums[0] / sums[1]), rel=1e-6)
        means = 0.95 * (np.zeros(2) if means is None else means) + 0.05 * sums
        assert log["gradient_share_mean"] == pytest.approx(expected * math.sqrt(means[0] / means[1]), rel=1e-6)
    assert logs[-1]["dair_lambda"] > 0


def test_the_target_means_the_same_in_both_units(tmp_path: Path) -> None:
    """Where all rows are pairs and all targets equally long, the objectives differ by a constant factor."""
    data = tiny.pairs("bart", 8, partner=lambda row: True, target_lengths=(3, 4))
    tokens_per_pair = 4 + 5
    steps = {"dair_lambda": "auto", "optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    pair = tiny.trained(tmp_path, "bart", data, learning_rate=0.02, **steps)
    rate = 0.02 * tokens_per_pair / 2
    token = tiny.trained(tmp_path, "bart", data, normalization="token", learning_rate=rate, **steps)
    assert tiny.distance(pair, token) < 1e-9
    assert tiny.distance(pair, tiny.weights(tiny.model("bart"))) > 1e-3


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    data, built = tiny.pairs("gpt2", 13), lambda: tiny.model("gpt2", dropout=0.1)
    settings = {"dair_lambda": "auto", "save_strategy": "steps", "save_steps": 3, **LOGGED}
    whole = tiny.trainer(tmp_path / "whole", "gpt2", data, built=built(), **settings)
    whole.train()
    resumed = tiny.trainer(tmp_path / "resumed", "gpt2", data, built=built(), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert tiny.distance(tiny.weights(whole.model), tiny.weights(resumed.model)) == 0.0
    lambdas = [
        [log["dair_lambda"] for log in run.state.log_history if "dair_lambda" in log] for run in (whole, resumed)
    ]
    assert lambdas[0] == lambdas[1] and len(set(lambdas[0])) > 3
    (tmp_path / "whole" / "checkpoint-3" / LAMBDA_FILE).unlink()
    with pytest.raises(FileNotFoundError, match=LAMBDA_FILE):
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))


def test_a_lowered_target_is_the_same_for_any_split_of_the_step_and_after_a_resume(tmp_path: Path) -> None:
    data = points.noisy(256)
    settings = {**points.STANDSTILL, "save_strategy": "steps", "save_steps": 8, "logging_steps": 1}
    whole = points.from_zero(points.trainer(tmp_path / "whole", data, **settings))
    whole.train()
    targets = [log["lambda_target"] for log in whole.state.log_history if "lambda_target" in log]
    assert targets[-1] < targets[8] < 1.9
    resumed = points.trainer(tmp_path / "resumed", data, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-8"))
    assert torch.equal(points.weights(whole), points.weights(resumed))
    assert targets == [log["lambda_target"] for log in resumed.state.log_history if "lambda_target" in log]
    settings |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    parts = points.from_zero(points.trainer(tmp_path / "parts", data, **settings))
    parts.train()
    assert (points.weights(whole) - points.weights(parts)).abs().max() < 1e-8
    found = [log["lambda_target"] for log in parts.state.log_history if "lambda_target" in log]
    assert found == pytest.approx(targets, rel=1e-9)


def test_the_loss_of_an_evaluation_does_not_depend_on_a_lambda_that_sets_itself(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 12, partner=lambda row: True)
    made = tiny.trainer(tmp_path, "gpt2", data, eval_dataset=data, dair_lambda="auto")
    for _ in range(2):
        metrics = made.evaluate()
        losses = (metrics["eval_loss_original"] + metrics["eval_loss_augmented"]) / 2
        assert metrics["eval_loss"] == pytest.approx(losses) and metrics["eval_consistency"] > 0
        # They would be those of lambda 0.
        assert not {"eval_gradient_share", "eval_unlearned_share"}.intersection(metrics)
        made.train()
    assert made.lambda_control.latest > 0
    given = tiny.trainer(tmp_path, "gpt2", data, eval_dataset=data, dair_lambda=2.0).evaluate()
    assert given["eval_gradient_share"] > 0 and "eval_unlearned_share" in given


# ---- warmup of a lambda that is a number ----


def test_lambda_is_read_from_text(tmp_path: Path) -> None:
    assert tiny.config(tmp_path, dair_lambda="2.5").dair_lambda == 2.5
    assert json.loads(tiny.config(tmp_path, dair_lambda="auto").to_json_string())["dair_lambda"] == "auto"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"lambda_warmup_steps": 4}, [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ({"lambda_warmup_steps": 0.5}, [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ({"dair_lambda": "auto"}, [0, 0.5, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_warmup_by_hand(tmp_path: Path, settings: dict[str, Any], expected: list[float]) -> None:
    control = LambdaControl(tiny.config(tmp_path, **settings), Accelerator(cpu=True))
    control.on_train_begin(None, SimpleNamespace(max_steps=8), None)
    assert [control._factor(step) for step in range(8)] == pytest.approx(expected)


def test_training_uses_the_warmup_and_evaluation_the_whole_lambda(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 8, partner=lambda row: True)
    settings = {"dair_lambda": 2.0, "lambda_warmup_steps": 4, "eval_strategy": "steps", "eval_steps": 2, **LOGGED}
    made = tiny.trainer(tmp_path, "gpt2", data, eval_dataset=data, **settings)
    made.train()
    logs = [log for log in made.state.log_history if "dair_lambda" in log]
    assert [log["dair_lambda"] for log in logs] == [0.0, 0.5, 1.0, 1.5]
    for log in logs:
        losses = (log["loss_original"] + log["loss_augmented"]) / 2
        assert log["loss"] == pytest.approx(losses + log["dair_lambda"] * log["consistency"], rel=1e-5)
    evaluated = next(log for log in made.state.log_history if "eval_loss" in log)
    losses = (evaluated["eval_loss_original"] + evaluated["eval_loss_augmented"]) / 2
    assert evaluated["eval_loss"] == pytest.approx(losses + 2.0 * evaluated["eval_consistency"])


def test_methods_without_a_regularizer_log_no_lambda(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 8), method="da", dair_lambda="auto", **LOGGED)
    made.train()
    assert all("dair_lambda" not in log and "gradient_share" not in log for log in made.state.log_history)
    assert all("inconsistency" in log for log in made.state.log_history if "consistency" in log)
