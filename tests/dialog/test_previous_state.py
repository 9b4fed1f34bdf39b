"""Short histories: previous states that are gold, and those that a model predicts turn by turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from dair_hf import DAIRConfig
from dair_hf.dialog.audit.audit import audit
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import load_dialogs
from dair_hf.dialog.demo.dialogs import generate_dialogs
from dair_hf.dialog.demo.names import make_names
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.previous_state import with_gold_states, with_predicted_states
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.dialog.rows import Mention, NameEntry, RowBuilder, Utterance, state_from_row
from dair_hf.dialog.task import check_pairs, evaluation_pairs, training_pairs
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import parse
from tests.fixtures.dialogs import require_sound_rows

Json = dict[str, Any]
FOOD, AREA = "restaurant-food", "restaurant-area"


def rows() -> Dataset:
    """One dialogue of three user turns; the second user turn follows the first without an answer."""
    builder = RowBuilder()
    builder.add_dialogue(
        "d",
        [
            Utterance("user", "thai food ?"),
            Utterance("user", "in the north ?"),
            Utterance("system", "no thai one"),
            Utterance("user", "greek then"),
        ],
        {
            0: {FOOD: ["thai", "thai food"]},
            1: {FOOD: ["thai"], AREA: ["north"]},
            3: {FOOD: ["greek"], AREA: ["north"]},
        },
        [Mention(FOOD, "thai", 0, 0, 4), Mention(FOOD, "thai", 2, 3, 7), Mention(FOOD, "greek", 3, 0, 5)],
        [NameEntry(FOOD, "thai", ["thai"]), NameEntry(FOOD, "greek", ["greek"])],
    )
    return builder.build()


def texts(row: Json, column: str = "history") -> list[str]:
    return [f"{turn['speaker']}: {turn['text']}" for turn in row[column]]


def test_gold_states_by_hand() -> None:
    short = with_gold_states(rows())
    require_sound_rows(short)
    assert [texts(row) for row in short] == [
        ["system: ", "user: thai food ?"],
        ["system: restaurant-food = thai", "user: in the north ?"],
        ["system: restaurant-area = north ; restaurant-food = thai", "system: no thai one", "user: greek then"],
    ]
    named = [
        [(m["name"], row["history"][m["turn"]]["text"][m["start"] : m["end"]], m["turn"]) for m in row["entities"]]
        for row in short
    ]
    assert named == [
        [("thai", "thai", 1)],
        [("thai", "thai", 0)],
        [("thai", "thai", 0), ("thai", "thai", 1), ("greek", "greek", 2)],
    ]
    assert short["state"][:] == rows()["state"][:]
    with pytest.raises(DataError, match="augmented_history"):
        with_gold_states(redraw(rows(), EntityAugmenter(slots=[FOOD])))


def test_partners_of_short_rows_agree_in_previous_state_text_and_state() -> None:
    bank = {"food": ["maltese", "peruvian"]}
    pairs = redraw(with_gold_states(rows()), EntityAugmenter("swap", slots=[FOOD], bank=bank))
    last = pairs[2]
    new = {entry["slot"]: entry["values"][0] for entry in last["augmented_state"]}
    (other,) = set(bank["food"]) - {new[FOOD]}
    assert texts(last, "augmented_history") == [
        f"system: restaurant-area = north ; restaurant-food = {other}",
        f"system: no {other} one",
        f"user: {new[FOOD]} then",
    ]
    assert new[AREA] == "north"
    generated = generate_dialogs(30, names=make_names("train"), seed=3)
    report = audit(redraw(with_gold_states(generated), EntityAugmenter("scramble")))
    report.raise_if_unsound()
    assert report.pairs > 20


def test_names_in_places_and_later_alternatives_are_replaced() -> None:
    builder, name = RowBuilder(), "restaurant-name"
    turns = [Utterance("user", "nandos ?"), Utterance("user", "a taxi to nandos")]
    states = {0: {name: ["nandos grill", "nandos"]}, 1: {"taxi-destination": ["nandos"], "restaurant-area": ["nandos"]}}
    mentions = [Mention(name, "nandos", turn, start, start + 6) for turn, start in ((0, 0), (1, 10))]
    entries = [NameEntry(name, "nandos", ["nandos", "nandos grill"])]
    builder.add_dialogue("d", [*turns, Utterance("user", "thanks")], {**states, 2: states[1]}, mentions, entries)
    short = with_gold_states(builder.build(), "parlai_v22")
    found = [
        [row["history"][0]["text"][m["start"] : m["end"]] for m in row["entities"] if not m["turn"]] for row in short
    ]
    assert found == [[], ["nandos grill", "nandos"], ["nandos"]]
    pairs = redraw(short, EntityAugmenter("swap", slots=[name], bank={"restaurant": ["Sea Thai"]}))
    assert pairs["augmented_history"][2][0]["text"] == "restaurant-area = nandos ; taxi-destination = sea thai"


def test_each_view_is_rolled_out_from_its_own_predictions() -> None:
    pairs = redraw(rows(), EntityAugmenter("swap", slots=[FOOD], bank={"food": ["maltese", "peruvian"]}))
    # The second turn has no partner, but the third one's history depends on it.
    states, histories = pairs["augmented_state"][:], pairs["augmented_history"][:]
    for name, column in (("augmented_state", states), ("augmented_history", histories)):
        kept = [column[0], None, column[2]]
        pairs = pairs.remove_columns(name).add_column(name, kept, feature=pairs.features[name])
    asked: list[list[list[str]]] = []

    def predict(inputs: list[list[Json]]) -> list[str]:
        asked.append([texts({"history": history}) for history in inputs])
        # The number of the call and of the view; a broken field must not reach the next turn.
        return [f"call = {len(asked)} ; view = {number} ; broken" for number in range(len(inputs))]

    rolled = with_predicted_states(pairs, predict)
    assert [len(inputs) for inputs in asked] == [2, 2, 2]
    assert [texts(row) for row in rolled] == [
        ["system: ", "user: thai food ?"],
        ["system: call = 1 ; view = 0", "user: in the north ?"],
        ["system: call = 2 ; view = 0", "system: no thai one", "user: greek then"],
    ]
    whole = texts(pairs[2], "augmented_history")
    assert rolled["augmented_history"][1] is None
    assert texts(rolled[0], "augmented_history") == ["system: ", whole[0]]
    assert texts(rolled[2], "augmented_history") == ["system: call = 2 ; view = 1", *whole[2:]]
    assert asked[1][1] == ["system: call = 1 ; view = 1", whole[1]]
    for column in ("row_id", "dialogue_id", "state", "augmented_state"):
        assert rolled[column][:] == pairs[column][:]
    gold = str([parse(turn["text"]) for row in rolled for turn in row["history"]])
    assert "thai" not in gold and "north" not in gold


def test_a_perfect_model_reads_what_training_rows_hold() -> None:
    data = generate_dialogs(12, names=make_names("train"), seed=4)
    short = with_gold_states(data)
    config = DialogConfig(train_dialogs=3)
    encoder = DialogEncoder(tokenizer_for([data], config))
    answer = {str(row["history"]): encoder.target({e["slot"]: e["values"] for e in row["state"]}) for row in short}
    rolled = with_predicted_states(data, lambda inputs: [answer[str(history)] for history in inputs])
    assert rolled["history"][:] == short["history"][:]


def test_training_and_audit_use_short_histories(tmp_path: Path) -> None:
    config = DialogConfig(train_dialogs=8, test_dialogs=3, previous_state=True)
    dialogs = load_dialogs(config)
    encoder = DialogEncoder(tokenizer_for([dialogs.train], config))
    whole = DialogConfig(train_dialogs=8, test_dialogs=3)
    for method in ("erm", "dair"):
        args = DAIRConfig(str(tmp_path), method=method, use_cpu=True)
        short, long = (training_pairs(dialogs.train, encoder, c, args)[:]["input_ids"] for c in (config, whole))
        assert len(short) == len(long)
        assert sum(map(len, short)) < sum(map(len, long))
    assert check_pairs(dialogs, config, encoder, tmp_path).attainable.all()


def test_gold_states_of_the_evaluation_are_those_of_each_view() -> None:
    config = DialogConfig(train_dialogs=8, test_dialogs=6, previous_state=True)
    dialogs = load_dialogs(config)
    rows = list(evaluation_pairs(dialogs, config, gold_states=True))
    before = {(row["dialogue_id"], row["turn_id"] + 1): row for row in rows}
    changed = 0
    for row in rows:
        previous = before.get((row["dialogue_id"], row["turn_id"]), {})
        for view in ("", "augmented_") if row["augmented_history"] else ("",):
            gold = state_from_row(previous.get(f"{view}state") or previous.get("state") or [])
            assert parse(row[f"{view}history"][0]["text"]) == gold
            changed += bool(view) and row["history"][0] != row["augmented_history"][0]
    assert changed
