"""Rows with several partners against numpy in float64, and against rows with one partner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor

from dair_hf import DAIRConfig, DAIRTrainer, PairCollator, TensorPairs
from dair_hf.data.collator import add_partners
from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.losses.per_sample import binary_cross_entropy, cross_entropy
from dair_hf.training.environments import IRM, AggregatedDAIR, GroupDRO, VREx
from dair_hf.training.forward.pair_loss import PairLoss, PairOutputs
from dair_hf.training.forward.plan import separate_plan, shared_dropout_plan, split_mask
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


def objective_by_hand(
    parameters: np.ndarray, method: str, regularizer: str, weight: float, normalization: str
) -> tuple[float, np.ndarray]:
    """Return the objective of all rows and its gradient by the parameters of the linear model, by formulas."""
    x, labels = points_of_views()
    inputs = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
    probability = 1 / (1 + np.exp(-inputs @ parameters))
    y = labels[:, None]
    losses = -(y * np.log(probability) + (1 - y) * np.log(1 - probability))
    slopes = (probability - y)[..., None] * inputs  # of every loss by the parameters
    tokens = sum(1 + EXISTS[row].sum() for row in range(ROWS)) if method != "erm" else ROWS
    value, gradient = 0.0, np.zeros(3)
    for row in range(ROWS):
        partners = 1 + np.flatnonzero(EXISTS[row])
        if method == "erm" or not len(partners):
            share = {"pair": 1 / ROWS, "token": 1 / tokens}[normalization]
            value += share * losses[row, 0]
            gradient += share * slopes[row, 0]
            continue
        pairs = int(EXISTS.any(1).sum())
        terms = {
            "pair": {"original": 0.5 / ROWS, "partner": 0.5 / len(partners) / ROWS, "r": weight / ROWS},
            "token": {"original": 1 / tokens, "partner": 1 / tokens, "r": weight / pairs},
        }[normalization]
        value += terms["original"] * losses[row, 0]
        gradient += terms["original"] * slopes[row, 0]
        for partner in partners:
            value += terms["partner"] * losses[row, partner]
            gradient += terms["partner"] * slopes[row, partner]
            if method == "dair":
                share = terms["r"] / len(partners)
                if regularizer == "sq":
                    roots = np.sqrt(losses[row, [0, partner]] + EPSILON)
                    value += share * (roots[0] - roots[1]) ** 2
                    by_loss = (roots[0] - roots[1]) / roots * [1, -1]
                else:
                    value += share * abs(losses[row, 0] - losses[row, partner])
                    by_loss = np.sign(losses[row, 0] - losses[row, partner]) * np.array([1, -1])
                gradient += share * by_loss @ slopes[row, [0, partner]]
    return value, gradient


def outputs_of(
    folder: Path, pairs: TensorPairs | None = None, **settings: Any
) -> tuple[PairLoss, PairOutputs, Any, Any]:
    pair_loss, model = PairLoss(DAIRConfig(str(folder), use_cpu=True, **settings), binary_cross_entropy), points.model()
    pairs = data() if pairs is None else pairs
    batch = pairs.__getitems__(range(len(pairs)))
    return pair_loss, pair_loss(model, batch, pair_loss.args.uses_partners), pair_loss.count(batch), model


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize(("method", "regularizer"), [("dair", "sq"), ("dair", "l1"), ("da", "sq"), ("erm", "sq")])
def test_value_and_gradient_of_the_objective(tmp_path: Path, method: str, regularizer: str, normalization: str) -> None:
    settings = {"method": method, "regularizer": regularizer, "dair_lambda": 0.7, "normalization": normalization}
    pair_loss, found, counts, model = outputs_of(tmp_path, **settings)
    weight, bias = weights()
    value, gradient = objective_by_hand(np.append(weight, bias), method, regularizer, 0.7, normalization)
    loss = pair_loss.objective(found.terms, counts, 0.7)
    loss.backward()
    assert loss.item() == pytest.approx(value, rel=1e-12)
    given = [*model.linear.weight.grad[0].tolist(), model.linear.bias.grad.item()]
    np.testing.assert_allclose(given, gradient, rtol=1e-9, atol=1e-12)
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


@pytest.mark.parametrize("settings", [{}, {"regularizer": "l1"}, {"regularizer": "kl"}, {"method": "da"}])
@pytest.mark.parametrize("forward_mode", ["joint", "separate"])
def test_equal_partners_are_one_partner(tmp_path: Path, settings: dict[str, Any], forward_mode: str) -> None:
    """With pair normalization, twice the same partner is once; with token normalization its tokens count twice."""
    once = tiny.pairs("bart", 13)
    twice = with_second_partner(once, once)
    assert {name for name in twice.column_names if name.startswith("augmented_2_")}
    results = [
        tiny.trained(tmp_path, "bart", rows, forward_mode=forward_mode, adam_epsilon=1e-6, **settings)
        for rows in (once, twice)
    ]
    assert tiny.distance(*results) < 1e-10
    tokens = [
        tiny.trained(tmp_path, "bart", rows, normalization="token", max_steps=1, optim="sgd", **settings)
        for rows in (once, twice)
    ]
    assert settings.get("regularizer") == "kl" or tiny.distance(*tokens) > 1e-6


def with_second_partner(rows: datasets.Dataset, other: datasets.Dataset) -> datasets.Dataset:
    """Add the partners of other rows as second partners."""
    for name in [name for name in other.column_names if name.startswith("augmented_")]:
        rows = rows.add_column(name.replace("augmented_", "augmented_2_"), other[name][:])
    return rows


# ---- plans of forwards ----


def test_every_view_runs_once_in_any_plan_and_views_of_a_row_at_one_place() -> None:
    random = np.random.default_rng(0)
    for views in (3, 5):
        mask = random.random((17, views)) < 0.6
        for rows in (4, None):
            parts = split_mask(mask, rows)
            separate = [forward for part in parts for forward in separate_plan(part)]
            shared = [forward for part in parts for forward in shared_dropout_plan(part)]
            for plan in (separate, shared):
                np.testing.assert_array_equal(np.sum([forward.views for forward in plan], axis=0), mask)
                assert all(forward.views.any() for forward in plan)
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
        made = tiny.trainer(
            tmp_path,
            "gpt2",
            rows,
            built=tiny.model("gpt2", dropout=0.3),
            pair_dropout=mode,
            logging_strategy="steps",
            logging_steps=1,
        )
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
    losses = torch.nn.functional.softplus(-logits).masked_fill(~torch.cat([exists[:, :1] | True, exists], dim=1), 0.0)
    losses.requires_grad_()
    count = exists.sum(1)
    roots = (losses + EPSILON).sqrt()
    r = ((roots[:, :1] - roots[:, 1:]).square() * exists).sum(1) / count.clamp(min=1)
    if normalization == "pair":
        partners = (losses[:, 1:] * exists).sum(1) / count.clamp(min=1)
        f = torch.where(count > 0, 0.5 * losses[:, 0] + 0.5 * partners + 0.4 * r, losses[:, 0]).sum()
    else:
        tokens = rows + exists.sum()
        f = (losses[:, 0] + (losses[:, 1:] * exists).sum(1)).sum() / tokens + 0.4 * r.sum() / (count > 0).sum()
    (slopes,) = torch.autograd.grad(f, losses)
    expected = ((slopes < 0).any(1) & (count > 0)).sum() / (count > 0).sum()
    assert 0.2 < expected < 0.8
    metrics = trainer.evaluate()
    assert metrics["eval_unlearned_share"] == pytest.approx(expected.item())
    assert metrics["eval_loss"] == pytest.approx((f if normalization == "token" else f / rows).item())
    assert (metrics["eval_rows"], metrics["eval_pairs"]) == (rows, int((count > 0).sum()))
    batch = pairs.__getitems__(range(rows))
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch)
    trainer.log({"loss": 0.0})
    assert trainer.state.log_history[-1]["unlearned_share"] == pytest.approx(expected.item())


def test_a_negative_loss_of_one_partner_is_named(tmp_path: Path) -> None:
    """The mean loss of the partners is positive."""
    x = torch.tensor([[[1.0], [2.0], [3.0]], [[1.0], [-0.5], [5.0]]])
    pairs = TensorPairs({"x": x[:, 0]}, [{"x": x[:, 1]}, {"x": x[:, 2]}], row_ids=["a", "b"])

    class Given(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Any:
            return {"logits": x * self.weight}

    made = DAIRTrainer(
        Given(), tiny.config(tmp_path), train_dataset=pairs, sample_loss=lambda outputs, labels: outputs["logits"][:, 0]
    )
    message = r"negative in 1 of 2 rows .*\['b'\], down to -0\.5; regularizer='sq' takes the root"
    with pytest.raises(NonFiniteLossError, match=message):
        made.train()
    with pytest.raises(NonFiniteLossError, match=message):
        made.evaluate(pairs)


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
    assert IRM(1.0)(found, 0).item() == pytest.approx(irm_by_hand(expected), rel=1e-6)


def irm_by_hand(expected: np.ndarray) -> float:
    """Return the mean risk plus the mean product of the slopes of two halves of each environment."""
    x, labels = points_of_views()
    weight, bias = weights()
    logits = x @ weight + bias
    slopes = (1 / (1 + np.exp(-logits)) - labels[:, None]) * logits
    exists = np.concatenate([np.ones((ROWS, 1), dtype=bool), EXISTS], axis=1)
    products = []
    for view in range(4):
        of_view = slopes[exists[:, view], view]
        products.append(of_view[0::2].mean() * of_view[1::2].mean())
    return float(expected.mean() + np.mean(products))


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
    with pytest.raises(DataError, match=r"GroupDRO has 2 groups, but rows have the partner number 3; .*groups=4"):
        GroupDRO()(found, 0)
    with pytest.raises(DataError, match="groups=1 is out of range"):
        GroupDRO(groups=1)
    x, labels = (torch.from_numpy(values) for values in points_of_views())
    view = [{"x": x[:, number], "labels": labels} for number in range(3)]
    both = outputs_of(tmp_path, TensorPairs(view[0], view[1:]))[1]
    with pytest.raises(DataError, match="6 of 6 rows of a batch have several partners; .*one partner only"):
        AggregatedDAIR(torch.mean, "dair", 1.0)(both, 0)
    # One partner per row, whatever its number.
    first = torch.tensor([True, False, True, False, True, True])
    mixed = TensorPairs(view[0], view[1:], has_partner=torch.stack([first, ~first], dim=1))
    chosen = TensorPairs(view[0], {"x": torch.where(first[:, None], x[:, 1], x[:, 2]), "labels": labels})
    values = [AggregatedDAIR(torch.mean, "dair", 1.0)(outputs_of(tmp_path, pairs)[1], 0) for pairs in (mixed, chosen)]
    torch.testing.assert_close(*values, rtol=1e-12, atol=0)


# ---- from rows to updates ----


def rows_with_two(kind: str, rows: int = 13) -> datasets.Dataset:
    """Rows with two partners, one of them, or none."""
    second = tiny.pairs(kind, rows, seed=3, partner=lambda row: row % 4 < 2)
    return with_second_partner(tiny.pairs(kind, rows), second)


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize(("kind", "regularizer"), [("bart", "sq"), ("gpt2", "kl"), ("gpt2", "sq")])
def test_any_split_of_the_step_gives_the_same_parameters(
    tmp_path: Path, kind: str, regularizer: str, normalization: str
) -> None:
    rows = rows_with_two(kind)
    settings = {"regularizer": regularizer, "normalization": normalization, "adam_epsilon": 1e-6}
    found = [
        tiny.trained(
            tmp_path, kind, rows, per_device_train_batch_size=batch, gradient_accumulation_steps=windows, **settings
        )
        for batch, windows in ((8, 1), (4, 2), (1, 8))
    ]
    assert tiny.distance(found[0], found[1]) < 1e-10
    assert tiny.distance(found[0], found[2]) < 1e-10
    first = rows.select_columns([name for name in rows.column_names if "augmented_2_" not in name])
    assert tiny.distance(found[0], tiny.trained(tmp_path, kind, first, **settings)) > 1e-5


@pytest.mark.parametrize("kind", ["list", "stream", "epochs", "workers"])
def test_partners_of_any_kind_of_data_are_read(tmp_path: Path, kind: str) -> None:
    rows = rows_with_two("gpt2", 8)
    for name in ("history", "augmented_2_history"):
        rows = rows.add_column(name, ["unread"] * 8)
    settings: dict[str, Any] = {"max_steps": 2, "train_sampling_strategy": "sequential"}
    expected = tiny.trained(tmp_path, "gpt2", rows, **settings)
    given = {
        "list": lambda: list(rows),
        "stream": rows.to_iterable_dataset,
        "epochs": lambda: datasets.Dataset.from_list(list(rows)),
        "workers": rows.to_iterable_dataset,
    }[kind]()
    if kind == "workers":
        settings["dataloader_num_workers"] = 1
    assert tiny.distance(expected, tiny.trained(tmp_path, "gpt2", given, **settings)) == 0.0


def test_erm_reads_no_partner(tmp_path: Path) -> None:
    rows = rows_with_two("gpt2", 8)
    alone = rows.select_columns(["row_id", "input_ids", "attention_mask", "labels"])
    found = [tiny.trained(tmp_path, "gpt2", data, method="erm") for data in (rows, list(rows), alone)]
    assert tiny.distance(found[0], found[2]) == tiny.distance(found[1], found[2]) == 0.0


def test_batches_by_length_and_by_tokens_count_all_views(tmp_path: Path) -> None:
    rows = rows_with_two("gpt2", 13)
    made = tiny.trainer(tmp_path, "gpt2", rows, max_tokens_per_batch=60)
    sizes: list[int] = []
    made.model.register_forward_pre_hook(
        lambda module, args, inputs: sizes.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    made.train()
    assert max(sizes) <= 60 and max(sizes) > 40


def test_online_partners_equal_those_of_the_data(tmp_path: Path) -> None:
    x, _, labels = points.points(12)
    view = {"x": x, "labels": labels}
    shifts = (0.5, -0.25)
    static = TensorPairs(view, [{"x": x + shift, "labels": labels} for shift in shifts])

    def augmenter(model: Any, batch: Any, generator: Any) -> Any:
        return add_partners(batch, [{"x": batch["x"][:, 0] + shift} for shift in shifts])

    made = points.trainer(tmp_path, TensorPairs(view))
    online = DAIRTrainer(
        made.model, made.args, points.stack, made.train_dataset, sample_loss="binary", augmenter=augmenter
    )
    online.train()
    before = points.trainer(tmp_path, static)
    before.train()
    assert torch.equal(points.weights(online), points.weights(before))


def test_prefix_of_the_first_partner_alone_is_bit_for_bit_one_partner(tmp_path: Path) -> None:
    """Columns of a second partner that no row has change nothing."""
    rows = tiny.pairs("bart", 13)
    nobody = rows
    for name in ("input_ids", "attention_mask", "labels"):
        nobody = nobody.add_column(f"augmented_2_{name}", [None] * 13)
    settings = {"normalization": "token"}
    found = [tiny.trained(tmp_path, "bart", data, **settings) for data in (rows, nobody)]
    assert tiny.distance(*found) == 0.0


def test_the_collator_of_rows_equals_tensors(tmp_path: Path) -> None:
    pairs = data()
    rows = points.rows_of(pairs)
    assert "augmented_3_x" in rows.column_names
    batch = PairCollator(points.stack)(list(rows))
    for name, values in pairs.__getitems__(range(ROWS)).items():
        assert torch.equal(batch[name], values) if isinstance(values, Tensor) else batch[name] == list(values)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Dropout on, with shared masks, so that the order of random numbers matters."""

    def made(folder: Path, **settings: Any) -> DAIRTrainer:
        built = tiny.model("gpt2", dropout=0.2)
        return tiny.trainer(folder, "gpt2", rows_with_two("gpt2", 8), built=built, pair_dropout="shared", **settings)

    whole = made(tmp_path / "whole")
    whole.train()
    made(tmp_path / "cut", save_strategy="steps", save_steps=1).train()
    resumed = made(tmp_path / "cut")
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-1"))
    assert tiny.distance(tiny.weights(whole.model), tiny.weights(resumed.model)) == 0.0


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
