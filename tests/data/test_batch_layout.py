"""Layouts of batches by hand: views, targets, counts and aligned targets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import default_data_collator

from dair_hf import DataError, PairCollator
from dair_hf.data.batch_layout import BatchLayout, LayoutCollator, TargetRule
from dair_hf.data.collator import add_partners
from dair_hf.losses.per_sample import seq2seq_nll
from dair_hf.training.forward.pair_loss import PairLoss
from tests.fixtures import tiny
from tests.losses.test_divergence import divergence

LABELS = torch.tensor(
    [
        [[-100, 1, 3, 3, 2, -100], [1, 0, 2, -100, -100, -100]],  # 1~1, <3 3>~<0> from the left, 2~2
        [[5, -100, -100, -100, -100, -100], [-100] * 6],  # no partner
        [[4, 4, -100, -100, -100, -100], [-100] * 6],  # a partner without a target
        [[1, 2, -100, -100, -100, -100], [-100, 1, 2, -100, -100, -100]],
    ]
)
MASK = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
ALIGNED = {0: [(1, 0), (2, 1), (4, 2)], 3: [(0, 1), (1, 2)]}


class Given(nn.Module):
    """Model that returns given logits."""

    def forward(self, given: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=given)


def batch(**columns: Any) -> dict[str, Any]:
    return {"labels": LABELS, "view_mask": MASK, **columns}


def test_a_layout_by_hand() -> None:
    found = TargetRule(aligns=True).layout(batch())
    assert found.exists.tolist() == MASK.tolist()
    assert found.targets.tolist() == [[4, 3], [1, 0], [2, 0], [2, 2]]
    assert found.paired.tolist() == [True, False, False, True]
    assert found.aligned.T.tolist() == [[row, 1, *at] for row, places in ALIGNED.items() for at in places]
    assert found.counts(with_partners=True).tolist() == [4, 2, 4 + 3 + 1 + 2 + 2 + 2]
    assert found.counts(with_partners=False).tolist() == [4, 0, 9]
    assert found.originals().counts(with_partners=True).tolist() == [4, 0, 9]
    assert found.first(1).counts(with_partners=True).tolist() == [1, 1, 7]
    assert found.first(1).aligned.tolist() == found.aligned[:, :3].tolist()


def test_a_layout_of_three_views_by_hand() -> None:
    """The second partner of row 0 has a target, that of row 1 no first partner beside it, row 2 no target itself."""
    none = [-100, -100]
    labels = torch.tensor([[[5, 6], none, [6, -100]], [[5, 6], none, [5, 6]], [none, [5, 6], [5, 6]]])
    mask = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    found = TargetRule(aligns=True).layout({"labels": labels, "view_mask": mask})
    assert found.targets.tolist() == [[2, 0, 1], [2, 0, 2], [0, 2, 2]]
    assert found.partners.tolist() == [[False, True], [False, True], [False, False]]
    assert found.paired.tolist() == [True, True, False]
    assert found.counts(with_partners=True).tolist() == [3, 2, 2 + 1 + 2 + 2]
    assert found.aligned.T.tolist() == [[0, 2, 1, 0], [1, 2, 0, 0], [1, 2, 1, 1]]


def test_first_labels_are_no_targets_if_labels_are_shifted() -> None:
    found = TargetRule(shifts_labels=True, aligns=True).layout(batch())
    assert found.targets.tolist() == [[4, 2], [0, 0], [1, 0], [1, 2]]
    # From the second label on: <1 3 3>~<0> from the left, 2~2.
    assert found.aligned[:, found.aligned[0] == 0].tolist() == [[0, 0], [1, 1], [0, 3], [0, 1]]


@pytest.mark.parametrize("regularizer", ["kl", "js"])
def test_sequences_are_compared_at_aligned_targets(tmp_path: Path, regularizer: str) -> None:
    """With given logits a wrong position shows in value and gradient."""
    logits = torch.tensor(np.random.default_rng(1).normal(size=(4, 2, 6, 7)), requires_grad=True)

    pair_loss = PairLoss(tiny.config(tmp_path, regularizer=regularizer), seq2seq_nll)
    made = batch(given=logits)
    for given in (made, {**made, "layout": pair_loss.target_rule.layout(made)}):
        found = pair_loss(Given(), given, with_partners=True).terms.consistency
        values = logits.detach().numpy()
        expected = [
            sum(divergence(values[row, 0, i], values[row, 1, j], regularizer) for i, j in ALIGNED.get(row, []))
            for row in range(4)
        ]
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10)
        (gradient,) = torch.autograd.grad(found.sum(), logits)
        touched = {(row, v, at[v]) for row, places in ALIGNED.items() for at in places for v in (0, 1)}
        assert {tuple(place) for place in (gradient.abs().sum(-1) > 0).nonzero().tolist()} == touched


def test_a_layout_of_another_batch_is_not_used(tmp_path: Path) -> None:
    pair_loss = PairLoss(tiny.config(tmp_path), seq2seq_nll)
    collate = LayoutCollator(PairCollator(default_data_collator), pair_loss.target_rule)
    made = collate([{"x": [1.0], "labels": [5, 6]}, {"x": [2.0], "labels": [7, -100]}])
    assert [int(count) for count in pair_loss.count(made)] == [2, 0, 3]
    paired = add_partners(made, {"x": torch.tensor([[3.0], [4.0]])})
    assert "layout" not in paired
    assert [int(count) for count in pair_loss.count(paired)] == [2, 2, 6]
    assert [int(count) for count in pair_loss.count({**paired, "layout": made["layout"]})] == [2, 2, 6]


@pytest.mark.parametrize("regularizer", ["sq", "kl"])
def test_rows_masked_after_collation_are_not_counted(tmp_path: Path, regularizer: str) -> None:
    pair_loss = PairLoss(tiny.config(tmp_path, regularizer=regularizer), seq2seq_nll)
    logits = torch.randn(4, 2, 6, 7, generator=torch.Generator().manual_seed(0))
    laid_out = {**batch(given=logits), "layout": pair_loss.target_rule.layout(batch())}
    whole = pair_loss(Given(), laid_out, with_partners=True).terms
    masked = pair_loss(Given(), {**laid_out, "view_mask": MASK & torch.arange(4)[:, None].ne(3)}, True).terms
    assert (whole.consistency > 0).tolist() == [True, False, False, True]
    for values, expected in zip(masked, whole, strict=True):
        assert torch.equal(values, expected * torch.tensor([1, 1, 1, 0]).to(expected.dtype))


def test_logits_of_sequences_need_labels_of_sequences(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: Tensor) -> Tensor:
        return outputs.logits.flatten(1).sum(1)

    made = {"given": torch.ones(1, 2, 3, 4), "labels": torch.ones(1, 2, dtype=torch.long), "view_mask": MASK[:1]}
    with pytest.raises(DataError, match=r"regularizer='kl': .* \[1, 2\]"):
        PairLoss(tiny.config(tmp_path, regularizer="kl"), loss)(Given(), made, with_partners=True)


def test_one_view_has_no_pairs() -> None:
    assert not BatchLayout(np.ones((2, 1), bool), np.ones((2, 1), np.int64)).paired.any()
