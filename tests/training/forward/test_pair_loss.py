"""Terms and counts of batches: views that are run, number of forwards, counted targets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DataCollatorForSeq2Seq, default_data_collator

from dair_hf import DataError, PairCollator
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.per_sample import SAMPLE_LOSSES, causal_nll, cross_entropy, seq2seq_nll, soft_score
from dair_hf.training.forward.pair_loss import PairLoss
from dair_hf.trees.forest import build_forest
from dair_hf.trees.tree_loss import TreeForward
from tests.fixtures import tiny
from tests.fixtures.tiny import NormedClassifier, NormedConfig, classified_pairs, config


class Recorder(nn.Module):
    """Returns its inputs as logits and records them."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[list[float]] = []

    def forward(self, logits: torch.Tensor) -> SimpleNamespace:
        self.runs.append(logits.flatten(1)[:, 0].tolist())
        return SimpleNamespace(logits=logits)


def classes(*rows: tuple[list[float], int, list[float] | None, int | None]) -> dict[str, Any]:
    """Return a batch of logits and classes."""
    features = [
        {"logits": one, "labels": label, "augmented_logits": other, "augmented_labels": other_label}
        for one, label, other, other_label in rows
    ]
    return PairCollator(default_data_collator)(features)


MIXED = (([1.0, 0.0], 0, [3.0, 0.0], 1), ([2.0, 0.0], 1, None, None), ([5.0, 0.0], 0, [4.0, 0.0], 0))


def nll(logits: list[float], label: int) -> float:
    return float(np.log(np.exp(logits).sum()) - logits[label])


def test_terms_of_a_mixed_batch_by_hand_from_one_forward(tmp_path: Path) -> None:
    model = Recorder()
    found = PairLoss(config(tmp_path), cross_entropy)(model, classes(*MIXED), with_partners=True)
    terms, targets, outputs = found.terms, found.targets, found.outputs
    assert model.runs == [[1.0, 3.0, 2.0, 5.0, 4.0]]
    original = [nll([1, 0], 0), nll([2, 0], 1), nll([5, 0], 0)]
    augmented = [nll([3, 0], 1), 0.0, nll([4, 0], 0)]
    gaps = [(np.sqrt(a + 1e-7) - np.sqrt(b + 1e-7)) ** 2 for a, b in zip(original, augmented, strict=True)]
    np.testing.assert_allclose(terms.original.numpy(), original, rtol=1e-5)
    np.testing.assert_allclose(terms.augmented.numpy(), augmented, rtol=1e-5)
    np.testing.assert_allclose(terms.consistency.numpy(), [gaps[0], 0.0, gaps[2]], rtol=1e-4)
    assert terms.has_partner.tolist() == [True, False, True]
    assert targets.tolist() == [[1, 1], [1, 0], [1, 1]]
    assert len(outputs.logits) == 5
    assert found.was_run.tolist() == [[True, True], [True, False], [True, True]]


def test_method_augmented_does_not_run_originals_of_pairs(tmp_path: Path) -> None:
    model, pair_loss = Recorder(), PairLoss(config(tmp_path, method="augmented"), cross_entropy)
    found = pair_loss(model.train(), classes(*MIXED), with_partners=True)
    assert model.runs == [[3.0, 2.0, 4.0]]
    np.testing.assert_allclose(found.terms.augmented.numpy(), [nll([3, 0], 1), 0.0, nll([4, 0], 0)], rtol=1e-5)
    np.testing.assert_allclose(found.terms.original.numpy(), [0.0, nll([2, 0], 1), 0.0], rtol=1e-5)
    assert found.terms.has_partner.tolist() == [True, False, True]
    assert found.was_run.tolist() == [[False, True], [True, False], [False, True]]
    evaluated = pair_loss(model.eval(), classes(*MIXED), with_partners=True)
    assert model.runs[1] == [1.0, 3.0, 2.0, 5.0, 4.0]
    assert evaluated.terms.original[0].item() == pytest.approx(nll([1, 0], 0), rel=1e-5)


def test_mart_by_hand(tmp_path: Path) -> None:
    pair_loss = PairLoss(config(tmp_path, method="mart", regularizer="kl"), cross_entropy)
    terms = pair_loss(Recorder(), classes(*MIXED), with_partners=True).terms
    p = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    q = np.exp([3.0, 0.0]) / np.exp([3.0, 0.0]).sum()
    # First pair: class 0; partner of class 1, whose strongest rival is class 0.
    assert terms.augmented[0].item() == pytest.approx(-np.log(q[1]) - np.log(1.0001 - q[0]), rel=1e-5)
    assert terms.consistency[0].item() == pytest.approx((1 - p[1]) * (p * np.log(p / q)).sum(), rel=1e-5)
    assert (terms.augmented[1].item(), terms.consistency[1].item()) == (0.0, 0.0)
    assert terms.original.tolist() == pytest.approx([nll([1, 0], 0), nll([2, 0], 1), nll([5, 0], 0)], rel=1e-5)
    soft = {**classes(*MIXED), "labels": torch.ones(3, 2, 2)}
    with pytest.raises(DataError, match=r"method='mart': .* \[3, 2, 2\]"):
        PairLoss(config(tmp_path, method="mart", regularizer="kl"), soft_score)(Recorder(), soft, with_partners=True)


def test_separate_mode_runs_one_forward_per_view(tmp_path: Path) -> None:
    joint, separate = Recorder(), Recorder()
    batch = classes(*MIXED)
    expected = PairLoss(config(tmp_path), cross_entropy)(joint, batch, with_partners=True).terms
    found = PairLoss(config(tmp_path, forward_mode="separate"), cross_entropy)(
        separate, batch, with_partners=True
    ).terms
    assert separate.runs == [[1.0, 2.0, 5.0], [3.0, 4.0]]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def test_separate_forwards_have_separate_batch_norm_statistics(tmp_path: Path) -> None:
    batch = PairCollator(default_data_collator)([dict(row) for row in classified_pairs(rows=8)])
    means = {}
    for mode in ("joint", "separate"):
        torch.manual_seed(0)
        model = NormedClassifier(NormedConfig()).double().train()
        batch["features"] = batch["features"].double()
        PairLoss(config(tmp_path, forward_mode=mode), cross_entropy)(model, batch, with_partners=True)
        means[mode] = model.norm.running_mean.numpy()
    first, second = batch["features"][:, 0].numpy().mean(0), batch["features"][:, 1].numpy().mean(0)
    # Momentum 0.1: one update with the mean of all rows, or one per view with its mean.
    np.testing.assert_allclose(means["joint"], 0.1 * (first + second) / 2)
    np.testing.assert_allclose(means["separate"], 0.9 * 0.1 * first + 0.1 * second)


def test_without_partners_only_originals_are_run(tmp_path: Path) -> None:
    model = Recorder()
    terms = PairLoss(config(tmp_path, method="erm"), cross_entropy)(model, classes(*MIXED), with_partners=False).terms
    assert model.runs == [[1.0, 2.0, 5.0]]
    assert terms.augmented.tolist() == terms.consistency.tolist() == [0.0, 0.0, 0.0]
    assert not terms.has_partner.any()


@pytest.mark.parametrize("mode", ["joint", "separate"])
def test_a_batch_of_masked_rows_runs_and_counts_nothing(tmp_path: Path, mode: str) -> None:
    model, batch = Recorder(), classes(*MIXED)
    batch["view_mask"][:] = False
    batch["logits"].requires_grad_()
    pair_loss = PairLoss(config(tmp_path, forward_mode=mode), cross_entropy)
    terms = pair_loss(model, batch, with_partners=True).terms
    counts = pair_loss.count(batch)
    assert [int(count) for count in counts] == [0, 0, 0]
    assert model.runs == [[1.0, 2.0, 5.0]]
    terms.original.sum().backward()
    assert batch["logits"].grad.abs().sum() == 0.0


def sequences(*rows: tuple[list[int], list[int] | None]) -> dict[str, Any]:
    """Return a batch of label sequences of one length."""
    features = [
        {"x": [0.0], "labels": one, "augmented_x": [0.0] if other else None, "augmented_labels": other}
        for one, other in rows
    ]
    return PairCollator(default_data_collator)(features)


def test_counts_of_sequences_by_hand(tmp_path: Path) -> None:
    batch = sequences(([5, 6, -100], [7, -100, -100]), ([5, -100, -100], None), ([5, 6, 7], [-100, -100, -100]))
    pair_loss = PairLoss(config(tmp_path), seq2seq_nll)
    assert pair_loss.target_rule.counts(batch).tolist() == [[2, 1], [1, 0], [3, 0]]
    # The third partner has no targets: its row is trained as a row without a partner.
    assert [int(count) for count in pair_loss.count(batch)] == [3, 1, 2 + 1 + 3 + 1]
    erm = PairLoss(config(tmp_path, method="erm"), seq2seq_nll)
    assert [int(count) for count in erm.count(batch)] == [3, 0, 6]


@pytest.mark.parametrize(("labels", "expected"), [([1, -100], [[1], [0]]), ([0.5, 0.0], [[1], [1]])])
def test_a_class_or_a_number_is_one_target(tmp_path: Path, labels: list[float], expected: list[list[int]]) -> None:
    batch = PairCollator(default_data_collator)([{"x": [0.0], "labels": label} for label in labels])
    found = PairLoss(config(tmp_path), cross_entropy).target_rule.counts(batch)
    assert found.tolist() == expected
    assert found.dtype == torch.int64


def test_soft_labels_are_one_target_unless_they_are_zero(tmp_path: Path) -> None:
    features = [
        {"x": [0.0], "labels": [0.6, 0.4], "augmented_x": [0.0], "augmented_labels": [0.0, 0.0]},
        {"x": [0.0], "labels": [0.0, 0.1], "augmented_x": [0.0], "augmented_labels": [1.0, 0.0]},
        {"x": [0.0], "labels": [0.0, 0.0], "augmented_x": None, "augmented_labels": None},
    ]
    batch = PairCollator(default_data_collator)(features)
    pair_loss = PairLoss(config(tmp_path), soft_score)
    assert pair_loss.target_rule.counts(batch).tolist() == [[1, 0], [1, 1], [0, 0]]
    # The first partner has no answer in the vocabulary: no pair. Without `soft_labels` it would be one.
    assert [int(count) for count in pair_loss.count(batch)] == [3, 1, 3]
    assert int(PairLoss(config(tmp_path), lambda outputs, labels: labels[:, 0]).count(batch).pairs) == 2


def test_a_row_without_a_target_is_zero_with_any_logits(tmp_path: Path) -> None:
    batch = classes(([1.0, 0.0], -100, [3.0, 0.0], 1), ([1.0, 0.0], 0, [3.0, 0.0], -100))
    terms, targets, *_ = PairLoss(config(tmp_path), cross_entropy)(Recorder(), batch, with_partners=True)
    assert terms.has_partner.tolist() == [False, False]
    assert terms.original[0] == 0.0
    assert terms.original[1] > 0.0
    assert terms.augmented.tolist() == terms.consistency.tolist() == [0.0, 0.0]
    assert targets.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("regularizer", ["kl", "js"])
@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_feature_consistency_of_sequences_uses_logits_that_predict_targets(
    tmp_path: Path, kind: str, regularizer: str
) -> None:
    """Sources of different lengths with equal targets: targets align one to one, at any position in the batch."""
    sources, target = [[5, 6, 7], [8], [9, 4]], [11, 12, 1]
    model = tiny.model(kind)

    def distributions(source: list[int]) -> np.ndarray:
        view = tiny.view(kind, source, target)
        with torch.no_grad():
            if kind == "gpt2":
                logits = model(input_ids=torch.tensor([view["input_ids"]])).logits[0, len(source) - 1 : -1]
            else:
                start = torch.tensor([[tiny.EOS, *target[:-1]]])
                logits = model(input_ids=torch.tensor([source]), decoder_input_ids=start).logits[0]
        powers = np.exp(logits.numpy())
        return powers / powers.sum(-1, keepdims=True)

    partner = {f"augmented_{name}": value for name, value in tiny.view(kind, sources[1], target).items()}
    features = [{**tiny.view(kind, source, target), **partner} for source in (sources[0], sources[2])]
    features.insert(1, tiny.view(kind, sources[2], [13, 1]))  # no partner, in between
    batch = PairCollator(DataCollatorForSeq2Seq(tiny.tokenizer(), model=None))(features)
    pair_loss = PairLoss(
        tiny.config(tmp_path, regularizer=regularizer),
        SAMPLE_LOSSES[tiny.SAMPLE_LOSS[kind]],
        getattr(model, "prepare_decoder_input_ids_from_labels", None) if kind == "bart" else None,
    )
    q = distributions(sources[1])
    expected = []
    for p in (distributions(sources[0]), distributions(sources[2])):
        m = (p + q) / 2
        js = ((p * np.log(p / m)).sum() + (q * np.log(q / m)).sum()) / 2
        expected.append((p * np.log(p / q)).sum() if regularizer == "kl" else js)
    found = pair_loss(model, batch, with_partners=True).terms.consistency
    np.testing.assert_allclose(found.detach().numpy(), [expected[0], 0.0, expected[1]], rtol=1e-9)
    assert min(expected) > 1e-3


def test_erm_and_da_compute_consistency_without_gradient(tmp_path: Path) -> None:
    batch = classes(*MIXED)
    batch["logits"].requires_grad_()
    for method, regularizer, measured in (("da", "sq", True), ("erm", "l1", True), ("da", "kl", False)):
        args = config(tmp_path, method=method, regularizer=regularizer)
        terms = PairLoss(args, cross_entropy)(Recorder(), batch, with_partners=True).terms
        assert (terms.consistency[0] > 0) == measured
        assert not terms.consistency.requires_grad
        assert terms.original.requires_grad


def test_the_model_gets_decoder_inputs_instead_of_labels(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Decoder(nn.Module):
        def forward(self, **inputs: Any) -> SimpleNamespace:
            seen.update(inputs)
            return SimpleNamespace(logits=torch.zeros(*inputs["decoder_input_ids"].shape, 9))

    def shift(labels: torch.Tensor) -> torch.Tensor:
        return labels.roll(1, -1)

    batch = sequences(([5, 6, 7], None))
    PairLoss(config(tmp_path), seq2seq_nll, decoder_inputs=shift)(Decoder(), batch, with_partners=True)
    assert set(seen) == {"x", "decoder_input_ids"}
    assert seen["decoder_input_ids"].tolist() == [[7, 5, 6]]


@pytest.mark.parametrize("returned", [torch.tensor(1.0), torch.ones(5, 2), 3.0])
def test_a_sample_loss_that_reduces_is_refused(tmp_path: Path, returned: Any) -> None:
    def reducing(outputs: Any, labels: torch.Tensor) -> Any:
        return returned

    with pytest.raises(DataError, match=r"sample_loss: .* \[5\]"):
        PairLoss(config(tmp_path), reducing)(Recorder(), classes(*MIXED), with_partners=True)


def test_losses_in_half_precision_are_combined_in_full(tmp_path: Path) -> None:
    def halved(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, labels).bfloat16()

    found = PairLoss(config(tmp_path), halved)(Recorder(), classes(*MIXED), with_partners=True)
    assert found.losses.dtype == found.losses_at_scale(torch.ones(())).dtype == torch.float32


def padded_batch(left: bool, with_mask: bool = True) -> dict[str, Any]:
    """All tokens are labels, also the first one; the second row has one token in its partner."""
    views = [[[5, 6, 7, 8, 9, 10], [5, 6, 7, 4]], [[5, 6, 7], [9]], [[8, 4], None]]
    shape = (3, 2, 6)
    ids, mask, labels = (torch.full(shape, fill) for fill in (tiny.PAD, 0, -100))
    for row, pair in enumerate(views):
        for view, tokens in enumerate(pair):
            if tokens is not None:
                columns = slice(6 - len(tokens), 6) if left else slice(len(tokens))
                ids[row, view, columns] = labels[row, view, columns] = torch.tensor(tokens)
                mask[row, view, columns] = 1
    batch = {"input_ids": ids, "labels": labels, "view_mask": torch.tensor([[True, True], [True, True], [True, False]])}
    return {**batch, "attention_mask": mask} if with_mask else batch


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(
    ("settings", "trees"),
    [({}, False), ({}, True), ({"chunked_loss": True}, False), ({"regularizer": "kl"}, False)],
    ids=["rows", "trees", "chunks", "kl"],
)
def test_a_token_without_predecessor_is_no_target(
    tmp_path: Path, settings: dict[str, Any], trees: bool, left: bool
) -> None:
    model = tiny.model("llama").eval()
    chunked = ChunkedLoss(model, True) if "chunked_loss" in settings else None
    batch = padded_batch(left)
    if trees:
        batch["forest"] = build_forest(batch, ["a", "a", "b"])
    forward = TreeForward(chunked) if trees else None
    pair_loss = PairLoss(config(tmp_path, **settings), causal_nll, chunked=chunked, trees=forward)
    found = pair_loss(model, batch, with_partners=True)

    def log_p(*tokens: int) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=torch.tensor([tokens])).logits[0]
        return logits.log_softmax(-1)

    def alone(*tokens: int) -> float:
        return -sum(log_p(*tokens)[at - 1, token].item() for at, token in enumerate(tokens) if at)

    originals, partner = [alone(5, 6, 7, 8, 9, 10), alone(5, 6, 7), alone(8, 4)], alone(5, 6, 7, 4)
    assert found.terms.original.tolist() == pytest.approx(originals, rel=1e-6)
    assert found.terms.augmented.tolist() == pytest.approx([partner, 0, 0], rel=1e-6)
    assert found.terms.has_partner.tolist() == [True, False, False]
    assert found.targets.tolist() == [[5, 3], [2, 0], [1, 0]]
    assert [int(count) for count in pair_loss.count(batch)] == [3, 1, 5 + 3 + 2 + 1]
    if "regularizer" in settings:
        # 6 and 7 align with themselves, 8 with 4; 9 and 10 with nothing.
        one, other = log_p(5, 6, 7, 8, 9, 10)[:3], log_p(5, 6, 7, 4)[:3]
        assert found.terms.consistency[0].item() == pytest.approx((one.exp() * (one - other)).sum().item(), rel=1e-5)


def test_without_an_attention_mask_only_the_first_column_has_no_predecessor(tmp_path: Path) -> None:
    rule = PairLoss(config(tmp_path), causal_nll).target_rule
    assert rule.counts(padded_batch(left=True, with_mask=False)).tolist() == [[5, 4], [3, 1], [2, 0]]
    gap = {"labels": torch.tensor([[[-100, 5, 6]]]), "attention_mask": torch.tensor([[[1, 0, 1]]])}
    assert rule.counts({**gap, "view_mask": torch.tensor([[True]])}).tolist() == [[2]]
