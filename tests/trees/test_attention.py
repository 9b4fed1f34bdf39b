"""Masks of FlexAttention, whose kernels run on GPUs only: blocks by hand, and losses without the kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn.attention import flex_attention
from transformers import masking_utils
from transformers.integrations import flex_attention as integration

from dair_hf.trees import attention as trees
from dair_hf.trees import forest
from dair_hf.trees.attention import BLOCK, DENSE_NODES, _block_mask, _tree_mask, attention_inputs, nodes_at_once
from dair_hf.trees.forest import AttentionCosts, TokenTree, token_trees
from tests.fixtures import tiny
from tests.trees.test_exactness import batches, build, in_float64, require_equal, require_equal_rows  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns while it compiles


def dialogues(rows: int, tokens: int) -> TokenTree:
    """Two groups of rows that share half of their tokens."""
    ids = np.random.default_rng(0).integers(1, 50, (rows, tokens))
    groups = np.arange(rows) % 2
    ids[:, : tokens // 2] = ids[groups, : tokens // 2]
    return token_trees(ids, np.full(rows, tokens), groups, None).trees[0]


@pytest.mark.parametrize("window", [None, 50, 2 * BLOCK - 1])
@pytest.mark.parametrize(("rows", "tokens"), [(2, 20), (3, 513), (1, 2 * BLOCK), (2, 2 * BLOCK - 1)])
def test_blocks_hold_what_is_seen(rows: int, tokens: int, window: int | None) -> None:
    tree = dialogues(rows, tokens)
    size = len(tree.ends)
    mask = _block_mask(tree, window, window is not None)
    nodes = torch.arange(size)
    zero = torch.tensor(0)
    seen = _tree_mask(tree, window)[0, 0]
    assert torch.equal(mask.mask_mod(zero, zero, nodes[:, None], nodes), seen)
    padded = torch.nn.functional.pad(seen, (0, -size % BLOCK, 0, -size % BLOCK))
    parts = padded.view(len(padded) // BLOCK, BLOCK, -1, BLOCK)
    some, whole = parts.any(3).any(1), parts.all(3).all(1)
    partial, full = torch.zeros_like(some), torch.zeros_like(some)
    for row in range(len(some)):
        partial[row, mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]]] = True
        full[row, mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]]] = True
    assert not (partial & full).any()
    assert not (full & ~whole).any()
    assert not (some & ~(partial | full)).any()
    if window is None:
        assert torch.equal(full, whole)
        assert torch.equal(partial | full, some)
        reference = flex_attention.create_block_mask(mask.mask_mod, None, None, size, size, device="cpu")
        assert mask.shape == reference.shape
        for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_indices"):
            assert torch.equal(getattr(mask, name), getattr(reference, name)), name


def test_attention_is_that_of_the_language_model() -> None:
    text = SimpleNamespace(_attn_implementation="flex_attention")
    model: Any = torch.nn.Linear(1, 1)
    assert nodes_at_once(model) == DENSE_NODES
    model.config = SimpleNamespace(_attn_implementation="sdpa", get_text_config=lambda: text)
    assert nodes_at_once(model) == AttentionCosts(None, 1)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention that computes all scores on the CPU, and gradients, too."""

    def attention(*args: Any, training: bool = False, **settings: Any) -> Any:
        return flex_attention.flex_attention(*args, **settings)

    def block_mask(*args: Any, _compile: bool = False, **settings: Any) -> Any:
        return flex_attention.create_block_mask(*args, **settings)

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(integration, "compile_friendly_flex_attention", attention)
    monkeypatch.setattr(trees, "_compiled_flex_attention", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(masking_utils, "create_block_mask", block_mask)  # of rows


@pytest.mark.parametrize("name", ["mistral", "gemma3"])  # with a window, and with one in some layers
def test_losses_and_gradients(name: str, tmp_path: Path, in_float64: None, uncompiled: None) -> None:  # noqa: F811
    require_equal_rows(build(name, "flex_attention"), tmp_path)


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2_window", "gemma3"])
@pytest.mark.parametrize(
    "costs", [AttentionCosts(20, None), AttentionCosts(1e6, None), AttentionCosts(None, 1)], ids=str
)
def test_layouts_of_a_gpu(
    costs: AttentionCosts, name: str, checkpoints: bool, tmp_path: Path, in_float64: None, uncompiled: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(forest, "BLOCK", 8)
    rows, with_forest = batches(dialogs=5, nodes_at_once=costs)
    made = with_forest["forest"]
    assert len(made.trees) == 1
    assert len(made.trees[0].ends) % (8 * made.sequences) == 0
    assert made.is_sparse == (costs.dense is None) == (made.sequences == 1)
    assert _tree_mask(made.trees[0], None, made.sequences).any(-1).all()  # padding sees itself
    without_dropout = {"attention_dropout": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    model = build(name, **without_dropout)
    trained = build(name, **without_dropout).train() if checkpoints else model
    if checkpoints:
        getattr(trained, f"{tiny.CHECKPOINTING}_enable")({"use_reentrant": False})
    require_equal(model, tmp_path, rows, with_forest, trees=trained, regularizer="kl")


def test_the_cheapest_layout() -> None:
    sizes = np.array([300, 280, 200, 120, 100])
    ends = np.cumsum(sizes).repeat(sizes)
    for costs, expected in (
        (AttentionCosts(100, None), (3, 384, False)),  # 300, 280 + 100, 200 + 120
        (AttentionCosts(1000, None), (2, 512, False)),
        (AttentionCosts(100, 20), (3, 384, False)),
        (AttentionCosts(1e9, None), (2, 512, False)),
        (AttentionCosts(1000, 5000), (1, 1024, True)),
        (AttentionCosts(1e9, 1), (2, 512, False)),
    ):
        sequences, length, is_sparse = forest._cheapest(sizes, ends, costs)
        assert (len(sequences), length, is_sparse) == expected, costs
        assert sorted(np.concatenate(sequences)) == [0, 1, 2, 3, 4]
        assert max(sizes[part].sum() for part in sequences) <= length


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_costs_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "has_triton", lambda: True)
    assert nodes_at_once(build(name)) == DENSE_NODES
    costs = nodes_at_once(build(name), "cuda")
    assert isinstance(costs, AttentionCosts) and costs.dense is not None
    assert (costs.sparse is None) == (name == "gpt2")  # which has attention dropout
    assert nodes_at_once(build(name), "cuda", is_compiled=True) == (costs.dense, None)
    assert nodes_at_once(torch.nn.Linear(1, 1), "cuda") == DENSE_NODES


def test_a_sparse_mask_is_the_dense_one_for_all_but_attention(uncompiled: None) -> None:
    tree = dialogues(4, 70)
    blocks = _block_mask(tree, None, has_windows=False)
    mask = trees._SparseMask.of(tree, None, blocks)
    dense = _tree_mask(tree)
    assert (mask.shape, mask.dtype, type(mask.detach())) == (dense.shape, torch.bool, trees._SparseMask)
    for changed, expected in ((mask.clone(), dense), (mask[..., :9], dense[..., :9]), (mask | False, dense)):
        assert type(changed) is torch.Tensor
        assert torch.equal(changed, expected)
    assert not mask.data.all()
    states = torch.randn(1, 2, len(tree.ends), 16, dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(states, states, states, dense, scale=0.3)
    found = torch.nn.functional.scaled_dot_product_attention(states, states, states, mask, scale=0.3)
    torch.testing.assert_close(found, expected)
    torch.nn.functional.scaled_dot_product_attention(states, states, states, mask, 0.1)  # dropout needs the dense mask


def test_graphs_are_compiled_for_all_lengths_and_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    compiled = torch.compile(flex_attention.flex_attention, backend=backend)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(
        integration, "compile_friendly_flex_attention", lambda *args, training=False, **named: compiled(*args, **named)
    )
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 2}
    config = transformers.Gemma2Config(vocab_size=50, num_attention_heads=2, head_dim=16, sliding_window=60, **size)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flex_attention")
    torch._dynamo.reset()
    for rows, tokens in ((4, 70), (6, 100), (5, 200), (4, 90)):
        model(**attention_inputs(dialogues(rows, tokens), model)).logits.sum().backward()
    assert count == 2  # one for the first length, one for all
    torch._dynamo.reset()


def test_attention_gets_one_type_under_autocast(uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary positions leave queries and keys in float32; values are in bfloat16."""
    types: set[torch.dtype] = set()
    attention = integration.compile_friendly_flex_attention

    def look(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **settings: Any) -> Any:
        types.update((query.dtype, key.dtype, value.dtype))
        return attention(query, key, value, **settings)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", look)
    model, tree = build("llama", "flex_attention").float(), dialogues(4, 20)
    inputs = attention_inputs(tree._replace(input_ids=tree.input_ids % 24), model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(**inputs).logits
    assert types == {torch.bfloat16}
    torch.testing.assert_close(found.float(), model(**inputs).logits, rtol=0.1, atol=0.1)
