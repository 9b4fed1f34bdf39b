"""What several benchmarks run on: turns of MultiWOZ 2.1 as encoded pairs, and a small T5-shaped model."""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import datasets
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from dair_hf.dialog.data import DialogConfig, tokenizer_for
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.readers.multiwoz import read_multiwoz
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw

MODEL: dict[str, Any] = {
    "model_type": "t5", "d_model": 128, "d_ff": 512, "d_kv": 32, "num_heads": 4, "num_layers": 3,
}  # fmt: skip
COLUMNS = ("input_ids", "attention_mask", "labels")


def add_data_options(parser: argparse.ArgumentParser, dialogs: int) -> None:
    """`--data_dir` and `--dialogs`."""
    parser.add_argument("--data_dir", required=True, help="MultiWOZ 2.1: folder or archive")
    parser.add_argument("--dialogs", type=int, default=dialogs, help="dialogues, spread over the split; 0: all")


def encoded_pairs(
    data_dir: str,
    split: str,
    dialogs: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    source_tokens: int = 256,
) -> tuple[datasets.Dataset, PreTrainedTokenizerBase]:
    """Turns of some dialogues with scrambled partners, tokenised, and the tokenizer (of these turns if None)."""
    rows, _ = read_multiwoz(data_dir, split)
    names = list(dict.fromkeys(rows["dialogue_id"][:]))
    if dialogs:
        spread = set(names[:: max(len(names) // dialogs, 1)][:dialogs])
        rows = rows.select([index for index, name in enumerate(rows["dialogue_id"][:]) if name in spread])
    tokenizer = tokenizer or tokenizer_for([rows], DialogConfig())
    encoder = DialogEncoder(tokenizer, source_tokens, 128)
    augmenter = EntityAugmenter("scramble", covariant_only=True)
    return redraw(rows.map(encoder, batched=True), augmenter).map(encoder, batched=True), tokenizer


def small_model(tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]) -> PreTrainedModel:
    """A model from scratch, the same weights each time."""
    own = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**own, decoder_start_token_id=0, dropout_rate=0.0, **settings)
    return AutoModelForSeq2SeqLM.from_config(config)


def quiet_settings() -> dict[str, Any]:
    """Training arguments of a run that only counts: nothing logged, nothing saved."""
    return {
        "output_dir": tempfile.mkdtemp(prefix="benchmark_"),
        "num_train_epochs": 1,
        "learning_rate": 1e-4,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10_000,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def flat_rows(pairs: datasets.Dataset) -> datasets.Dataset:
    """Every view that exists as a row of its own, partners behind their originals."""
    columns = {
        name: [view for both in zip(pairs[name], pairs["augmented_" + name], strict=True) for view in both if view]
        for name in COLUMNS
    }
    return datasets.Dataset.from_dict(columns)
