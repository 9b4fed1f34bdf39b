"""Parsed dialogues of any format, the rows made from them, and the report of a reader."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from datasets import Dataset

from dair_hf.dialog.linking.catalogs import venue_slot, venues_in
from dair_hf.dialog.linking.mentions import Annotation, LinkedNames, link_names
from dair_hf.dialog.linking.names import PLACE, DialogueNames
from dair_hf.dialog.rows import RowBuilder, State, Utterance
from dair_hf.errors import DataError
from dair_hf.io.commands import align

# Values by which a data set says that a slot has none.
NOT_SET = frozenset({"not mentioned", "none"})
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
    """Counts of a reader."""

    dialogues: int = 0
    turns: int = 0  # of the user, one row each
    states: int = 0  # that are not empty
    names: int = 0  # named entities, summed over the dialogues
    names_in_text: int = 0
    mentions: int = 0
    # Reason for leaving something out, or for changing it -> count, and the first ids or positions.
    skipped: dict[str, int] = field(default_factory=dict)
    normalized: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, reason: str, where: str) -> None:
        """Count something that was left out, at `where`."""
        self._count(self.skipped, reason, where, 1)

    def normalize(self, reason: str, where: str, count: int = 1) -> None:
        """Count something that was read in another form than the file has it, at `where`."""
        self._count(self.normalized, reason, where, count)

    def _count(self, counts: dict[str, int], reason: str, where: str, count: int) -> None:
        counts[reason] = counts.get(reason, 0) + count
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES and where not in examples:
            examples.append(where)


def summary_table(reports: Mapping[str, ReadReport]) -> str:
    """Format reports, by the headings of their columns, with the reasons for skipping and normalizing."""
    rows: list[list[object]] = [["", *reports]]
    rows += [[label, *(getattr(report, name) for report in reports.values())] for name, label in COUNTS.items()]
    examples = [""] * len(rows)
    for title in ("skipped", "normalized"):
        counts = [getattr(report, title) for report in reports.values()]
        for reason in sorted({reason for of_report in counts for reason in of_report}):
            rows.append([f"{title}: {reason}", *(of_report.get(reason, 0) for of_report in counts)])
            first = next(report.examples[reason] for report in reports.values() if reason in report.examples)
            examples.append(f"  e.g. {first[0]}")
    return "\n".join(line + example for line, example in zip(align(rows), examples, strict=True))


@dataclass
class ParsedDialogue:
    """Dialogue before its names are linked, or with the names and mentions that the reader has found itself."""

    dialogue_id: str
    where: str  # file and position, for error messages
    utterances: Sequence[Utterance]
    states: Mapping[int, State]  # index of a user turn -> its cumulative state
    name_slots: Collection[str] = ()
    annotations: Sequence[Annotation] = ()
    # (slot, name) that are neither in a state nor in the text, such as what was booked.
    other_names: Sequence[tuple[str, str]] = ()
    linked: LinkedNames | None = None


def split_unset(values: Iterable[str], known: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Return the values that a slot has, and for each value that says that it has none a note for the report."""
    unique = [value for value in dict.fromkeys(values) if value]
    unset = [value for value in unique if value in NOT_SET and value not in known]
    return [value for value in unique if value not in unset], [f"value {value!r}, read as not set" for value in unset]


def build_rows(dialogues: Iterable[ParsedDialogue], report: ReadReport, where: str, *, venues: bool = False) -> Dataset:
    """Find the names of dialogues, with `venues` also those of MultiWOZ that no state has, and build the rows."""
    builder = RowBuilder()
    for dialogue in dialogues:
        linked = _link(dialogue, venues) if dialogue.linked is None else dialogue.linked
        builder.add_dialogue(
            dialogue.dialogue_id,
            dialogue.utterances,
            dialogue.states,
            linked.mentions,
            [entity.entry() for entity in linked.entities],
            dialogue.where,
        )
        report.dialogues += 1
        report.turns += len(dialogue.states)
        report.states += sum(map(bool, dialogue.states.values()))
        report.mentions += len(linked.mentions)
        for entity in linked.entities:
            if entity.kind != PLACE:
                report.names += 1
                report.names_in_text += bool(entity.surfaces)
                if entity.is_respelled:
                    reason = "name spelled differently in text and state"
                    report.normalize(reason, f"{dialogue.dialogue_id}: {entity.name}")
    if not report.turns:
        raise DataError(f"{where}: expected user turns with a state, got none; check path and split")
    return builder.build()


def _link(dialogue: ParsedDialogue, venues: bool) -> LinkedNames:
    names = DialogueNames()
    texts = [utterance.text for utterance in dialogue.utterances]
    names.add_states(dialogue.states, dialogue.name_slots, venue_slot if venues else None)
    for slot, name in dict.fromkeys(dialogue.other_names):
        names.add(slot, name, in_state=False)
    for slot, name in venues_in(texts) if venues else ():
        if names.find("", name) is None:
            names.add(slot, name, in_state=False)
    return link_names(texts, names, dialogue.annotations)
