"""Findings of an audit: what is wrong with the rows of a paired file, in which rows, and what to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dair_hf.commands.pair_audit.rows import ID, TOOLS, PairRows, text_of
from dair_hf.data.view_columns import is_augmented, parse_column, variant_name, view_prefix

NAMED_ROWS = 5  # in a finding
LENGTH_RATIO, LENGTH_DIFFERENCE = 3, 20  # characters: a partner that differs by both is not the same text any more
WORDS_COMPARED = 5  # texts of fewer words may have none in common
MOST_CLASSES = 100  # labels that have more values are texts, whose values are all new
REPLACEMENT = "\ufffd"  # stands for bytes that were lost when a text was decoded


@dataclass(frozen=True)
class Finding:
    """Something that is wrong in some rows."""

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
    "invalid_lines": ("lines", "no JSON object", "mend or remove these lines: training refuses the file"),
    "refused": ("files", "training refuses to read it", "mend what the message names"),
    "orphan_columns": (
        "columns",
        "columns of partners without a column of the original",
        "rename them: a partner's column is 'augmented_' and the name of the original's",
    ),
    "mixed_types": (
        "columns",
        "values of several types",
        "write all values of a column alike: labels either as names in quotes or as numbers",
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
        "convert the source to UTF-8 again, by its true encoding",
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
        "check the spelling; a class of partners alone is learned from them alone",
    ),
    "leaked_rows": (
        "rows",
        "an input that is also in the other file",
        "remove them here or there: the test would reward memory",
    ),
    "labels_not_in_other_file": (
        "views",
        "a label that the other file does not have",
        "check the spelling; a model trained there cannot answer it",
    ),
}


def audit_rows(data: PairRows, other: PairRows | None = None, refusal: str | None = None) -> list[Finding]:
    """Return all findings on paired rows."""
    found = _Findings(data)
    if refusal is not None:
        found.add_place("refused", refusal)
    _check_columns(found, data)
    _check_rows(found, data)
    _check_views(found, data)
    _check_partners(found, data)
    _check_labels(found, data)
    if other is not None:
        _check_leakage(found, data, other)
    return found.in_order()


def label_changes(data: PairRows) -> dict[str, int]:
    """Return the number of partners whose label changed, and whose label did not.

    A pair of which a view has no label counts as neither.
    """
    labels = [(data.label_of(row, 0), data.label_of(row, view)) for _, row, view in data.pairs()]
    changed = Counter(first != second for first, second in labels if not any(map(_is_empty, (*first, *second))))
    return {"label_changed": changed[True], "label_unchanged": changed[False]} if data.labels else {}


class _Findings:
    """Counts by check, with the first rows of each."""

    def __init__(self, data: PairRows) -> None:
        self.data = data
        self.counts: Counter[str] = Counter()
        self.rows: defaultdict[str, list[str]] = defaultdict(list)
        views = [view for row in data.rows for view in data.views if data.has_view(row, view)]
        self.totals = {
            "files": 1,
            "lines": len(data.rows) + len(data.invalid_lines),
            "columns": len(data.columns),
            "rows": len(data.rows),
            "views": len(views),
            "partners": sum(view > 0 for view in views),
        }

    def add(self, check: str, number: int, view: int = 0) -> None:
        """Count a row, or one of its views."""
        name = self.data.name(number)
        self.add_place(check, f"{name} {variant_name(view)}" if CHECKS[check][0] == "views" else name)

    def add_place(self, check: str, place: str) -> None:
        """Count something that has a name of its own."""
        self.counts[check] += 1
        if len(self.rows[check]) < NAMED_ROWS and place not in self.rows[check]:
            self.rows[check].append(place)

    def in_order(self) -> list[Finding]:
        """Return what was found, in the order of `CHECKS`."""
        return [
            Finding(name, self.counts[name], self.totals[unit], unit, self.rows[name], problem, remedy)
            for name, (unit, problem, remedy) in CHECKS.items()
            if self.counts[name]
        ]


def _check_columns(found: _Findings, data: PairRows) -> None:
    for line in data.invalid_lines:
        found.add_place("invalid_lines", f"line {line}")
    for name in data.columns:
        if is_augmented(name) and parse_column(name)[1] not in data.columns:
            found.add_place("orphan_columns", name)
        kinds: dict[str, int] = {}
        for number, row in enumerate(data.rows):
            if row.get(name) is not None:
                kinds.setdefault(_kind(row[name]), number)
        if len(kinds) > 1:
            first = " and ".join(f"{kind} in row {data.name(number)}" for kind, number in kinds.items())
            found.add_place("mixed_types", f"{name}: {first}")


def _check_rows(found: _Findings, data: PairRows) -> None:
    content = [name for name in data.columns if name != ID]
    label_of_input: dict[Hashable, Hashable] = {}

    def whole(row: Any) -> Hashable:
        return repr([row.get(name) for name in content])

    repeated = set(_repeated(data.rows, whole))
    for number in sorted(repeated):
        found.add("duplicate_rows", number)
    for number in _repeated(data.rows, lambda row: row.get(ID)):
        found.add("duplicate_row_ids", number)
    for number, row in enumerate(data.rows):
        inputs, label = data.input_of(row, 0), data.label_of(row, 0)
        if any(value is not None for value in inputs) and label_of_input.setdefault(inputs, label) != label:
            found.add("contradictory_labels", number)
        if not any(data.has_view(row, view) for view in data.views[1:]):
            found.add("no_partner", number)


def _check_views(found: _Findings, data: PairRows) -> None:
    for number, row in enumerate(data.rows):
        for view in data.views:
            if not data.has_view(row, view):
                continue
            prefix = view_prefix(view)
            texts = [name for name in data.inputs if name != TOOLS]
            values = [row.get(prefix + name) for name in texts if prefix + name in data.columns]
            # Of a partner, a missing value is `incomplete_partners`.
            if any(_is_empty(value) and (value is not None or not view) for value in values):
                found.add("empty_texts", number, view)
            labels = [row.get(prefix + name) for name in data.labels if prefix + name in data.columns]
            if any(_is_empty(value) and (value is not None or not view) for value in labels):
                found.add("empty_labels", number, view)
            if any(REPLACEMENT in text_of(value) for value in (*values, *labels)):
                found.add("broken_characters", number, view)


def _check_partners(found: _Findings, data: PairRows) -> None:
    for number, row, view in data.pairs():
        prefix = view_prefix(view)
        own = [name for name in (*data.inputs, *data.labels) if prefix + name in data.columns and name != TOOLS]
        if any(row.get(prefix + name) is None and row.get(name) is not None for name in own):
            found.add("incomplete_partners", number)
            continue
        is_same_input = data.input_of(row, view) == data.input_of(row, 0)
        is_same_label = data.label_of(row, view) == data.label_of(row, 0)
        if is_same_input and data.inputs:
            found.add("identical_partners" if is_same_label else "relabelled_originals", number)
        elif any(_differ_hugely(*(text_of(data.value_of(row, name, v)) for v in (0, view))) for name in data.inputs):
            found.add("different_texts", number)


def _check_labels(found: _Findings, data: PairRows) -> None:
    known = {data.label_of(row, 0) for row in data.rows}
    if not data.labels or len(known) > min(MOST_CLASSES, max(2, len(data.rows) // 2)):
        return
    for number, row, view in data.pairs():
        label = data.label_of(row, view)
        if label not in known and not any(map(_is_empty, label)):
            found.add("unseen_labels", number)


def _check_leakage(found: _Findings, data: PairRows, other: PairRows) -> None:
    def keys(pairs: PairRows, row: Any) -> set[tuple[str, ...]]:
        views = [view for view in pairs.views if pairs.has_view(row, view)]
        return {tuple(_normalized(pairs.value_of(row, name, view)) for name in data.inputs) for view in views}

    other = replace(other, inputs=data.inputs)  # so that both are compared by the same columns
    nothing = ("",) * len(data.inputs)  # empty inputs are no leak
    seen = {key for row in other.rows for key in keys(other, row)} - {nothing}
    for number, row in enumerate(data.rows):
        if not keys(data, row).isdisjoint(seen):
            found.add("leaked_rows", number)
    known = {other.label_of(row, view) for row in other.rows for view in other.views}
    if not data.labels or other.labels != data.labels or len(known) > MOST_CLASSES:
        return
    for number, row in enumerate(data.rows):
        for view in data.views:
            label = data.label_of(row, view)
            if data.has_view(row, view) and label not in known and not any(map(_is_empty, label)):
                found.add("labels_not_in_other_file", number, view)


def _repeated(rows: Iterable[Any], key: Callable[[Any], Hashable]) -> list[int]:
    """Return the numbers of the rows whose key is that of an earlier row; a key of None counts as no key."""
    seen: set[Hashable] = set()
    repeated = []
    for number, row in enumerate(rows):
        value = key(row)
        if value is not None and value in seen:
            repeated.append(number)
        seen.add(value)
    return repeated


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
    text = text_of(value)
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


def as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return findings as JSON can represent them."""
    return [asdict(finding) for finding in findings]
