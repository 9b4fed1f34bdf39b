"""History: sums of root differences of rows, over batches, epochs and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.pair_report import history
from dair_hf.pair_report.history import PairHistory
from tests.fixtures import points
from tests.fixtures.ranks import on_ranks


def add(to: PairHistory, ids: list[str], original: list[float], augmented: list[float], counted: list[bool]) -> None:
    to.add(ids, torch.tensor([original, augmented]).T, torch.tensor(counted)[:, None])


def test_sums_are_those_of_the_rows_that_were_counted() -> None:
    made = PairHistory()
    add(made, ["a", "b", "c"], [4.0, 9.0, 1.0], [1.0, 16.0, 100.0], [True, True, False])
    add(made, ["c", "a"], [1.0, 0.0], [0.0, 0.25], [True, True])
    sums, steps = made.sums(["a", "b", "c", "unknown"])
    np.testing.assert_allclose(sums, [(2 - 1) + (0 - 0.5), 3 - 4, 1.0, 0.0], atol=1e-6)
    assert steps.tolist() == [2, 1, 1, 0]


def test_every_partner_of_a_row_has_its_own_sum() -> None:
    made = PairHistory()
    made.add(["a", "b"], torch.tensor([[4.0, 1.0], [9.0, 1.0]]), torch.tensor([[True], [True]]))
    three = torch.tensor([[1.0, 0.0, 9.0], [0.0, 4.0, 16.0]])
    made.add(["b", "c"], three, torch.tensor([[False, True], [True, True]]))
    sums, steps = made.sums(["a", "a", "b", "b", "c", "c", "c", "?"], [1, 2, 1, 2, 1, 2, 3, 2])
    assert sums.tolist() == [2 - 1, 0, 3 - 1, 1 - 3, 0 - 2, 0 - 4, 0, 0]
    assert steps.tolist() == [1, 0, 1, 1, 1, 1, 0, 0]
    made.add(["a"], torch.tensor([[4.0, 9.0]]), torch.tensor([[True]]))  # fewer than before
    assert made.sums(["a", "b"], [1, 2])[0].tolist() == [0.0, -2.0]


def test_a_row_without_an_id_is_not_kept_and_a_new_run_begins_anew() -> None:
    made = PairHistory()
    made.add(None, torch.ones(1, 2), torch.tensor([[True]]))
    assert made.sums(["a"])[1].tolist() == [0]
    add(made, ["a"], [1.0], [0.0], [True])
    assert made.sums(["a"])[1].tolist() == [1]
    made.on_train_begin(None, None, None)
    assert made.sums(["a"])[1].tolist() == [0]


def test_what_is_held_on_the_device_is_bounded_and_so_are_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_HELD", 2)
    monkeypatch.setattr(history, "MAX_ROWS", 3)
    made = PairHistory()
    for name in "abcde":
        add(made, [name], [4.0], [0.0], [True])
        assert len(made._held) < 2
    add(made, ["a"], [9.0], [0.0], [True])
    assert made.sums(list("abcde"))[0].tolist() == [5.0, 2.0, 2.0, 0.0, 0.0]


def test_ranks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(rank: int) -> list[list[float]]:
        made = PairHistory()
        add(made, ["a", f"r{rank}"], [4.0, 1.0], [0.0, 0.0], [True, True])
        return [values.tolist() for values in made.sums(["a", "r0", "r1"])]

    assert on_ranks(monkeypatch, 2, work) == [[[4.0, 1.0, 1.0], [2.0, 1.0, 1.0]]] * 2


def test_history_holds_the_losses_of_the_steps_of_every_pair(tmp_path: Path) -> None:
    """With a learning rate of 0 every step has the losses of the model, which numpy computes here from its weights."""
    has_partner = torch.arange(6) != 4
    x, partners, labels = (values.numpy() for values in points.points(6))
    trainer = points.trainer(tmp_path, points.pairs(6, has_partner), method="da", learning_rate=0.0)
    trainer.train()
    weight, bias = (value.detach().numpy() for value in (trainer.model.linear.weight[0], trainer.model.linear.bias))

    def losses(inputs: np.ndarray) -> np.ndarray:
        logits = inputs @ weight + bias
        return np.logaddexp(0.0, np.where(labels > 0.5, -logits, logits))

    sums, steps = trainer.pair_history.sums([str(row) for row in range(6)])
    expected = has_partner.numpy() * 2 * (np.sqrt(losses(x)) - np.sqrt(losses(partners)))
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    assert steps.tolist() == [2, 2, 2, 2, 0, 2]


@pytest.mark.parametrize("settings", [{"method": "erm"}, {"pair_history": False}])
def test_a_run_without_partners_or_without_history_keeps_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    trainer = points.trainer(tmp_path, points.pairs(4), max_steps=1, **settings)
    trainer.train()
    assert trainer.pair_history.sums([str(row) for row in range(4)])[1].sum() == 0


@pytest.mark.usefixtures("plain_page")
def test_without_history_the_run_is_the_same_and_the_report_ranks_by_the_final_model(tmp_path: Path) -> None:
    runs = [points.trainer(tmp_path / str(kept), points.pairs(4), pair_history=kept) for kept in (True, False)]
    for run in runs:
        run.train()
    assert torch.equal(*map(points.weights, runs))
    kept, none = (run.pair_report(folder=tmp_path) for run in runs)
    assert (kept.summary["steps_per_pair"], none.summary["steps_per_pair"]) == (2.0, 0.0)
    np.testing.assert_allclose(none.pairs["score"], none.pairs["consistency"])
    assert kept.pairs["score"] != none.pairs["score"]
