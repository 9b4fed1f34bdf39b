"""A tiny model of each kind memorizes a few rows and generates them: targets equal generated text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from dair_hf import PairEvaluator
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.rows import state_from_row
from dair_hf.metrics.state.belief_text import parse
from dair_hf.metrics.state.joint_goal import joint_goal_correct
from tests.dialog import test_encoding
from tests.fixtures import tiny

NAMES = [f"inn{index}" for index in range(4)]
START, PAD, END, LANGUAGE = 0, 1, 2, 3
WORDS = "<s> <pad> </s> <en> <unk> <user> <system> <belief> = ; | hotel-name hotel-area east west take near".split()
SIZES = {"vocab_size": len(WORDS) + len(NAMES)}
BART = {
    **SIZES, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "dropout": 0.0, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "init_std": 0.1,
}  # fmt: skip


def build(family: str) -> PreTrainedModel:
    """A model as its published checkpoints are configured."""
    torch.manual_seed(0)
    if family == "t5":
        sizes: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
        tokens = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
        return T5ForConditionalGeneration(
            T5Config(**SIZES, **sizes, **tokens, dropout_rate=0.0, tie_word_embeddings=False)
        )
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(
            GPT2Config(**SIZES, **sizes, **rates, eos_token_id=END, bos_token_id=END, initializer_range=0.1)
        )
    if family == "bart":
        model: PreTrainedModel = BartForConditionalGeneration(BartConfig(**BART, decoder_start_token_id=END))
        model.generation_config.forced_bos_token_id = START
    else:
        model = MBartForConditionalGeneration(MBartConfig(**BART))
        if family == "mbart":  # the decoder starts with the language
            model.generation_config.decoder_start_token_id = LANGUAGE
        else:  # mbart50: every answer begins with it
            model.generation_config.decoder_start_token_id = END
            model.generation_config.forced_bos_token_id = LANGUAGE
    return model


def tokenizer() -> PreTrainedTokenizerFast:
    """Words at white space; as BART's, it puts `<s>` before and `</s>` behind every text."""
    known = {word: index for index, word in enumerate(WORDS + NAMES)}
    return test_encoding.tokenizer(True, known, bos_token="<s>", additional_special_tokens=["<en>"])


def pairs() -> datasets.Dataset:
    """Four rows; the partner of each has another name in the same area."""

    def view(name: str, area: str) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
        state = [{"slot": "hotel-area", "values": [area]}, {"slot": "hotel-name", "values": [name]}]
        return [{"speaker": "user", "text": f"take {name} near {area}"}], state if area == "east" else state[1:]

    rows = []
    for index, name in enumerate(NAMES):
        area = ("east", "west")[index % 2]
        history, state = view(name, area)
        augmented_history, augmented_state = view(NAMES[(index + 2) % len(NAMES)], area)
        rows.append(
            {"row_id": f"R{index}", "history": history, "state": state}
            | {"augmented_history": augmented_history, "augmented_state": augmented_state}
        )
    return datasets.Dataset.from_list(rows)


@pytest.mark.parametrize("family", ["bart", "mbart", "gpt2"])
def test_memorized_rows_are_all_correct(family: str, tmp_path: Path) -> None:
    model, known = build(family), tokenizer()
    encoder = DialogEncoder.for_model(model, known, DialogConfig(max_source_tokens=32, max_target_tokens=16))
    encoded = pairs().map(encoder, batched=True)
    trainer = tiny.trainer(
        tmp_path, "", encoded, built=model, processing_class=known, data_collator=None, method="da",
        sample_loss="seq2seq" if model.config.is_encoder_decoder else "causal", max_steps=40, learning_rate=2e-2,
        adam_beta2=0.95, warmup_steps=5,
    )  # fmt: skip
    trainer.train()
    metrics = trainer.evaluate_pairs(
        encoded,
        PairEvaluator(
            lambda predictions, gold: joint_goal_correct(map(parse, predictions), map(state_from_row, gold)),
            references="state",
        ),
        intervals=False,
    )
    assert (metrics["original_accuracy"], metrics["augmented_accuracy"], metrics["cm"]) == (1.0, 1.0, 1.0)
