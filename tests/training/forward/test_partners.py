"""Rows with several partners against numpy in float64, and against rows with one partner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor

from dair_hf import DAIRConfig, DAIRTrainer, TensorPairs
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import binary_cross_entropy, cross_entropy
from dair_hf.training.environments import IRM, AggregatedDAIR, GroupDRO, VREx
from dair_hf.training.forward.pair_loss import PairLoss, PairOutputs
from dair_hf.training.forward.plan import plan_forwards
from tests.fixtures import points, tiny
from tests.losses.test_divergence import divergence

EPSILON = 1e-7
# Both partners, the first, the second, none, and three with a gap in between.
EXISTS = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1]], dtype=bool)
ROWS = len(EXISTS)


def points_of_views() -> tuple[np.ndarray, np.ndarray]:
    """Points of all views, `[6, 4, 2]`, and labels `[6]`."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 1, 2)) + 0.7 * random.normal(size=(ROWS, 4, 2))
    return x, (x[:, 0].sum(1) > 0).astype(float)


def data() -> TensorPairs:
    x, labels = (torch.from_numpy(values) for values in points_of_views())
    views = [{"x": x[:, view], "labels": labels} for view in range(4)]
    return TensorPairs(views[0], views[1:], has_partner=torch.from_numpy(EXISTS))


def weights() -> tuple[np.ndarray, float]:
    linear = points.model().linear
    return linear.weight.detach().numpy()[0], linear.bias.item()


def outputs_of(
    folder: Path, pairs: TensorPairs | None = None, **settings: Any
) -> tuple[PairLoss, PairOutputs, Any, Any]:
    pair_loss, model = PairLoss(DAIRConfig(str(folder), use_cpu=True, **settings), binary_cross_entropy), points.model()
    pairs = data() if pairs is None else pairs
    batch = pairs.__getitems__(range(len(pairs)))
    return pair_loss, pair_loss(model, batch, pair_loss.args.uses_partners), pair_loss.count(batch), model


def objective_by_hand(
    losses: Tensor, exists: Tensor, method: str, regularizer: str, weight: float, normalization: str
) -> Tensor:
    """Return the objective of losses `[rows, views]` by its definition, row by row."""
    f = all_losses = all_r = torch.zeros((), dtype=torch.float64)
    tokens = pairs = 0
    for loss, there in zip(losses, exists, strict=True):
        partners = loss[1:][there] if method != "erm" else loss[:0]
        tokens += 1 + len(partners)
        all_losses = all_losses + loss[0] + partners.sum()
        if not len(partners):
            f = f + loss[0]
            continue
        pairs += 1
        gaps = (loss[0] + EPSILON).sqrt() - (partners + EPSILON).sqrt()
        r = (gaps**2 if regularizer == "sq" else (loss[0] - partners).abs()).mean() * (method == "dair")
        f, all_r = f + loss[0] / 2 + partners.mean() / 2 + weight * r, all_r + r
    return f / len(losses) if normalization == "pair" else all_losses / tokens + weight * all_r / max(pairs, 1)


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize(("method", "regularizer"), [("dair", "sq"), ("dair", "l1"), ("da", "sq"), ("erm", "sq")])
def test_value_and_gradient_of_the_objective(tmp_path: Path, method: str, regularizer: str, normalization: str) -> None:
    settings = {"method": method, "regularizer": regularizer, "dair_lambda": 0.7, "normalization": normalization}
    pair_loss, found, counts, model = outputs_of(tmp_path, **settings)
    x, labels = (torch.from_numpy(values) for values in points_of_views())
    weight, bias = (value.detach().clone().requires_grad_() for value in (model.linear.weight[0], model.linear.bias))
    losses = torch.nn.functional.softplus((1 - 2 * labels[:, None]) * (x @ weight + bias))
    value = objective_by_hand(losses, torch.from_numpy(EXISTS), method, regularizer, 0.7, normalization)
    loss = pair_loss.objective(found.terms, counts, 0.7)
    for one in (value, loss):
        one.backward()
    assert loss.item() == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(model.linear.weight.grad[0], weight.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(model.linear.bias.grad, bias.grad, rtol=1e-9, atol=1e-12)
    expected = [6, 5, 6 + EXISTS.sum()] if method != "erm" else [6, 0, 6]
    assert [int(count) for count in counts] == expected


@pytest.mark.parametrize("method", ["augmented", "trades", "mart"])
def test_objectives_of_adversarial_training_take_means_over_partners(tmp_path: Path, method: str) -> None:
    """PGD training, TRADES and MART, for two classes, from the terms of rows with one partner."""
    x, labels = points_of_views()
    regularizer = "sq" if method == "augmented" else "kl"
    args = DAIRConfig(str(tmp_path), use_cpu=True, method=method, regularizer=regularizer, dair_lambda=3.0)
    pair_loss, model = PairLoss(args, cross_entropy), points.model(2).train()

    def rows_of(view: np.ndarray) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(view), "labels": torch.from_numpy(labels).long()}

    def run(views: list[int]) -> tuple[float, np.ndarray]:
        exists = torch.from_numpy(EXISTS[:, [view - 1 for view in views]])
        batch = TensorPairs(rows_of(x[:, 0]), [rows_of(x[:, view]) for view in views], has_partner=exists)
        made = batch.__getitems__(range(ROWS))
        model.zero_grad()
        terms = pair_loss(model, made, True).terms
        partner, regularized = {"augmented": (1.0, 0.0), "trades": (0.0, 3.0), "mart": (1.0, 3.0)}[method]
        rows = partner * terms.augmented + regularized * terms.consistency
        found = rows.detach().numpy()
        loss = pair_loss.objective(terms, pair_loss.count(made), 3.0)
        loss.backward()
        return loss.item(), found

    (value, together), alone = run([1, 2, 3]), [run([view])[1] for view in (1, 2, 3)]
    paired = EXISTS.any(1)
    means = (np.stack(alone, axis=1) * EXISTS).sum(1)[paired] / EXISTS.sum(1)[paired]
    np.testing.assert_allclose(together[paired], means, rtol=1e-12)
    single = torch.nn.functional.cross_entropy(
        model(torch.from_numpy(x[3:4, 0])).logits, torch.from_numpy(labels[3:4]).long()
    )
    originals = torch.nn.functional.cross_entropy(
        model(torch.from_numpy(x[:, 0])).logits, torch.from_numpy(labels).long(), reduction="none"
    )
    first = originals.detach().numpy()[paired].sum() if method == "trades" else 0.0
    assert value == pytest.approx((means.sum() + first + single.item()) / ROWS, rel=1e-12)


@pytest.mark.parametrize("regularizer", ["kl", "js"])
def test_divergences_of_classes_are_means_over_partners(tmp_path: Path, regularizer: str) -> None:
    x, labels = points_of_views()
    classes = torch.from_numpy(labels).long()
    views = [{"x": torch.from_numpy(x[:, view]), "labels": classes} for view in range(4)]
    pairs = TensorPairs(views[0], views[1:], has_partner=torch.from_numpy(EXISTS))
    args = DAIRConfig(str(tmp_path), use_cpu=True, regularizer=regularizer)
    model = points.model(2)
    found = PairLoss(args, cross_entropy)(model, pairs.__getitems__(range(ROWS)), True).terms
    logits = model(torch.from_numpy(x)).logits.detach().numpy()
    for row in range(ROWS):
        expected = [divergence(logits[row, 0], logits[row, 1 + p], regularizer) for p in np.flatnonzero(EXISTS[row])]
        assert found.consistency[row].item() == pytest.approx(np.mean(expected) if expected else 0.0, rel=1e-10)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"forward_mode": "separate"}, True),
        ({"regularizer": "kl", "forward_mode": "separate"}, True),
        ({"normalization": "token"}, False),
    ],
)
def test_equal_partners_are_one_partner(tmp_path: Path, settings: dict[str, Any], same: bool) -> None:
    """With pair normalization, twice the same partner is once; with token normalization its tokens count twice."""
    once, settings = tiny.pairs("bart", 13), {"max_steps": 2, "adam_epsilon": 1e-6, **settings}
    twice = tiny.with_second_partner(once, once)
    assert {name for name in twice.column_names if name.startswith("augmented_2_")}
    distance = tiny.distance(*(tiny.trained(tmp_path, "bart", rows, **settings) for rows in (once, twice)))
    assert distance < 1e-10 if same else distance > 1e-6


# ---- plans of forwards ----


def test_every_view_runs_once_in_any_plan_and_views_of_a_row_at_one_place(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for views in (2, 3, 5):
        mask = random.random((17, views)) < 0.6
        for rows in (4, None):
            separate, shared = (
                plan_forwards(mask, DAIRConfig(str(tmp_path), use_cpu=True, gradient_cache=rows, **settings), True)
                for settings in ({"forward_mode": "separate"}, {"pair_dropout": "shared"})
            )
            for plan in (separate, shared):
                np.testing.assert_array_equal(np.sum([forward.views for forward in plan], axis=0), mask)
                assert all(0 < forward.views.any(1).sum() <= (rows or len(mask)) for forward in plan)
            assert all(forward.views.any(0).sum() == 1 for forward in separate)
            for before, after in zip(shared, shared[1:], strict=False):
                if before.replays_rng:
                    np.testing.assert_array_equal(before.views.any(1), after.views.any(1))
                    assert before.views.any(0).sum() == after.views.any(0).sum() == 1
            # A row with several views: all its forwards but the last replay the random numbers.
            several = mask.sum(1) > 1
            assert sum(forward.views[several].any() for forward in shared) > 1
            for row in np.flatnonzero(several):
                replays = [forward.replays_rng for forward in shared if forward.views[row].any()]
                assert replays == [True] * (len(replays) - 1) + [False] and len(replays) == mask[row].sum()


def test_identical_views_with_shared_masks_have_equal_losses(tmp_path: Path) -> None:
    rows = tiny.pairs("gpt2", 8)
    names = [name for name in rows.column_names if not name.startswith("augmented_") and name != "row_id"]
    for name in names:
        rows = rows.remove_columns(f"augmented_{name}")
        for number, alone in (("", (0, 3, 4)), ("2_", (0, 1)), ("4_", (0, 5))):
            values = [None if row in alone else value for row, value in enumerate(rows[name])]
            rows = rows.add_column(f"augmented_{number}{name}", values)
    consistency = {}
    for mode in ("independent", "shared"):
        settings = {"pair_dropout": mode, "logging_strategy": "steps", "logging_steps": 1}
        made = tiny.trainer(tmp_path, "gpt2", rows, built=tiny.model("gpt2", dropout=0.3), **settings)
        made.train()
        consistency[mode] = [log["consistency"] for log in made.state.log_history if "consistency" in log]
    assert consistency["shared"] == [0.0] * 4
    assert min(consistency["independent"]) > 1e-4


# ---- logs and errors ----


@pytest.mark.parametrize("normalization", ["pair", "token"])
def test_a_row_is_unlearned_if_a_weight_of_any_view_is_negative(tmp_path: Path, normalization: str) -> None:
    """The gradient weight of every view by autograd, without the formula."""
    rows = 200
    random = np.random.default_rng(1)
    exists = torch.from_numpy(random.random((rows, 3)) < 0.6)
    logits = torch.from_numpy(random.normal(size=(rows, 4)) * 2)
    ones = torch.ones(rows)
    views = [{"x": torch.stack([logits[:, view], 0 * ones], dim=1), "labels": ones} for view in range(4)]
    pairs = TensorPairs(views[0], views[1:], has_partner=exists)

    trainer = DAIRTrainer(
        points.model(),
        tiny.config(tmp_path, dair_lambda=0.4, normalization=normalization, per_device_train_batch_size=rows),
        train_dataset=pairs,
        eval_dataset=pairs,
        sample_loss=lambda outputs, labels: torch.nn.functional.softplus(-outputs.logits[:, 0]),
    )
    with torch.no_grad():
        trainer.model.linear.weight.copy_(torch.tensor([[1.0, 0.0]]))
        trainer.model.linear.bias.zero_()
    losses, paired = torch.nn.functional.softplus(-logits).requires_grad_(), exists.any(1)
    value = objective_by_hand(losses, exists, "dair", "sq", 0.4, normalization)
    (slopes,) = torch.autograd.grad(value, losses)
    expected = (slopes < 0).any(1).sum() / paired.sum()
    assert 0.2 < expected < 0.8
    metrics = trainer.evaluate()
    assert metrics["eval_unlearned_share"] == pytest.approx(expected.item())
    assert metrics["eval_loss"] == pytest.approx(value.item())
    assert (metrics["eval_rows"], metrics["eval_pairs"]) == (rows, int(paired.sum()))
    batch = pairs.__getitems__(range(rows))
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch)
    trainer.log({"loss": 0.0})
    assert trainer.state.log_history[-1]["unlearned_share"] == pytest.approx(expected.item())


# ---- environments ----


def risks() -> np.ndarray:
    x, labels = points_of_views()
    weight, bias = weights()
    probability = 1 / (1 + np.exp(-(x @ weight + bias)))
    losses = -(labels[:, None] * np.log(probability) + (1 - labels[:, None]) * np.log(1 - probability))
    exists = np.concatenate([np.ones((ROWS, 1), dtype=bool), EXISTS], axis=1)
    return np.array([losses[exists[:, view], view].mean() for view in range(4)])


def test_each_number_of_a_partner_is_an_environment(tmp_path: Path) -> None:
    found = outputs_of(tmp_path)[1]
    expected = risks()
    assert VREx(20.0)(found, 0).item() == pytest.approx((expected.mean() + 20.0 * expected.var()) / 20.0, rel=1e-12)
    assert VREx(1.0)(found, 0).item() == pytest.approx(expected.mean() + expected.var(), rel=1e-12)
    dro = GroupDRO(0.5, groups=4)
    shares = np.exp(0.5 * expected) / np.exp(0.5 * expected).sum()
    assert dro(found, 0).item() == pytest.approx(shares @ expected, rel=1e-6)
    assert dro.weights.tolist() == pytest.approx(shares, rel=1e-6)


def test_a_group_without_rows_keeps_its_place(tmp_path: Path) -> None:
    x, labels = (torch.from_numpy(values) for values in points_of_views())
    view = [{"x": x[:, number], "labels": labels} for number in range(4)]
    only_second = torch.tensor([[False, True]] * ROWS)
    found = outputs_of(tmp_path, TensorPairs(view[0], view[1:3], has_partner=only_second))[1]
    losses = found.losses.detach().numpy().mean(0)
    dro = GroupDRO(0.5, groups=3)
    shares = np.exp(0.5 * losses) / np.exp(0.5 * losses).sum()
    assert losses[1] == 0
    assert dro(found, 0).item() == pytest.approx(shares @ losses, rel=1e-6)


def test_what_cannot_take_several_partners_says_so(tmp_path: Path) -> None:
    found = outputs_of(tmp_path)[1]
    with pytest.raises(DataError, match="GroupDRO: .*groups=4"):
        GroupDRO()(found, 0)
    x, labels = (torch.from_numpy(values) for values in points_of_views())
    view = [{"x": x[:, number], "labels": labels} for number in range(3)]
    both = outputs_of(tmp_path, TensorPairs(view[0], view[1:]))[1]
    with pytest.raises(DataError, match="AggregatedDAIR"):
        AggregatedDAIR(torch.mean, "dair", 1.0)(both, 0)
    # One partner per row, whatever its number.
    first = torch.tensor([True, False, True, False, True, True])
    mixed = TensorPairs(view[0], view[1:], has_partner=torch.stack([first, ~first], dim=1))
    chosen = TensorPairs(view[0], {"x": torch.where(first[:, None], x[:, 1], x[:, 2]), "labels": labels})
    values = [AggregatedDAIR(torch.mean, "dair", 1.0)(outputs_of(tmp_path, pairs)[1], 0) for pairs in (mixed, chosen)]
    torch.testing.assert_close(*values, rtol=1e-12, atol=0)


# ---- from rows to updates ----


@pytest.mark.parametrize("kind", ["list", "epochs", "workers"])
def test_partners_of_any_kind_of_data_are_read(tmp_path: Path, kind: str) -> None:
    rows = tiny.two_partners("gpt2", 8)
    settings: dict[str, Any] = {"max_steps": 1, "train_sampling_strategy": "sequential"}
    expected = tiny.trained(tmp_path, "gpt2", rows, **settings)
    given = {
        "list": lambda: list(rows),
        "epochs": lambda: datasets.Dataset.from_list(list(rows)),
        "workers": rows.to_iterable_dataset,
    }[kind]()
    if kind == "workers":
        settings["dataloader_num_workers"] = 1
    assert tiny.distance(expected, tiny.trained(tmp_path, "gpt2", given, **settings)) == 0.0


def test_prefix_of_the_first_partner_alone_is_bit_for_bit_one_partner(tmp_path: Path) -> None:
    """Columns of a second partner that no row has change nothing."""
    rows = tiny.pairs("bart", 13)
    nobody = rows
    for name in ("input_ids", "attention_mask", "labels"):
        nobody = nobody.add_column(f"augmented_2_{name}", [None] * 13)
    settings = {"normalization": "token", "num_train_epochs": 1}
    found = [tiny.trained(tmp_path, "bart", data, **settings) for data in (rows, nobody)]
    assert tiny.distance(*found) == 0.0


def test_a_partner_whose_original_has_no_target_is_in_no_environment(tmp_path: Path) -> None:
    x, _ = points_of_views()
    labels = torch.tensor([1, 0, 1, 0, 1, 0])
    view = [{"x": torch.from_numpy(x[:, number]), "labels": labels.clone()} for number in range(3)]
    view[0]["labels"][2] = -100
    args = DAIRConfig(str(tmp_path), use_cpu=True, method="da")
    found = PairLoss(args, cross_entropy)(
        points.model(2), TensorPairs(view[0], view[1:]).__getitems__(range(ROWS)), True
    )
    assert found.terms.partners.tolist() == [2, 2, 0, 2, 2, 2]
    means = [found.losses[np.arange(ROWS) != 2, number].mean().item() for number in range(3)]
    assert VREx(1.0)(found, 0).item() == pytest.approx(np.mean(means) + np.var(means), rel=1e-12)
    assert torch.equal(found.losses_at_scale(torch.ones(())), found.losses)
    without = TensorPairs(view[0], view[1:], has_partner=torch.tensor([[row != 2] * 2 for row in range(ROWS)]))
    alone = PairLoss(args, cross_entropy)(points.model(2), without.__getitems__(range(ROWS)), True)
    assert IRM(1.0)(found, 0).item() == pytest.approx(IRM(1.0)(alone, 0).item(), rel=1e-12)
