"""Properties of renaming, with generated dialogues."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf.dialog.renaming.entities import EntityAugmenter, _match_case
from dair_hf.dialog.renaming.new_names import _anagram, _scramble
from tests.fixtures.dialogs import augment_row, new_names

METHODS = ("scramble", "swap")
WORD = st.text("abcdefgh", min_size=1, max_size=6)
NAME = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
NAMES = st.lists(NAME, min_size=1, max_size=4, unique=True)
BANK = st.lists(NAME, min_size=1, max_size=6)
PADDING_ROW = st.lists(st.sampled_from(["THE", "xyz", "is", "?", ",", "Oz", "7"]), max_size=3)
CASES = st.sampled_from([str.lower, str.upper, str.title])
ANY = st.text(max_size=12)
SLOTS = ("hotel-name", "restaurant-name", "attraction-name")


@st.composite
def dialogues(draw):
    """Rows of one dialogue over plain names, with all mentions known, as `(names, rows)`."""
    names = draw(NAMES)
    entries = [{"slot": SLOTS[i % 3], "name": name, "forms": [name, name.upper()]} for i, name in enumerate(names)]
    history, entities, rows, state = [], [], [], {}
    for turn in range(draw(st.integers(1, 4))):
        text = ""
        for _ in range(draw(st.integers(0, 3))):
            text += " ".join(["|", *draw(PADDING_ROW), "| "])
            index = draw(st.integers(0, len(names) - 1))
            surface = draw(CASES)(names[index])
            span = {"turn": turn, "start": len(text), "end": len(text) + len(surface)}
            entities.append({"slot": SLOTS[index % 3], "name": names[index], **span})
            text += surface + " "
        history.append({"speaker": "user", "text": text})
        for index in draw(st.sets(st.integers(0, len(names) - 1), max_size=2)):
            state[SLOTS[index % 3]] = [names[index]]
            state["taxi-destination"] = [names[index].upper(), "dontcare"]
        rows.append(
            {
                "row_id": f"d/{turn}",
                "dialogue_id": "d",
                "history": list(history),
                "state": [{"slot": slot, "values": values} for slot, values in sorted(state.items())],
                "entities": list(entities),
                "names": entries,
            }
        )
    return names, rows


def bare(text):
    return " ".join(text.split()).casefold()


def segments(text):
    """The names of a text of `dialogues`: what stands behind each closing bar."""
    return [part.strip() for part in text.split("|")[2::2]]


@given(NAME, st.integers())
@settings(max_examples=50)
def test_scramble_keeps_letters_word_by_word_and_anagrams_their_lengths(name, seed):
    new, anagram = (shuffle(name, random.Random(seed)) for shuffle in (_scramble, _anagram))
    assert Counter("".join(sorted(w)) for w in new.split(" ")) == Counter("".join(sorted(w)) for w in name.split(" "))
    assert [sorted(anagram), *map(len, anagram.split(" "))] == [sorted(name), *map(len, name.split(" "))]


@given(ANY, st.integers())
def test_any_text_keeps_its_characters_and_the_positions_of_non_letters(name, seed):
    for method in (_scramble, _anagram):
        new = method(name, random.Random(seed))
        assert Counter(new) == Counter(name) and len(new.split()) == len(name.split())
    assert [c for c in new if not c.isalpha()] == [c for c in name if not c.isalpha()]
    assert all(a.isalpha() == b.isalpha() for a, b in zip(name, new, strict=True))


@given(st.text(max_size=8), ANY)
def test_case_changes_nothing_but_case(surface, name):
    styled = _match_case(surface, name)
    assert len(styled) == len(name)
    assert styled.lower() == name.lower()


@given(NAME, st.integers(), st.integers())
def test_a_name_changes_if_and_only_if_it_can(name, seed, epoch):
    row = {"dialogue_id": "d", "names": [{"slot": "hotel-name", "name": name, "forms": [name]}]}
    new = new_names(EntityAugmenter(seed=seed, epoch=epoch), row).get(name)
    words = name.split(" ")
    can = any(len(set(word)) > 1 for word in words) or len(set(words)) > 1
    assert (new is not None) == can
    assert new != name
    assert new == new_names(EntityAugmenter(seed=seed, epoch=epoch), row).get(name)


@given(dialogues(), BANK, st.integers(0, 5))
@settings(max_examples=50)
def test_swap_draws_from_the_bank_and_not_from_the_dialogue(dialogue, bank, seed):
    names, rows = dialogue
    augmenter = EntityAugmenter("swap", seed=seed, bank={"hotel": bank, "restaurant": bank, "attraction": bank})
    new = new_names(augmenter, rows[0])
    assert set(new.values()) <= set(bank) - set(names)
    assert len(set(new.values())) == len(new) == min(len(names), len(set(bank) - set(names)))


@given(dialogues(), st.sampled_from(METHODS), st.integers(0, 5))
@settings(max_examples=80)
def test_one_new_name_in_all_turns_and_slots_and_values_where_they_were(dialogue, method, seed):
    names, rows = dialogue
    bank = {kind: ["qq rr", "ss", "tt uu", "vv", "ww"] for kind in ("hotel", "restaurant", "attraction")}
    augmenter = EntityAugmenter(method, seed=seed, bank=bank if method == "swap" else None)
    new = {name: new_names(augmenter, rows[0]).get(name, name) for name in names}
    assert len({bare(value) for value in new.values()}) == len(names)
    assert not {bare(new[name]) for name in names if new[name] != name} & set(names)
    for row in rows:
        history, state = augment_row(augmenter, row)
        if history is None:
            assert state is None
            continue
        for before, after in zip(row["history"], history, strict=True):
            assert after["speaker"] == before["speaker"]
            assert [new[bare(s)] for s in segments(before["text"])] == [bare(s) for s in segments(after["text"])]
            assert before["text"].split("|")[:2] == after["text"].split("|")[:2]
        assert [entry["slot"] for entry in state] == [entry["slot"] for entry in row["state"]]
        named, renamed = (
            {bare(name) for turn in view for name in segments(turn["text"])} for view in (row["history"], history)
        )
        for before, after in zip(row["state"], state, strict=True):
            assert [new.get(bare(value), value) for value in before["values"]] == [bare(v) for v in after["values"]]
            for old, value in zip(before["values"], after["values"], strict=True):
                assert len(old) == 1 or old.isupper() == value.isupper()  # one capital may be either case pattern
                assert (bare(old) in named) == (bare(value) in renamed)
        assert (history, state) != (row["history"], row["state"])


@given(st.data())
@settings(max_examples=120)
def test_no_text_raises(data):
    texts = data.draw(st.lists(ANY, min_size=1, max_size=3))
    names = data.draw(st.lists(st.tuples(ANY, st.lists(ANY, max_size=2)), max_size=3))
    entities = []
    for turn, text in enumerate(texts):
        if text and names:
            start = data.draw(st.integers(0, len(text) - 1))
            end = data.draw(st.integers(start + 1, len(text)))
            name = data.draw(st.sampled_from([name for name, _ in names]))
            entities.append({"slot": "hotel-name", "name": name, "turn": turn, "start": start, "end": end})
    values = data.draw(st.lists(st.sampled_from([*[n for n, _ in names], *texts, "x"]), max_size=3))
    row = {
        "row_id": "d/0",
        "dialogue_id": data.draw(ANY),
        "history": [{"speaker": "user", "text": text} for text in texts],
        "state": [{"slot": "hotel-name", "values": values}, {"slot": data.draw(ANY), "values": []}],
        "entities": entities,
        "names": [{"slot": "hotel-name", "name": name, "forms": forms} for name, forms in names],
    }
    method = data.draw(st.sampled_from(METHODS))
    bank = {kind: ["x", "ǅ y"] for kind in ("hotel", "restaurant", "attraction")} if method == "swap" else None
    history, state = augment_row(EntityAugmenter(method, bank=bank), row)
    if history is not None:
        assert len(history) == len(texts) and (history, state) != (row["history"], row["state"])
        assert [entry["slot"] for entry in state] == [entry["slot"] for entry in row["state"]]
        assert all(after["values"] or not before["values"] for before, after in zip(row["state"], state, strict=True))
