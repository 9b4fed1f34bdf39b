"""Text data of a trainer: recognised, tokenized once, and encoded again where answers are generated."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.data.checks import columns_of
from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.texts.chat import ASSISTANT
from dair_hf.data.texts.encoder import (
    CUT_INPUT,
    CUT_TARGET,
    EMPTY_INPUT,
    EMPTY_TARGET,
    NO_END,
    NOTES,
    TextEncoder,
)
from dair_hf.data.texts.forms import (
    CHATS,
    COMPLETION,
    COMPLETIONS,
    INPUT_IDS,
    MESSAGES,
    TextForm,
    columns_to_drop,
    form_of,
    holds_text,
    name_of,
    require_partner_columns,
)
from dair_hf.data.view_columns import is_augmented, parse_column
from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_texts
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, base_model_of
from dair_hf.training.texts.needs import model_needs

logger = logging.get_logger(__name__)

TEXT_LOSSES = ("classification", "multi_label", "squared", "huber")  # of models that give a text a label
PROMPT_CHATS = replace(CHATS)  # to be answered; of `CHATS`, the last turn is an answer
CUTS = (CUT_INPUT, CUT_TARGET)
NOTED = {
    CUT_INPUT: "inputs that were cut",
    CUT_TARGET: "targets that were cut, so that answers to them end early",
    EMPTY_INPUT: "an empty input; leave them out, or set all columns of a partner that does not exist to null",
    EMPTY_TARGET: "an empty target, of which the model learns only to end its answer; unless that is meant, leave them "
    "out, or set all columns of a partner that does not exist to null",
    NO_END: "turns of the assistant without an end token, so that answers will not end; set tokenizer.eos_token, or "
    "model.generation_config.eos_token_id, to the token with which the chat template ends a turn",
}


@dataclass(frozen=True)
class _Origin:
    """Origin of encoded rows: the rows of text, their form, the first row whose target was cut, and the limit."""

    rows: Any
    form: TextForm
    cut_row: str | None = None
    limit_setting: str = ""


class TextRows:
    """Encoder of the text data of a trainer. Equal objects are encoded once.

    Args:
        model_of: Returns the model of the trainer, which `model_init` may replace.
        tokenizer: `processing_class` of the trainer.
        loss: Name of the sample loss.
        args: Settings of the run, with `max_length`.
        base_collator: Collator of single views. One that reads texts itself gets them.
        limit_option: Name under which the user sets `args.max_length`, for messages.
    """

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
        self.limit_option = limit_option
        self._read_by_collator = frozenset(getattr(base_collator, "columns", ()))
        is_known = str(getattr(base_collator, "__module__", "")).startswith("transformers.")
        self._passes_texts = not is_known and not args.remove_unused_columns
        self._may_make_inputs = not is_known  # a collator of the user
        self._encoded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._answers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._origins: weakref.WeakKeyDictionary[Any, _Origin] = weakref.WeakKeyDictionary()

    def __call__(self, data: Any, name: str, prompts: bool = False) -> Any:
        """Return data with the columns of the model; data that are no text in a known form as they are."""
        if isinstance(data, dict):
            return {key: self(part, f"{name}[{key!r}]") for key, part in data.items()}
        columns = self._text_columns(data)
        if columns is None:
            return data
        try:
            encoded = self._encoded.get(data)
        except TypeError:  # a list
            encoded = None
        if encoded is None:
            encoded = self._encode(data, columns, name, prompts=prompts)
            self._encoded[data] = encoded
        return encoded

    def for_answers(self, data: Any, name: str) -> Any:
        """Return encoded rows whose only target is the answer to be generated: the last turn of a chat.

        Raises:
            DataError: The target of a row was cut, so that no answer could equal it.
        """
        origin = self._origin(data)
        if origin is None:
            return data
        if origin.form is CHATS or (origin.form is COMPLETIONS and isinstance(origin.rows[0][COMPLETION], list)):
            if data not in self._answers:
                self._answers[data] = self._encode(origin.rows, list(origin.rows.column_names), name, answers=True)
            data = self._answers[data]
            origin = self._origins[data]
        if origin.cut_row is not None:
            raise DataError(
                f"{name}: {origin.cut_row}: its answer is longer than {origin.limit_setting} leaves room for, so "
                f"that no prediction could equal it; raise {self.limit_option}, or leave such rows out"
            )
        return data

    def evaluator_of(self, data: Any) -> PairEvaluator | None:
        """Return what counts as right for answers to data that were text: the same text; None for other data."""
        return None if self._origin(data) is None else PairEvaluator(same_texts)

    def is_target(self, data: Any, column: str | None) -> bool:
        """Return whether a column of data that were text is their target, which partners may inherit."""
        origin = self._origin(data)
        return origin is not None and column is not None and origin.form.target == column

    def _origin(self, data: Any) -> _Origin | None:
        try:
            return self._origins.get(data)
        except TypeError:
            return None

    def _text_columns(self, data: Any) -> list[str] | None:
        """Return the columns of data that are to be encoded here; None for other data."""
        if data is None or self._passes_texts:
            return None
        base = base_model_of(self.model_of())
        if not isinstance(base, PreTrainedModel) or base.main_input_name != INPUT_IDS:
            return None
        columns = columns_of(data)
        if columns is None and isinstance(data, datasets.IterableDataset):
            columns = list(next(iter(data.take(1)), {}))
        if not columns or INPUT_IDS in columns:
            return None
        if not self._read_by_collator.isdisjoint(columns):
            return None
        is_text = holds_text(columns) or _nearly_holds_text(columns) or self._lacks_inputs(data, columns, base)
        return columns if is_text else None

    def _lacks_inputs(self, data: Any, columns: list[str], base: Any) -> bool:
        """Return whether no column is an input of the model, so that texts must be under names of no form."""
        if self._may_make_inputs or not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            return False
        if getattr(data, "format", {}).get("type") == "custom":  # its transform may make them
            return False
        inputs = set(inspect.signature(base.forward).parameters).difference(LABEL_COLUMNS)
        return inputs.isdisjoint(columns)

    def _encode(self, data: Any, columns: list[str], name: str, answers: bool = False, prompts: bool = False) -> Any:
        if not isinstance(data, datasets.Dataset | datasets.IterableDataset):
            raise DataError(
                f"{name} is a {type(data).__name__} with columns of text, which are tokenized for datasets.Dataset and "
                "datasets.IterableDataset only; pass one of them, or rows with the model's own columns"
            )
        tokenizer = self._require_tokenizer(name)
        loss, model = self.loss, type(base_model_of(self.model_of())).__name__
        if loss not in (*LANGUAGE_LOSSES, *TEXT_LOSSES):
            raise DataError(
                f"{name} has the columns {columns}, but texts are not tokenized for {model} with "
                f"{'a sample_loss of your own' if loss is None else f'sample_loss={loss!r}'}; give its own columns "
                f"with {LABELS}"
            )
        try:
            form = form_of(columns, loss in LANGUAGE_LOSSES, model, prompts)
            if prompts and form is CHATS and not _all_answered(data):
                form = PROMPT_CHATS
            prompts = form.target is None and form is not CHATS
            require_partner_columns(form, columns)
            needs = model_needs(self.model_of(), tokenizer, loss, self.args.max_length)
            needs = replace(needs, limit_option=self.limit_option)
            # Processes may number the rows of a stream each from 0.
            names_rows = not isinstance(data, datasets.IterableDataset)
            encoder = TextEncoder(
                form, tokenizer, needs, columns, answers=answers, prompts=prompts, names_rows=names_rows
            )
        except DataError as error:
            text = str(error)
            separator = " " if text.startswith(("has ", "holds ", "is ")) else ": "
            raise error if text.startswith(name) else DataError(f"{name}{separator}{text}") from error
        dropped = columns_to_drop(form, columns)
        if not self.args.remove_unused_columns:
            dropped = [column for column in columns if parse_column(column)[1] in form.columns]
        if isinstance(data, datasets.IterableDataset):
            encoded = data.map(encoder, with_indices=True, remove_columns=dropped).remove_columns([NOTES])
            self._origins[encoded] = _Origin(data, form)
            return encoded
        with self.args.main_process_first(desc="tokenizing"):
            encoded = data.map(encoder, with_indices=True, desc=f"Tokenizing {name}")
        origin = _Origin(data, form, self._report(encoded, name, needs.limit_setting), needs.limit_setting)
        encoded = encoded.remove_columns([NOTES, *dropped])
        self._origins[encoded] = origin
        return encoded

    def _require_tokenizer(self, name: str) -> Any:
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise DataError(
                f"{name} has columns of text, which takes a tokenizer; pass processing_class=tokenizer to DAIRTrainer, "
                "or rows with the model's own columns"
            )
        if tokenizer.pad_token_id is None:
            if tokenizer.eos_token_id is None:
                raise DataError(f"{name}: {type(tokenizer).__name__} has no padding token; set tokenizer.pad_token")
            tokenizer.pad_token = tokenizer.eos_token
            logger.info(f"tokenizer.pad_token={tokenizer.pad_token!r}, its end token, since it had none")
        config = base_model_of(self.model_of()).config.get_text_config()
        if config.pad_token_id is None and self.loss in TEXT_LOSSES:
            config.pad_token_id = tokenizer.pad_token_id  # decoder-only classifiers read the last token before padding
        return tokenizer

    def _report(self, encoded: datasets.Dataset, name: str, limit: str) -> str | None:
        """Log how many texts were cut or are empty, and in which rows; return the first row whose target was cut."""
        notes = np.asarray(encoded.with_format(None)[NOTES], dtype=np.int64)
        first: str | None = None
        for bit, what in NOTED.items():
            rows = np.flatnonzero(notes & bit)
            if not len(rows):
                continue
            has_ids = ROW_ID in encoded.column_names
            shown = [name_of({ROW_ID: encoded[ROW_ID][row]} if has_ids else {}, row) for row in rows[:3].tolist()]
            limited = f" at {limit}" if bit in CUTS else ""
            if self.args.should_log:
                examples = ", ".join(shown)
                logger.warning(f"{name}: {len(rows)} of {len(notes)} rows, such as {examples}, have {what}{limited}")
            if bit == CUT_TARGET:
                first = shown[0]
        return first


def _nearly_holds_text(columns: list[str]) -> bool:
    """Return whether columns are those of a form but for one, so that a message can say which."""
    names = {parse_column(name)[1] for name in columns}
    inputs = {"text", "prompt", "source"} & names
    return bool(inputs) and any(map(is_augmented, columns)) and any(f"augmented_{name}" in columns for name in inputs)


def _all_answered(chats: Any) -> bool:
    """Return whether all chats end with an answer; a stream is not searched."""
    if isinstance(chats, datasets.IterableDataset):
        return True
    return all(chat and chat[-1]["role"] == ASSISTANT for chat in chats[MESSAGES])
