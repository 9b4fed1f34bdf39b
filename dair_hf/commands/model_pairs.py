"""Trained models that commands load by name, and the trainer that evaluates them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from transformers import TrainerState
from transformers.utils import logging as transformers_logging

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.texts.forms import FORMS, INPUT_IDS, LABEL, form_of, is_missing, label_of, name_of
from dair_hf.data.view_columns import parse_column
from dair_hf.errors import DataError, explained
from dair_hf.modeling import load_named_model, load_tokenizer
from dair_hf.training.loading import adapters_of, load_adapted
from dair_hf.training.sample_loss import base_model_of
from dair_hf.training.text_rows import max_positions
from dair_hf.training.trainer import DAIRTrainer

STATE_FILE = "trainer_state.json"
MAX_TOKENS = 512  # by default


class _CommandTrainer(DAIRTrainer):
    """Trainer of a command; its messages name the option of the command."""

    length_option = "--max-tokens"


def load_trained(name: str) -> tuple[Any, Any]:
    """Load a model of the class that its configuration names, and its tokenizer."""
    with _without_reports(), explained(name, Exception):
        adapters, places = adapters_of(name)
        model = load_named_model(name) if adapters is None else load_adapted(name, adapters)
        tokenizer = None
        for place in places:
            with contextlib.suppress(DataError):  # it has none
                tokenizer = tokenizer or load_tokenizer(place)
    config = base_model_of(model).config
    if tokenizer is not None and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id  # a classifier on a language model reads the token before it
    return model, tokenizer


@contextlib.contextmanager
def _without_reports() -> Iterator[None]:
    """Silence the report of transformers on weights: missing weights are refused, unless adapters provide them."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def pair_trainer(
    name: str, model: Any, tokenizer: Any, folder: str, settings: Any, show_progress: bool, use_cpu: bool
) -> DAIRTrainer:
    """Return a trainer that evaluates a model, with the logs of its training if they are in its folder."""
    positions = max_positions(model)
    args = DAIRConfig(
        folder,
        method="da",
        per_device_eval_batch_size=settings.batch_size,
        report_to="none",
        disable_tqdm=not show_progress,
        use_cpu=use_cpu,
        max_length=min(settings.max_tokens or MAX_TOKENS, positions or sys.maxsize),
    )
    trainer = _CommandTrainer(model, args, processing_class=tokenizer)
    if (Path(name) / STATE_FILE).is_file():
        trainer.state = TrainerState.load_from_json(str(Path(name) / STATE_FILE))
    return trainer


def tokenized(rows: datasets.Dataset, trainer: DAIRTrainer, path: Path) -> datasets.Dataset:
    """Return the pairs of a file with the columns of the model, next to their texts."""
    columns, model = rows.column_names, trainer.model
    is_text = INPUT_IDS not in columns and any(form.inputs[0] in columns for form in FORMS)
    if trainer.processing_class is None and LABELS not in columns and is_text:
        raise DataError(f"{model.name_or_path}: expected tokenizer files, or pairs of token ids")
    try:
        if INPUT_IDS not in columns and model.main_input_name == INPUT_IDS:
            form_of(columns, trainer.generates, type(base_model_of(model)).__name__)  # or raises the reason
        return trainer.tokenize(_with_whole_labels(rows, trainer), "its data")
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def text_columns(pairs: datasets.Dataset) -> list[str]:
    """Return the columns of tokenized pairs that hold texts, without labels."""
    present = [column for form in FORMS for column in form.columns if column in pairs.column_names and column != LABEL]
    return list(dict.fromkeys(present))


def _with_whole_labels(rows: datasets.Dataset, trainer: DAIRTrainer) -> datasets.Dataset:
    """Return tokenised rows with class numbers as integers, which a column with empty cells may hold as floats."""
    if trainer.sample_loss_name != "classification":
        return rows
    config: Any = trainer.model.config
    for column in rows.column_names:
        view, name = parse_column(column)
        if name != LABELS or rows.features[column] == datasets.Value("int64"):
            continue
        labels = [
            None
            if view and is_missing(row[column])
            else label_of(
                row[column], "classification", config.label2id or {}, config.num_labels, name_of(row, number), column
            )
            for number, row in enumerate(rows.select_columns([ROW_ID, column]))
        ]
        rows = rows.remove_columns(column).add_column(column, labels)
    return rows
