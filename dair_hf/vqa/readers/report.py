"""Report of reading VQA data: counts, and every skipped record with its problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.commands import align

EXAMPLES_IN_ERROR = 20  # the report lists all
# Problem -> description, and remedy for the user.
PROBLEMS = {
    "missing_image": ("no such image in the folders", "download the images, or give all folders that contain them"),
    "unreadable_image": ("the image cannot be decoded", "download the image again"),
    "no_annotation": ("question without annotation", "check that both files are of one split and version"),
    "no_question": ("annotation without question", "check that both files are of one split and version"),
    "duplicate_question": ("a question with this id came before", "remove all but one"),
    "duplicate_annotation": ("an annotation with this id came before", "remove all but one"),
    "image_mismatch": (
        "question and annotation name different images",
        "check that both files are of one split and version",
    ),
    "wrong_number_of_answers": ("number of answers is not ten", "download the annotations again"),
    "empty_question": ("the question is blank", "remove it"),
    "orphan_edit": ("edit of a question that is not among the rows", "read the rows of the same split first"),
    "foreign_edit": ("edit of another image than the question's", "check that rows and edits are of one split"),
}


class Skipped(NamedTuple):
    """Record that was skipped."""

    id: str
    detail: str

    def __str__(self) -> str:
        return f"{self.id} ({self.detail})" if self.detail else self.id


@dataclass
class VQAReport:
    """Counts of what was read, and the records that were skipped.

    Attributes:
        counts: Name -> count, in the order of the summary.
        skipped: Key of `PROBLEMS` -> all records skipped for that reason.

    Example:
        >>> report = VQAReport({"questions": 3, "rows": 2})
        >>> report.skip("missing_image", "458752000", "image 458752")
        >>> print(report.to_dict()["skipped"])
        {'missing_image': [{'id': '458752000', 'detail': 'image 458752'}]}
    """

    counts: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, list[Skipped]] = field(default_factory=dict)

    def skip(self, problem: str, record_id: str, detail: str = "") -> None:
        """Add a skipped record under a key of `PROBLEMS`."""
        self.skipped.setdefault(problem, []).append(Skipped(record_id, detail))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        skipped = {problem: [record._asdict() for record in records] for problem, records in self.skipped.items()}
        return {"counts": dict(self.counts), "skipped": skipped}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> VQAReport:
        """Restore a report from the output of `to_dict`."""
        skipped = {name: [Skipped(**record) for record in records] for name, records in content["skipped"].items()}
        return cls(content["counts"], skipped)

    def check(self, source: str, kept: int, *, strict: bool = False) -> None:
        """Raise an error if no record is left or, with `strict`, if any was skipped.

        Args:
            source: Name of the data in the message.
            kept: Number of records that are left.
            strict: Whether to refuse data with skipped records.

        Raises:
            DataError: The data is refused. The message lists each problem with its count, first ids and remedy.
        """
        if not kept or (strict and self.skipped):
            problems = "\n  ".join(
                f"{problem}: {len(records)} ({PROBLEMS[problem][0]}): {_examples(records)}; {PROBLEMS[problem][1]}"
                for problem, records in self.skipped.items()
            )
            usable = "some records cannot be used" if kept else "no record can be used"
            raise DataError(f"{source}: {usable}:\n  {problems}")


def summary_table(reports: Mapping[str, VQAReport]) -> str:
    """Format reports as plain text, one column each: counts, then skipped records with an example.

    Args:
        reports: Column title, such as the split -> report.

    Example:
        >>> print(summary_table({"train": VQAReport({"rows": 2}), "val": VQAReport({"rows": 1})}))
              train  val
        rows      2    1
    """
    names = dict.fromkeys(name for report in reports.values() for name in report.counts)
    problems = dict.fromkeys(problem for report in reports.values() for problem in report.skipped)
    rows: list[list[object]] = [["", *reports]]
    rows += [[name, *(report.counts.get(name, "") for report in reports.values())] for name in names]
    examples = [""] * len(rows)
    for problem in problems:
        records = [report.skipped.get(problem, []) for report in reports.values()]
        rows.append([f"skipped: {PROBLEMS[problem][0]}", *map(len, records)])
        examples.append(f"  e.g. {next(skipped[0] for skipped in records if skipped)}")
    return "\n".join(line + example for line, example in zip(align(rows), examples, strict=True))


def _examples(records: list[Skipped]) -> str:
    more = len(records) - EXAMPLES_IN_ERROR
    return ", ".join([*map(str, records[:EXAMPLES_IN_ERROR]), *([f"and {more} more"] if more > 0 else [])])
