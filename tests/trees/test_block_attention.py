"""Attention in blocks equals attention with the whole mask, computes less, and is used where it is meant to be."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from dair_hf.trees import attention
from dair_hf.trees.attention import _blocks_of, _tree_mask, _TreeMask, attention_inputs
from dair_hf.trees.attention import _with_blocks as with_blocks
from dair_hf.trees.forest import TokenTree, token_trees
from tests.fixtures import tiny
from tests.trees.test_exactness import build

LIMIT = 8  # nodes of a block


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SMALLEST", LIMIT)
    monkeypatch.setattr(attention, "MOST", 1000)


class Scores(TorchDispatchMode):
    """Collects the number of scores of every call of an attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in func.__name__ and "backward" not in func.__name__:
            self.found.append(args[0].shape[-2] * args[1].shape[-2])
        return func(*args, **(kwargs or {}))


def random_tree(seed: int, rows: int = 12, tokens: int = 20, groups: int = 2) -> TokenTree:
    """Rows of random lengths over few token ids, which share random prefixes."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(1, 3, (rows, tokens))
    lengths = generator.integers(1, tokens + 1, rows)
    return token_trees(ids, lengths, np.arange(rows) % groups, None).trees[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_block_holds_exactly_what_its_nodes_see(seed: int) -> None:
    tree = random_tree(seed)
    mask = _tree_mask(tree)
    blocks = _blocks_of(mask, tree.ends)
    assert sum(blocks.queries) == len(tree.ends)
    start = 0
    for queries, keys, part in zip(blocks.queries, blocks.keys.split(blocks.counts), blocks.masks, strict=True):
        seen = mask[0, 0, start : start + queries]
        assert keys.tolist() == [*seen.any(0)[:start].nonzero()[:, 0].tolist(), *range(start, start + queries)]
        assert torch.equal(part[0, 0], seen[:, keys])
        assert part.sum() == seen.sum()
        start += queries


@pytest.mark.parametrize("window", [None, 3])
def test_values_and_gradients(window: int | None) -> None:
    tree = random_tree(0)
    size, generator = len(tree.ends), torch.Generator().manual_seed(0)
    found = []
    for mask in (_tree_mask(tree, window), with_blocks(_tree_mask(tree, window), tree.ends)):
        generator.manual_seed(0)
        shape = (1, 4, size, 6)
        states = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
        output = scaled_dot_product_attention(*states, attn_mask=mask, scale=0.3)
        (output * torch.randn(output.shape, generator=generator)).sum().backward()
        found.append([output, *(state.grad for state in states)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen2_window", "gpt2", "gpt_neox", "opt", "phi", "gemma3"])
def test_models_compute_less(name: str) -> None:
    tree, model = random_tree(1), build(name)
    blocks = _blocks_of(_tree_mask(tree), tree.ends)
    with torch.inference_mode(), Scores() as scores:
        model(**attention_inputs(tree, model))
    assert len(scores.found) == 2 * len(blocks.queries)  # two layers
    assert sum(scores.found) == 2 * np.dot(blocks.queries, blocks.counts)
    assert sum(scores.found) < 1.2 * len(tree.ends) ** 2


def test_blocks_of_the_real_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tree, model = random_tree(4, rows=30, tokens=60), build("llama")
    inputs = attention_inputs(tree, model)
    blocks = inputs["attention_mask"].blocks
    assert len(tree.ends) > 600
    assert blocks.queries == [128] * (len(tree.ends) // 128) + [len(tree.ends) % 128]
    with torch.no_grad(), Scores() as scores:
        logits = model(**inputs).logits
    assert sum(scores.found) < 0.5 * 2 * len(tree.ends) ** 2
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    torch.testing.assert_close(logits, model(**inputs).logits, rtol=1e-9, atol=1e-9)


def test_a_long_tree_has_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of one long row are copied at most 4.5 times."""
    monkeypatch.undo()
    ends = torch.full((5000,), 5000)
    blocks = _blocks_of(torch.zeros(1, 1, 5000, 5000, dtype=torch.bool), ends)
    assert len(blocks.queries) == 8
    assert len(blocks.keys) <= 4.5 * 5000


@pytest.mark.parametrize(
    ("name", "dropout", "reentrant"),  # GPT-2 passes its mask as a positional argument
    [("llama", {}, False), ("llama", {"attention_dropout": 0.3}, True), ("gpt2", {"attn_pdrop": 0.3}, False)],
)
def test_checkpointing_repeats_the_forward(name: str, reentrant: bool, dropout: dict[str, float]) -> None:
    plain = build(name, **dropout)
    repeated = copy.deepcopy(plain)
    getattr(repeated, f"{tiny.CHECKPOINTING}_enable")({"use_reentrant": reentrant})
    repeated.enable_input_require_grads()
    tree, counted = random_tree(1), []
    for model in (plain, repeated):
        model.train()
        torch.manual_seed(0)
        with Scores() as scores:
            model(**attention_inputs(tree, model)).logits.square().sum().backward()
        counted.append(scores.found)
    assert counted[1] == counted[0] + counted[0][len(counted[0]) // 2 :] + counted[0][: len(counted[0]) // 2]
    for one, other in zip(plain.parameters(), repeated.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)


def test_masks_made_from_it_are_plain() -> None:
    tree = random_tree(1)
    mask = with_blocks(_tree_mask(tree), tree.ends)
    assert type(mask.detach()) is _TreeMask
    for changed in (mask.clone(), mask[:, :, :, :3], mask | True, mask.float(), mask.to(torch.bool) & mask):
        assert type(changed) is torch.Tensor


def test_a_change_in_place_is_seen() -> None:
    tree = random_tree(1)
    mask = with_blocks(_tree_mask(tree), tree.ends)
    states = torch.randn(1, 2, len(tree.ends), 4, dtype=torch.float64)
    before = scaled_dot_product_attention(states, states, states, attn_mask=mask)
    mask[..., 1] = True
    found = scaled_dot_product_attention(states, states, states, attn_mask=mask)
    torch.testing.assert_close(
        found, scaled_dot_product_attention(states, states, states, attn_mask=mask.as_subclass(torch.Tensor))
    )
    assert not torch.allclose(found, before)
    detached = scaled_dot_product_attention(states, states, states, attn_mask=mask.detach())
    torch.testing.assert_close(detached, found)


def test_layers_of_several_types_share_a_mask_and_queries_and_keys_get_the_type_of_values() -> None:
    tree = random_tree(1)
    mask = with_blocks(_tree_mask(tree), tree.ends)
    for of_queries, dtype in ((torch.float64,) * 2, (torch.float32,) * 2, (torch.float32, torch.bfloat16)):
        query, key, value = torch.randn(3, 1, 2, len(tree.ends), 8, dtype=of_queries)
        found = scaled_dot_product_attention(query, key, value.to(dtype), attn_mask=mask)
        plain = scaled_dot_product_attention(query.to(dtype), key.to(dtype), value.to(dtype), attn_mask=mask.clone())
        torch.testing.assert_close(found, plain, **({"rtol": 0.02, "atol": 0.02} if dtype != of_queries else {}))


def test_small_trees_and_other_devices_have_no_blocks() -> None:
    ends = torch.full((LIMIT,), LIMIT)
    assert type(with_blocks(torch.ones(1, 1, LIMIT, LIMIT).bool(), ends)) is torch.Tensor
    assert type(with_blocks(torch.ones(1, 1, LIMIT + 1, LIMIT + 1).bool(), torch.full((LIMIT + 1,), 9))) is _TreeMask
    elsewhere = torch.ones(1, 1, 20, 20, device="meta").bool()
    assert type(with_blocks(elsewhere, torch.ones(20, device="meta"))) is torch.Tensor


def test_compiled_models(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(torch._dynamo.reset)
    model, tree = build("llama"), random_tree(2)
    inputs = attention_inputs(tree, model)
    compiled = torch.compile(model, backend="eager")
    for is_sparse in (False, True):
        assert type(attention_inputs(tree, compiled, 1, is_sparse)["attention_mask"]) is torch.Tensor
    found = compiled(**attention_inputs(tree, compiled)).logits
    torch.testing.assert_close(found, model(**inputs).logits)
