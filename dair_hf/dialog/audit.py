"""What can be wrong with a paired data set, counted: run before training, so that no time goes into unsound pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from dair_hf.dialog.audit_pair import Pair, read_pair, spelling
from dair_hf.dialog.ceiling import Ceiling, find_ceiling
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.renaming.leftovers import LeftoverSearch
from dair_hf.errors import DataError
from dair_hf.io.arrow import paused_gc, to_python

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
    "leftover_names": (
        "an old name, or a part that identifies it, is left in the augmented text",
        "renamed dialogues",
        "have the reader find these mentions",
    ),
    "names_kept_in_state": (
        "a slot kept the old name of a renamed entity",
        "renamed dialogues",
        "have the reader count the value among the entity's forms",
    ),
    "two_new_names": (
        "one entity got two new names",
        "renamed dialogues",
        "have the reader link both spellings to one entity",
    ),
    "renamed_without_a_name": (
        "words that name nothing were renamed",
        "renamed dialogues",
        "have the reader drop annotations that say only what is looked for",
    ),
}
# Found by an independent search over plain words (see `leftovers`), which errs now and then: "into contemporary art" is
# not the gallery Contemporary Art.
SEARCHED = ("leftover_names", "names_kept_in_state", "two_new_names", "renamed_without_a_name")
# Shares above which strict mode refuses. What the annotators did (a name never said) is for the user to judge, so it is
# only reported unless a limit is given.
LIMITS: dict[str, float] = {
    finding: 0.003 if finding in SEARCHED else 0.0 for finding in FINDINGS if finding != "original_name_missing_in_text"
}


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
        ceiling: What a model without fault would reach, where an encoder was given.
    """

    rows: int
    pairs: int
    no_partner: int
    dialogues: int
    findings: dict[str, Finding]
    length_ratio: dict[str, float]
    ceiling: Ceiling | None = None

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
            "ceiling": None if self.ceiling is None else self.ceiling.to_dict(),
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
        for what, count, of, examples in [] if self.ceiling is None else self.ceiling.lines():
            table.add_row(what, str(count), f"{of} rows", examples)
        return table

    def raise_if_unsound(self, limits: Mapping[str, float] | None = None) -> None:
        """Refuse data that would teach something wrong.

        Args:
            limits: Finding -> largest share allowed, in [0, 1]; replaces single entries of `LIMITS` (0.003 of the
                renamed dialogues for what the independent search finds, no limit on `original_name_missing_in_text`,
                else 0).

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
    encoder: DialogEncoder | None = None,
    max_examples: int = 5,
) -> AuditReport:
    """Look for what is wrong with a paired data set of dialog rows.

    Args:
        dataset: Rows of the dialog contract with `augmented_history` and `augmented_state`.
        train: To look for leaked names: the training pairs, or the names they hold (say `names_of(train)` and a bank).
        encoder: To find the ceiling: what encodes the rows for the model.
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
    run = _Audit(known=known, max_examples=max_examples)
    with paused_gc():
        for pair in _pairs(dataset):
            run.add(pair)
        return run.report(None if encoder is None else find_ceiling(dataset, encoder, max_examples))


def names_of(dataset: Dataset) -> set[str]:
    """All names of a dataset: the spellings of its entities and, where it holds pairs, the new names.

    Returns:
        Names, case folded and with single spaces.
    """
    found: set[str] = set()
    for pair in _pairs(dataset):
        found.update(pair.owners)
        found.update(pair.new_names)
    return found


def _pairs(dataset: Dataset, batch_size: int = 1000) -> Iterator[Pair]:
    missing = [column for column in COLUMNS if column not in dataset.column_names]
    if missing:
        raise DataError(f"audit: columns {missing} are missing (found {dataset.column_names}); augment the rows first")
    if not len(dataset):
        raise DataError("audit: the dataset has no rows; check the split")
    for table in dataset.select_columns(list(COLUMNS)).with_format("arrow").iter(batch_size):
        columns = [to_python(table[column]) for column in COLUMNS]
        for values in zip(*columns, strict=True):
            yield read_pair(dict(zip(COLUMNS, values, strict=True)))


class _Audit:
    """Takes the pairs one by one and keeps the sums."""

    def __init__(self, known: set[str] | None, max_examples: int) -> None:
        self.findings = {name: Finding() for name in FINDINGS if name != "leaked_names" or known is not None}
        self.known = known
        self.max_examples = max_examples
        self.rows = self.pairs = 0
        self.ratios: list[float] = []
        self.dialogues: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self.inconsistent: set[str] = set()
        self.search = LeftoverSearch()

    def add(self, pair: Pair) -> None:
        self.rows += 1
        views = pair.history, pair.state, pair.augmented_history, pair.augmented_state
        self.search.add(pair.dialogue_id, pair.row_id, *views)
        self.dialogues.setdefault(pair.dialogue_id, ({}, {}))
        self._note("original_name_missing_in_text", pair, pair.unsaid())
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

    def report(self, ceiling: Ceiling | None) -> AuditReport:
        search = self.search
        searched = search.leftovers(), search.kept_in_state(), search.two_new_names(), search.without_a_name()
        for name, missed in zip(SEARCHED, searched, strict=True):
            shown = [f"{one.row_id} {one.what}" for one in missed[: self.max_examples]]
            self.findings[name] = Finding(len(missed), examples=shown)
        totals = {
            "rows": self.rows,
            "pairs": self.pairs,
            "dialogues": len(self.dialogues),
            "renamed dialogues": search.renamed,
        }
        for name, found in self.findings.items():
            found.of = totals[FINDINGS[name][1]]
        ratios = {}
        if self.ratios:
            median, high, most = np.percentile(self.ratios, [50, 95, 100]).tolist()
            ratios = {"median": median, "p95": high, "max": most}
        counts = (self.rows, self.pairs, self.rows - self.pairs, len(self.dialogues))
        return AuditReport(*counts, self.findings, ratios, ceiling)

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
