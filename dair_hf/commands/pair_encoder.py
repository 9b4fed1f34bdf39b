"""Encoding of paired texts of a file as the columns of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import datasets
from torch import nn

from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.view_columns import parse_column, partner_numbers, view_prefix
from dair_hf.errors import DataError
from dair_hf.evaluation.target_tokens import added_tokens, target_affixes
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, derived_sample_loss

TEXT, LABEL, SOURCE, TARGET = "text", "label", "source", "target"
MAX_TOKENS = 512  # by default
TEXT_LOSSES = ("classification", "multi_label", "squared")  # of models that give a text a label


class PairEncoder:
    """Function for `Dataset.map` that tokenizes text and label, or source and target, of all views of a row.

    Args:
        model: The model, which gives its configuration, the tokens around targets and the number of positions. It is
            not kept, since `Dataset.map` pickles this function for a hash.
        tokenizer: Its tokenizer.
        max_tokens: Number of tokens after which a text is cut; None: 512, or the positions of the model if fewer.

    Raises:
        DataError: A target needs an end token, and there is none; or the model has fewer positions than `max_tokens`.
    """

    def __init__(self, model: Any, tokenizer: Any, max_tokens: int | None) -> None:
        self.config, self.tokenizer = model.config, tokenizer
        self.loss = derived_sample_loss(model)
        self.positions = max_positions(model)
        if max_tokens is not None and self.positions is not None and max_tokens > self.positions:
            raise DataError(
                f"--max-tokens {max_tokens}: the model has {self.positions} positions; give at most as many, or leave "
                "it out"
            )
        self.max_tokens = max_tokens or min(MAX_TOKENS, self.positions or MAX_TOKENS)
        if self.loss in LANGUAGE_LOSSES:
            self.affixes = target_affixes(model, tokenizer)
            self.prompt_start, _ = added_tokens(tokenizer)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the model for all views; None for an absent partner."""
        columns: dict[str, Any] = {}
        for prefix in map(view_prefix, (0, *partner_numbers(row))):
            names = ["input_ids", "attention_mask"]
            if self.loss in LANGUAGE_LOSSES:
                names.append(LABELS)
                source = _text(row, prefix + SOURCE, is_optional=bool(prefix))
                encoded = None if source is None else self._generated(source, _text(row, prefix + TARGET) or "")
            else:
                text = _text(row, prefix + TEXT, is_optional=bool(prefix))
                encoded = None if text is None else self._input(text)
                if prefix + LABEL in row:
                    names.append(LABELS)
                    if encoded is not None:
                        encoded[LABELS] = label_of(self.config, self.loss, row[prefix + LABEL], row, prefix + LABEL)
            columns |= {prefix + name: None if encoded is None else encoded[name] for name in names}
        return columns

    def _input(self, text: str) -> dict[str, Any]:
        ids = self.tokenizer(text, truncation=True, max_length=self.max_tokens).input_ids
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def _generated(self, source: str, target: str) -> dict[str, Any]:
        affixes, left = self.affixes, self.prompt_start
        room = self.max_tokens - len(affixes.start) - len(affixes.end)
        ids = self.tokenizer(target, add_special_tokens=False).input_ids
        if self.loss != "causal":
            return {**self._input(source), LABELS: [*affixes.start, *ids[:room], *affixes.end]}
        prompt = self.tokenizer(source, add_special_tokens=False).input_ids
        if self.positions is not None:  # prompt and target share them; at least one token of the prompt is kept
            room = min(room, self.positions - len(left) - 1 - len(affixes.start) - len(affixes.end))
        labels = [*affixes.start, *ids[:room], *affixes.end]
        kept = self.max_tokens
        if self.positions is not None:
            kept = min(kept, self.positions - len(left) - len(labels))
        prompt = [*left, *prompt[-kept:]]
        return {
            "input_ids": prompt + labels,
            "attention_mask": [1] * len(prompt + labels),
            LABELS: [IGNORE_INDEX] * len(prompt) + labels,
        }


def max_positions(model: Any) -> int | None:
    """Return the number of tokens that a model has positions for; None if there is no limit.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
        >>> max_positions(BertModel(config))
        512
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    # RoBERTa and its relatives keep the positions up to that of padding free.
    tables = (module for name, module in model.named_modules() if "position" in name and type(module) is nn.Embedding)
    return positions - max((table.padding_idx + 1 for table in tables if table.padding_idx is not None), default=0)


def label_of(config: Any, loss: str | None, value: Any, row: Mapping[str, Any], column: str) -> Any:
    """Return the label of a view as the model needs it: the number of a class, a number, or a list of numbers.

    Args:
        config: Configuration of the model.
        loss: Loss of the model, `derived_sample_loss`.
        value: Content of the cell. Whole numbers may be floats, as in a column of a CSV file with empty cells.
        row: Row, for messages.
        column: Column, for messages.

    Raises:
        DataError: It is empty or no label of this model.
    """
    place = f"row {row[ROW_ID]!r}, column {column!r}"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{place}: is empty; give a label")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if loss == "classification":
        names = config.label2id or {}
        if isinstance(value, str) and value in names:
            return names[value]
        if is_number and float(value).is_integer():
            return int(value)
        raise DataError(
            f"{place}: {value!r:.80} is no class of the model: {', '.join(names)}; give the name of one, or its number "
            "as an integer"
        )
    if loss == "multi_label":
        size = config.num_labels
        if (
            not isinstance(value, list)
            or len(value) != size
            or not all(isinstance(item, (int, float)) for item in value)
        ):
            raise DataError(f"{place}: found {value!r:.80}; give a list of {size} numbers, one for each class")
        return [float(item) for item in value]
    if not is_number or not math.isfinite(value):
        raise DataError(f"{place}: found {value!r:.80}; give a number, since the model is a regression")
    return float(value)


def encode_pairs(rows: datasets.Dataset, model: Any, tokenizer: Any, max_tokens: int | None) -> datasets.Dataset:
    """Tokenize paired rows of text; rows with the model's own columns are returned, with class numbers as integers.

    Raises:
        DataError: There are neither columns of text nor of the model, those of another kind of model, or a cell that
            cannot be used.
    """
    names, loss = set(rows.column_names), derived_sample_loss(model)
    texts = {TEXT, SOURCE} & names
    if LABELS in names and (model.main_input_name in names or not texts):
        return _with_whole_labels(rows, model, loss)
    if LABELS in names:
        text = TEXT if TEXT in texts else SOURCE
        raise DataError(
            f"has the columns {text} and {LABELS}; {text} goes with {LABEL if text == TEXT else TARGET}, and {LABELS} "
            "with tokenised columns: rename it, also that of the partners"
        )
    kind, other = (TEXT, LABEL), (SOURCE, TARGET)
    if loss in LANGUAGE_LOSSES:
        kind, other = other, kind
    if not set(kind) <= names:
        if set(other) <= names:
            raise DataError(
                f"has the columns {' and '.join(other)}, but {type(model).__name__} needs {' and '.join(kind)}; rename "
                "them, or name another model"
            )
        raise DataError(
            f"the pairs have the columns {rows.column_names}; give {TEXT} and {LABEL}, {SOURCE} and {TARGET}, or "
            f"columns of the model with {LABELS}"
        )
    if kind[0] == TEXT and loss not in TEXT_LOSSES:
        raise DataError(
            f"has the columns {TEXT} and {LABEL}, but {type(model).__name__} does not classify texts; give its own "
            f"columns with {LABELS}"
        )
    numbers = partner_numbers(names)
    # Partners have the labels of their originals if there is no column of their own.
    has_labels = any(view_prefix(number) + LABEL in names for number in numbers)
    needed = kind if kind[0] == SOURCE or has_labels else kind[:1]
    of_partners = [view_prefix(number) + name for number in numbers for name in needed]
    if missing := [name for name in of_partners if name not in names]:
        raise DataError(f"the pairs lack the column {missing[0]}; they have {rows.column_names}")
    encoder = PairEncoder(model, tokenizer, max_tokens)
    encoded = rows.map(encoder, keep_in_memory=True, load_from_cache_file=False)
    unused = {LABEL, *other}  # a row may have a partner in the columns of the other kind only
    return encoded.remove_columns([name for name in rows.column_names if parse_column(name)[1] in unused])


def _with_whole_labels(rows: datasets.Dataset, model: Any, loss: str | None) -> datasets.Dataset:
    if loss != "classification":
        return rows
    for name in rows.column_names:
        view, column = parse_column(name)
        if column != LABELS or rows.features[name] == datasets.Value("int64"):
            continue
        labels = [
            None if view and _is_missing(row[name]) else label_of(model.config, loss, row[name], row, name)
            for row in rows.select_columns([ROW_ID, name])
        ]
        rows = rows.remove_columns(name).add_column(name, labels)
    return rows


def _text(row: Mapping[str, Any], column: str, is_optional: bool = False) -> str | None:
    value = row[column]
    if isinstance(value, str) or (value is None and is_optional):
        return value
    found = "is empty" if value is None else f"found {value!r:.80}"
    raise DataError(
        f"row {row[ROW_ID]!r}, column {column!r}: {found}; give a text" + ("" if value is None else " in quotes")
    )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
