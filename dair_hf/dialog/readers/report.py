"""Report of a reader: counts of what was read, skipped and normalized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dair_hf.io.commands import align

MAX_EXAMPLES = 5
# Count -> its label in the table.
COUNTS = {
    "dialogues": "dialogues",
    "turns": "user turns",
    "states": "states not empty",
    "names": "names",
    "names_in_text": "names in the text",
    "mentions": "mentions",
}


@dataclass
class ReadReport:
    """Counts of a reader; reports of several files are added with `+`.

    Attributes:
        dialogues: Dialogues.
        turns: User turns, one row each.
        states: Turns whose state is not empty.
        names: Named entities, summed over the dialogues.
        names_in_text: Named entities that the text mentions.
        mentions: Mentions in the text.
        skipped: Reason for leaving something out -> count.
        normalized: Reason for changing something -> count.
        examples: Reason -> the first ids or positions.
    """

    dialogues: int = 0
    turns: int = 0
    states: int = 0
    names: int = 0
    names_in_text: int = 0
    mentions: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    normalized: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, reason: str, where: str, count: int = 1) -> None:
        """Count something that was left out, at `where`."""
        self._count(self.skipped, reason, where, count)

    def normalize(self, reason: str, where: str, count: int = 1) -> None:
        """Count something that was read in another form than the file has it, at `where`."""
        self._count(self.normalized, reason, where, count)

    def _count(self, counts: dict[str, int], reason: str, where: str, count: int) -> None:
        counts[reason] = counts.get(reason, 0) + count
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES and where not in examples:
            examples.append(where)

    def __add__(self, other: ReadReport) -> ReadReport:
        reasons = {**self.examples, **other.examples}
        examples = {
            reason: list(dict.fromkeys([*self.examples.get(reason, []), *other.examples.get(reason, [])]))
            for reason in reasons
        }
        return ReadReport(
            **{name: getattr(self, name) + getattr(other, name) for name in COUNTS},
            skipped=dict(Counter(self.skipped) + Counter(other.skipped)),
            normalized=dict(Counter(self.normalized) + Counter(other.normalized)),
            examples={reason: where[:MAX_EXAMPLES] for reason, where in examples.items()},
        )


def summary_table(reports: Mapping[str, ReadReport]) -> str:
    """Format reports side by side as plain text, then the reasons for skipping and normalizing with an example each.

    Args:
        reports: Heading of the column, for instance the split -> report.

    Example:
        >>> print(summary_table({"dev": ReadReport(dialogues=2, turns=9)}))
                           dev
        dialogues            2
        user turns           9
        states not empty     0
        names                0
        names in the text    0
        mentions             0
    """
    total = sum(reports.values(), ReadReport())
    rows: list[list[object]] = [["", *reports]]
    rows += [[label, *(getattr(report, name) for report in reports.values())] for name, label in COUNTS.items()]
    examples = [""] * len(rows)
    for title in ("skipped", "normalized"):
        for reason in sorted(getattr(total, title)):
            rows.append([f"{title}: {reason}", *(getattr(report, title).get(reason, 0) for report in reports.values())])
            examples.append(f"  e.g. {total.examples[reason][0]}")
    return "\n".join(line + example for line, example in zip(align(rows), examples, strict=True))
