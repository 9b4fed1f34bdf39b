from __future__ import annotations

import io
import json
from copy import deepcopy
from pathlib import Path

import pytest
from datasets import Dataset

from dair_hf.dialog.audit.audit import CHECKS, _names_of, audit
from dair_hf.dialog.renaming.entities import EntityAugmenter, _augmented_features, redraw
from dair_hf.dialog.rows import FEATURES
from dair_hf.errors import DataError
from tests.fixtures.dialogs import dialog_row

PAIRED = _augmented_features(FEATURES)


def make_row(dialogue, turn, texts, state, names, mentions, new_texts=None, new_state=None):
    """Names: canonical -> forms, all hotels."""
    entries = [("hotel-name", name, forms) for name, forms in names.items()]
    new = dialog_row(new_texts or [], new_state or {}, [], [])
    return dialog_row(texts, state, entries, mentions, dialogue, turn) | {
        "augmented_history": None if new_texts is None else new["history"],
        "augmented_state": None if new_state is None else new["state"],
    }


HOTEL = {"acorn": ["acorn", "the acorn"]}
NAMED = {"hotel-area": ["east"], "hotel-name": ["acorn"]}
RENAMED = {"hotel-area": ["east"], "hotel-name": ["ornac"]}


def good(turn=0, dialogue="D1"):
    args = ["is The Acorn free ?"], NAMED, HOTEL, [(0, "The Acorn", "acorn")], ["is Ornac free ?"], RENAMED
    return make_row(dialogue, turn, *args)


def dataset(*rows):
    return Dataset.from_list(list(rows), features=PAIRED)


def counts(report):
    return {name: found.count for name, found in report.findings.items() if found.count}


def changed(**columns):
    return {**deepcopy(good()), **columns}


def test_sound_pairs_pass():
    alone = make_row("D1", 1, ["hello"], {}, HOTEL, [])
    report = audit(dataset(good(), alone, good(dialogue="D2")))
    assert (report.rows, report.pairs, report.no_partner, report.dialogues) == (3, 2, 1, 2)
    assert counts(report) == {}
    assert set(report.findings) == set(CHECKS) - {"leaked_names"}
    assert {found.of for found in report.findings.values()} == {2}
    report.raise_if_unsound()


def test_new_name_missing_in_the_augmented_text():
    state = [{"slot": "hotel-area", "values": ["east"]}, {"slot": "hotel-name", "values": ["ornac"]}]
    text = [{"speaker": "user", "text": "is The Ornacle free ?"}]
    report = audit(dataset(changed(augmented_history=text, augmented_state=state)))
    assert report.findings["name_missing_in_text"].examples == ["D1/0 'ornac'"]
    with pytest.raises(DataError, match="name_missing_in_text .* 1 of 1 renamed"):
        report.raise_if_unsound()


def test_a_value_of_equal_text_in_another_slot_is_no_missing_name():
    row = good()
    for view in ("state", "augmented_state"):
        row[view] = [*row[view], {"slot": "hospital-department", "values": ["acorn"]}]
    assert counts(audit(dataset(row))) == {"value_lost_from_text": 1}
    for view in ("history", "augmented_history"):
        row[view] = [*row[view][:-1], {**row[view][-1], "text": row[view][-1]["text"] + " acorn"}]
    assert counts(audit(dataset(row))) == {"known_names": 1}


def test_a_value_that_the_renaming_takes_from_the_text():
    row = good()
    lost = [{"slot": "hotel-stars", "values": ["4", "acorn"]}, {"slot": "hotel-type", "values": ["dontcare"]}]
    row["state"], row["augmented_state"] = row["state"] + lost, row["augmented_state"] + lost
    report = audit(dataset(row, good(dialogue="D2")))
    assert report.findings["value_lost_from_text"].examples == ["D1/0 'acorn'"]
    for view in ("history", "augmented_history"):
        last = row[view][-1]
        row = {**row, view: [*row[view][:-1], {**last, "text": last["text"] + " acorns"}]}
    assert "value_lost_from_text" not in counts(audit(dataset(row, good(dialogue="D2"))))
    with pytest.raises(DataError, match="value_lost_from_text .* 1 of 2 renamed"):
        report.raise_if_unsound()


def test_leaked_names():
    train = dataset(make_row("T", 0, ["x"], {}, {"ORNAC": ["ornac  inn"]}, []))
    assert _names_of(train) == {"ornac", "ornac inn"}
    assert _names_of(dataset(good())) == {"acorn", "the acorn", "ornac"}
    for known in (train, ["Ornac"], dataset(good())):
        report = audit(dataset(good()), train=known)
        assert report.findings["leaked_names"].examples == ["D1/0 'ornac'"]
        with pytest.raises(DataError, match="leaked_names .* 1 of 1 renamed"):
            report.raise_if_unsound()
    assert counts(audit(dataset(good()), train=["acorn", "orna"])) == {}


def test_examples_json_and_table():
    rows = [good(dialogue=f"D{number}") for number in range(9)]
    report = audit(dataset(*rows), train=["ornac"], max_examples=3)
    examples = [f"D{number}/0 'ornac'" for number in range(3)]
    assert json.loads(json.dumps(report.to_dict()))["findings"]["leaked_names"] == {
        "count": 9, "of": 9, "share": 1.0, "examples": examples,
    }  # fmt: skip
    from rich.console import Console

    console = Console(file=io.StringIO(), width=200)
    console.print(report.to_table())
    text = console.file.getvalue()
    assert all(check.description in text for check in CHECKS.values()) and ", ".join(examples) in text


def test_the_refusal_lists_every_failing_check():
    lost = [{"slot": "hotel-stars", "values": ["acorn"]}]
    row = changed(state=good()["state"] + lost, augmented_state=good()["augmented_state"] + lost)
    report = audit(dataset(row, good(dialogue="D2")), train=["ornac"])
    with pytest.raises(DataError) as caught:
        report.raise_if_unsound()
    message = str(caught.value)
    assert "value_lost_from_text" in message and "leaked_names" in message and "name_missing" not in message
    report.raise_if_unsound({"value_lost_from_text": 0.5, "leaked_names": 1.0, "known_names": 0.5})


def test_bad_input():
    for row in (changed(augmented_state=None), changed(augmented_history=[])):
        with pytest.raises(DataError, match="row 'D1/0': expected augmented_history with 1 utterances"):
            audit(dataset(row))
    with pytest.raises(DataError, match="none of 1 rows has a partner"):
        audit(dataset(make_row("D", 0, ["x"], {}, {}, []))).raise_if_unsound()


def test_augmented_rows_are_sound_and_those_with_unmentioned_names_are_not():
    names = {"acorn house": ["acorn house", "the acorn"], "lensfield": ["lensfield"]}
    first, second = (0, "The Acorn", "acorn house"), (2, "lensfield", "lensfield")
    texts = ["The Acorn please", "ok", "to lensfield"]
    state = {"hotel-name": ["acorn house"], "taxi-destination": ["lensfield"]}
    rows = [
        make_row("D1", 0, texts[:1], {"hotel-name": ["acorn house"]}, names, [first]),
        make_row("D1", 1, texts, state, names, [first, second]),
        make_row("D2", 0, ["that one"], {"hotel-name": ["lensfield"]}, names, []),
    ]
    for row in rows:
        del row["augmented_history"], row["augmented_state"]
    plain = Dataset.from_list(rows, features=FEATURES)
    report = audit(redraw(plain, EntityAugmenter()))
    assert report.pairs == 2
    report.raise_if_unsound()
    assert audit(redraw(plain, EntityAugmenter(mentioned_only=False))).findings["name_missing_in_text"].count == 1


@pytest.mark.realdata
@pytest.mark.slow
def test_all_pairs_of_multiwoz_21_are_sound(real_data: Path) -> None:
    from dair_hf.dialog.readers.multiwoz import read_multiwoz

    rows, _ = read_multiwoz(real_data / "multiwoz21")
    pairs = redraw(rows, EntityAugmenter())
    report = audit(pairs, train=["a name of no dialogue"])
    assert report.rows == 14737 and 0.5 < report.pairs / report.rows < 0.7
    report.raise_if_unsound()
    covariant = redraw(rows, EntityAugmenter(covariant_only=True)).select_columns(["state", "augmented_state"])
    views = covariant.to_dict()
    changed = [(old, new) for old, new in zip(views["state"], views["augmented_state"], strict=True) if new is not None]
    assert 0.42 < len(changed) / report.rows < 0.52  # about 45 % of the turns carry a name in their state
    assert all(old != new for old, new in changed)
