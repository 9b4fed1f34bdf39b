from __future__ import annotations

import io
import json
from copy import deepcopy
from pathlib import Path

import pytest
from datasets import Dataset

from dair_hf.dialog.audit.audit import CHECKS, audit, names_of
from dair_hf.dialog.renaming.entities import EntityAugmenter, augmented_features, redraw
from dair_hf.dialog.text.rows import FEATURES
from dair_hf.errors import DataError

PAIRED = augmented_features(FEATURES)


def make_row(dialogue, turn, texts, state, names, mentions, new_texts=None, new_state=None):
    """Names: canonical -> forms, all hotels. Mentions: (utterance, surface, canonical)."""

    def history(view):
        return [{"speaker": ("user", "system")[i % 2], "text": text} for i, text in enumerate(view)]

    def slots(view):
        return [{"slot": slot, "values": values} for slot, values in view.items()]

    spans = [(t, texts[t].index(surface), surface, name) for t, surface, name in mentions]
    return {
        "row_id": f"{dialogue}/{turn}",
        "dialogue_id": dialogue,
        "turn_id": turn,
        "history": history(texts),
        "state": slots(state),
        "entities": [
            {"slot": "hotel-name", "name": name, "turn": t, "start": start, "end": start + len(surface)}
            for t, start, surface, name in spans
        ],
        "names": [{"slot": "hotel-name", "name": name, "forms": forms} for name, forms in names.items()],
        "augmented_history": None if new_texts is None else history(new_texts),
        "augmented_state": None if new_state is None else slots(new_state),
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
    assert {name: found.of for name, found in report.findings.items()} == {
        "unchanged_pairs": 2, "original_name_missing_in_text": 3, "name_missing_in_text": 2,
        "value_lost_from_text": 2, "known_names": 2, "leftover_names": 2,
        "names_kept_in_state": 2, "two_new_names": 2, "renamed_common_words": 2,
    }  # fmt: skip
    report.raise_if_unsound()


def test_unchanged_pairs():
    row = changed(augmented_history=good()["history"], augmented_state=good()["state"])
    report = audit(dataset(good(dialogue="D2"), row))
    assert counts(report) == {"unchanged_pairs": 1, "known_names": 1} and report.findings[
        "unchanged_pairs"
    ].examples == ["D1/0"]


def test_a_name_missing_in_the_original_text_is_counted_but_not_refused():
    unsaid = make_row("D2", 0, ["is it free ?", "yes", "cowboy"], {"hotel-name": ["cow"]}, {"cow": ["cow"]}, [])
    dontcare = make_row("D3", 0, ["any"], {"hotel-name": ["dontcare"], "hotel-area": ["west"]}, HOTEL, [])
    spelled = make_row("D4", 0, ["the acorn!"], {"hotel-name": ["acorn"]}, HOTEL, [])
    report = audit(dataset(good(), unsaid, dontcare, spelled))
    assert counts(report) == {"original_name_missing_in_text": 1}
    assert report.findings["original_name_missing_in_text"].examples == ["D2/0 'cow'"]
    report.raise_if_unsound()
    with pytest.raises(DataError, match=r"original_name_missing_in_text: 1 of 4 rows .*limit 0.2, .*D2/0 'cow'"):
        report.raise_if_unsound({"original_name_missing_in_text": 0.2})


def test_new_name_missing_in_the_augmented_text():
    state = [{"slot": "hotel-area", "values": ["east"]}, {"slot": "hotel-name", "values": ["ornac"]}]
    text = [{"speaker": "user", "text": "is The Ornacle free ?"}]
    report = audit(dataset(changed(augmented_history=text, augmented_state=state)))
    assert report.findings["name_missing_in_text"].examples == ["D1/0 'ornac'"]
    with pytest.raises(DataError, match=r"name_missing_in_text: 1 of 1 pairs .*mentioned_only=True"):
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
    with pytest.raises(DataError, match=r"value_lost_from_text: 1 of 2 pairs .*mentioned_only=True"):
        report.raise_if_unsound()


def test_leaked_names():
    train = dataset(make_row("T", 0, ["x"], {}, {"ORNAC": ["ornac  inn"]}, []))
    assert names_of(train) == {"ornac", "ornac inn"}
    assert names_of(dataset(good())) == {"acorn", "the acorn", "ornac"}
    for known in (train, ["Ornac"], dataset(good())):
        report = audit(dataset(good()), train=known)
        assert report.findings["leaked_names"].examples == ["D1/0 'ornac'"]
        with pytest.raises(DataError, match="leaked_names: 1 of 1 pairs .*disjoint banks"):
            report.raise_if_unsound()
    assert counts(audit(dataset(good()), train=["acorn", "orna"])) == {}


def test_length_ratio():
    rows = [
        make_row("D", turn, ["x" * 10], {}, {}, [], ["x" * length], {"a": ["b"]})
        for turn, length in enumerate([5, 10, 20, 30, 40])
    ]
    report = audit(dataset(*rows))
    assert report.length_ratio == pytest.approx({"median": 2.0, "p95": 3.8, "max": 4.0})
    assert audit(dataset(make_row("D", 0, ["x"], {}, {}, []))).length_ratio == {}


def test_examples_json_and_table():
    same = {"augmented_history": good()["history"], "augmented_state": good()["state"]}
    report = audit(dataset(*[{**good(turn), **same} for turn in range(9)]), train=["q"], max_examples=3)
    assert report.findings["unchanged_pairs"].examples == ["D1/0", "D1/1", "D1/2"]
    read = json.loads(json.dumps(report.to_dict()))
    assert read["rows"] == 9 and read["findings"]["unchanged_pairs"] == {
        "count": 9, "of": 9, "share": 1.0, "examples": ["D1/0", "D1/1", "D1/2"],
    }  # fmt: skip
    from rich.console import Console

    console = Console(file=io.StringIO(), width=200)
    console.print(report.to_table())
    text = console.file.getvalue()
    assert all(CHECKS[name].description in text for name in report.findings) and "D1/0, D1/1, D1/2" in text
    assert set(report.findings) == set(CHECKS)


def test_the_refusal_lists_every_failing_check():
    same = changed(augmented_history=good()["history"], augmented_state=good()["state"])
    report = audit(dataset(same, good(dialogue="D2")), train=["ornac"])
    with pytest.raises(DataError) as caught:
        report.raise_if_unsound()
    message = str(caught.value)
    assert "unchanged_pairs: 1 of 2 pairs" in message and "leaked_names: 1 of 2 pairs" in message
    assert "for instance D1/0;" in message and "name_missing" not in message
    report.raise_if_unsound({"unchanged_pairs": 0.5, "leaked_names": 1.0, "known_names": 0.5})


def test_bad_input():
    with pytest.raises(DataError, match=r"columns \['augmented_history', 'augmented_state'\] are missing .*augment"):
        audit(dataset(good()).remove_columns(["augmented_history", "augmented_state"]))
    with pytest.raises(DataError, match="no rows"):
        audit(dataset(good()).select([]))
    with pytest.raises(DataError, match="row 'D1/0': only one of augmented_history and augmented_state is None"):
        audit(dataset(changed(augmented_state=None)))
    with pytest.raises(DataError, match="row 'D1/0': augmented_history has 0 utterances, history 1"):
        audit(dataset(changed(augmented_history=[])))
    with pytest.raises(DataError, match="none of 1 rows has a partner"):
        audit(dataset(make_row("D", 0, ["x"], {}, {}, []))).raise_if_unsound()
    with pytest.raises(DataError, match=r"limits: \['leaked_names'\] not checked"):
        audit(dataset(good())).raise_if_unsound({"leaked_names": 0.1})


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
