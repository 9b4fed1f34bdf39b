"""Prefix trees give the losses and gradients of separate rows, for every architecture, objective and setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import DataCollatorForSeq2Seq

from dair_hf import DataError, PairCollator
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.per_sample import causal_nll
from dair_hf.training.forward.pair_loss import PairLoss
from dair_hf.trees import attention
from dair_hf.trees.batches import ForestCollator
from dair_hf.trees.tree_loss import TreeForward, _require_exact_training
from tests.fixtures import tiny
from tests.fixtures.dialog_rows import dialog_rows

SMALL = {"vocab_size": tiny.VOCAB, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
FULL = {**SMALL, "hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "pad_token_id": 0}
NEO = {"vocab_size": tiny.VOCAB, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64}
FALCON = {"vocab_size": tiny.VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
# Class -> settings; windows are shorter than the rows.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", FULL),
    "qwen2": ("Qwen2", FULL),
    "qwen2_window": ("Qwen2", {**FULL, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {**FULL, "head_dim": 8}),
    "mistral": ("Mistral", {**FULL, "sliding_window": 4}),
    "mistral_full": ("Mistral", {**FULL, "sliding_window": None}),
    "gpt2": ("GPT2", {"vocab_size": tiny.VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "gpt_neox": ("GPTNeoX", {**SMALL, "hidden_size": 16, "intermediate_size": 32}),
    "opt": ("OPT", {**SMALL, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32}),
    "gemma2": ("Gemma2", {**FULL, "head_dim": 8, "sliding_window": 4}),
    "gemma3": ("Gemma3Text", {**FULL, "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2}),
    "phi": ("Phi", {**SMALL, "hidden_size": 16, "intermediate_size": 32}),
    "falcon": ("Falcon", {**FALCON, "alibi": False}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon_alibi": ("Falcon", {**FALCON, "alibi": True}),
    "bloom": ("Bloom", {"vocab_size": tiny.VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "mpt": ("Mpt", {"vocab_size": tiny.VOCAB, "d_model": 16, "n_layers": 2, "n_heads": 2}),
    # Windows of its local layers, longer than a row, count nodes of the tree and not depths.
    "gpt_neo": ("GPTNeo", {**NEO, "window_size": 30, "attention_types": [[["global", "local"], 1]]}),
    "mamba": ("Mamba", {"vocab_size": tiny.VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
}


def build(name: str, implementation: str = "sdpa", **changes: Any) -> Any:
    """Return a model in float64 and evaluation mode whose every weight matters."""
    family, settings = {**MODELS, **REFUSED}[name]
    made = getattr(transformers, f"{family}Config")(**{**settings, **changes})
    torch.manual_seed(0)
    try:
        model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation=implementation)
    except ValueError:
        pytest.skip(f"{family} has no {implementation} attention")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.double().eval()


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers that compute in float32, whatever their type, compute in float64."""

    class Float64:
        def __getattr__(self, name: str) -> Any:
            return torch.float64 if name == "float32" else getattr(torch, name)

    softmax = nn.functional.softmax
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(nn.functional, "softmax", lambda *args, dtype=None, **named: softmax(*args, **named))
    for family in ("llama", "qwen2", "qwen3", "mistral", "gpt_neox", "gemma2", "gemma3", "phi"):
        module = getattr(transformers.models, family)
        monkeypatch.setattr(getattr(module, f"modeling_{family}"), "torch", Float64())


def batches(
    *, left: bool = False, nodes_at_once: int | None = None, **rows: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the same rows as a batch without and with a forest."""
    tokenizer = tiny.tokenizer()
    tokenizer.padding_side = "left" if left else "right"
    collator = PairCollator(DataCollatorForSeq2Seq(tokenizer, model=None))
    data = list(dialog_rows(**rows))
    with_forest = ForestCollator(collator, "dialogue_id", nodes_at_once)(data)
    return {name: values for name, values in with_forest.items() if name != "forest"}, with_forest


def losses_and_gradients(
    model: Any, batch: dict[str, Any], folder: Path, *, chunked: bool = False, longest_row: int = 0, **settings: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    args = tiny.config(folder, chunked_loss=chunked, **settings)
    chunks = ChunkedLoss(model, True, tokens=3) if chunked else None
    pair_loss = PairLoss(args, causal_nll, chunked=chunks, trees=TreeForward(chunks))
    pair_loss.trees.longest_row = longest_row
    found = pair_loss(model, batch, with_partners=args.uses_partners)
    model.zero_grad()
    pair_loss.objective(found.terms, pair_loss.count(batch), pair_loss.args.dair_lambda).backward()
    gradients = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
    return torch.stack([found.terms.original, found.terms.augmented, found.terms.consistency]).detach(), gradients


def require_equal(
    model: Any, folder: Path, one: dict[str, Any], other: dict[str, Any], trees: Any = None, **settings: Any
) -> torch.Tensor:
    """Compare batches without and with a forest, which another model may run; return the terms."""
    expected, expected_gradients = losses_and_gradients(model, one, folder, **settings)
    found, gradients = losses_and_gradients(trees or model, other, folder, **settings)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-9, atol=1e-10, msg=name)
    return expected


def require_equal_rows(model: Any, folder: Path, rows: dict[str, Any] | None = None, **settings: Any) -> None:
    assert require_equal(model, folder, *batches(**(rows or {})), **settings)[:, 0].min() > 0  # the first row is a pair


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attention run in several blocks, of which these trees are too small."""
    monkeypatch.setattr(attention, "SMALLEST", 8)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture(name: str, implementation: str, tmp_path: Path, in_float64: None) -> None:
    require_equal_rows(build(name, implementation), tmp_path)


def test_attention_in_one_block(tmp_path: Path, in_float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SMALLEST", 10_000)
    require_equal_rows(build("llama"), tmp_path)


@pytest.mark.parametrize(
    ("method", "regularizer", "normalization"),
    [
        ("erm", "sq", "pair"),
        ("da", "sq", "token"),
        ("dair", "sq", "pair"),
        ("dair", "js", "token"),
        ("trades", "kl", "pair"),
    ],
)
def test_every_objective(method: str, regularizer: str, normalization: str, tmp_path: Path, in_float64: None) -> None:
    settings = {"method": method, "regularizer": regularizer, "normalization": normalization}
    require_equal(build("llama"), tmp_path, *batches(dialogs=4, partner_every=2), **settings)


@pytest.mark.parametrize(
    "rows",
    [
        {"partner_every": 100},
        {"nodes_at_once": 1},
        {"nodes_at_once": 40},
        {"left": True},
        {"longest": 7},
        {"dialogs": 1, "turns": 1},
    ],
    ids=str,
)
def test_every_batch(rows: dict[str, Any], tmp_path: Path, in_float64: None) -> None:
    require_equal(build("llama"), tmp_path, *batches(**rows), regularizer="kl")


@pytest.mark.parametrize("settings", [{"regularizer": "kl"}, {"normalization": "token", "chunked": True}], ids=str)
def test_several_partners(settings: dict[str, Any], tmp_path: Path, in_float64: None) -> None:
    """Some rows have both partners, one of them, or none."""
    rows = {"dialogs": 4, "second_every": 3}
    assert batches(**rows)[0]["view_mask"].sum(1).unique().tolist() == [1, 2, 3]
    require_equal_rows(build("llama"), tmp_path, rows, **settings)


@pytest.mark.parametrize("dialogs", [["D1"], ["D0", "D1", "D2"]])
def test_rows_of_padding_alone(dialogs: list[str], tmp_path: Path, in_float64: None) -> None:
    """They have no target, and a tree of them has nothing to compute."""
    rows = dialog_rows(partner_every=1).to_list()
    for row in rows:
        for prefix in ("", "augmented_") if row["dialogue_id"] in dialogs else ():
            row[f"{prefix}attention_mask"] = [0] * len(row[f"{prefix}input_ids"])
            row[f"{prefix}labels"] = [-100] * len(row[f"{prefix}input_ids"])
    collator = ForestCollator(PairCollator(DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)), "dialogue_id", 1)
    batch = collator(rows)
    rows_alone = {name: values for name, values in batch.items() if name != "forest"}
    for chunked in (False, True):
        expected = require_equal(build("llama"), tmp_path, rows_alone, batch, chunked=chunked)
        assert (expected == 0).all() == (len(dialogs) == 3)


@pytest.mark.parametrize("name", ["llama", "gemma2", "opt"])
def test_chunked_losses(name: str, tmp_path: Path, in_float64: None) -> None:
    require_equal_rows(build(name, "eager"), tmp_path, chunked=True)


def test_logits_of_targets_alone_are_computed(tmp_path: Path) -> None:
    model = build("llama")
    batch = batches()[1]
    losses_and_gradients(model, batch, tmp_path)
    pair_loss = PairLoss(tiny.config(tmp_path), causal_nll, trees=TreeForward())
    pair_loss(model, batch, with_partners=True)  # after the probe
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda head, inputs, logits: rows.append(logits.shape[1]))
    pair_loss(model, batch, with_partners=True)
    assert rows == [len(targets.nodes) for targets in batch["forest"].targets]
    assert sum(rows) < batch["forest"].nodes


def test_adapters(tmp_path: Path, in_float64: None) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    require_equal_rows(peft.get_peft_model(build("llama"), settings).double().eval(), tmp_path)


def test_other_columns_are_refused() -> None:
    batch = batches()[1]
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    with pytest.raises(DataError, match="token_type_ids"):
        _require_exact_training(build("llama"), batch)


def test_attention_without_masks_is_refused() -> None:
    model = build("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(DataError, match="attn_implementation='sdpa'"):
        _require_exact_training(model, batches()[1])
