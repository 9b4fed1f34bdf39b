"""MultiWOZ 2.1 and 2.2: hand-made files, broken files, and the public ones."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf.dialog.readers.multiwoz import _detokenize, _read_value, read_multiwoz, splits_in
from dair_hf.dialog.renaming.entities import EntityAugmenter
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.metrics.state.conventions import NAME_SLOTS
from tests.fixtures.cpu_time import cpu_time
from tests.fixtures.dialogs import Json, augment_row, metadata, require_sound_rows, turn
from tests.fixtures.paths import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "multiwoz22"


def talk() -> Json:
    """Two user turns with most of what is odd in 2.1, and a last one without an answer."""
    hotel = {"name": "warkworth house", "area": "do n't care", "type": "hotel|guesthouse", "stars": "none"}
    later = hotel | {
        "name": "Warkworth House",
        "book/day": "monday<tuesday",
        "book/booked": [{"name": "warkworth house"}],
    }
    log = [
        turn("Is the Wartworth free , near John 's ?", None, [["Hotel-Inform", "Name", "wartworth", 2, 2]]),
        turn("The warkworth house is .", metadata(hotel=hotel), [["Hotel-Inform", "Name", "x", 90, 99], ["bad"]]),
        turn("I did n't say the Warkworth House 's day"),
        turn(
            "Booked .", metadata(hotel=later, taxi={"leaveAt": "17:15", "departure": "the warkworth"}, bus={"day": ""})
        ),
        turn("Bye ."),
    ]
    return {"goal": {}, "log": log}


def write(folder: Path, dialogues: Any, name: str = "val.json") -> Path:
    path = folder / name
    path.write_text(dialogues if isinstance(dialogues, str) else json.dumps(dialogues))
    return path


def pack(path: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, str) else json.dumps(content))
    return path


def state_of(row: Json) -> dict[str, list[str]]:
    return {entry["slot"]: entry["values"] for entry in row["state"]}


def test_21_by_hand(tmp_path: Path) -> None:
    rows, report = read_multiwoz(write(tmp_path, {"MUL0001.json": talk()}))
    require_sound_rows(rows)
    first, second = rows
    assert [row["row_id"] for row in rows] == ["MUL0001/0", "MUL0001/1"]
    assert state_of(first) == {
        "hotel-area": ["dontcare"],
        "hotel-name": ["warkworth house"],
        "hotel-type": ["hotel", "guesthouse"],
    }
    assert state_of(second) == state_of(first) | {
        "hotel-bookday": ["tuesday", "monday"],  # "a<b" prefers b
        "taxi-departure": ["the warkworth"],
        "taxi-leaveat": ["17:15"],
    }
    assert first["history"] == [{"speaker": "user", "text": "Is the Wartworth free, near John's?"}]
    texts = [utterance["text"] for utterance in second["history"]]
    assert texts[1:] == ["The warkworth house is.", "I didn't say the Warkworth House's day"]
    found = [texts[entity["turn"]][entity["start"] : entity["end"]] for entity in second["entities"]]
    assert found == ["Wartworth", "warkworth house", "Warkworth House"]
    (name,) = second["names"]
    assert (name["slot"], name["name"]) == ("hotel-name", "warkworth house")
    assert {"warkworth house", "Wartworth", "the warkworth"} <= set(name["forms"])
    assert first["names"] == second["names"]
    assert (report.dialogues, report.turns, report.states) == (1, 2, 2)
    assert (report.names, report.names_in_text, report.mentions) == (1, 1, 3)
    assert report.skipped == {
        "span outside the text": 1,
        "span without its five fields": 1,
        "last user turn without an answer, so without a state": 1,
    }
    assert report.normalized == {
        "value 'not mentioned', read as not set": 1,
        "value 'none', read as not set": 2,
        "'do not care' in another spelling": 2,
        "tokenized value": 2,
        "alternatives in one value": 3,
        "value with capitals": 1,
        "name spelled differently in text and state": 1,
    }


@pytest.mark.parametrize(
    ("tokenized", "expected"),
    [
        ("I did n't see Saint John 's college .", "I didn't see Saint John's college."),
        ("queens ' college , please !", "queens' college, please!"),
        ("they 're ( I think ) open ; we 'll go ...", "they're (I think) open; we'll go..."),
        ("city centre north b & b", "city centre north b & b"),
        ("at 12:30 ?", "at 12:30?"),
        ("it costs 5.40 pounds .", "it costs 5.40 pounds."),
        ("Text that was never tokenized, isn't it?", "Text that was never tokenized, isn't it?"),
        ("", ""),
    ],
)
def test_detokenize(tokenized: str, expected: str) -> None:
    assert _detokenize(tokenized.split())[0] == expected


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1, max_size=5).filter(lambda token: token.split() == [token]), max_size=12))
def test_detokenize_returns_the_span_of_each_token(tokens: list[str]) -> None:
    text, places = _detokenize(tokens)
    assert [text[start:end] for start, end in places] == tokens
    assert "".join(text.split()) == "".join(tokens)


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        *((raw, ("dontcare",)) for raw in ("dontcare", "do n't care", "don't care", "dont care", "Does not care")),
        ("not mentioned", ()),
        ("none", ()),
        ("", ()),
        ("saint john 's college", ("saint john's college",)),
        ("christs college|saint catharines", ("christs college", "saint catharines")),
        ("cheap>moderate", ("cheap", "moderate")),
        ("cheap<moderate", ("moderate", "cheap")),
        ("none|dont care", ("dontcare",)),
        ("<5", ("<5",)),
        ("a|a", ("a",)),
    ],
)
def test_values(raw: str, values: tuple[str, ...]) -> None:
    assert _read_value(raw)[0] == values


def test_21_layouts_give_equal_rows(tmp_path: Path) -> None:
    dialogues = {"A.json": talk(), "B.json": talk(), "C.json": talk()}
    lists = {"valListFile.txt": "B.json\n", "testListFile.txt": "C.json\n"}
    members: dict[str, Any] = {f"MultiWOZ_2.1/{name}": text for name, text in lists.items()}
    original = pack(tmp_path / "MultiWOZ_2.1.zip", members | {"MultiWOZ_2.1/data.json": dialogues})
    assert splits_in(Source(original)) == ["train", "dev", "test"]
    for split, expected in [("train", "A"), ("val", "B"), ("test", "C")]:
        assert set(read_multiwoz(original, split)[0]["dialogue_id"]) == {expected}
    assert len(read_multiwoz(original)[0]) == 6
    compact = {"valListFile.json": '\ufeff["B.json","D.json"]', "testListFile.json": '["D.json","C.json"]'}
    listed = pack(tmp_path / "listed.zip", {"data.json": dialogues, **compact})
    assert [set(read_multiwoz(listed, split)[0]["dialogue_id"]) for split in ("train", "dev")] == [{"A"}, {"B"}]
    folder = tmp_path / "by_split"
    folder.mkdir()
    pack(folder / "val.json.zip", {"val.json": {"B": dialogues["B.json"]}})
    pack(folder / "test.json.zip", {"test.json": {"C": dialogues["C.json"]}})
    write(folder, [{"name": "x"}], "hotel_db.json")
    assert splits_in(Source(folder)) == ["dev", "test"]
    assert read_multiwoz(folder, "dev")[0].to_list() == read_multiwoz(original, "dev")[0].to_list()
    assert read_multiwoz(folder / "test.json.zip")[0].to_list() == read_multiwoz(original, "test")[0].to_list()


def test_22_by_hand() -> None:
    rows, report = read_multiwoz(FIXTURES, "dev")
    require_sound_rows(rows)
    first, second = rows
    assert [row["row_id"] for row in rows] == ["PMUL0001/0", "PMUL0001/1"]
    assert state_of(first) == {"hotel-area": ["east"], "hotel-name": ["larch tree guest house", "the larch tree"]}
    assert state_of(second) == state_of(first) | {
        "hotel-pricerange": ["dontcare"],
        "taxi-departure": ["larch tree guest house"],
        "taxi-leaveat": ["17:00", "5 pm"],
    }
    texts = [utterance["text"] for utterance in second["history"]]
    found = [texts[entity["turn"]][entity["start"] : entity["end"]] for entity in second["entities"]]
    assert found == ["Larch Tree Guesthouse", "larch tree guest house", "Larch Tree"]
    assert {entity["name"] for entity in second["entities"]} == {"larch tree guest house"}
    assert [name["slot"] for name in second["names"]] == ["hotel-name"]
    assert (report.dialogues, report.turns, report.states, report.names) == (1, 2, 2, 1)
    assert report.skipped == {"span outside the text": 1}


def test_22_with_one_file_per_split(tmp_path: Path) -> None:
    content = (FIXTURES / "dev" / "dialogues_001.json").read_bytes()
    for name in ("dev.json", "ontology.json"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "schema.json").write_bytes((FIXTURES / "schema.json").read_bytes())
    expected = read_multiwoz(FIXTURES, "dev")[0].to_list()
    for split in ("dev", None):
        assert read_multiwoz(tmp_path, split)[0].to_list() == expected


def test_both_versions_read_none_as_not_set(tmp_path: Path) -> None:
    (dialogue,) = json.loads((FIXTURES / "dev" / "dialogues_001.json").read_text())
    dialogue["turns"][0]["frames"][0]["state"]["slot_values"] = {
        "hotel-area": ["none"],
        "hotel-name": ["not mentioned", "larch tree", ""],
        "hotel-pricerange": ["cheap", "cheap"],
    }
    (tmp_path / "schema.json").write_bytes((FIXTURES / "schema.json").read_bytes())
    write(tmp_path, [dialogue], "dialogues_001.json")
    rows, report = read_multiwoz(tmp_path)
    assert state_of(rows[0]) == {"hotel-name": ["larch tree"], "hotel-pricerange": ["cheap"]}
    notes = ["value 'none', read as not set", "value 'not mentioned', read as not set"]
    assert [report.normalized[note] for note in notes] == [1, 1]
    assert _read_value("not mentioned|larch tree|none") == (
        ("larch tree",), ("alternatives in one value", notes[1], notes[0])
    )  # fmt: skip


def test_venues_that_no_state_names_are_names_of_the_dialogue(tmp_path: Path) -> None:
    log = [
        turn("a taxi from The Allenbell to the station , or to kings lynn ?"),
        turn("Or to Primavera or the Bridge Guesthouse ?", metadata(taxi={"departure": "the allenbell"})),
        turn("It is worth it ."),
        turn("Booked .", metadata(taxi={"departure": "the allenbell", "destination": "kings lynn"})),
    ]
    rows, _ = read_multiwoz(write(tmp_path, {"A": {"log": log}}))
    names = {entry["name"]: entry["slot"] for entry in rows[1]["names"]}
    assert names == {
        "the allenbell": "hotel-name",
        "primavera": "attraction-name",
        "bridge guesthouse": "hotel-name",
        "kings lynn": "taxi-destination",
    }
    bank = {"hotel": ["Oak Inn", "Elm Inn"], "restaurant": ["Sino"], "attraction": ["Old Pier"]}
    history, state = augment_row(EntityAugmenter("swap", bank=bank), rows[1])
    text = " ".join(utterance["text"] for utterance in history)
    assert not re.search("allenbell|primavera|bridge", text, re.IGNORECASE) and "Old Pier" in text
    assert {e["slot"]: e["values"] for e in state}["taxi-departure"][0].removeprefix("the ") in text.lower()
    assert {"slot": "taxi-destination", "values": ["kings lynn"]} in state


def test_22_without_a_schema_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "dialogues_001.json").write_bytes((FIXTURES / "dev" / "dialogues_001.json").read_bytes())
    _, report = read_multiwoz(tmp_path / "a" / "b")
    assert any("built-in list" in oddity for oddity in report.normalized)


def colored() -> Json:
    """The talk with a slot that no domain has."""
    dialogue = talk()
    dialogue["log"][3]["metadata"]["hotel"]["semi"]["colour"] = "red"
    return {"MUL1": dialogue}


# Messages name the file, the dialogue and the field; test_shapes.py has absent keys and values of other types.
@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"MUL1": {"log": [\n{"text"', r"val\.json: .*line 2"),
        ({}, "no user turn|got none"),
        ({"MUL1": {"log": []}}, "got none"),
        (
            colored(),
            r"val\.json: dialogue 'MUL1', log\[3\]\.metadata\.hotel\.semi\.colour: unknown slot 'hotel-colour'",
        ),
        (json.dumps({"MUL1": talk(), "MUL2": talk()}).replace("MUL2", "MUL1"), "'MUL1' occurs several times"),
        ({"MUL1": talk(), "MUL1.json": talk()}, "'MUL1' occurs twice"),
    ],
)
def test_21_bad_input(tmp_path: Path, content: Any, place: str) -> None:
    with pytest.raises(DataError, match=place):
        read_multiwoz(write(tmp_path, content))


@pytest.mark.realdata
@pytest.mark.slow
def test_public_21(real_data: Path) -> None:
    with cpu_time() as spent:
        dev, dev_report = read_multiwoz(real_data / "multiwoz21", "val")
        test, report = read_multiwoz(real_data / "multiwoz21", "test")
        require_sound_rows(dev)
        require_sound_rows(test)
    assert (dev_report.dialogues, len(dev)) == (999, 7365)
    assert (report.dialogues, len(test)) == (1000, 7372)
    states = [state_of(row) for row in test.select_columns("state")]
    share = [
        sum("dontcare" in sum(state.values(), []) for state in states) / len(states),
        sum(not state for state in states) / len(states),
        sum(not {"hotel-name", "restaurant-name"} & state.keys() for state in states) / len(states),
    ]
    assert share == pytest.approx([0.132, 0.015, 0.62], abs=0.0015)
    for found in (dev_report, report):
        assert found.names_in_text > 0.985 * found.names
        assert not found.skipped
    last = {row["dialogue_id"]: row for row in test}
    for row in last.values():
        # Every name of a state is one of the forms, so that a renaming reaches it.
        forms = {form for name in row["names"] for form in name["forms"]}
        for slot, values in state_of(row).items():
            if slot in NAME_SLOTS:
                assert {value for value in values if value != "dontcare"} <= forms, (row["row_id"], slot, values)
    assert spent.seconds < 12, f"reading took {spent.seconds:.1f} s of an idle core; 6 s is the aim"
