"""Packed views against padded ones: the same tokens, losses and gradients; refused where they cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dair_hf import DataError
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.packing import pack, unpack
from tests.fixtures import tiny


def test_packed_tokens_come_back_where_they_stood() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]])
    ids = torch.arange(1, 13).reshape(4, 3)
    packed, places = pack({"input_ids": ids, "attention_mask": mask})
    assert packed["input_ids"].tolist() == [[1, 2, 4, 5, 6, 10]]
    assert packed["position_ids"].tolist() == [[0, 1, 0, 1, 2, 0]]
    assert torch.equal(unpack(packed["input_ids"], places), ids * mask)
    wide = torch.stack([packed["input_ids"], -packed["input_ids"]], dim=-1)
    assert torch.equal(unpack(wide, places)[..., 1], -ids * mask)


def test_other_columns_are_refused() -> None:
    with pytest.raises(
        DataError, match="found .'attention_mask', 'input_ids', 'pixel_values'.; set pair_packing=False"
    ):
        pack(dict.fromkeys(("input_ids", "attention_mask", "pixel_values"), torch.ones(1, 1)))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_packed_views_have_the_losses_and_gradients_of_padded_ones(tmp_path: Path, kind: str, chunked: bool) -> None:
    """On the CPU with a dense mask, by which `transformers` keeps packed rows apart where no kernel does."""
    found = []
    for packing in (False, True):
        made = tiny.trainer(tmp_path, kind, tiny.pairs(kind, 9), dair_lambda=2.0)
        made.args.pair_packing = packing
        made.pair_loss.chunked = ChunkedLoss(made.model, shifts_labels=True, tokens=3) if chunked else None
        batch = made.data_collator([dict(row) for row in made.train_dataset])
        rows = []
        made.model.register_forward_pre_hook(
            lambda _, __, inputs, rows=rows: rows.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
        )
        terms = made.pair_loss(made.model, batch, True).terms
        made.pair_loss.objective(terms, made.pair_loss.count(batch)).backward()
        gradients = {name: value.grad for name, value in made.model.named_parameters()}
        found.append((terms, gradients, rows))
    (padded, padded_gradients, padded_rows), (packed, packed_gradients, packed_rows) = found
    assert packed_rows[-1] == (1, int(batch["attention_mask"].sum()))  # and before it two rows, verified in chunks
    assert len(packed_rows) == (5 if chunked else 1)
    assert padded_rows[0][0] > 1
    for one, other in zip(padded, packed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for name, gradient in padded_gradients.items():
        torch.testing.assert_close(gradient, packed_gradients[name], rtol=0, atol=1e-12)


def test_attention_that_would_mix_views_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="pair_packing=True and attn_implementation='sdpa', which .* cannot hold together.*on a GPU"
    ):
        tiny.trainer(tmp_path, "llama", None, pair_packing=True)
    with pytest.raises(ValueError, match="sample_loss=seq2seq_nll, which is not that of a decoder-only model"):
        tiny.trainer(tmp_path, "t5", None, pair_packing=True)


def test_the_cpu_is_refused_for_kernels_without_a_backward_pass(tmp_path: Path) -> None:
    built = tiny.model("llama")
    built.config = SimpleNamespace(_attn_implementation="flex_attention")  # what the check reads
    with pytest.raises(
        ValueError, match="pair_packing=True and the CPU, .* cannot hold together.*max_tokens_per_batch"
    ):
        tiny.trainer(tmp_path, "llama", None, built=built, pair_packing=True)
