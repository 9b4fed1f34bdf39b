"""The probe before the first step: models that are not exact are refused, whatever the first batch holds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from dair_hf import DataError, PairCollator
from dair_hf.trees.batches import ForestCollator
from dair_hf.trees.forest import prefix_table
from dair_hf.trees.tree_loss import probe_rows
from tests.fixtures import tiny
from tests.fixtures.dialog_rows import dialog_rows
from tests.trees.test_exactness import REFUSED, build, losses_and_gradients

# What all refusals say.
CAUSES = "without recurrence, biases of position, rotary frequencies that depend on the longest row .*, or masks of"
GLOBAL = [[["global"], 2]]
LOCAL = [[["global", "local"], 1]]


def rows_of(prompts: list[list[int]], targets: int = 1) -> list[dict[str, Any]]:
    labels = [[*[-100] * (len(ids) - targets), *ids[len(ids) - targets :]] for ids in prompts]
    columns = {"input_ids": prompts, "attention_mask": [[1] * len(ids) for ids in prompts], "labels": labels}
    return datasets.Dataset.from_dict({"dialogue_id": ["a"] * len(prompts), **columns}).to_list()


def batch_of_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    collator = PairCollator(DataCollatorForSeq2Seq(tiny.tokenizer(), model=None))
    batch: dict[str, Any] = ForestCollator(collator, "dialogue_id", None)(rows)
    return batch


FIRST_BATCHES = {
    "one row": rows_of([[5, 6, 7, 8]]),
    "equal rows": rows_of([[5, 6, 7, 8]] * 3),
    "one token": rows_of([[5, 5, 5, 5], [5, 5, 5]]),
    "no targets": rows_of([[5, 6, 7, 8], [5, 6, 7, 9]], targets=0),
    "branches": list(dialog_rows(dialogs=1)),
}


@pytest.mark.parametrize("rows", FIRST_BATCHES.values(), ids=FIRST_BATCHES)
@pytest.mark.parametrize("name", ["mpt", "falcon_alibi", "gpt2", "gemma3"])
def test_any_first_batch_is_enough_to_judge_a_model(name: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    refused = pytest.raises(DataError, match=rf"share_prefixes and \w+ cannot be combined: .*{CAUSES}")
    with refused if name in REFUSED else contextlib.nullcontext():
        losses_and_gradients(build(name, "eager"), batch_of_rows(rows), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window_size": 256, "max_position_embeddings": 2048, "attention_types": LOCAL}, "its logits differ"),
        ({"max_position_embeddings": 512, "attention_types": GLOBAL}, "it cannot run a tree"),
    ],
    ids=["window", "positions"],
)
def test_tables_of_nodes_that_first_batches_do_not_fill_are_noticed(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    history = np.random.default_rng(0).integers(4, tiny.VOCAB, 90).tolist()
    rows = rows_of([[*history, *[4 + row] * 10] for row in range(10)])  # 190 nodes
    with pytest.raises(DataError, match=f"{message}.*{CAUSES}"):
        losses_and_gradients(build("gpt_neo", "eager", **settings), batch_of_rows(rows), tmp_path)


def test_positions_that_depend_on_the_longest_row_are_noticed(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    rows = list(dialog_rows(dialogs=1))
    settings = {"rope_parameters": rope, "max_position_embeddings": 64}
    losses_and_gradients(build("llama", **settings), batch_of_rows(rows), tmp_path)
    with pytest.raises(DataError, match=f"its logits differ.*{CAUSES}"):
        losses_and_gradients(build("llama", **settings), batch_of_rows(rows), tmp_path, longest_row=100)


@pytest.mark.parametrize(
    ("depth", "nodes"), [(2, 1024), (31, 1024), (200, 1024), (1000, 1024), (1500, 1024), (40, 3000)]
)
def test_probes_have_the_size_of_large_trees(depth: int, nodes: int) -> None:
    model = build("llama", max_position_embeddings=2048)
    for tokens in ([5], [5, 6], list(range(20)), []):
        rows = probe_rows(model, np.array(tokens, dtype=np.int64), depth, nodes)
        assert rows.shape[1] == max(depth, 32)
        table = prefix_table(rows, np.full(len(rows), rows.shape[1]), np.zeros(len(rows), dtype=np.int64))
        assert table.new_nodes.sum() > max(0.6 * nodes, rows.shape[1])
        assert set(tokens) <= set(rows.flat) or depth < len(tokens)
    assert probe_rows(build("gpt2", n_positions=16), np.array([5]), 3).shape[1] == 16


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 4.0, 9.0, 20.0],
    "original_max_position_embeddings": 12,
}


@pytest.mark.parametrize("longest_row", [0, 40])
def test_a_length_from_which_on_frequencies_change_is_noticed(tmp_path: Path, longest_row: int) -> None:
    model = build("llama", rope_parameters=LONGROPE)
    with pytest.raises(DataError, match=CAUSES):
        losses_and_gradients(model, batch_of_rows(rows_of([[5, 6, 7, 8]])), tmp_path, longest_row=longest_row)


def rounded(model: Any, precision: str) -> tuple[Any, Any]:
    """Return a model of a precision, and the context in which it is run."""
    if precision == "autocast":
        return model.float(), torch.autocast("cpu", dtype=torch.bfloat16)
    return model.to(getattr(torch, precision)), contextlib.nullcontext()


@pytest.mark.parametrize("precision", ["autocast", "bfloat16"])
def test_rounding_is_not_taken_for_another_structure(precision: str, tmp_path: Path) -> None:
    """Logits of many layers with large weights differ by more in bfloat16 than any tolerance of structure allows."""
    model, context = rounded(build("llama", num_hidden_layers=12), precision)
    with torch.no_grad(), context:
        for weight in model.parameters():
            weight.mul_(1.5)
        ids = torch.arange(4, 20)[None]
        logits = model(input_ids=ids).logits[0]
    types = {name: weight.dtype for name, weight in model.named_parameters()}
    with context:
        losses_and_gradients(model, batch_of_rows(rows_of([[5, 6, 7, 8]])), tmp_path)
    assert {name: weight.dtype for name, weight in model.named_parameters()} == types
    exact = rounded(model, "float32")[0](input_ids=ids).logits[0]
    assert (logits - exact).abs().max() > 3e-2 * exact.abs().max()


@pytest.mark.parametrize("precision", ["autocast", "bfloat16", "float64"])
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_structure_is_judged_in_every_precision(name: str, precision: str, tmp_path: Path) -> None:
    model, context = rounded(build(name, "eager"), precision)
    with context, pytest.raises(DataError, match=CAUSES):
        losses_and_gradients(model, batch_of_rows(list(dialog_rows(dialogs=1))), tmp_path)


@pytest.mark.parametrize(
    ("error", "dtype", "quantized"),
    [(1e-4, torch.float64, False), (1e-3, torch.float32, False), (5e-2, torch.float32, True)],
)
def test_a_model_that_is_wrong_by_a_little_is_refused(
    error: float, dtype: torch.dtype, quantized: bool, tmp_path: Path
) -> None:
    """Its logits depend on the number of tokens in the forward, by a small share of the largest one."""
    model = build("llama").to(dtype)
    model.is_quantized = quantized

    def shift(head: torch.nn.Module, args: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits * (1 + error * (model.length > 64))

    model.lm_head.register_forward_hook(shift)
    model.register_forward_pre_hook(
        lambda module, args, named: setattr(module, "length", named["input_ids"].shape[1]), with_kwargs=True
    )
    with pytest.raises(DataError, match=CAUSES):
        losses_and_gradients(model, batch_of_rows(rows_of([[5, 6, 7, 8]])), tmp_path)
