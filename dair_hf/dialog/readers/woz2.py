"""Reader of WOZ 2.0: restaurant dialogues with one state of three slots, and food types that it does not have.

The files are those of nmrksic/neural-belief-tracker (Mrkšić et al., ACL 2017), in English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.linking.catalogs import link_foods
from dair_hf.dialog.readers.dialogues import ParsedDialogue, ReadReport, build_rows, split_unset
from dair_hf.dialog.readers.files import SPLITS, dialogues_in, files_of_split, split_of
from dair_hf.dialog.rows import SYSTEM, USER, State, Utterance
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.records import paused_gc

FOOD_SLOT = "restaurant-food"
# Slot of the files -> slot of the rows, spelled as in MultiWOZ.
SLOTS = {"food": FOOD_SLOT, "area": "restaurant-area", "price range": "restaurant-pricerange"}
_ACT = {"act": frozenset({"inform", "request"}), "slots": [[str]]}
_DIALOGUE = {"dialogue_idx": int, "dialogue": [{"system_transcript": str, "transcript": str, "belief_state": [_ACT]}]}
# Food types that no dialogue of WOZ 2.0 names, in two lists without a common word: one to choose settings with, one to
# test with. Partners of training rows have scrambled food types instead.
UNSEEN_FOODS: Mapping[str, tuple[str, ...]] = {
    "validation": (
        "albanian", "andalusian", "armenian", "bangladeshi", "breton", "colombian", "costa rican", "creole", "cypriot",
        "czech", "dutch", "estonian", "filipino", "ghanaian", "guatemalan", "icelandic", "iraqi", "laotian", "latvian",
        "mongolian", "nigerian", "pakistani", "puerto rican", "punjabi", "saudi arabian", "senegalese", "serbian",
        "syrian", "tunisian", "ukrainian", "uzbek", "venezuelan",
    ),
    "test": (
        "algerian", "argentinian", "bavarian", "bolivian", "bulgarian", "burmese", "cajun", "cambodian", "chilean",
        "croatian", "ecuadorian", "egyptian", "ethiopian", "finnish", "georgian", "hawaiian", "israeli", "kenyan",
        "lithuanian", "maltese", "nepalese", "norwegian", "papua guinean", "peruvian", "provencal", "sicilian",
        "sierra leonean", "slovenian", "somali", "sudanese", "tex mex", "tibetan", "ugandan", "yemeni",
    ),
}  # fmt: skip
_FILE = re.compile(r"woz_[a-z]+_en\.json")


@paused_gc()
def read_woz2(path: str | os.PathLike[str], split: str | None = None) -> tuple[Dataset, ReadReport]:
    """Read WOZ 2.0 into rows, one per user turn.

    The state of a turn is its `belief_state` without requests; "dontcare" is a value. An utterance of the system
    without text (before the first turn) is left out. The column `names` has the food types of the dialogue: those of
    its states, and all others that it speaks of (`linking.catalogs`).

    Args:
        path: A folder or archive with `woz_train_en.json`, `woz_validate_en.json` and `woz_test_en.json`, or one of
            these files.
        split: "train", "dev" (or "val", "validate", "validation") or "test"; None reads all.

    Returns:
        The rows, with `rows.FEATURES`, and counts of what was read, skipped and normalized.

    Raises:
        DataError: There is nothing to read, a file has another format, a state has an unknown slot, or a dialogue id
            occurs twice. The message names file and position.

    Example:
        >>> rows, report = read_woz2("woz2.zip", split="test")  # doctest: +SKIP
        >>> report.turns  # doctest: +SKIP
        1646
    """
    source, report = Source(path), ReadReport()
    files = files_of_split(source, list(woz2_files(source)), split)
    dialogues = (found for file in files for found in dialogues_in(source, file, _DIALOGUE))
    parsed = (_parse_dialogue(dialogue, report, where) for where, dialogue in dialogues)
    return build_rows(filter(None, parsed), report, f"{source.path}: split {split or 'all'!r}"), report


def woz2_files(source: Source) -> dict[str, str]:
    """Return the files of WOZ 2.0 in a source and their splits, in the order train, dev, test."""
    names = [name for name in source.names if "__MACOSX" not in name and _FILE.fullmatch(PurePosixPath(name).name)]
    found = {name: split for name in names if (split := split_of(source, name)) is not None}
    return dict(sorted(found.items(), key=lambda item: [*SPLITS].index(item[1])))


def _parse_dialogue(dialogue: Mapping[str, Any], report: ReadReport, where: str) -> ParsedDialogue | None:
    dialogue_id = str(dialogue["dialogue_idx"])
    where = f"{where} {dialogue_id!r}"
    utterances: list[Utterance] = []
    states: dict[int, State] = {}
    for number, turn in enumerate(dialogue["dialogue"]):
        for speaker, key in ((SYSTEM, "system_transcript"), (USER, "transcript")):
            text = " ".join(turn[key].split())
            if text or speaker == USER:
                utterances.append(Utterance(speaker, text))
        states[len(utterances) - 1] = _parse_state(turn["belief_state"], report, f"{where}, dialogue[{number}]")
    if not states:
        report.skip("dialogue without a user turn", dialogue_id)
        return None
    foods = [value for state in states.values() for value in state.get(FOOD_SLOT, ())]
    linked = link_foods([utterance.text for utterance in utterances], foods, FOOD_SLOT)
    return ParsedDialogue(dialogue_id, where, utterances, states, linked=linked)


def _parse_state(acts: list[Mapping[str, Any]], report: ReadReport, where: str) -> State:
    state: State = {}
    for pair in (pair for entry in acts if entry["act"] == "inform" for pair in entry["slots"]):
        if len(pair) != 2 or pair[0] not in SLOTS:
            raise DataError(f"{where}.belief_state.slots: expected one of {[*SLOTS]} and its value, got {pair!r:.60}")
        slot, value = SLOTS[pair[0]], " ".join(pair[1].lower().split())
        if value != pair[1]:
            report.normalize("value with capitals or spaces around it", f"{where}: {pair[1]!r}")
        kept, notes = split_unset([value])
        for note in notes:
            report.normalize(note, f"{where}: {slot}")
        if kept and state.get(slot, kept) != kept:
            report.normalize("slot with two values, read as the last of them", f"{where}: {slot}")
        if kept:
            state[slot] = kept
    return state
