"""Findings of an audit: what is wrong with the rows of a paired file, in which rows, and what to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from dair_hf.commands.audit_rows import ID, TOOLS, PairRows, hashable, words_in
from dair_hf.data.view_columns import is_augmented, parse_column, variant_name, view_prefix

NAMED_ROWS = 5  # in a finding
LENGTH_RATIO, LENGTH_DIFFERENCE = 3, 20  # characters: a partner that differs by both is not the same text any more
WORDS_COMPARED = 5  # texts of fewer words may have none in common
MOST_CLASSES = 100  # labels with more values are texts, where all values are new
REPLACEMENT = "\ufffd"  # stands for bytes that were lost when a text was decoded


@dataclass(frozen=True)
class _PairFinding:
    """Something that is wrong in some rows: the check, how often in how many units, and the first rows."""

    name: str
    count: int
    total: int
    unit: str
    rows: list[str]
    problem: str
    remedy: str

    def line(self) -> str:
        """Return the finding in one line."""
        more = ", ..." if self.count > len(self.rows) else ""
        where = f" ({', '.join(self.rows)}{more})" if self.rows else ""
        return f"{self.name}: {self.count} of {self.total} {self.unit}{where}: {self.problem}; {self.remedy}"


# Name -> unit, problem, remedy. In the order in which they are reported.
CHECKS = {
    "invalid_lines": ("lines", "no JSON object", "correct or remove these lines: training refuses the file"),
    "refused": ("files", "training refuses to read it", "correct what the message names"),
    "orphan_columns": (
        "columns",
        "columns of partners without a column of the original",
        "rename them: a partner's column has the original's name with the prefix 'augmented_'",
    ),
    "mixed_types": (
        "columns",
        "values of several types",
        "write all values of a column in one way: labels either as names in quotes or as numbers",
    ),
    "duplicate_row_ids": ("rows", "the row_id of an earlier row", "give each row an id of its own"),
    "duplicate_rows": ("rows", "equal to an earlier row", "remove them: they count twice in every figure"),
    "contradictory_labels": (
        "rows",
        "the input of an earlier row with another label",
        "decide which label is right",
    ),
    "empty_texts": ("views", "an empty input", "remove the row, or set all columns of the partner to null"),
    "empty_labels": ("views", "no label", "give a label, or set all columns of the partner to null"),
    "broken_characters": (
        "views",
        f"the character {REPLACEMENT!r}, which stands for bytes that were lost",
        "convert the source to UTF-8 again, with its true encoding",
    ),
    "no_partner": (
        "rows",
        "no partner",
        "make one if there is something to change; such a row trains, but says nothing about consistency",
    ),
    "incomplete_partners": (
        "partners",
        "a value in some columns and none in others",
        "fill all columns of the partner, or set all to null",
    ),
    "identical_partners": (
        "partners",
        "input and label of the original",
        "set the partner's columns to null: it costs time and raises CM",
    ),
    "relabelled_originals": (
        "partners",
        "the input of the original with another label",
        "change the input as well, or keep the label",
    ),
    "different_texts": (
        "partners",
        f"{LENGTH_RATIO} times longer or shorter than the original, or no word in common with it",
        "check that the partner belongs to this row",
    ),
    "unseen_labels": (
        "partners",
        "a label that no original has",
        "check the spelling; a class that only partners have is learned from them alone",
    ),
    "leaked_rows": (
        "rows",
        "an input that is also in the other file",
        "remove them from one of the files: the test would reward memorization",
    ),
    "labels_not_in_other_file": (
        "views",
        "a label that the other file does not have",
        "check the spelling; a model trained there cannot answer it",
    ),
}


def audit_rows(data: PairRows, other: PairRows | None = None, refusal: str | None = None) -> list[_PairFinding]:
    """Return all findings on paired rows, in the order of `CHECKS`."""
    checks = [_columns(data), _rows(data), _views(data), _partners(data), _unseen_labels(data)]
    found = defaultdict(list) if refusal is None else defaultdict(list, refused=[refusal])
    for check, place in chain(*checks, () if other is None else _leaks(data, other)):
        found[check].append(place)
    views = [view for row in data.rows for view in data.views_of(row)]
    totals = {
        "files": 1,
        "lines": len(data.rows) + len(data.invalid_lines),
        "columns": len(data.columns),
        "rows": len(data.rows),
        "views": len(views),
        "partners": sum(view > 0 for view in views),
    }
    return [
        _PairFinding(name, len(places), totals[unit], unit, [*dict.fromkeys(places)][:NAMED_ROWS], problem, remedy)
        for name, (unit, problem, remedy) in CHECKS.items()
        if (places := found.get(name))
    ]


def label_changes(data: PairRows) -> dict[str, int]:
    """Return the number of partners whose label changed, and whose label did not, of those with both labels."""
    labels = [(data.label_of(row, 0), data.label_of(row, view)) for _, row, view in data.pairs()]
    changed = Counter(first != second for first, second in labels if not any(map(_is_empty, (*first, *second))))
    return {"label_changed": changed[True], "label_unchanged": changed[False]} if data.labels else {}


# The functions below yield the name of a check, and the place where it found something.
Found = Iterator[tuple[str, str]]


def _columns(data: PairRows) -> Found:
    for line in data.invalid_lines:
        yield "invalid_lines", f"line {line}"
    for name in data.columns:
        if is_augmented(name) and parse_column(name)[1] not in data.columns:
            yield "orphan_columns", name
        kinds: dict[str, int] = {}
        for number, row in enumerate(data.rows):
            if row.get(name) is not None:
                kinds.setdefault(_kind(row[name]), number)
        if len(kinds) > 1:
            first = " and ".join(f"{kind} in row {data.name(number)}" for kind, number in kinds.items())
            yield "mixed_types", f"{name}: {first}"


def _rows(data: PairRows) -> Found:
    content = [name for name in data.columns if name != ID]
    ids, contents, label_of_input = set(), set(), dict[Hashable, Hashable]()
    for number, row in enumerate(data.rows):
        name, inputs, label = data.name(number), data.input_of(row, 0), data.label_of(row, 0)
        row_id, values = hashable(row.get(ID)), repr([row.get(column) for column in content])
        if values in contents:
            yield "duplicate_rows", name
        if row_id is not None and row_id in ids:
            yield "duplicate_row_ids", name
        if any(value is not None for value in inputs) and label_of_input.setdefault(inputs, label) != label:
            yield "contradictory_labels", name
        if data.views_of(row) == [0]:
            yield "no_partner", name
        ids.add(row_id)
        contents.add(values)


def _views(data: PairRows) -> Found:
    for number, row in enumerate(data.rows):
        for view in data.views_of(row):
            prefix, name = view_prefix(view), f"{data.name(number)} {variant_name(view)}"
            texts, labels = (
                [row.get(prefix + column) for column in columns if column != TOOLS and prefix + column in data.columns]
                for columns in (data.inputs, data.labels)
            )
            for check, values in (("empty_texts", texts), ("empty_labels", labels)):
                # A missing value of a partner is `incomplete_partners`.
                if any(_is_empty(value) and (value is not None or not view) for value in values):
                    yield check, name
            if any(REPLACEMENT in words_in(value) for value in (*texts, *labels)):
                yield "broken_characters", name


def _partners(data: PairRows) -> Found:
    for number, row, view in data.pairs():
        prefix, name = view_prefix(view), data.name(number)
        own = [column for column in (*data.inputs, *data.labels) if prefix + column in data.columns and column != TOOLS]
        if any(row.get(prefix + column) is None and row.get(column) is not None for column in own):
            yield "incomplete_partners", name
        elif data.inputs and data.input_of(row, view) == data.input_of(row, 0):
            is_same_label = data.label_of(row, view) == data.label_of(row, 0)
            yield "identical_partners" if is_same_label else "relabelled_originals", name
        elif any(_differ_hugely(*(words_in(data.value_of(row, text, v)) for v in (0, view))) for text in data.inputs):
            yield "different_texts", name


def _unseen_labels(data: PairRows) -> Found:
    known = {data.label_of(row, 0) for row in data.rows}
    if data.labels and len(known) <= min(MOST_CLASSES, max(2, len(data.rows) // 2)):
        for number, row, view in data.pairs():
            label = data.label_of(row, view)
            if label not in known and not any(map(_is_empty, label)):
                yield "unseen_labels", data.name(number)


def _leaks(data: PairRows, other: PairRows) -> Found:
    def keys(pairs: PairRows, row: Any) -> set[tuple[str, ...]]:
        views = pairs.views_of(row)
        return {tuple(_normalized(pairs.value_of(row, name, view)) for name in data.inputs) for view in views}

    other = replace(other, inputs=data.inputs)  # so that both are compared by the same columns
    nothing = ("",) * len(data.inputs)  # empty inputs are not a leak
    seen = {key for row in other.rows for key in keys(other, row)} - {nothing}
    known = {other.label_of(row, view) for row in other.rows for view in other.views}
    has_classes = bool(data.labels) and other.labels == data.labels and len(known) <= MOST_CLASSES
    for number, row in enumerate(data.rows):
        if not keys(data, row).isdisjoint(seen):
            yield "leaked_rows", data.name(number)
        for view in data.views_of(row) if has_classes else ():
            label = data.label_of(row, view)
            if label not in known and not any(map(_is_empty, label)):
                yield "labels_not_in_other_file", f"{data.name(number)} {variant_name(view)}"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "number"
    names: dict[type, str] = {str: "text", list: "list", dict: "mapping"}
    return names.get(type(value), type(value).__name__)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value in ([], {})


def _normalized(value: Any) -> str:
    text = words_in(value)
    is_text = bool(text) or value is None or isinstance(value, str)
    return " ".join(text.casefold().split()) if is_text else repr(value)


def _differ_hugely(original: str, augmented: str) -> bool:
    shorter, longer = sorted((len(original), len(augmented)))
    if not shorter:
        return False
    if longer > LENGTH_RATIO * shorter and longer - shorter > LENGTH_DIFFERENCE:
        return True
    words = [set(text.casefold().split()) for text in (original, augmented)]
    return min(map(len, words)) >= WORDS_COMPARED and words[0].isdisjoint(words[1])
