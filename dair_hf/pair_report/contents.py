"""Contents of a pair, as people read them: texts with differing words, images, labels, and values that differ."""

from __future__ import annotations

import base64
import io
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import regex
import torch

from dair_hf.data.collator import LABELS, PADDING_ROW, ROW_ID
from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.view_columns import parse_column
from dair_hf.evaluation.views import PairViews
from dair_hf.losses.per_sample import IGNORE_INDEX

Field = dict[str, Any]
INPUT_IDS = "input_ids"
HIDDEN = ("attention_mask", "token_type_ids", "position_ids", "decoder_input_ids", "decoder_attention_mask")
MAX_CHARACTERS = 20_000  # of a text
MAX_VALUES = 24  # values that differ, of a pair
MAX_VALUE_CHARACTERS = 300
MAX_SIDE = 224  # pixels; larger images are scaled down
CHANNELS = (1, 2, 3, 4)
CONTEXT = 30  # words shown on each side of a difference
MAX_COMPARISONS = 25_000_000  # product of the numbers of words that are compared one by one
# Punctuation marks, symbols and the wide characters of scripts without spaces are words of their own, with accents.
_WORD = regex.compile(r"[\p{P}\p{S}\p{EA=W}\p{EA=F}]\p{M}*|[^\s\p{Z}\p{P}\p{S}\p{EA=W}\p{EA=F}]+")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = MAX_VALUE_CHARACTERS
_short.maxlist = _short.maxdict = 12


def row_of(views: PairViews, row: int, partner: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of a pair: of the original, and of the partner without its prefix."""
    of_views: dict[int, dict[str, Any]] = {0: {}, partner: {}}
    for name, value in views.row(row).items():
        view, column = parse_column(name)
        if name not in (ROW_ID, PADDING_ROW) and view in of_views:
            of_views[view][column] = _plain(value)
    return of_views[0], of_views[partner]


class PairContents:
    """Function that describes both views of a pair: its columns of text, or else its decoded tokens."""

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
            if _is_image(value) and _is_image(other):
                first, second = _png_uris(value, other)
                fields.append({"name": name, "kind": "image", "original": first, "augmented": second})
            elif name in LABEL_COLUMNS and np.ndim(value) == 0:
                fields.append(_text("label", self._label(value), self._label(other)))
            elif name in HIDDEN or name not in partner or (has_texts and not _is_scores(name, value)):
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


def _is_scores(name: str, value: Any) -> bool:
    """Return whether a column is a label of several classes at once, or with a share of each."""
    return name in LABEL_COLUMNS and np.ndim(value) == 1 and np.asarray(value).dtype.kind in "fb"


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


def _is_image(value: Any) -> bool:
    """Return whether a value is an image: of PIL, or an array `[H, W]`, `[C, H, W]` or `[H, W, C]` of numbers."""
    if hasattr(value, "convert") and hasattr(value, "size"):
        return True
    if isinstance(value, (str, bytes, dict)) or value is None:
        return False
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return False
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
        return False
    return _channels_last(array) is not None


def _png_uris(original: Any, augmented: Any) -> tuple[str, str]:
    """Return both images of a pair as `data:image/png` addresses, on one scale of brightness."""
    arrays = [_pixels(value) for value in (original, augmented)]
    if any(array.dtype.kind == "f" for array in arrays):
        low = min(float(np.nanmin(array)) for array in arrays)
        high = max(float(np.nanmax(array)) for array in arrays)
        if low < -1e-6 or high > 1 + 1e-6:
            arrays = [(array - low) / max(high - low, 1e-12) for array in arrays]
        arrays = [np.nan_to_num(array * 255).clip(0, 255).round() for array in arrays]
    first, second = (_uri(array.astype(np.uint8)) for array in arrays)
    return first, second


def _pixels(value: Any) -> np.ndarray:
    """Return an image as `[H, W, C]` with 1 or 3 channels."""
    if hasattr(value, "convert"):
        value = np.asarray(value.convert("L" if value.mode in ("1", "L") else "RGB"))
    array = _channels_last(np.asarray(value))
    assert array is not None
    if array.dtype.kind in "biu":
        array = array.astype(np.uint8) * (255 if array.dtype.kind == "b" else 1)
    else:
        array = array.astype(np.float64)
    if array.shape[2] == 2:
        return np.concatenate([array, np.zeros_like(array[..., :1])], axis=2)
    return array[..., :3]


def _channels_last(array: np.ndarray) -> np.ndarray | None:
    """Return `[H, W, C]`, or None if the array is not an image."""
    if array.ndim == 2:
        array = array[..., None]
    elif array.shape[0] in CHANNELS and (array.shape[2] not in CHANNELS or array.shape[1] == array.shape[2]):
        array = np.moveaxis(array, 0, 2)
    return array if array.shape[2] in CHANNELS and min(array.shape[:2]) > 1 else None


def _uri(pixels: np.ndarray) -> str:
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if max(image.size) > MAX_SIDE:
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


class _Segment(NamedTuple):
    """Part of a text."""

    text: str
    kind: str = "same"


def mark_differences(original: str, augmented: str, context: int = CONTEXT) -> tuple[list[_Segment], list[_Segment]]:
    """Mark the words in which two texts differ, and shorten what is the same."""
    texts = original, augmented
    spans = [[word.span() for word in _WORD.finditer(text)] for text in texts]
    words = [[text[start:end] for start, end in of_text] for text, of_text in zip(texts, spans, strict=True)]
    changed: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for ranges in _differences(*words):
        # An insertion marks both texts: the other one at a place between two words.
        changed[0].append(ranges[:2])
        changed[1].append(ranges[2:])
    left, right = (_segments(*parts, context) for parts in zip(texts, spans, changed, strict=True))
    return left, right


def _differences(left: list[str], right: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield ranges of words `(start, end)` of both texts that differ."""
    shortest = min(len(left), len(right))
    head = next((at for at in range(shortest) if left[at] != right[at]), shortest)
    tail = next((at for at in range(shortest - head) if left[-1 - at] != right[-1 - at]), shortest - head)
    inner = left[head : len(left) - tail], right[head : len(right) - tail]
    if len(inner[0]) * len(inner[1]) > MAX_COMPARISONS:
        yield head, len(left) - tail, head, len(right) - tail
        return
    for tag, a, b, c, d in SequenceMatcher(None, *inner, autojunk=False).get_opcodes():
        if tag != "equal":
            yield head + a, head + b, head + c, head + d


def _segments(text: str, words: list[tuple[int, int]], changed: list[tuple[int, int]], context: int) -> list[_Segment]:
    """Return the segments of a text with ranges of changed words; an empty range is where the other text has more."""
    segments: list[_Segment] = []
    done, at = 0, 0  # words and characters that have a segment

    def add_same(until: int, end: int, before: int, after: int) -> None:
        """Add the words up to `until`, which end at a character: if many, only some `before` and `after` a gap."""
        omitted = until - done - before - after
        if omitted < 2:
            segments.append(_Segment(text[at:end]))
            return
        if before:
            segments.append(_Segment(text[at : words[done + before - 1][1]]))
        segments.append(_Segment(f"{omitted} words", "omitted"))
        if after:
            segments.append(_Segment(text[words[until - after][0] : end]))

    for number, (first, last) in enumerate(changed):
        is_empty = first == last
        start = (words[first - 1][1] if first else 0) if is_empty else words[first][0]
        add_same(first, start, context if number else 0, context)
        done, at = last, start
        if not is_empty:
            at = words[last - 1][1]
            segments.append(_Segment(text[start:at], "changed"))
    add_same(len(words), len(text), context, 0)
    return [segment for segment in segments if segment.text]
