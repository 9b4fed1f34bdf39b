"""Generated dialogues: disjoint banks, valid rows, and states that follow from the text."""

from __future__ import annotations

import itertools
import re

import pytest
from datasets import Value

from dair_hf.dialog.demo.dialogs import example_pairs, generate_dialogs, pair_with_misleading_names
from dair_hf.dialog.demo.names import DOMAINS, NAMES_PER_SLOT, areas_of, make_names
from dair_hf.dialog.rows import FEATURES
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS
from tests.fixtures.dialogs import require_sound_rows

N_DIALOGS = 300


@pytest.fixture(scope="module")
def names():
    return make_names("train", seed=3)


@pytest.fixture(scope="module")
def rows(names):
    return generate_dialogs(N_DIALOGS, names=names, seed=5)


def words_of(bank):
    return [word for names in bank.values() for name in names for word in name.split()]


def flat_state(row):
    return {item["slot"]: item["values"] for item in row["state"]}


def test_the_rows_are_valid(rows):
    require_sound_rows(rows)
    assert rows.features == FEATURES
    assert len(set(rows["dialogue_id"])) == N_DIALOGS


def test_banks_of_different_splits_share_no_word():
    banks = [
        set(words_of(make_names(split, seed, 40))) for split in ("train", "validation", "test") for seed in (0, 1, 2)
    ]
    for first, second in itertools.combinations(range(9), 2):
        if first // 3 != second // 3:
            assert not banks[first] & banks[second]


def test_a_bank_repeats_no_word_and_has_no_word_of_the_text(names, rows):
    words = words_of(names)
    assert len(words) == len(set(words))
    assert all(re.fullmatch("[a-z]{4,7}", word) for word in words)
    spoken = set()
    for row in rows:
        for turn, utterance in enumerate(row["history"]):
            spans = [e for e in row["entities"] if e["turn"] == turn]
            kept = "".join(
                c for i, c in enumerate(utterance["text"]) if not any(e["start"] <= i < e["end"] for e in spans)
            )
            spoken |= set(kept.split())
    assert not spoken & set(words)
    assert "hotel" in spoken


def test_names_are_reproducible_and_depend_on_the_seed(names):
    assert make_names("train", seed=3) == names
    assert make_names("train", seed=4) != names
    assert make_names("test", seed=3) != make_names("validation", seed=3)
    assert {len(name.split()) for bank in names.values() for name in bank} == {1, 2, 3}
    assert {slot: len(bank) for slot, bank in names.items()} == dict.fromkeys(NAME_SLOTS, NAMES_PER_SLOT)


def test_the_same_seed_gives_the_same_dialogues(rows, names):
    assert generate_dialogs(N_DIALOGS, names=names, seed=5).to_list() == rows.to_list()
    assert generate_dialogs(N_DIALOGS, names=names, seed=6).to_list() != rows.to_list()


def require_twins(rows, twins, may_follow):
    """Require that dialogues differ in names only, each replaced by one that may follow it."""
    for row, twin in zip(rows, twins, strict=True):
        assert row["row_id"] == twin["row_id"]
        renamed = {}
        for old, new in zip(row["names"], twin["names"], strict=True):
            assert may_follow(old["name"], new["name"])
            renamed[old["name"]] = new["name"]
        for old_turn, new_turn in zip(row["history"], twin["history"], strict=True):
            text = old_turn["text"]
            for old, new in renamed.items():
                text = text.replace(old, new)
            assert text == new_turn["text"]
        assert {s: [renamed.get(v, v) for v in values] for s, values in flat_state(row).items()} == flat_state(twin)


def test_another_bank_changes_only_the_names(rows, names):
    unseen = make_names("test", seed=3)
    other = {name: unseen[slot][index] for slot in NAME_SLOTS for index, name in enumerate(names[slot])}
    twins = generate_dialogs(N_DIALOGS, names=unseen, seed=5)
    require_twins(rows, twins, lambda old, new: other[old] == new)


def places_with_areas(rows):
    """Yield the names of the turns whose state has area and name of a place, with the area."""
    for row in rows:
        state = flat_state(row)
        for domain in DOMAINS:
            if {f"{domain}-area", f"{domain}-name"} <= state.keys():
                yield state[f"{domain}-name"][0], state[f"{domain}-area"][0], row


@pytest.mark.parametrize(("errors", "count"), [(0.0, 300), (0.3, 1000)])
def test_names_tell_the_annotated_area_and_the_text_tells_most(names, errors, count):
    areas = areas_of(names)
    rows = generate_dialogs(count, names=names, seed=5, areas=areas, annotation_errors=errors)
    found = list(places_with_areas(rows))
    assert len(found) > 0.3 * count and all(areas[name] == area for name, area, _ in found)
    said = [area in " ".join(turn["text"] for turn in row["history"]) for _, area, row in found]
    # Of another place in the same dialogue, too, an area may be said.
    assert abs(sum(said) / len(said) - (1 - errors)) < 0.05


def test_misleading_names_lie_elsewhere_and_nothing_else_changes(names):
    areas = areas_of(names)
    rows, twins = (
        generate_dialogs(N_DIALOGS, names=names, seed=5, areas=areas, misleading=misleading)
        for misleading in (False, True)
    )
    require_twins(rows, twins, lambda old, new: True)
    pairs = pair_with_misleading_names(rows, twins)
    partners = 0
    for row, twin in zip(pairs, twins, strict=True):
        places = list(places_with_areas([row]))
        assert (row["augmented_2_state"] is None) == (row["augmented_2_history"] is None) == (not places)
        if places:
            partners += 1
            assert (row["augmented_2_history"], row["augmented_2_state"]) == (twin["history"], twin["state"])
            for name, area, _ in places_with_areas([twin]):
                assert areas[name] != area and area in " ".join(turn["text"] for turn in twin["history"])
    assert partners > 0.2 * len(rows)


def test_partners_that_mislead_nobody_are_refused(names):
    areas = areas_of(names)
    short = generate_dialogs(40, names=names, seed=5, areas=areas)
    first = short.filter(lambda row: not list(places_with_areas([row])))
    with pytest.raises(DataError, match=f"none of {len(first)}"):
        pair_with_misleading_names(first, first)


@pytest.mark.parametrize("bank", [["é", "日本 屋", "ü-x", "ß"], ["[name]", "{hotel-area}", "%s", "a b"]])
def test_names_may_have_any_characters(bank):
    rows = generate_dialogs(40, names=dict.fromkeys(NAME_SLOTS, bank), seed=1)
    require_sound_rows(rows)
    assert {mention["name"] for row in rows for mention in row["entities"]} == set(bank)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"domains": ["bar"]}, "bar-name"),
        ({"misleading": True}, "areas"),
        ({"annotation_errors": 0.1}, "areas"),
        ({"areas": {}}, "hotel-name.* of each area"),
        ({"names": {}}, "hotel-name: expected 4"),
        ({"names": {"hotel-name": ["a", "b", "c"]}}, "got 3"),
        ({"names": {"hotel-name": ["a", "b", "c", "d", "a"]}}, "got 5"),
        ({"names": {"hotel-name": ["a", "b", "c", " "]}}, "got 4"),
    ],
)
def test_dialogues_that_cannot_be_generated(names, settings, message):
    with pytest.raises(DataError, match=message):
        generate_dialogs(3, **{"names": names, **settings})


def test_an_area_needs_enough_names():
    few = make_names("train", names_per_slot=14)
    with pytest.raises(DataError, match="3 or more names of each area"):
        generate_dialogs(3, names=few, areas=areas_of(few))
    enough = make_names("train", names_per_slot=15)
    generate_dialogs(200, names=enough, areas=areas_of(enough), domains=["hotel"])


def test_every_name_of_a_state_was_mentioned_and_every_mention_spells_its_name(rows):
    named = 0
    for row in rows:
        for mention in row["entities"]:
            assert row["history"][mention["turn"]]["text"][mention["start"] : mention["end"]] == mention["name"]
        mentioned = {mention["name"] for mention in row["entities"]}
        for slot, values in flat_state(row).items():
            if slot in (*NAME_SLOTS, "taxi-departure", "taxi-destination"):
                assert set(values) <= mentioned
                named += 1
            else:
                assert len(values) == 1 and values[0] in " ".join(turn["text"] for turn in row["history"])
    assert named > 0.7 * len(rows)


def test_dialogues_have_taxis_offers_and_changes(rows):
    last = {row["dialogue_id"]: row for row in rows}
    slots = set().union(*(flat_state(row) for row in rows))
    assert {slot.split("-")[0] for slot in slots} == {"hotel", "restaurant", "attraction", "taxi"}
    recommended_not_taken = sum(
        any(name["name"] not in sum(flat_state(row).values(), []) for name in row["names"]) for row in last.values()
    )
    changed = sum(any("rather" in t["text"] or "change" in t["text"] for t in row["history"]) for row in last.values())
    assert min(recommended_not_taken, changed) > 0.1 * N_DIALOGS
    assert max(rows["turn_id"]) in (3, 4)


def test_states_are_cumulative_except_for_changes(rows):
    before = {}
    for row in rows:
        state = flat_state(row)
        if row["turn_id"]:
            assert set(before) <= set(state)
            different = {slot for slot in before if before[slot] != state[slot]}
            if different:
                assert len(different) == 1 and different <= set(NAME_SLOTS)
                assert re.search("rather|change", row["history"][-1]["text"])
        before = state


@pytest.mark.parametrize(("split", "count"), [("dev", 4), ("train", 0), ("train", 10_001)])
def test_banks_that_would_never_be_drawn_are_refused(split, count):
    with pytest.raises(DataError, match=f"{split}.* {count}"):
        make_names(split, names_per_slot=count)


def test_example_pairs_name_another_restaurant_and_keep_the_rest():
    rows = example_pairs(300, seed=2)
    assert rows.column_names == ["row_id", "source", "target", "augmented_source", "augmented_target"]
    assert len(set(rows["row_id"])) == 300
    known = set(make_names("train", names_per_slot=8)["restaurant-name"])
    others = set(make_names("test", names_per_slot=16)["restaurant-name"])
    met: set[str] = set()
    for row in rows:
        asked = dict(part.split(" = ") for part in row["target"].split(" ; "))
        assert all(value in row["source"] for value in asked.values())
        if row["augmented_source"] is None:
            assert row["augmented_target"] is None and "name" not in asked
            continue
        partner = dict(part.split(" = ") for part in row["augmented_target"].split(" ; "))
        assert asked["name"] in known and partner["name"] in others
        assert row["augmented_source"] == row["source"].replace(asked["name"], partner["name"])
        assert {**asked, "name": partner["name"]} == partner
        met |= {asked["name"], partner["name"]}
    assert met == known | others
    assert 0.6 < sum(row["augmented_source"] is not None for row in rows) / 300 < 0.85


def test_columns_are_texts_even_if_no_row_has_a_partner():
    lonely = next(
        rows for rows in (example_pairs(1, seed=seed) for seed in range(30)) if not rows[0]["augmented_source"]
    )
    assert lonely[0]["augmented_target"] is None
    assert all(feature == Value("string") for feature in lonely.features.values())
