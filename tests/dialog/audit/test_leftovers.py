"""Errors of a renaming: small dialogues, and the names of the public data bases in the renamed public data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from dair_hf.dialog.audit.audit import CHECKS, audit
from dair_hf.dialog.audit.leftovers import LeftoverSearch
from dair_hf.dialog.renaming.entities import EntityAugmenter, _augmented_features, redraw
from dair_hf.dialog.rows import FEATURES
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS
from tests.dialog.audit.test_audit import make_row

Views = tuple[str, str]
SEARCHED = [name for name, check in CHECKS.items() if check.limit]


def search(*utterances: Views, state: dict[str, Views] | None = None, types: tuple[str, ...] = ()) -> LeftoverSearch:
    """Search with one dialogue among ten others, which use ordinary words."""
    result = LeftoverSearch()
    for number in range(10):
        text = "A contemporary lady may like art, a college or the golden park near the station, said the driver."
        result.add(f"other{number}", f"other{number}/0", [{"speaker": "user", "text": text}], {}, None, None)
    views = [[{"speaker": "user", "text": pair[view]} for pair in utterances] for view in (0, 1)]
    states = [{slot: [pair[view]] for slot, pair in (state or {}).items()} for view in (0, 1)]
    result.add("d", "d/0", views[0], states[0], views[1], states[1], types)
    return result


def failing(result: LeftoverSearch) -> set[str]:
    return {check for check, examples in result.findings().items() if examples and check in SEARCHED}


GALLERY = "Is the Orla Fenwick Gallery free?", "Is the Oakum Brontide free?"
HOTEL = "book the holm lodge", "book the brontide"


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Okay, Orla Fenwick sounds great.", "Orla Fenwick"),
        ("what area is the fenwick in?", "fenwick"),
        ("Is it called Fenwick?", "Fenwick"),
        ("take me to the Fenwik.", "Fenwik"),
        ("I like the Orla Fenwick Gallery's cafe", "Orla Fenwick Gallery's"),
    ],
)
def test_leftovers(said: str, left: str) -> None:
    result = search(GALLERY, (said, said))
    assert failing(result) == {"leftover_names"}
    (example,) = result.findings()["leftover_names"]
    assert example.startswith("d/0 ") and f"{left!r} of 'orla fenwick gallery'" in example.replace("the orla", "orla")


@pytest.mark.parametrize(
    "said",
    [
        "I like a gallery that is free.",
        "It is in Fenwick Street.",
        "What is so fenwick about it?",
        "Try the gallery of Sir Fenwick Jones.",
    ],
)
def test_no_leftovers(said: str) -> None:
    assert failing(search(GALLERY, (said, said))) == set()


def test_types_are_compared_as_a_whole() -> None:
    """One food type may contain another, and "a steakhouse" is none by name: both are errors of names only."""
    foods = (
        ("is there modern zorbian food?", "is there oakum brontide food?"),
        ("or zorbian food?", "or holmic food?"),
        ("or a college?", "or a brontish?"),
    )
    assert failing(search(*foods)) == {"two_new_names", "renamed_common_words"}
    assert failing(search(*foods, types=("modern zorbian", "zorbian", "college"))) == set()
    assert failing(search(*foods, types=("modern zorbian", "zorbian"))) == {"renamed_common_words"}
    # An article that follows the new name is no part of it.
    assert failing(search(("I want an orlan meal.", "I want a zorbian meal."), types=("orlan",))) == set()
    left = ("I said Zorbian, please.", "I said Zorbian, please.")
    assert failing(search(*foods, left, types=("modern zorbian", "zorbian", "college"))) == {"leftover_names"}


def test_ordinary_words_of_other_dialogues_identify_nothing() -> None:
    park = "Is the Golden Park open?", "Is the Oakum Brontide open?"
    assert failing(search(park, ("take me to the golden station", "take me to the golden station"))) == set()


def test_a_new_name_that_contains_an_old_word_is_no_leftover() -> None:
    assert failing(search(GALLERY, ("the Orla Fenwick Gallery", "the Fenwickham"))) <= {"two_new_names"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("the Tulip Arms or Brontide", True),
        ("try tulip arms", True),
        ("a taxi to the Quince", True),
        ("go down Tulip Arms Street", False),
        ("tulips in your arms", False),
        ("is the Brontide in Norwich", False),
    ],
)
def test_known_names_of_other_dialogues_and_of_a_data_base(text: str, left: bool) -> None:
    result = LeftoverSearch({"hotel-name": ["the tulip arms"], "museum-name": ["norwich"]})
    history = [{"speaker": "user", "text": "hello"}]
    result.add("other", "other/0", history, {"hotel-name": ["quince"], "train-departure": ["norwich"]}, None, None)
    views = [[{"speaker": "user", "text": f"{name} please. {text}"}] for name in ("holm lodge", "brontide")]
    result.add("d", "d/0", views[0], {"hotel-name": ["holm lodge"]}, views[1], {"hotel-name": ["brontide"]})
    assert failing(result) == ({"known_names"} if left else set())


def test_a_known_name_that_stays_in_another_slot() -> None:
    result = search(HOTEL, state={"hotel-name": ("holm lodge", "brontide"), "taxi-destination": ("quince", "quince")})
    assert failing(result) == set()
    result.add("other", "other/0", [], {"hotel-name": ["the quince"]}, None, None)
    assert result.findings()["known_names"] == ["d/0 taxi-destination = 'quince'"]


def test_names_kept_in_state() -> None:
    state = {"hotel-name": ("holm lodge", "brontide"), "taxi-destination": ("holm", "holm")}
    result = search(HOTEL, state=state)
    assert failing(result) == {"names_kept_in_state"}
    assert result.findings()["names_kept_in_state"] == ["d/0 taxi-destination = 'holm'"]
    state = {"hotel-name": ("holm lodge", "brontide"), "train-destination": ("holm", "holm")}
    assert failing(search(HOTEL, state=state)) == set()
    state = {"hotel-name": ("not(holm lodge)", "not(holm lodge)")}
    assert failing(search(HOTEL, state=state)) == {"names_kept_in_state"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sitar tandoor", "Tandoor"),
        ("cafe dalloway gallery", "cafe dalloway museum"),
        ("wobbly flagstones", "the flagstones"),
        ("lan hong den", "lan hong den restaurant"),
    ],
)
def test_two_new_names(one: str, other: str) -> None:
    result = search((f"try {one} now", "try oakum now"), (f"or {other} later", "or brontide later"))
    assert "two_new_names" in failing(result)
    same = search((f"try {one} now", "try oakum now"), (f"or {other} later", "or oakum later"))
    assert failing(same) == set()


@pytest.mark.parametrize(
    ("one", "other"),
    [("clare college", "clare hall"), ("zizzo cherry fields", "zizzo market row"), ("rice ship", "fish ship")],
)
def test_two_new_names_of_two_entities_are_no_finding(one: str, other: str) -> None:
    assert failing(search((f"try {one} now", "try oakum now"), (f"or {other}", "or brontide"))) == set()


def test_renamed_common_words() -> None:
    assert failing(search(("preferably a college.", "preferably a gelloce."))) == {"renamed_common_words"}
    assert failing(search(("is the guest house open", "is the steug shoue open"))) == {"renamed_common_words"}
    assert failing(search(("is a fenwick open", "is a brontide open"))) == set()


def test_the_audit_refuses_leftovers() -> None:
    def row(dialogue: str, texts: list[str], new: list[str]) -> Any:
        return make_row(dialogue, 0, texts, {"hotel-area": ["east"]}, {}, [], new, {"hotel-area": ["east"]})

    rows = [row(f"o{i}", ["hello, a holm is free"], ["hello, a brontide is free"]) for i in range(3)]
    rows.append(row("d", ["holm inn is free", "I'll try the holm"], ["brontide is free", "I'll try the holm"]))
    report = audit(Dataset.from_list(rows, features=_augmented_features(FEATURES)))
    assert report.findings["leftover_names"].of == 4 and report.findings["leftover_names"].count == 1
    (example,) = report.findings["leftover_names"].examples
    assert example == "d/0 'the holm' of 'holm inn' in \"I'll try the holm\"" or example.startswith("d/0 'holm'")
    with pytest.raises(DataError, match=r"leftover_names .*0.003.* 1 of 4 renamed dialogues.*d/0"):
        report.raise_if_unsound()


def plain_words(text: str) -> list[str]:
    return [w[:-1] if w.endswith("s") and len(w) > 3 else w for w in re.findall(r"\w+", re.sub(r"['’]s?\b", "", text))]


def known_names_left(pairs: Dataset, names: list[str]) -> list[str]:
    """Find rows whose augmented text or state has a whole name of MultiWOZ's databases, which no reader has."""
    known = {tuple(words[words[:1] == ["the"] :]) for words in map(plain_words, names)} - {("place",)}
    left = []
    for row in pairs:
        texts = [turn["text"] for turn in row["augmented_history"] or ()]
        values = [value for entry in row["augmented_state"] or () for value in entry["values"]]
        for words in map(plain_words, map(str.lower, (*texts, *values))):
            spans = (words[i : i + size] for i in range(len(words)) for size in range(1, 9))
            left += [row["row_id"] for span in spans if tuple(span) in known]
    return left


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize("split", ["val", "test"])
def test_at_most_3_of_1000_renamed_dialogues_have_leftovers(real_data: Path, split: str) -> None:
    from dair_hf.dialog.readers.multiwoz import read_multiwoz

    folder = real_data / "multiwoz21"
    names = [
        entity["name"].lower()
        for kind in ("hotel", "restaurant", "attraction")
        for entity in json.loads((folder / f"{kind}_db.json").read_text())
    ]
    rows, _ = read_multiwoz(folder, split)
    pairs = redraw(rows, EntityAugmenter())
    assert known_names_left(pairs, names) == []
    findings = audit(pairs, names=dict.fromkeys(NAME_SLOTS, names)).findings
    assert findings["leftover_names"].of > 800
    assert all(findings[name].share <= 0.003 for name in SEARCHED), {name: findings[name] for name in SEARCHED}

    # Without the mentions of parts of names the search finds leftovers.
    whole = {tuple(plain_words(name)) for name in names}

    def cut(row: dict[str, Any]) -> dict[str, Any]:
        def surface(mention: dict[str, Any]) -> str:
            return row["history"][mention["turn"]]["text"][mention["start"] : mention["end"]].lower()

        return {"entities": [m for m in row["entities"] if tuple(plain_words(surface(m))) in whole]}

    worse = redraw(rows.map(cut, features=rows.features), EntityAugmenter())
    assert audit(worse).findings["leftover_names"].share > 0.02
