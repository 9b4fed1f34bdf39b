"""Schema-Guided Dialogue: hand-made files, broken files, and the public ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dair_hf.dialog.readers.sgd import _name_kind, build_bank, read_entity_names, read_sgd
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.errors import DataError
from tests.fixtures.dialogs import augment_row, require_sound_rows

Json = dict[str, Any]

SCHEMA = [
    {
        "service_name": "Hotels_1",
        "slots": [
            {"name": "hotel_name", "is_categorical": False, "possible_values": []},
            {"name": "destination", "is_categorical": False, "possible_values": []},
            {"name": "star_rating", "is_categorical": True, "possible_values": ["3", "4"]},
        ],
    },
    {"service_name": "Restaurants_2", "slots": [{"name": "restaurant_name", "is_categorical": False}]},
]


def frame(service: str, slot: str, start: int, end: int, **more: Any) -> Json:
    return {"service": service, "slots": [{"slot": slot, "start": start, "exclusive_end": end}], **more}


def dialogue(hotel: str = "Aspen Lodge", name: str = "1_00000") -> Json:
    town = {"act": "INFORM", "slot": "destination", "values": ["Oslo"]}
    state = {"slot_values": {"hotel_name": [hotel], "star_rating": ["5"]}}
    asked = frame("Hotels_1", "hotel_name", 3, 3 + len(hotel), actions=[town], state=state)
    offers = {"actions": [], "service_results": [{"restaurant_name": "Blue Door"}]}
    offered = frame("Restaurants_2", "restaurant_name", 15, 19, **offers)
    state = {"slot_values": {"restaurant_name": ["Sino", "Sino Bar"]}}
    taken = frame("Restaurants_2", "restaurant_name", 0, 99, state=state)
    turns = [
        ("USER", f"Is {hotel} in Oslo good?", [asked]),
        ("SYSTEM", "Yes. Dinner at Sino?", [offered]),
        ("USER", "Sino, ok.", [taken]),
        ("SYSTEM", "Done.", []),
    ]
    return {
        "dialogue_id": name,
        "services": ["Hotels_1", "Restaurants_2"],
        "turns": [{"speaker": speaker, "utterance": text, "frames": frames} for speaker, text, frames in turns],
    }


def write(folder: Path, split: str, dialogues: Any, schema: Any = SCHEMA) -> Path:
    inner = folder / split
    inner.mkdir(parents=True, exist_ok=True)
    (inner / "dialogues_001.json").write_text(dialogues if isinstance(dialogues, str) else json.dumps(dialogues))
    if schema is not None:
        (inner / "schema.json").write_text(json.dumps(schema))
    return folder


def test_rows_by_hand(tmp_path: Path) -> None:
    rows, report = read_sgd(write(tmp_path, "dev", [dialogue()]), "dev")
    require_sound_rows(rows)
    first, second = rows
    assert first["state"] == [
        {"slot": "hotels_1-hotel_name", "values": ["Aspen Lodge"]},
        {"slot": "hotels_1-star_rating", "values": ["5"]},
    ]
    # The frame of the hotel is not repeated, but its state remains.
    assert second["state"] == [
        *first["state"],
        {"slot": "restaurants_2-restaurant_name", "values": ["Sino", "Sino Bar"]},
    ]
    assert [(entity["slot"], entity["name"], entity["turn"]) for entity in second["entities"]] == [
        ("hotels_1-hotel_name", "aspen lodge", 0),
        ("restaurants_2-restaurant_name", "sino", 1),
        ("restaurants_2-restaurant_name", "sino", 2),
    ]
    sino = next(name for name in second["names"] if name["name"] == "sino")
    assert {"Sino", "Sino Bar"} <= set(sino["forms"])
    assert (report.dialogues, report.turns, report.states) == (1, 2, 2)
    assert report.skipped == {"span outside the text": 1}
    assert report.normalized["value that the schema does not list, kept"] == 1


def test_banks_share_no_name(tmp_path: Path) -> None:
    write(tmp_path, "train", [dialogue("Aspen Lodge"), dialogue("Elm Inn", "2")])
    write(tmp_path, "dev", [dialogue("ELM INN")])
    write(tmp_path, "test", [dialogue("Birch House")])
    names = {split: read_entity_names(tmp_path, split) for split in ("test", "train", "dev")}
    assert names["train"] == {
        "hotel": ["Aspen Lodge", "Elm Inn"],
        "restaurant": ["Blue Door", "Sino", "Sino Bar"],
        "attraction": [],
        "place": ["Oslo"],
    }
    bank, removed = build_bank(names)
    assert list(bank) == ["train", "dev", "test"]
    assert bank["train"] == names["train"]
    assert bank["dev"]["hotel"] == []
    assert bank["test"] == {"hotel": ["Birch House"], "restaurant": [], "attraction": [], "place": []}
    # Removed: 3 restaurant names and a town each, and from dev "ELM INN".
    counts = {split: sum(map(len, kinds.values())) for split, kinds in removed.items()}
    assert counts == {"train": 0, "dev": 6 - 1, "test": 4}
    assert removed["dev"]["hotel"] == ["ELM INN"]


def test_bank_crosses_kinds_and_keeps_the_frequent_spelling(tmp_path: Path) -> None:
    for known in ("Sino Bar", "Sino  Bar"):  # white space makes no other name
        bank, removed = build_bank({"train": {"hotel": [known]}, "test": {"restaurant": ["SINO Bar", "Tang"]}})
        assert (bank["test"], removed["test"]) == ({"restaurant": ["Tang"]}, {"restaurant": ["SINO Bar"]})
    for rare in ("elm inn", "Elm  Inn"):
        write(tmp_path, "dev", [dialogue(rare, "1"), dialogue("Elm Inn", "2"), dialogue("Elm Inn", "3")])
        assert read_entity_names(tmp_path, "dev")["hotel"] == ["Elm Inn"]


# Slots of SGD and of schema variants in SGD-X: service, slot, description.
@pytest.mark.parametrize(
    ("service", "slot", "description", "kind"),
    [
        ("Hotels_4", "place_name", "Name of the accommodation", "hotel"),
        ("Travel_15", "common_name_of_attraction", "What the attraction goes by", "attraction"),
        ("Hotels_13", "name_of_city", "Name of city or town", "place"),
        ("Hotels_43", "street_address", "Navigable location of the hotel", None),
        ("Trains_15", "departure_station_name", "The terminal where the train is leaving from", None),
        ("Buses_15", "departure_city", "Starting point in bus itinerary", "place"),
        ("Media_1", "title", "Title of the movie", None),
    ],
)
def test_kind_of_name_by_description(service: str, slot: str, description: str, kind: str | None) -> None:
    assert _name_kind(f"{service}-{slot}".lower(), description) == kind


@pytest.mark.parametrize(
    ("service", "slot", "description", "kind"),
    [
        ("Hotels_15", "name_of_accommodation", "Name of the hotel or guest house", "hotel"),
        ("Hotels_42", "place", "Name of the hotel", "hotel"),
        ("Restaurants_24", "title_of_eatery", "The restaurant's common name", "restaurant"),
        ("Travel_12", "attraction", "Popular name of the attraction", "attraction"),
    ],
)
def test_names_of_the_schema_variants_of_sgd_x(
    tmp_path: Path, service: str, slot: str, description: str, kind: str
) -> None:
    text = json.dumps([dialogue()]).replace("Hotels_1", service).replace("hotel_name", slot)
    schema = json.loads(json.dumps(SCHEMA).replace("Hotels_1", service).replace("hotel_name", slot))
    schema[0]["slots"][0]["description"] = description
    rows, report = read_sgd(write(tmp_path, "dev", text, schema), "dev")
    assert (report.names, report.names_in_text, report.mentions) == (2, 2, 3)
    assert read_entity_names(tmp_path, "dev")[kind][:1] == ["Aspen Lodge"]
    renamed = f"{service}-{slot}".lower()
    augmenter = EntityAugmenter("swap", slots=[renamed], bank={kind: ["Oak Inn"]})
    history, state = augment_row(augmenter, rows[0])
    assert history[0]["text"] == "Is Oak Inn in Oslo good?"
    assert {"slot": renamed, "values": ["Oak Inn"]} in state


def test_slots_that_rename_nothing_are_refused(tmp_path: Path) -> None:
    rows = read_sgd(write(tmp_path, "dev", [dialogue()]), "dev")[0]
    with pytest.raises(DataError, match="^slots: .*hotel-name.*hotels_1-hotel_name"):
        redraw(rows, EntityAugmenter())
    assert len(redraw(rows, EntityAugmenter(slots=["hotels_1-hotel_name"]))) == 2


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            lambda d: d["turns"][0]["frames"][0]["state"]["slot_values"].update(colour=["red"]),
            r"dialogue \[0\] '1_00000', turns\[0\]\.frames\[0\]\.state\.slot_values: unknown slot 'hotels_1-colour'",
        ),
        (lambda d: d["turns"][0]["frames"][0].update(service="Bars_1"), "unknown slot 'bars_1-hotel_name'"),
        (lambda d: d["turns"].clear(), "got none"),
    ],
)
def test_bad_dialogue(tmp_path: Path, change: Any, place: str) -> None:
    changed_dialogue = dialogue()
    change(changed_dialogue)
    with pytest.raises(DataError, match=place):
        read_sgd(write(tmp_path, "dev", [changed_dialogue]), "dev")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"schema\.json"):
        read_sgd(write(tmp_path / "a", "dev", [dialogue()], schema=None), "dev")
    with pytest.raises(DataError, match=r"schema\.json"):
        read_sgd(write(tmp_path / "b", "dev", [dialogue()], schema={}), "dev")
    with pytest.raises(DataError, match=r"dialogues_001\.json"):
        read_sgd(write(tmp_path / "c", "dev", '[{"dialogue_id": '), "dev")
    with pytest.raises(DataError, match=r"dialogues_001\.json"):
        read_entity_names(write(tmp_path / "d", "dev", {}), "dev")
    with pytest.raises(DataError, match="'1_00000' occurs twice"):
        read_sgd(write(tmp_path / "e", "dev", [dialogue(), dialogue()]), "dev")
    with pytest.raises(DataError, match="split 'test'"):
        read_sgd(tmp_path / "e" / "dev", "test")


@pytest.mark.realdata
@pytest.mark.slow
def test_public_dev(real_data: Path) -> None:
    rows, report = read_sgd(real_data / "sgd", "dev")
    require_sound_rows(rows)
    assert (report.dialogues, len(rows)) == (2098, 19384)
    assert not report.skipped
    assert report.names_in_text > 0.99 * report.names
    names = read_entity_names(real_data / "sgd", "dev")
    assert {"Sino", "Andes Cafe"} <= set(names["restaurant"])
    bank, _ = build_bank({"train": names, "test": read_entity_names(real_data / "sgd", "test")})
    shared = [{name.casefold() for kind in bank[split].values() for name in kind} for split in ("train", "test")]
    assert not shared[0] & shared[1]
    assert all(len(bank["test"][kind]) > 100 for kind in ("hotel", "restaurant"))
