"""What can be wrong with a paired data set, counted: run before training, so that no time goes into unsound pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from dair_hf.arrow import paused_collection, to_python
from dair_hf.dialog.audit_pair import Pair, read_pair, spelling
from dair_hf.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("row_id", "dialogue_id", "history", "state", "entities", "names", "augmented_history", "augmented_state")

# Finding -> (what is counted, what it is a share of, what to do). The order is that of the printed table.
FINDINGS: dict[str, tuple[str, str, str]] = {
    "unchanged_pairs": (
        "augmented view equals the original",
        "pairs",
        "set both augmented columns to None there: an identical partner costs time and teaches nothing",
    ),
    "original_name_missing_in_text": (
        "original state holds a name that its history does not",
        "rows",
        "check the reader's mentions and the annotation; such a name can only be learned by heart",
    ),
    "name_missing_in_text": (
        "augmented state holds a new name that its history does not",
        "pairs",
        "augment with mentioned_only=True, or have the reader find these mentions",
    ),
    "name_missing_in_state": (
        "renamed in the text, but not in the state",
        "pairs",
        "add the state's spelling to the entity's forms",
    ),
    "truncated_away": (
        "a name of the state is cut off by the token limit in one view",
        "rows",
        "raise max_source_tokens, or keep the newest turns when truncating",
    ),
    "leaked_names": (
        "a new name of this data is a name of the training data",
        "pairs",
        "draw the two splits' names from disjoint banks",
    ),
    "inconsistent_dialogues": (
        "one name became two within the dialogue, or two became one",
        "dialogues",
        "draw new names once per dialogue, not per turn",
    ),
}
# Shares above which strict mode refuses. What the annotators did (a name never said) and what a token limit costs is
# for the user to judge, so these two are only reported unless a limit is given.
LIMITS: dict[str, float] = {
    finding: 0.0 for finding in FINDINGS if finding not in ("original_name_missing_in_text", "truncated_away")
}

Histories = Sequence[Sequence[Mapping[str, str]]]


@dataclass
class Finding:
    """One check: how often it failed, among how many, and the first examples (row id and, where it matters, name)."""

    count: int = 0
    of: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """`count / of`, 0 where nothing was looked at."""
        return self.count / self.of if self.of else 0.0


@dataclass
class AuditReport:
    """The findings about one paired data set.

    Attributes:
        rows: Rows in all.
        pairs: Rows with a partner.
        no_partner: Rows without.
        dialogues: Different dialogue ids.
        findings: Key of `FINDINGS` -> count and examples; checks that were not asked for are absent.
        length_ratio: "median", "p95" and "max" of augmented / original characters of the history, over the pairs.
    """

    rows: int
    pairs: int
    no_partner: int
    dialogues: int
    findings: dict[str, Finding]
    length_ratio: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        findings = {
            name: {"count": f.count, "of": f.of, "share": f.share, "examples": list(f.examples)}
            for name, f in self.findings.items()
        }
        return {
            "rows": self.rows,
            "pairs": self.pairs,
            "no_partner": self.no_partner,
            "dialogues": self.dialogues,
            "length_ratio": dict(self.length_ratio),
            "findings": findings,
        }

    def to_table(self, title: str = "Audit of the pairs") -> Table:
        """The report as a table for `rich.print`."""
        from rich.table import Table

        table = Table(title=title)
        for column, justify in (("check", "left"), ("count", "right"), ("of", "right"), ("examples", "left")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        table.add_row("rows", str(self.rows), "", "")
        table.add_row("with a partner", str(self.pairs), str(self.rows), "")
        table.add_row("without a partner", str(self.no_partner), str(self.rows), "")
        for name, found in self.findings.items():
            table.add_row(FINDINGS[name][0], str(found.count), f"{found.of} {FINDINGS[name][1]}", _shown(found))
        for name, value in self.length_ratio.items():
            table.add_row(f"length ratio, {name}", f"{value:.2f}", "", "")
        return table

    def raise_if_unsound(self, limits: Mapping[str, float] | None = None) -> None:
        """Refuse data that would teach something wrong.

        Args:
            limits: Finding -> largest share allowed, in [0, 1]; replaces single entries of `LIMITS` (all 0; no limit
                on `original_name_missing_in_text` and `truncated_away`).

        Raises:
            DataError: A finding exceeds its limit (the message lists all that do, with count, examples and remedy),
                there is no pair at all, or a limit is given for something that was not checked.
        """
        limits = dict(limits or {})
        unknown = [name for name in limits if name not in self.findings]
        if unknown:
            raise DataError(f"limits: {unknown} not checked; this report has {sorted(self.findings)}")
        if not self.pairs:
            raise DataError(
                f"audit: none of {self.rows} rows has a partner; check the slots to augment and the mentions"
            )
        failing = []
        for name, limit in {**LIMITS, **limits}.items():
            found = self.findings.get(name)
            if found is not None and found.share > limit:
                what, unit, remedy = FINDINGS[name]
                failing.append(
                    f"{name}: {found.count} of {found.of} {unit} ({what}), limit {limit:g}, "
                    f"for instance {_shown(found)}; {remedy}"
                )
        if failing:
            raise DataError("audit: the pairs are unsound:\n  " + "\n  ".join(failing))


def audit(
    dataset: Dataset,
    *,
    train: Dataset | Iterable[str] | None = None,
    kept: Callable[[Histories], Sequence[str]] | str | None = None,
    max_examples: int = 5,
) -> AuditReport:
    """Look for what is wrong with a paired data set of dialog rows.

    Args:
        dataset: Rows of the dialog contract with `augmented_history` and `augmented_state`.
        train: To look for leaked names: the training pairs, or the names they hold (say `names_of(train)` and a bank).
        kept: To look for truncated names: a function from histories to the text of each that the model is given (see
            `newest_tokens`), or the name of a text column that holds it; the other view's is `augmented_<name>`.
        max_examples: Examples kept for each finding.

    Returns:
        The report.

    Raises:
        DataError: A column is missing, the dataset is empty, or one augmented column is None where the other is not.

    Example:
        >>> report = audit(test_pairs, train=train_pairs)  # doctest: +SKIP
        >>> rich.print(report.to_table())  # doctest: +SKIP
        >>> report.raise_if_unsound()  # doctest: +SKIP
    """
    known = None
    if train is not None:
        known = names_of(train) if isinstance(train, Dataset) else {spelling(name) for name in train}
    run = _Audit(known=known, kept=kept, max_examples=max_examples)
    with paused_collection():
        for pairs, texts in _batches(dataset, kept):
            for index, pair in enumerate(pairs):
                run.add(pair, None if texts is None else (texts[0][index], texts[1][index]))
    return run.report()


def names_of(dataset: Dataset) -> set[str]:
    """All names of a dataset: the spellings of its entities and, where it holds pairs, the new names.

    Returns:
        Names, case folded and with single spaces.
    """
    found: set[str] = set()
    for pairs, _ in _batches(dataset, None):
        for pair in pairs:
            found.update(pair.owners)
            found.update(pair.new_names)
    return found


def newest_tokens(
    tokenizer: Any, max_source_tokens: int, to_text: Callable[[Sequence[Mapping[str, str]]], str]
) -> Callable[[Histories], list[str]]:
    """Make the `kept` function of a model that is given the last `max_source_tokens` tokens of the history.

    Args:
        tokenizer: A fast tokenizer (one that knows character offsets).
        max_source_tokens: Tokens kept, special tokens not counted.
        to_text: History -> text, such as `dair_hf.dialog.text.history_to_text`.

    Returns:
        Histories -> the end of each one's text that survives.

    Raises:
        DataError: The tokenizer knows no offsets, or the limit is below 1.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(f"tokenizer {type(tokenizer).__name__}: no character offsets; use a fast tokenizer")
    if max_source_tokens < 1:
        raise DataError(f"max_source_tokens: {max_source_tokens}; must be at least 1")

    def keep(histories: Histories) -> list[str]:
        texts = [to_text(history) for history in histories]
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = encoded["offset_mapping"]
        cuts = [spans[-max_source_tokens][0] if len(spans) > max_source_tokens else 0 for spans in offsets]
        return [text[cut:] for text, cut in zip(texts, cuts, strict=True)]

    return keep


def _batches(
    dataset: Dataset, kept: Callable[[Histories], Sequence[str]] | str | None, size: int = 1000
) -> Iterator[tuple[list[Pair], tuple[Sequence[str], Sequence[str]] | None]]:
    wanted = [*COLUMNS, *((kept, f"augmented_{kept}") if isinstance(kept, str) else ())]
    missing = [column for column in wanted if column not in dataset.column_names]
    if missing:
        raise DataError(f"audit: columns {missing} are missing (found {dataset.column_names}); augment the rows first")
    if not len(dataset):
        raise DataError("audit: the dataset has no rows; check the split")
    for table in dataset.select_columns(wanted).with_format("arrow").iter(size):
        columns = {column: to_python(table[column]) for column in wanted}
        pairs = [
            read_pair(dict(zip(COLUMNS, values, strict=True)))
            for values in zip(*(columns[column] for column in COLUMNS), strict=True)
        ]
        if kept is None:
            yield pairs, None
        elif isinstance(kept, str):
            yield pairs, (columns[kept], [text or "" for text in columns[f"augmented_{kept}"]])
        else:
            augmented = iter(kept([h for h in columns["augmented_history"] if h is not None]))
            yield (
                pairs,
                (
                    kept(columns["history"]),
                    ["" if h is None else next(augmented) for h in columns["augmented_history"]],
                ),
            )


class _Audit:
    """Takes the pairs one by one and keeps the sums."""

    def __init__(self, known: set[str] | None, kept: object, max_examples: int) -> None:
        asked = {"leaked_names": known is not None, "truncated_away": kept is not None}
        self.findings = {name: Finding() for name in FINDINGS if asked.get(name, True)}
        self.known = known
        self.max_examples = max_examples
        self.rows = self.pairs = 0
        self.ratios: list[float] = []
        self.dialogues: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self.inconsistent: set[str] = set()

    def add(self, pair: Pair, texts: tuple[str, str] | None) -> None:
        self.rows += 1
        self.dialogues.setdefault(pair.dialogue_id, ({}, {}))
        self._note("original_name_missing_in_text", pair, pair.unsaid())
        if texts is not None:
            self._note("truncated_away", pair, pair.cut_off(*texts))
        if not pair.has_partner:
            return
        self.pairs += 1
        self.ratios.append(pair.length_ratio())
        self._note("unchanged_pairs", pair, [""] if pair.unchanged() else [])
        self._note("name_missing_in_text", pair, pair.new_names_unsaid())
        self._note("name_missing_in_state", pair, pair.renamed_in_text_only())
        if self.known is not None:
            self._note("leaked_names", pair, sorted(pair.new_names & self.known))
        self._follow(pair)

    def report(self) -> AuditReport:
        totals = {"rows": self.rows, "pairs": self.pairs, "dialogues": len(self.dialogues)}
        for name, found in self.findings.items():
            found.of = totals[FINDINGS[name][1]]
        ratios = {}
        if self.ratios:
            median, high, most = np.percentile(self.ratios, [50, 95, 100]).tolist()
            ratios = {"median": median, "p95": high, "max": most}
        return AuditReport(self.rows, self.pairs, self.rows - self.pairs, len(self.dialogues), self.findings, ratios)

    def _note(self, name: str, pair: Pair, names: Sequence[str]) -> None:
        if names:
            found = self.findings[name]
            found.count += 1
            if len(found.examples) < self.max_examples:
                found.examples.append(f"{pair.row_id} {names[0]!r}" if names[0] else pair.row_id)

    def _follow(self, pair: Pair) -> None:
        forward, backward = self.dialogues[pair.dialogue_id]
        for old, new in pair.renamings:
            if forward.setdefault(old, new) == new and backward.setdefault(new, old) == old:
                continue
            if pair.dialogue_id not in self.inconsistent:
                self.inconsistent.add(pair.dialogue_id)
                self._note("inconsistent_dialogues", pair, [f"{old} -> {new}"])


def _shown(found: Finding) -> str:
    return ", ".join(found.examples)
