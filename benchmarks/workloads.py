"""Models, data and settings shared by the benchmarks."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import datasets
import torch
from measuring import at_least
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import read_rows, tokenizer_for
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.vision.networks import DigitCNN, DigitCNNConfig

MODEL: dict[str, Any] = {
    "model_type": "t5", "d_model": 128, "d_ff": 512, "d_kv": 32, "num_heads": 4, "num_layers": 3,
}  # fmt: skip
COLUMNS = ("input_ids", "attention_mask", "labels")


def quiet_settings(**settings: Any) -> dict[str, Any]:
    """Return arguments of a run that logs and saves nothing, with changes."""
    return {
        "output_dir": tempfile.mkdtemp(prefix="benchmark_"),
        "num_train_epochs": 1,
        "learning_rate": 1e-4,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10_000,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **settings,
    }


def add_data_options(parser: argparse.ArgumentParser, dialogs: int) -> None:
    """Add `--data_dir` and `--dialogs`."""
    parser.add_argument("--data_dir", required=True, help="MultiWOZ 2.1: raw files, or a prepared folder")
    parser.add_argument("--dialogs", type=at_least(0), default=dialogs, help="dialogues, spread over the split; 0: all")


def encoded_pairs(
    data_dir: str,
    split: str,
    dialogs: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    source_tokens: int = 256,
    causal: bool = False,
) -> tuple[datasets.Dataset, PreTrainedTokenizerBase]:
    """Return tokenized turns with scrambled partners, and the tokenizer (built from these turns if None)."""
    rows = read_rows(data_dir, split)
    names = list(dict.fromkeys(rows["dialogue_id"][:]))
    if dialogs:
        chosen = set(names[:: max(len(names) // dialogs, 1)][:dialogs])
        rows = rows.select([index for index, name in enumerate(rows["dialogue_id"][:]) if name in chosen])
    tokenizer = tokenizer or tokenizer_for([rows], DialogConfig())
    encoder = DialogEncoder(tokenizer, source_tokens, 128, causal)
    augmenter = EntityAugmenter("scramble", covariant_only=True)
    return redraw(rows.map(encoder, batched=True), augmenter).map(encoder, batched=True), tokenizer


def flat_rows(pairs: datasets.Dataset) -> datasets.Dataset:
    """Return every view as a row of its own, partners after their originals."""
    columns = {
        name: [view for both in zip(pairs[name], pairs["augmented_" + name], strict=True) for view in both if view]
        for name in COLUMNS
    }
    return datasets.Dataset.from_dict(columns)


def small_model(tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]) -> PreTrainedModel:
    """Return a new sequence-to-sequence model, with the same weights each time and without dropout by default."""
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**ids, decoder_start_token_id=0, **{"dropout_rate": 0.0, **settings})
    return AutoModelForSeq2SeqLM.from_config(config)


def digit_model() -> DigitCNN:
    """Return the paper's CNN for ten digits, with the same weights each time."""
    set_seed(0)
    return DigitCNN(DigitCNNConfig(num_channels=1, num_labels=10))


def bart(vocabulary: int, width: int, layers: int, heads: int) -> BartForConditionalGeneration:
    """Return a new BART with the same number of layers on both sides and the same weights each time."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_ffn_dim": 4 * width, f"{side}_attention_heads": heads}
    return BartForConditionalGeneration(BartConfig(vocab_size=vocabulary, d_model=width, **shape))


def random_pairs(pairs: int, source: int, target: int, vocabulary: int) -> dict[str, Any]:
    """Return a batch `[pairs, 2, ...]` of random tokens without padding."""
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(4, vocabulary, (pairs, 2, source), generator=generator),
        "attention_mask": torch.ones(pairs, 2, source, dtype=torch.int64),
        "labels": torch.randint(4, vocabulary, (pairs, 2, target), generator=generator),
        "view_mask": torch.ones(pairs, 2, dtype=torch.bool),
    }


def training_step(
    model: PreTrainedModel, batch: dict[str, Any], objective: Any = None, **settings: Any
) -> Callable[[], object]:
    """Return a function that runs one training step, without the optimizer."""
    trainer = DAIRTrainer(model, DAIRConfig(**quiet_settings(use_cpu=True, **settings)), objective=objective)
    trainer.create_optimizer()
    counts = trainer.pair_loss.count(batch)

    def run() -> None:
        trainer.model.zero_grad(set_to_none=False)  # gradients belong to the model, not to the step
        trainer.training_step(trainer.model, batch, counts)

    return run
