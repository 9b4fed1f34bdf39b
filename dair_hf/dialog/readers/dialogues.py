"""Parsed dialogues of any format, and the rows made from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from datasets import Dataset

from dair_hf.dialog.linking.mentions import Annotation, LinkedNames, link_names
from dair_hf.dialog.linking.names import DialogueNames
from dair_hf.dialog.linking.spelling import PLACE
from dair_hf.dialog.linking.venues import venue_slot, venues_in
from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.text.rows import RowBuilder, Utterance
from dair_hf.errors import DataError

# Values by which a data set says that a slot has none.
NOT_SET = frozenset({"not mentioned", "none"})


@dataclass
class ParsedDialogue:
    """Dialogue before its names are linked.

    Attributes:
        dialogue_id: Its id.
        where: File and position, for error messages.
        utterances: All turns, oldest first.
        states: Index of a user turn -> its cumulative state, slot -> alternatives.
        name_slots: Slots that hold names or places.
        annotations: Annotated spans of the utterances.
        other_names: (slot, name) that are neither in a state nor in the text, such as what was booked.
        linked: Names and mentions, if the reader has found them itself. Slots, annotations and other names are then
            not used.
    """

    dialogue_id: str
    where: str
    utterances: Sequence[Utterance]
    states: Mapping[int, Mapping[str, Sequence[str]]]
    name_slots: Collection[str] = ()
    annotations: Sequence[Annotation] = ()
    other_names: Sequence[tuple[str, str]] = ()
    linked: LinkedNames | None = None


def split_unset(values: Iterable[str], known: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Split the values of a slot into those that it has and those that say that it has none.

    Example:
        >>> split_unset(["centre", "none", "center", ""])
        (['centre', 'center'], ['none'])
        >>> split_unset(["none"], known=["none", "english"])
        (['none'], [])
    """
    unique = [value for value in dict.fromkeys(values) if value]
    unset = [value for value in unique if value in NOT_SET and value not in known]
    return [value for value in unique if value not in unset], unset


def unset_note(value: str) -> str:
    """Return the note of a report on a value of `NOT_SET`."""
    return f"value {value!r}, read as not set"


def _link(dialogue: ParsedDialogue, venues: bool) -> LinkedNames:
    names = DialogueNames()
    texts = [utterance.text for utterance in dialogue.utterances]
    if venues:
        names.add_states(dialogue.states, dialogue.name_slots, venue_slot)
    else:
        names.add_states(dialogue.states, dialogue.name_slots)
    for slot, name in dict.fromkeys(dialogue.other_names):
        names.add(slot, name, in_state=False)
    for slot, name in venues_in(texts) if venues else ():
        if names.find("", name) is None:
            names.add(slot, name, in_state=False)
    return link_names(texts, names, dialogue.annotations)


def build_rows(dialogues: Iterable[ParsedDialogue], report: ReadReport, where: str, *, venues: bool = False) -> Dataset:
    """Find the names of dialogues, with `venues` also those of MultiWOZ that no state has, and build the rows."""
    builder = RowBuilder()
    for dialogue in dialogues:
        linked = _link(dialogue, venues) if dialogue.linked is None else dialogue.linked
        try:
            builder.add_dialogue(
                dialogue.dialogue_id, dialogue.utterances, dialogue.states, linked.mentions, linked.entries
            )
        except DataError as error:
            raise DataError(f"{dialogue.where}: {error}") from error
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
    if not len(builder):
        raise DataError(f"{where} holds no user turn with a state; check path and split")
    return builder.build()
