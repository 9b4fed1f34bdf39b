"""One dialogue as MultiWOZ 2.1, 2.3 and 2.4, TRADE, ConvLab-3 and the Hub publish it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from dair_hf.dialog.readers.multiwoz import read_multiwoz, splits_in
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from tests.fixtures.dialogs import Json, metadata, require_sound_rows, turn

# A venue that is only a taxi's place, and one after an article that its new name must change.
TEXTS = [
    "Book an Ugly Duckling table for 2 .",
    "Done . Anything else ?",
    "A taxi to the allenbell , please .",
    "It is booked .",
]
STATES = [
    {"restaurant-name": "ugly duckling", "restaurant-bookpeople": "2"},
    {"restaurant-name": "ugly duckling", "taxi-destination": "the allenbell", "taxi-leaveat": "dontcare"},
]
BANK = {"restaurant": ["Kestrel Bar"], "hotel": ["Marlow Court"], "attraction": ["Fern Park"]}


def mwz21() -> Json:
    first = metadata(restaurant={"name": "ugly duckling", "book/people": "2"})
    second = metadata(
        restaurant={"name": "ugly duckling", "book/people": ""},
        taxi={"destination": "the allenbell", "leaveAt": "do n't care", "departure": "not mentioned"},
    )
    return {"goal": {}, "log": [turn(t, s) for t, s in zip(TEXTS, (None, first, None, second), strict=True)]}


def write_21(folder: Path) -> Path:
    for split in ("val", "test"):
        (folder / f"{split}ListFile.json").write_text(f"MUL000{1 + (split == 'test')}.json\n")
    return dump(folder, "data.json", {f"MUL000{number}.json": mwz21() for number in (1, 2)})


def write_23(folder: Path) -> Path:
    dialogue = mwz21() | {"new_goal": {"restaurant": {"book": {"people": ["2"]}}}}
    for number, said in enumerate(dialogue["log"]):
        said |= {"turn_id": number, "coreference": {"Taxi-Inform": [["Dest", "the allenbell", "it", 0, "1-1"]]}}
    return dump(folder, "test_data.json", {"MUL0002.json": dialogue})


def write_trade(folder: Path) -> Path:
    turns, said = [], ["", *TEXTS]
    for number, state in enumerate(STATES):
        slots = {slot.replace("-book", "-book "): value for slot, value in state.items()} | {"hotel-area": "none"}
        belief = [{"slots": [list(item)], "act": "inform"} for item in slots.items()]
        turns.append(
            {"turn_idx": number, "system_transcript": said[2 * number], "transcript": said[2 * number + 1],
             "belief_state": belief, "turn_label": [], "domain": "taxi"}
        )  # fmt: skip
    return dump(folder, "test_dials.json", [{"dialogue_idx": "MUL0002.json", "domains": [], "dialogue": turns}])


def write_unified(folder: Path) -> Path:
    named = {"bookpeople": "book people", "leaveat": "leave at"}
    turns: list[Json] = []
    for number, text in enumerate(TEXTS):
        acts: Json = {"categorical": [], "non-categorical": [], "binary": []}
        turns.append({"speaker": ("user", "system")[number % 2], "utterance": text, "dialogue_acts": acts})
        if number % 2 == 0:
            state: Json = {"restaurant": {"food": ""}, "taxi": {"departure": ""}}
            for slot, value in STATES[number // 2].items():
                domain, name = slot.split("-")
                state[domain][named.get(name, name)] = value
            turns[-1]["state"] = state
    place = {"intent": "inform", "domain": "taxi", "slot": "destination", "value": "allenbell", "start": 14, "end": 23}
    turns[2]["dialogue_acts"]["non-categorical"].append(place)
    dialogues = [
        {"dialogue_id": f"multiwoz21-{split}-0", "original_id": name, "data_split": split, "turns": turns}
        for split, name in (("train", "MUL0001.json"), ("test", "MUL0002.json"))
    ]
    dump(folder / "data", "ontology.json", {"domains": {}})
    dump(folder / "data", "dialogues.json", dialogues)
    shutil.make_archive(str(folder / "data"), "zip", folder, "data")
    shutil.rmtree(folder / "data")
    return folder / "data.zip"


def dump(folder: Path, name: str, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder


def hub_rows(folder: Path) -> Dataset:
    """A dialogue as `datasets` reads `multi_woz_v22`: structs of lists, start and end of spans swapped."""
    turns: Json = {"turn_id": list("0123"), "speaker": [0, 1, 0, 1], "utterance": TEXTS, "frames": []}
    for number in range(4):
        frames: Json = {"service": [], "state": [], "slots": []}
        state = STATES[number // 2] if number % 2 == 0 else {}
        for service in ("restaurant", "taxi"):
            slots = {slot: [value] for slot, value in state.items() if slot.startswith(service)}
            values = {"slots_values_name": list(slots), "slots_values_list": list(slots.values())}
            found = (
                [("taxi-destination", 23, 14), ("taxi-departure", -1, -1)] if (number, service) == (2, "taxi") else []
            )
            columns = ["slot", "start", "exclusive_end"]
            spans = dict(zip(columns, map(list, zip(*found, strict=True)) if found else ([], [], []), strict=True))
            frames["service"].append(service)
            frames["state"].append({"active_intent": "x", "requested_slots": [], "slots_values": values})
            frames["slots"].append(spans)
        turns["frames"].append(frames)
    return Dataset.from_list([{"dialogue_id": "MUL0002.json", "services": ["taxi"], "turns": turns}])


@pytest.mark.parametrize("write", [write_21, write_23, write_trade, write_unified, hub_rows])
def test_layouts_give_equal_rows(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path)
    rows, report = read_multiwoz(source, None if write is hub_rows else "test")
    require_sound_rows(rows)
    assert rows["row_id"][:] == ["MUL0002/0", "MUL0002/1"]
    states = [{entry["slot"]: entry["values"] for entry in state} for state in rows["state"]]
    assert states == [{slot: [value] for slot, value in state.items()} for state in STATES]
    assert not report.skipped
    first, second = redraw(rows, EntityAugmenter("swap", bank=BANK))
    assert first["augmented_history"][0]["text"].startswith("Book a Kestrel Bar table for 2")
    assert "Marlow Court" in second["augmented_history"][2]["text"].title()
    after = {entry["slot"]: entry["values"] for entry in second["augmented_state"]}
    assert after["taxi-destination"] == ["marlow court"] and after["restaurant-name"] == ["kestrel bar"]


def test_splits_of_the_unified_format(tmp_path: Path) -> None:
    source = write_unified(tmp_path)
    assert splits_in(Source(source)) == ["train", "dev", "test"]
    assert [len(read_multiwoz(source, split)[0]) for split in ("train", None)] == [2, 4]
    with pytest.raises(DataError, match="got none"):
        read_multiwoz(source, "dev")
    with pytest.raises(DataError, match="split='test'"):
        read_multiwoz(hub_rows(tmp_path), "test")
