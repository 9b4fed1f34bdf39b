"""What reading VQA data left out, record by record, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dair_hf.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES_SHOWN = 3  # in a cell of the table
IDS_TOLD = 20  # in an error; the report holds all
# Problem -> what it is, and what the user can do about it.
PROBLEMS = {
    "missing_image": ("no such image in the folders", "fetch the images, or give all folders they are in"),
    "unreadable_image": ("the image cannot be decoded", "fetch the image again"),
    "no_annotation": ("question without annotation", "check that both files are of one split and version"),
    "no_question": ("annotation without question", "check that both files are of one split and version"),
    "duplicate_question": ("a question of this id came before", "remove all but one"),
    "duplicate_annotation": ("an annotation of this id came before", "remove all but one"),
    "image_mismatch": (
        "question and annotation name different images",
        "check that both files are of one split and version",
    ),
    "wrong_number_of_answers": ("not ten answers", "fetch the annotations again"),
    "empty_question": ("the question is blank", "remove it"),
    "orphan_edit": ("edit of a question that is not among the rows", "read the rows of the same split first"),
    "foreign_edit": ("edit of another image than the question's", "check that rows and edits are of one split"),
}


class Skipped(NamedTuple):
    """One record that was left out.

    Attributes:
        id: Of the question; of an edit, question and edited image: `262148000/000000262148_000000000005`.
        detail: What was found, such as the image that is missing.
    """

    id: str
    detail: str


@dataclass
class VQAReport:
    """What was read and what was left out.

    Attributes:
        counts: What -> how many, in the order in which a table shows them.
        skipped: Key of `PROBLEMS` -> every record that was left out for it.

    Example:
        >>> report = VQAReport({"questions": 3, "rows": 2})
        >>> report.skip("missing_image", "458752000", "image 458752")
        >>> print(report.to_dict()["skipped"])
        {'missing_image': [{'id': '458752000', 'detail': 'image 458752'}]}
    """

    counts: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, list[Skipped]] = field(default_factory=dict)

    def skip(self, problem: str, record_id: str, detail: str = "") -> None:
        """Note a record that is left out.

        Args:
            problem: Key of `PROBLEMS`.
            record_id: The id of the record.
            detail: What was found.
        """
        self.skipped.setdefault(problem, []).append(Skipped(record_id, detail))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        skipped = {problem: [record._asdict() for record in records] for problem, records in self.skipped.items()}
        return {"counts": dict(self.counts), "skipped": skipped}

    def to_table(self, title: str = "What was read") -> Table:
        """The report as a table for `rich.print`."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title)
        for column, justify in (("what", "left"), ("count", "right"), ("for instance", "left")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for name, count in self.counts.items():
            table.add_row(name, str(count), "")
        for problem, records in self.skipped.items():
            # As Text, since rich would read the square brackets of a detail as a style.
            table.add_row(
                f"skipped: {PROBLEMS[problem][0]}", str(len(records)), Text(_examples(records, EXAMPLES_SHOWN))
            )
        return table

    def check(self, source: str, kept: int, *, strict: bool = False) -> None:
        """Refuse data of which nothing is left or, with `strict`, of which anything was left out.

        Args:
            source: Where it comes from, for the message.
            kept: Number of records that are left.
            strict: Whether all of it must be.

        Raises:
            DataError: It is refused; the message holds each problem with its count, the first ids and the remedy.
        """
        if not kept or (strict and self.skipped):
            problems = "\n  ".join(
                f"{problem}: {len(records)} ({PROBLEMS[problem][0]}): {_examples(records, IDS_TOLD)}; "
                f"{PROBLEMS[problem][1]}"
                for problem, records in self.skipped.items()
            )
            found = "not all of it can be used" if kept else "nothing of it can be used"
            raise DataError(f"{source}: {found}:\n  {problems}")


def summary_table(reports: Mapping[str, VQAReport]) -> str:
    """Reports as plain text, side by side: what was read, then what was skipped with an example.

    Args:
        reports: Heading of the column, for instance the split -> report.

    Example:
        >>> print(summary_table({"train": VQAReport({"rows": 2}), "val": VQAReport({"rows": 1})}))
              train  val
        rows      2    1
    """
    names = dict.fromkeys(name for report in reports.values() for name in report.counts)
    problems = dict.fromkeys(problem for report in reports.values() for problem in report.skipped)
    lines = [(name, [str(report.counts.get(name, "")) for report in reports.values()], "") for name in names]
    for problem in problems:
        records = [report.skipped.get(problem, []) for report in reports.values()]
        first = next(found[0] for found in records if found)
        counts = [str(len(found)) for found in records]
        lines.append((f"skipped: {PROBLEMS[problem][0]}", counts, f"  e.g. {_shown(first)}"))
    width = max((len(label) for label, _, _ in lines), default=0)
    sizes = [max(len(name), *(len(counts[i]) for _, counts, _ in lines), 0) for i, name in enumerate(reports)]
    table = [(" " * width, list(reports), ""), *((f"{label:<{width}}", counts, end) for label, counts, end in lines)]
    return "\n".join(
        label + "".join(f"  {count:>{size}}" for count, size in zip(counts, sizes, strict=True)) + end
        for label, counts, end in table
    )


def _examples(records: list[Skipped], count: int) -> str:
    more = [f"and {len(records) - count} more"] if len(records) > count else []
    return ", ".join([*map(_shown, records[:count]), *more])


def _shown(record: Skipped) -> str:
    return f"{record.id} ({record.detail})" if record.detail else record.id
