"""Audit of a paired data set before training: counts of everything that is wrong with the pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets import Dataset

from dair_hf.dialog.audit.ceiling import EXAMPLES, Ceiling, find_ceiling
from dair_hf.dialog.audit.leftovers import LeftoverSearch
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.rows import normalize_name, state_from_row
from dair_hf.errors import DataError
from dair_hf.io.records import paused_gc

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("row_id", "dialogue_id", "history", "state", "names", "augmented_history", "augmented_state")


class _Check(NamedTuple):
    """A fault of pairs, its remedy, and the largest sound share of the dialogues with a partner."""

    description: str
    remedy: str
    limit: float = 0.003


# In the order of the printed table. The last five err now and then: "into contemporary art" is not the gallery
# Contemporary Art.
CHECKS = {
    "name_missing_in_text": _Check(
        "a new name of the augmented state is missing from the augmented text",
        "let the reader find these mentions",
        limit=0.0,
    ),
    "value_lost_from_text": _Check(
        "a value of the state is in the original text, but no longer in the augmented one",
        "leave this row without a partner: the model can only memorize such a value",
        limit=0.0,
    ),
    "leaked_names": _Check(
        "a new name of this data is a name of the training data",
        "draw the names of the two splits from disjoint banks",
        limit=0.0,
    ),
    "known_names": _Check(
        "a name of another dialogue or of the data base stays in the augmented text or state",
        "let the reader find this name",
    ),
    "leftover_names": _Check(
        "an old name, or a part that identifies it, is left in the augmented text",
        "let the reader find these mentions",
    ),
    "names_kept_in_state": _Check(
        "a slot kept the old name of a renamed entity",
        "let the reader add the value to the forms of the entity",
    ),
    "two_new_names": _Check(
        "one entity got two new names",
        "let the reader link both spellings to one entity",
    ),
    "renamed_common_words": _Check(
        "words that name nothing were renamed",
        "let the reader drop annotations that only describe a kind of place",
    ),
}


@dataclass
class _Finding:
    """Result of a check: in how many dialogues it failed, out of how many, and the first examples (row id and name)."""

    count: int = 0
    of: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """`count / of`, or 0 if nothing was checked."""
        return self.count / self.of if self.of else 0.0


@dataclass
class _AuditReport:
    """Result of an audit; the findings count dialogues with a partner."""

    rows: int
    pairs: int
    no_partner: int
    dialogues: int
    findings: dict[str, _Finding]
    ceiling: Ceiling | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            **vars(self),
            "findings": {name: {**asdict(finding), "share": finding.share} for name, finding in self.findings.items()},
            "ceiling": None if self.ceiling is None else self.ceiling.to_dict(),
        }

    def to_table(self, title: str = "Audit of the pairs") -> Table | str:
        """Return the report as a table for `rich.print`; one line if nothing is wrong."""
        from rich.table import Table

        is_attainable = self.ceiling is None or self.ceiling.attainable.all()
        if is_attainable and not any(finding.count for finding in self.findings.values()):
            return f"{title}: {self.pairs:,} of {self.rows:,} rows have a partner; nothing is wrong"
        table = Table(title=title)
        for column, justify in (("check", "left"), ("count", "right"), ("of", "right"), ("examples", "left")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        table.add_row("rows", str(self.rows), "", "")
        table.add_row("with a partner", str(self.pairs), str(self.rows), "")
        table.add_row("without a partner", str(self.no_partner), str(self.rows), "")
        for name, finding in self.findings.items():
            of, examples = f"{finding.of} renamed dialogues", ", ".join(finding.examples)
            table.add_row(CHECKS[name].description, str(finding.count), of, examples)
        for description, count, rows, ids in [] if self.ceiling is None else self.ceiling.lines():
            table.add_row(description, str(count), f"{rows} rows", ids)
        return table

    def raise_if_unsound(self) -> None:
        """Raise an error for pairs that fail checks."""
        failing = [] if self.pairs else [f"none of {self.rows} rows has a partner"]
        for name, finding in self.findings.items():
            check = CHECKS[name]
            if finding.share > check.limit:
                found = f"{finding.count} of {finding.of} renamed dialogues, for instance {', '.join(finding.examples)}"
                failing.append(f"{name} (limit {check.limit:g}): {check.description}: {found}; {check.remedy}")
        if failing:
            raise DataError("audit: the pairs are unsound:\n  " + "\n  ".join(failing))


def audit(
    dataset: Dataset,
    *,
    train: Dataset | Iterable[str] | None = None,
    names: Mapping[str, Iterable[str]] | None = None,
    encoder: DialogEncoder | None = None,
) -> _AuditReport:
    """Check a paired data set of dialog rows.

    Args:
        dataset: Dialog rows with `augmented_history` and `augmented_state`.
        train: Training pairs or their names, to search for leaked names.
        names: Slot -> all names that it can have, such as those of a data base, to search for besides the values of
            the states.
        encoder: Encoder of the rows for the model, to find the ceiling.

    Raises:
        DataError: Only one augmented column of a row is None, or the views have different numbers of utterances.

    Example:
        >>> report = audit(test_pairs, train=train_pairs)  # doctest: +SKIP
        >>> rich.print(report.to_table())  # doctest: +SKIP
        >>> report.raise_if_unsound()  # doctest: +SKIP
    """
    trained = _names_of(train) if isinstance(train, Dataset) else None if train is None else set(train)
    search = LeftoverSearch(names, trained)
    pairs, dialogues = 0, set[str]()
    with paused_gc():
        for row in _rows_of(dataset):
            original, augmented = row["history"], row["augmented_history"]
            has_state = row["augmented_state"] is not None
            if (augmented is not None) != has_state or (has_state and len(augmented) != len(original)):
                raise DataError(
                    f"row {row['row_id']!r}: expected augmented_history with {len(original)} utterances and "
                    f"augmented_state, or neither, got {augmented!r:.60} and {row['augmented_state']!r:.60}"
                )
            pairs += has_state
            dialogues.add(row["dialogue_id"])
            types = [form for entry in row["names"] if _is_type(entry["slot"]) for form in entry["forms"]]
            state, other = (state_from_row(row[column] or ()) for column in ("state", "augmented_state"))
            views = original, state, augmented, other if has_state else None
            search.add(row["dialogue_id"], row["row_id"], *views, types)
        findings = {
            name: _Finding(len(examples), search.renamed, examples[:EXAMPLES])
            for name, examples in search.findings().items()
        }
        ceiling = None if encoder is None else find_ceiling(dataset, encoder)
    return _AuditReport(len(dataset), pairs, len(dataset) - pairs, len(dialogues), findings, ceiling)


def _names_of(dataset: Dataset) -> set[str]:
    """Return all names of a paired dataset, normalized: spellings of its entities and new values of its states."""
    names: set[str] = set()
    for row in _rows_of(dataset):
        names.update(form for entry in row["names"] for form in (entry["name"], *entry["forms"]))
        state = state_from_row(row["state"])
        for slot, values in state_from_row(row["augmented_state"] or ()).items():
            names.update(value for value in values if value not in state.get(slot, ()))
    return set(map(normalize_name, names))


def _rows_of(dataset: Dataset, batch_size: int = 1000) -> Iterator[dict[str, Any]]:
    for table in dataset.select_columns(list(COLUMNS)).with_format("arrow").iter(batch_size):
        yield from table.to_pylist()


def _is_type(slot: str) -> bool:
    """Return whether the values of a renamed slot are types, of which a place has one, and no names of places."""
    return slot.rpartition("-")[2] in ("food", "cuisine", "type")
