"""Attention in blocks equals attention with the whole mask, computes less, and is used where it is meant to be."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dair_hf.trees import block_attention
from dair_hf.trees.attention import attention_inputs, tree_mask
from dair_hf.trees.block_attention import attend_in_blocks, blocks_of
from dair_hf.trees.forest import TokenTree, token_trees
from tests.fixtures import tiny
from tests.trees.test_exactness import build

LIMIT = 8  # nodes of a block


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_attention, "QUERIES", LIMIT)


def random_tree(seed: int, rows: int = 12, tokens: int = 20, groups: int = 2) -> TokenTree:
    """Rows of random lengths over few token ids, which share random prefixes."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(1, 3, (rows, tokens))
    lengths = generator.integers(1, tokens + 1, rows)
    return token_trees(ids, lengths, np.arange(rows) % groups, None).trees[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_block_holds_exactly_what_its_nodes_see(seed: int) -> None:
    tree = random_tree(seed)
    mask = tree_mask(tree)
    blocks = blocks_of(mask, tree.ends)
    assert sum(blocks.queries) == len(tree.ends)
    start = 0
    for queries, keys, part in zip(blocks.queries, blocks.keys.split(blocks.counts), blocks.masks, strict=True):
        seen = mask[0, 0, start : start + queries]
        assert keys.tolist() == [*seen.any(0)[:start].nonzero()[:, 0].tolist(), *range(start, start + queries)]
        assert torch.equal(part[0, 0], seen[:, keys])
        assert part.sum() == seen.sum()
        start += queries


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("heads", [1, 4])
def test_values_and_gradients(heads: int, window: int | None) -> None:
    tree = random_tree(0)
    size, generator = len(tree.ends), torch.Generator().manual_seed(0)
    shapes = [(1, 4, size, 6), (1, heads, size, 6), (1, heads, size, 6)]
    module = torch.nn.Module()
    module.num_key_value_groups = 4 // heads  # type: ignore[assignment]
    found = []
    for mask in (tree_mask(tree, window), attend_in_blocks(tree_mask(tree, window), tree.ends)):
        generator.manual_seed(0)
        states = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
        output, weights = ALL_ATTENTION_FUNCTIONS["sdpa"](module, *states, mask, dropout=0.0, scaling=0.3)
        assert weights is None
        (output * torch.randn(output.shape, generator=generator)).sum().backward()
        found.append([output, *(state.grad for state in states)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of scores of every call of torch's attention."""
    computed: list[int] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def counting(query: Any, key: Any, *args: Any, **settings: Any) -> Any:
        computed.append(query.shape[-2] * key.shape[-2])
        return attention(query, key, *args, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counting)
    return computed


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen2_window", "gpt2", "gpt_neox", "opt", "phi", "gemma3"])
def test_models_compute_less(name: str, scores: list[int]) -> None:
    tree = random_tree(1)
    blocks = blocks_of(tree_mask(tree), tree.ends)
    build(name)(**attention_inputs(tree, build(name)))
    assert len(scores) == 2 * len(blocks.queries)  # two layers
    assert sum(scores) == 2 * np.dot(blocks.queries, blocks.counts)
    assert sum(scores) < len(tree.ends) ** 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_in_blocks_again(reentrant: bool, scores: list[int]) -> None:
    model = build("llama")
    model.train()
    tree = random_tree(1)
    getattr(model, f"{tiny.CHECKPOINTING}_enable")({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    loss = model(**attention_inputs(tree, model)).logits.sum()
    forward = len(scores)
    loss.backward()
    assert scores[forward:] == scores[:forward]
    assert forward > 2


def test_rows_and_changed_masks_run_as_before(scores: list[int]) -> None:
    model, tree = build("llama"), random_tree(1)
    inputs = attention_inputs(tree, model)
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    model(**inputs)
    assert scores == [len(tree.ends) ** 2] * 2
    model(input_ids=tree.input_ids[None])
    assert len(scores) == 4


def test_small_trees_and_other_devices_have_no_blocks(scores: list[int]) -> None:
    model, tree = build("llama"), random_tree(1, rows=1, tokens=LIMIT)
    model(**attention_inputs(tree, model))
    assert scores == [len(tree.ends) ** 2] * 2
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool, device="meta")
    assert attend_in_blocks(mask, torch.ones(20, device="meta")) not in block_attention._BLOCKS


def test_compiled_models_use_the_mask() -> None:
    model, tree = build("llama"), random_tree(2)
    inputs = attention_inputs(tree, model)
    expected = model(**inputs).logits
    torch.testing.assert_close(torch.compile(model, backend="eager")(**inputs).logits, expected)


def test_blocks_are_freed_with_their_mask() -> None:
    tree = random_tree(3)
    before = len(block_attention._BLOCKS)
    mask = attend_in_blocks(tree_mask(tree), tree.ends)
    assert len(block_attention._BLOCKS) == before + 1
    del mask
    gc.collect()
    assert len(block_attention._BLOCKS) == before
