"""Text data of a trainer: recognised, tokenized once, and encoded again where answers are generated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

import datasets
import numpy as np
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.data.checks import columns_of
from dair_hf.data.collator import ROW_ID
from dair_hf.data.held_rows import without_format
from dair_hf.data.texts.chat import ASSISTANT
from dair_hf.data.texts.encoder import NOTES, TextEncoder
from dair_hf.data.texts.forms import (
    CHATS,
    CLASSES,
    COMPLETION,
    COMPLETIONS,
    FORMS,
    INPUT_IDS,
    LABEL,
    MESSAGES,
    TextForm,
    form_of,
    holds_text,
    name_of,
)
from dair_hf.data.view_columns import parse_column
from dair_hf.errors import DataError
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, base_model_of, derived_sample_loss

logger = logging.get_logger(__name__)

TEXT_LOSSES = ("classification", "multi_label", "squared", "huber")  # of models that give a text a label
PROMPT_CHATS = replace(CHATS)  # to be answered; of `CHATS`, the last turn is an answer
UNLIMITED = 10**6  # `tokenizer.model_max_length` of a tokenizer that knows no limit is 10^30


class _Origin(NamedTuple):
    """Origin of encoded rows: the rows of text, their form, the first row whose target was cut, and the limit."""

    rows: Any
    form: TextForm
    cut_row: str | None = None
    limit_setting: str = ""


class TextRows:
    """Encoder of the text data of a trainer; a data set is encoded once. A collator that reads texts gets them."""

    def __init__(
        self,
        model_of: Callable[[], Any],
        tokenizer: Any,
        loss: str | None,
        args: DAIRConfig,
        base_collator: Any,
        limit_option: str = "max_length",
    ) -> None:
        self.model_of, self.tokenizer, self.loss, self.args = model_of, tokenizer, loss, args
        self.limit_option, self.max_length = limit_option, args.max_length
        self._read_by_collator = frozenset(getattr(base_collator, "columns", ()))
        is_known = str(getattr(base_collator, "__module__", "")).startswith("transformers.")
        self._passes_texts = not is_known and not args.remove_unused_columns
        # Rows of text -> encoded rows, also as prompts, or with the answer as only target; encoded rows -> origin.
        self._encoded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._prompts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._answers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._origins: weakref.WeakKeyDictionary[Any, _Origin] = weakref.WeakKeyDictionary()

    def __call__(self, data: Any, name: str, prompts: bool = False) -> Any:
        """Return data with the columns of the model; data that are no text in a known form as they are."""
        if self.args.max_length != self.max_length:
            raise DataError(
                f"{self.limit_option}: expected {self.max_length} as when the trainer was made; make a new one"
            )
        columns = self._text_columns(data, prompts)
        if columns is None:
            return data
        if isinstance(data, (list, tuple)):  # `Dataset.from_list` reads the columns of the first row only
            rows = datasets.Dataset.from_dict({name: [row.get(name) for row in data] for name in columns})
            return self._encode(rows, columns, name, prompts=prompts)
        encoded = self._prompts if prompts else self._encoded
        if data not in encoded:
            encoded[data] = self._encode(data, columns, name, prompts=prompts)
        return encoded[data]

    def for_answers(self, data: Any, name: str) -> Any:
        """Return encoded rows whose only target is the answer to be generated: the last turn of a chat."""
        origin = self._origin(data)
        if origin is None:
            return data
        if origin.form is CHATS or (origin.form is COMPLETIONS and isinstance(origin.rows[0][COMPLETION], list)):
            if data not in self._answers:
                self._answers[data] = self._encode(origin.rows, list(origin.rows.column_names), name, answers=True)
            data = self._answers[data]
            origin = self._origins[data]
        if origin.cut_row is not None:  # no prediction could equal its answer
            raise DataError(
                f"{name}: {origin.cut_row}: expected an answer for which {origin.limit_setting} leaves room, got a "
                f"longer one; raise {self.limit_option}, or leave such rows out"
            )
        return data

    def is_text(self, data: Any) -> bool:
        """Return whether encoded rows were rows of text."""
        return self._origin(data) is not None

    def is_target(self, data: Any, column: str | None) -> bool:
        """Return whether a column of data that were text is their target, which partners may inherit."""
        origin = self._origin(data)
        return origin is not None and column is not None and origin.form.target == column

    def _origin(self, data: Any) -> _Origin | None:
        try:
            return self._origins.get(data)
        except TypeError:  # a list
            return None

    def _text_columns(self, data: Any, prompts: bool) -> list[str] | None:
        """Return the columns of data that are to be encoded here; None for other data."""
        if not isinstance(data, datasets.Dataset | datasets.IterableDataset | list | tuple) or self._passes_texts:
            return None
        base = base_model_of(self.model_of())
        if not isinstance(base, PreTrainedModel) or base.main_input_name != INPUT_IDS:
            return None
        columns = columns_of(data)
        if columns is None and isinstance(data, datasets.IterableDataset):
            columns = list(next(iter(data.take(1)), {}))
        if not columns or INPUT_IDS in columns or not self._read_by_collator.isdisjoint(columns):
            return None
        has_inputs = prompts and any(set(form.inputs) <= set(columns) for form in FORMS)
        return columns if has_inputs or holds_text(columns) else None

    def _encode(self, data: Any, columns: list[str], name: str, answers: bool = False, prompts: bool = False) -> Any:
        tokenizer, loss, model = self._tokenizer(name), self.loss, type(base_model_of(self.model_of())).__name__
        if loss not in (*LANGUAGE_LOSSES, *TEXT_LOSSES):
            expected = f"a classifier of texts ({CLASSES}) or a language model, got {model} with sample_loss={loss!r}"
            raise DataError(f"{name} has the columns {columns}: expected {expected}")
        is_stream, data = isinstance(data, datasets.IterableDataset), without_format(data)
        try:
            form = form_of(columns, loss in LANGUAGE_LOSSES, model, prompts)
            dropped = _columns_to_drop(form, columns)
            if not self.args.remove_unused_columns:
                dropped = [column for column in columns if parse_column(column)[1] in form.columns]
            if prompts and form is CHATS and not is_stream:
                form = CHATS if all(chat and chat[-1]["role"] == ASSISTANT for chat in data[MESSAGES]) else PROMPT_CHATS
            prompts = form.target is None and form is not CHATS
            needs = replace(
                _model_needs(self.model_of(), tokenizer, loss, self.args.max_length), limit_option=self.limit_option
            )
            # Processes may number the rows of a stream each from 0.
            encoder = TextEncoder(
                form, tokenizer, needs, columns, answers=answers, prompts=prompts, names_rows=not is_stream
            )
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if is_stream:
            encoded = data.map(encoder, with_indices=True, remove_columns=dropped).remove_columns([NOTES])
            self._origins[encoded] = _Origin(data, form)
            return encoded
        with self.args.main_process_first(desc="tokenizing"):
            encoded = data.map(encoder, with_indices=True, desc=f"Tokenizing {name}")
        origin = _Origin(data, form, self._report(encoded, name, needs.limit_setting), needs.limit_setting)
        encoded = encoded.remove_columns([NOTES, *dropped])
        self._origins[encoded] = origin
        return encoded

    def _tokenizer(self, name: str) -> Any:
        """Return the tokenizer, which pads with its end token if it has no other."""
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise DataError(f"{name} has columns of text: expected processing_class=tokenizer, got {tokenizer!r:.40}")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
            logger.info(f"tokenizer.pad_token={tokenizer.pad_token!r}, its end token, since it had none")
        config = base_model_of(self.model_of()).config.get_text_config()
        if config.pad_token_id is None and self.loss in TEXT_LOSSES:
            config.pad_token_id = tokenizer.pad_token_id  # decoder-only classifiers read the last token before padding
        return tokenizer

    def _report(self, encoded: datasets.Dataset, name: str, limit: str) -> str | None:
        """Log how many texts were cut or are empty, and in which rows; return the first row whose target was cut."""
        from dair_hf.data.texts import encoder

        noted = {
            encoder.CUT_INPUT: f"inputs that were cut at {limit}",
            encoder.CUT_TARGET: f"targets that were cut at {limit}, so that answers to them end early",
            encoder.EMPTY_INPUT: "an empty input; leave them out, or set all columns of an absent partner to null",
            encoder.EMPTY_TARGET: "an empty target, of which the model learns only to end its answer",
            encoder.NO_END: "turns of the assistant without an end token, so that answers will not end; set "
            "tokenizer.eos_token, or model.generation_config.eos_token_id, to the end of a turn in the chat template",
        }
        notes = np.asarray(encoded.with_format(None)[encoder.NOTES], dtype=np.int64)
        first: str | None = None
        for bit, what in noted.items():
            rows = np.flatnonzero(notes & bit)
            if not len(rows):
                continue
            has_ids = ROW_ID in encoded.column_names
            shown = [name_of({ROW_ID: encoded[ROW_ID][row]} if has_ids else {}, row) for row in rows[:3].tolist()]
            if self.args.should_log:
                logger.warning(f"{name}: {len(rows)} of {len(notes)} rows, such as {', '.join(shown)}, have {what}")
            if bit == encoder.CUT_TARGET:
                first = shown[0]
        return first


def _columns_to_drop(form: TextForm, columns: Collection[str]) -> list[str]:
    """Return the columns of all views that encoded data must not keep: labels, and columns of other forms."""
    others = {column for other in FORMS for column in other.columns} - set(form.columns)
    return [name for name in columns if parse_column(name)[1] in {LABEL, *others}]


def _model_needs(model: Any, tokenizer: Any, loss: str | None, max_length: int | None = None) -> Any:
    """Return the `ModelNeeds` of encoded texts: limits, labels, and the tokens around prompts and targets."""
    from dair_hf.data.texts.encoder import ModelNeeds
    from dair_hf.evaluation.generation_settings import end_tokens
    from dair_hf.evaluation.target_tokens import added_tokens, target_affixes

    base = base_model_of(model)
    limit, name = max_positions(model), type(base).__name__
    if max_length is not None:
        if limit is not None and max_length > limit:
            raise DataError(f"max_length={max_length}: expected at most the {limit} positions of {name}")
        limit = max_length
    elif limit is None and tokenizer.model_max_length < UNLIMITED:
        limit = tokenizer.model_max_length
    if loss not in LANGUAGE_LOSSES:
        config = base.config
        # A model of another loss may keep its number of classes elsewhere.
        is_known = loss != "classification" or loss == derived_sample_loss(base)
        return ModelNeeds(loss, name, limit, dict(config.label2id or {}), config.num_labels if is_known else 0)
    affixes = target_affixes(base, tokenizer)
    ends = end_tokens(base.generation_config)
    if tokenizer.eos_token_id is not None:
        ends = {*ends, tokenizer.eos_token_id}
    before, _ = added_tokens(tokenizer)
    return ModelNeeds(loss, name, limit, {}, 0, before, affixes.start, affixes.end, frozenset(ends))


def max_positions(model: Any) -> int | None:
    """Return the number of positions of a model, possibly with adapters; None if there is no limit."""
    from dair_hf.evaluation.generation_settings import virtual_tokens

    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    # RoBERTa and its relatives keep the positions up to the padding's free.
    tables = (module for name, module in model.named_modules() if "position" in name and type(module) is nn.Embedding)
    unused = max((table.padding_idx + 1 for table in tables if table.padding_idx is not None), default=0)
    return positions - unused - virtual_tokens(model)
