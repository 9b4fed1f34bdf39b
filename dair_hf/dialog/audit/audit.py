"""Audit of a paired data set before training: counts of everything that is wrong with the pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from datasets import Dataset

from dair_hf.dialog.audit.ceiling import Ceiling, find_ceiling
from dair_hf.dialog.audit.leftovers import LeftoverSearch
from dair_hf.dialog.audit.pair import Pair, read_pair
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.text.spans import normalize_name
from dair_hf.errors import DataError
from dair_hf.io.records import paused_gc

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("row_id", "dialogue_id", "history", "state", "names", "augmented_history", "augmented_state")


class Check(NamedTuple):
    """Check of an audit.

    Attributes:
        description: What is wrong.
        unit: What the count is a share of.
        remedy: What to do about it.
        limit: Largest sound share; None if the user must judge.
    """

    description: str
    unit: str
    remedy: str
    limit: float | None = 0.0


# In the order of the printed table. The last five are found by `LeftoverSearch`, which errs now and then: "into
# contemporary art" is not the gallery Contemporary Art.
CHECKS = {
    "unchanged_pairs": Check(
        "augmented view equals the original",
        "pairs",
        "set both augmented columns to None: an identical partner costs time and has no effect",
    ),
    "original_name_missing_in_text": Check(
        "original state has a name that its history does not",
        "rows",
        "check the reader's mentions and the annotation; the model can only memorize such a name",
        limit=None,
    ),
    "name_missing_in_text": Check(
        "new name in the augmented state is missing from the augmented history",
        "pairs",
        "augment with mentioned_only=True, or let the reader find these mentions",
    ),
    "value_lost_from_text": Check(
        "a value of the state is in the original history, but no longer in the augmented one",
        "pairs",
        "augment with mentioned_only=True: the model can only memorize such a value",
    ),
    "leaked_names": Check(
        "a new name of this data is a name of the training data",
        "pairs",
        "draw the names of the two splits from disjoint banks",
    ),
    "known_names": Check(
        "a name of another dialogue or of the data base stays in the augmented text or state",
        "renamed dialogues",
        "let the reader find this name",
        limit=0.003,
    ),
    "leftover_names": Check(
        "an old name, or a part that identifies it, is left in the augmented text",
        "renamed dialogues",
        "let the reader find these mentions",
        limit=0.003,
    ),
    "names_kept_in_state": Check(
        "a slot kept the old name of a renamed entity",
        "renamed dialogues",
        "let the reader add the value to the forms of the entity",
        limit=0.003,
    ),
    "two_new_names": Check(
        "one entity got two new names",
        "renamed dialogues",
        "let the reader link both spellings to one entity",
        limit=0.003,
    ),
    "renamed_common_words": Check(
        "words that name nothing were renamed",
        "renamed dialogues",
        "let the reader drop annotations that only describe a kind of place",
        limit=0.003,
    ),
}


@dataclass
class Finding:
    """Result of a check: how often it failed, out of how many, and the first examples (row id and name)."""

    count: int = 0
    of: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """`count / of`, or 0 if nothing was checked."""
        return self.count / self.of if self.of else 0.0


@dataclass
class AuditReport:
    """Result of an audit."""

    rows: int
    pairs: int
    no_partner: int
    dialogues: int
    findings: dict[str, Finding]
    length_ratio: dict[str, float]
    ceiling: Ceiling | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            **vars(self),
            "findings": {name: {**asdict(finding), "share": finding.share} for name, finding in self.findings.items()},
            "ceiling": None if self.ceiling is None else self.ceiling.to_dict(),
        }

    def to_table(self, title: str = "Audit of the pairs") -> Table:
        """Return the report as a table for `rich.print`."""
        from rich.table import Table

        table = Table(title=title)
        for column, justify in (("check", "left"), ("count", "right"), ("of", "right"), ("examples", "left")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        table.add_row("rows", str(self.rows), "", "")
        table.add_row("with a partner", str(self.pairs), str(self.rows), "")
        table.add_row("without a partner", str(self.no_partner), str(self.rows), "")
        for name, finding in self.findings.items():
            description, unit = CHECKS[name][:2]
            table.add_row(description, str(finding.count), f"{finding.of} {unit}", ", ".join(finding.examples))
        for name, value in self.length_ratio.items():
            table.add_row(f"length ratio, {name}", f"{value:.2f}", "", "")
        for description, count, of, examples in [] if self.ceiling is None else self.ceiling.lines():
            table.add_row(description, str(count), f"{of} rows", examples)
        return table

    def raise_if_unsound(self, limits: Mapping[str, float] | None = None) -> None:
        """Refuse pairs that fail checks."""
        limits = dict(limits or {})
        unknown = [name for name in limits if name not in self.findings]
        if unknown:
            raise DataError(f"limits: {unknown} not checked; choose from {sorted(self.findings)}")
        if not self.pairs:
            raise DataError(
                f"audit: none of {self.rows} rows has a partner; check the slots to augment and the mentions"
            )
        failing = []
        for name, finding in self.findings.items():
            check = CHECKS[name]
            limit = limits.get(name, check.limit)
            if limit is not None and finding.share > limit:
                failing.append(
                    f"{name}: {finding.count} of {finding.of} {check.unit} ({check.description}), limit {limit:g}, "
                    f"for instance {', '.join(finding.examples)}; {check.remedy}"
                )
        if failing:
            raise DataError("audit: the pairs are unsound:\n  " + "\n  ".join(failing))


def audit(
    dataset: Dataset,
    *,
    train: Dataset | Iterable[str] | None = None,
    names: Mapping[str, Iterable[str]] | None = None,
    encoder: DialogEncoder | None = None,
    max_examples: int = 5,
) -> AuditReport:
    """Check a paired data set of dialog rows.

    Args:
        dataset: Dialog rows with `augmented_history` and `augmented_state`.
        train: Training pairs or their names, to search for leaked names.
        names: Slot -> all names that it can have, such as those of a data base, to search for besides the values of
            the states.
        encoder: Encoder of the rows for the model, to find the ceiling.
        max_examples: Number of examples of each finding.

    Raises:
        DataError: A column is missing, the dataset is empty, or only one augmented column of a row is None.

    Example:
        >>> report = audit(test_pairs, train=train_pairs)  # doctest: +SKIP
        >>> rich.print(report.to_table())  # doctest: +SKIP
        >>> report.raise_if_unsound()  # doctest: +SKIP
    """
    known = None
    if train is not None:
        known = names_of(train) if isinstance(train, Dataset) else set(map(normalize_name, train))
    run = _Audit(known, names or {}, max_examples)
    with paused_gc():
        for pair in _pairs(dataset):
            run.add(pair)
        return run.report(None if encoder is None else find_ceiling(dataset, encoder, max_examples))


def names_of(dataset: Dataset) -> set[str]:
    """Return all names of a paired dataset, normalized: spellings of its entities and new names."""
    return {name for pair in _pairs(dataset) for name in (*pair.owners, *pair.new_names)}


def _pairs(dataset: Dataset, batch_size: int = 1000) -> Iterator[Pair]:
    missing = [column for column in COLUMNS if column not in dataset.column_names]
    if missing:
        raise DataError(f"audit: columns {missing} are missing (found {dataset.column_names}); augment the rows first")
    if not len(dataset):
        raise DataError("audit: the dataset has no rows; check the split")
    for table in dataset.select_columns(list(COLUMNS)).with_format("arrow").iter(batch_size):
        columns = [table[column].to_pylist() for column in COLUMNS]
        for values in zip(*columns, strict=True):
            yield read_pair(dict(zip(COLUMNS, values, strict=True)))


class _Audit:
    """Sums of an audit over the pairs."""

    def __init__(self, known: set[str] | None, names: Mapping[str, Iterable[str]], max_examples: int) -> None:
        self.findings = {name: Finding() for name in CHECKS if name != "leaked_names" or known is not None}
        self.known = known
        self.max_examples = max_examples
        self.rows = 0
        self.length_ratios: list[float] = []
        self.dialogues: set[str] = set()
        self.search = LeftoverSearch(names)

    def add(self, pair: Pair) -> None:
        self.rows += 1
        views = pair.history, pair.state, pair.augmented_history, pair.augmented_state
        self.search.add(pair.dialogue_id, pair.row_id, *views, pair.types)
        self.dialogues.add(pair.dialogue_id)
        self._note("original_name_missing_in_text", pair, pair.names_missing_in_text())
        if pair.augmented_history is None:
            return
        self.length_ratios.append(pair.length_ratio())
        self._note("unchanged_pairs", pair, [""] if pair.is_unchanged() else [])
        self._note("name_missing_in_text", pair, pair.new_names_missing_in_text())
        self._note("value_lost_from_text", pair, pair.values_lost_from_text())
        if self.known is not None:
            self._note("leaked_names", pair, sorted(pair.new_names & self.known))

    def report(self, ceiling: Ceiling | None) -> AuditReport:
        for name, examples in self.search.findings().items():
            self.findings[name] = Finding(len(examples), examples=examples[: self.max_examples])
        pairs, dialogues = len(self.length_ratios), len(self.dialogues)
        totals = {"rows": self.rows, "pairs": pairs, "renamed dialogues": self.search.renamed}
        for name, finding in self.findings.items():
            finding.of = totals[CHECKS[name].unit]
        ratios = {}
        if pairs:
            median, high, most = np.percentile(self.length_ratios, [50, 95, 100]).tolist()
            ratios = {"median": median, "p95": high, "max": most}
        return AuditReport(self.rows, pairs, self.rows - pairs, dialogues, self.findings, ratios, ceiling)

    def _note(self, name: str, pair: Pair, examples: Sequence[str]) -> None:
        if examples:
            finding = self.findings[name]
            finding.count += 1
            if len(finding.examples) < self.max_examples:
                finding.examples.append(f"{pair.row_id} {examples[0]!r}" if examples[0] else pair.row_id)
