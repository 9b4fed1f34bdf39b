"""Reports on rows with several partners: each is a pair, with its own losses, answers, contents and history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf import TensorPairs
from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE, PairReport
from tests.fixtures import points

X = np.array([[1.0, 1.0], [-1.0, -1.0], [2.0, 0.5], [-2.0, 0.3], [0.8, 0.9], [-0.7, -0.9]])
LABELS = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
SCALES = (1.0, 1.2, 0.7)  # of the points of the original and of both partners
WEIGHT = np.array([1.5, 1.0])
EXISTS = np.array([[1, 1], [1, 0], [0, 1], [0, 0], [1, 1], [1, 1]], dtype=bool)
PAIRS = [(0, 1), (0, 2), (1, 1), (2, 2), (4, 1), (4, 2), (5, 1), (5, 2)]
PLANTED = (4, 2)  # row, and partner with the label of the other class
DAIR_LAMBDA = 2.0


def labels_of(view: int) -> np.ndarray:
    wrong = (np.arange(len(X)) == PLANTED[0]) & (view == PLANTED[1])
    return np.where(wrong, 1 - LABELS, LABELS)


def pairs() -> TensorPairs:
    views = [
        {"x": torch.from_numpy(scale * X), "labels": torch.from_numpy(labels_of(view))}
        for view, scale in enumerate(SCALES)
    ]
    return TensorPairs(views[0], views[1:], has_partner=torch.from_numpy(EXISTS))


def losses(view: int) -> np.ndarray:
    """Losses of one view of all rows, `[N]`."""
    logits = SCALES[view] * X @ WEIGHT
    return np.logaddexp(0.0, np.where(labels_of(view) > 0.5, -logits, logits))


def reported(folder: Path, data: Any, **settings: Any) -> PairReport:
    """Report of a model that the training, with a learning rate of 0, leaves as it is."""
    trainer = points.trainer(
        folder / "run", data, method="dair", dair_lambda=DAIR_LAMBDA, learning_rate=0.0, **settings
    )
    with torch.no_grad():
        trainer.model.linear.weight.copy_(torch.from_numpy(WEIGHT))
        trainer.model.linear.bias.zero_()
    trainer.train()
    kinds = ["a", "a", "a", "b", "b", "b"]
    return trainer.pair_report(None, points.correct, folder=folder, groups={"kind": kinds}, worst=3)


def weights_of_rows(normalization: str) -> dict[tuple[int, int], tuple[float, float]]:
    """Derivatives of the objective of every row by its losses."""
    found = {}
    views = len(X) + EXISTS.sum()  # one target each; rows without a partner count, too
    for row in range(len(X)):
        numbers = [partner for of, partner in PAIRS if of == row]
        if not numbers:
            continue
        left = torch.tensor(losses(0)[row], requires_grad=True)
        right = torch.tensor([losses(number)[row] for number in numbers], requires_grad=True)
        mean_r = ((left + 1e-7).sqrt() - (right + 1e-7).sqrt()).square().mean()
        if normalization == "pair":
            objective = 0.5 * left + 0.5 * right.mean() + DAIR_LAMBDA * mean_r
        else:  # times half the number of targets
            objective = 0.5 * (left + right.sum()) + DAIR_LAMBDA * views / (2 * EXISTS.any(1).sum()) * mean_r
        objective.backward()
        for number, slope in zip(numbers, right.grad.tolist(), strict=True):
            found[row, number] = (left.grad.item(), slope)
    return found


@pytest.mark.parametrize("kind", ["tensors", "rows"])
def test_every_partner_is_a_pair_and_the_planted_second_one_is_the_worst(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "rows":
        request.getfixturevalue("plain_page")
    report = reported(tmp_path, pairs() if kind == "tensors" else points.rows_of(pairs()))
    found = list(zip(map(int, report.pairs["row_id"]), report.pairs["partner"], strict=True))
    assert found[0] == PLANTED and sorted(found) == PAIRS
    assert (report.summary["rows"], report.summary["pairs"], report.summary["steps_per_pair"]) == (6, 8, 2.0)
    left, right = (
        np.array([losses(view)[row] for row, view in views]) for views in ([(r, 0) for r, _ in found], found)
    )
    np.testing.assert_allclose(report.pairs["loss_original"], left)
    np.testing.assert_allclose(report.pairs["loss_augmented"], right)
    # The same model in all steps: the mean is that of the final model. Sums are kept in single precision.
    np.testing.assert_allclose(report.pairs["score"], (left**0.5 - right**0.5) ** 2, rtol=1e-5)
    assert [entry["correct"] for entry in report.worst] == [[True, False], [True, True], [True, True]]
    logit = float(SCALES[2] * X[PLANTED[0]] @ WEIGHT)
    assert report.worst[0]["answer"]["augmented"].startswith(f"array([{logit:.4g}")
    label, values = report.worst[0]["fields"]
    assert (label["original"], label["augmented"]) == ("1", "0")
    assert values["rows"] == [["x[0]", "0.8", "0.56"], ["x[1]", "0.9", "0.63"]]
    whole, by_kind = (table["groups"] for table in report.correctness[:2])
    # CM is over the one pair with another label: the planted one.
    assert (whole[0]["pairs"], whole[0]["cm_numerator"], whole[0]["cm_denominator"]) == (8, 0, 1)
    assert [(group["name"], group["pairs"], group["both_correct"]) for group in by_kind] == [
        ("a", 4, 1),
        ("b", 4, 0.75),
    ]
    assert [group["pairs"] for group in report.losses[0]["groups"]] == [4, 4]
    assert PairReport.read(tmp_path / JSON_FILE) == PairReport.from_dict(report.to_dict())
    assert kind == "rows" or "1. 4, partner 2<" in (tmp_path / PAGE_FILE).read_text(encoding="utf-8")


@pytest.mark.usefixtures("plain_page")
@pytest.mark.parametrize("normalization", ["pair", "token"])
def test_weights_are_the_derivatives_of_the_objective_of_a_row(tmp_path: Path, normalization: str) -> None:
    report = reported(tmp_path, pairs(), normalization=normalization)
    expected = weights_of_rows(normalization)
    columns = [report.pairs[name] for name in ("weight_original", "weight_augmented")]
    for row_id, partner, *found in zip(report.pairs["row_id"], report.pairs["partner"], *columns, strict=True):
        assert found == pytest.approx(expected[int(row_id), partner], rel=1e-6)
