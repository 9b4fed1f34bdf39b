"""Trained models that commands load by name, and the trainer that evaluates them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import torch
from peft import PeftConfig, PeftModel, TaskType
from peft.utils.save_and_load import load_peft_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    TrainerState,
)
from transformers.utils import CONFIG_NAME, cached_file, find_adapter_config_file
from transformers.utils import logging as transformers_logging

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.texts.forms import FORMS, INPUT_IDS, LABEL, form_of, is_missing, label_of, name_of
from dair_hf.data.view_columns import parse_column
from dair_hf.errors import DataError, explained
from dair_hf.modeling import ModelConfig, load_named_model, load_pretrained, load_tokenizer, output_layers
from dair_hf.training.model_card import CLASSES_FILE, read_classes
from dair_hf.training.sample_loss import base_model_of
from dair_hf.training.text_rows import max_positions
from dair_hf.training.trainer import DAIRTrainer

CLASS_OF_TASK: dict[str | None, Any] = {  # `task_type` of adapters
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
}
STATE_FILE = "trainer_state.json"
MAX_TOKENS = 512  # by default


class _CommandTrainer(DAIRTrainer):
    """Trainer of a command; its messages name the option of the command."""

    length_option = "--max-tokens"


def load_trained(name: str) -> tuple[Any, Any]:
    """Load a model of the class that its configuration names, and its tokenizer."""
    with _without_reports(), explained(name, Exception):
        adapters = _adapters_of(name)
        model = load_named_model(name) if adapters is None else _load_adapted(name, adapters)
        places = [ModelConfig(name)]
        if adapters is not None:
            places += [ModelConfig(adapters.base_model_name_or_path, model_revision=adapters.revision or "main")]
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


def _adapters_of(name: str) -> PeftConfig | None:
    """Return the configuration of adapters without a model; None for a model, even with adapters in its folder."""
    with contextlib.suppress(OSError):
        if cached_file(name, CONFIG_NAME) is not None:
            return None
    if find_adapter_config_file(name) is None:
        return None
    with explained(f"{name}: adapter_config.json", Exception):
        adapters = PeftConfig.from_pretrained(name)  # JSON
    if not adapters.base_model_name_or_path:
        raise DataError(f"{name}: expected base_model_name_or_path in adapter_config.json to name a model")
    return adapters


def _load_adapted(name: str, adapters: PeftConfig) -> Any:
    """Load adapters on their base model."""
    base, revision = str(adapters.base_model_name_or_path), adapters.revision
    saved = load_peft_weights(name, device="cpu")
    setting = f"{name}: base_model_name_or_path={base!r} in adapter_config.json"
    config = load_pretrained(AutoConfig, base, setting, revision=revision)
    if adapters.task_type == TaskType.SEQ_CLS:
        _set_classes(config, name, saved)
    heads = {key.removeprefix("base_model.").removeprefix("model.").rpartition(".")[0] for key in saved}
    kind = CLASS_OF_TASK.get(adapters.task_type)
    model = load_named_model(base, setting, kind=kind, config=config, new_modules=heads, revision=revision)
    with explained(f"{name}: its adapters do not fit the model {base!r}", Exception):
        return PeftModel.from_pretrained(model, name)


def _set_classes(config: Any, name: str, saved: Mapping[str, Any]) -> None:
    """Give the configuration of a base model the classes of adapters: their names, or else their number."""
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    sizes = {
        len(weight)
        for layer in output_layers(model, config.num_labels, name)
        for key, weight in saved.items()
        if key.endswith(f".{layer}.weight")
    }
    with contextlib.suppress(OSError):
        file = cached_file(name, CLASSES_FILE)
        classes = read_classes(Path(str(file)))
        if sizes - {len(classes["id2label"])}:
            raise DataError(f"{file}: expected {max(sizes)} classes, as the head has, got {len(classes['id2label'])}")
        config.update(classes)
        return
    if sizes and max(sizes) != config.num_labels:
        config.num_labels = max(sizes)


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
