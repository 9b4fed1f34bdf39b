"""Contents of a pair, as people read them: texts, images, labels, and values that differ."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dair_hf.data.collator import LABELS, PADDING_ROW, ROW_ID
from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.view_columns import parse_column
from dair_hf.evaluation.views import HeldViews, PairViews, TensorViews
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.pair_report.images import is_image, png_uris

Field = dict[str, Any]
INPUT_IDS = "input_ids"
HIDDEN = ("attention_mask", "token_type_ids", "position_ids", "decoder_input_ids", "decoder_attention_mask")
MAX_CHARACTERS = 20_000  # of a text
MAX_VALUES = 24  # values that differ, of a pair
MAX_VALUE_CHARACTERS = 300

_short = reprlib.Repr()
_short.maxstring = _short.maxother = MAX_VALUE_CHARACTERS
_short.maxlist = _short.maxdict = 12


def row_of(views: PairViews, row: int, partner: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of a pair: of the original, and of the partner without its prefix."""
    if isinstance(views, TensorViews):
        kept = {name: values[row] for name, values in views.pairs.columns.items()}
        columns = {**kept, **{name: _plain(value) for name, value in views.pairs[row].items()}}
    else:
        is_held = isinstance(views, HeldViews)
        columns = dict((views.dataset if is_held else views.dataset.with_format(None))[row])
    of_views: dict[int, dict[str, Any]] = {0: {}, partner: {}}
    for name, value in columns.items():
        view, column = parse_column(name)
        if name not in (ROW_ID, PADDING_ROW) and view in of_views:
            of_views[view][column] = value
    return of_views[0], of_views[partner]


class PairContents:
    """Function that describes both views of a pair.

    Args:
        tokenizer: Decodes token ids; None: token ids are shown as numbers.
        texts: Columns of text to show instead of tokens; None: decoded inputs and labels.
        label_name: Class number -> its name.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str] | None, label_name: Callable[[int], str]) -> None:
        self.tokenizer = tokenizer
        self.texts = texts
        self.label_name = label_name

    def __call__(self, original: Mapping[str, Any], partner: Mapping[str, Any]) -> list[Field]:
        """Return the fields of a pair, in the order in which they are shown."""
        views = (original, {**original, **{name: value for name, value in partner.items() if value is not None}})
        fields = self._texts(*views)
        has_texts, values = bool(fields), []
        for name, value in views[0].items():
            other = views[1][name]
            if is_image(value) and is_image(other):
                first, second = png_uris(value, other)
                fields.append({"name": name, "kind": "image", "original": first, "augmented": second})
            elif name in LABEL_COLUMNS and np.ndim(value) == 0:
                fields.append(_text("label", self._label(value), self._label(other)))
            elif has_texts or name in HIDDEN or name not in partner:
                continue  # texts show what the model reads; other columns are their sources
            elif isinstance(value, str) and isinstance(other, str):
                fields.append(_text(name, value, other))
            else:
                values += _different_values(name, value, other)
        if values:
            shown_values = values[:MAX_VALUES]
            fields.append({"name": "values", "kind": "values", "rows": shown_values, "differing": len(values)})
        return fields

    def _label(self, value: Any) -> str:
        return self.label_name(int(value)) if float(value) == int(value) else f"{float(value):g}"

    def _texts(self, original: Mapping[str, Any], augmented: Mapping[str, Any]) -> list[Field]:
        if self.texts is not None:
            return [_text(name, _as_text(original[name]), _as_text(augmented[name])) for name in self.texts]
        if self.tokenizer is None or not _is_token_list(original.get(INPUT_IDS)):
            return []
        decoded = [self._decoded(view) for view in (original, augmented)]
        return [_text(name, text, decoded[1].get(name, "")) for name, text in decoded[0].items()]

    def _decoded(self, view: Mapping[str, Any]) -> dict[str, str]:
        inputs, labels = np.asarray(view[INPUT_IDS]), view.get(LABELS)
        texts = {}
        if _is_token_list(labels):
            targets = np.asarray(labels)
            masked = targets == IGNORE_INDEX
            if len(targets) == len(inputs) and masked.any() and (masked | (targets == inputs)).all():
                inputs = inputs[masked]  # the prompt of a decoder-only model
            texts["target"] = self._decode(targets[~masked])
        return {"input": self._decode(inputs), **texts}

    def _decode(self, ids: np.ndarray) -> str:
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))


def _text(name: str, original: str, augmented: str) -> Field:
    return {"name": name, "kind": "text", "original": _cut(original), "augmented": _cut(augmented)}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} [{len(text) - MAX_CHARACTERS} more]"


def _as_text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        # Messages of a chat, turns of a dialogue.
        return "\n".join(": ".join(str(part) for part in item.values() if part) for item in value)
    return value if isinstance(value, str) else _short.repr(_plain(value))


def _is_token_list(value: Any) -> bool:
    array = np.asarray(value) if isinstance(value, (list, tuple, np.ndarray, torch.Tensor)) else None
    return array is not None and array.ndim == 1 and array.dtype.kind in "iu"


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _different_values(name: str, original: Any, augmented: Any) -> list[list[str]]:
    """Return name, original and augmented value of everything in a column that differs."""
    try:
        left, right = np.asarray(original), np.asarray(augmented)
        is_vector = left.ndim == 1 and left.shape == right.shape and left.dtype.kind in "biuf"
    except ValueError:
        is_vector = False
    if is_vector:
        return [
            [f"{name}[{at}]", _number(left[at]), _number(right[at])] for at in np.flatnonzero(left != right).tolist()
        ]
    first, second = (_number(v) if np.ndim(v) == 0 and _is_number(v) else _as_text(v) for v in (original, augmented))
    return [[name, first, second]] if first != second else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.ndarray)) and not isinstance(value, bool)


def _number(value: Any) -> str:
    return f"{float(value):.6g}"
