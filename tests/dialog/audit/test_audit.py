"""Audit of pairs: its checks, and the ceiling of gold targets that are scored like predictions."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset

from dair_hf.dialog.audit.audit import CHECKS, _names_of, audit
from dair_hf.dialog.audit.ceiling import _ViewCeiling, find_ceiling
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.renaming.entities import EntityAugmenter, _augmented_features, redraw
from dair_hf.dialog.rows import FEATURES
from dair_hf.errors import DataError
from tests.dialog.test_encoding import tokenizer
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


def test_examples_in_json():
    rows = [good(dialogue=f"D{number}") for number in range(9)]
    report = audit(dataset(*rows), train=["ornac"])
    examples = [f"D{number}/0 'ornac'" for number in range(5)]
    assert json.loads(json.dumps(report.to_dict()))["findings"]["leaked_names"] == {
        "count": 9, "of": 9, "share": 1.0, "examples": examples,
    }  # fmt: skip


def test_the_refusal_lists_every_failing_check():
    lost = [{"slot": "hotel-stars", "values": ["acorn"]}]
    row = changed(state=good()["state"] + lost, augmented_state=good()["augmented_state"] + lost)
    report = audit(dataset(row, good(dialogue="D2")), train=["ornac"])
    with pytest.raises(DataError) as caught:
        report.raise_if_unsound()
    message = str(caught.value)
    assert "value_lost_from_text" in message and "leaked_names" in message and "name_missing" not in message


def test_bad_input():
    for row in (changed(augmented_state=None), changed(augmented_history=[])):
        with pytest.raises(DataError, match="row 'D1/0': expected augmented_history with 1 utterances"):
            audit(dataset(row))
    with pytest.raises(DataError, match="none of 1 rows has a partner"):
        audit(dataset(make_row("D", 0, ["x"], {}, {}, []))).raise_if_unsound()


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


HOUSE = {"oak house": ["oak house"]}
EAST = {"hotel-area": ["east"], "hotel-name": ["oak house"]}


def rows() -> datasets.Dataset:
    """A name in both views; a name cut off or kept by limits; a name that nobody says; no partner and no name."""
    said = [(0, "oak house", "oak house")]
    made = [
        make_row("D1", 0, ["oak house east ?"], EAST, HOUSE, said, ["a inn east ?"], {**EAST, "hotel-name": ["a inn"]}),
        make_row("D1", 1, ["oak house east ?", "yes", "free free free free"], EAST, HOUSE, said,
                 ["a inn east ?", "yes", "free free free free"], {**EAST, "hotel-name": ["a inn"]}),
        make_row("D2", 0, ["free ?"], {"hotel-name": ["oak house"]}, HOUSE, []),
        make_row("D3", 0, ["yes"], {"hotel-area": ["east"], "hotel-name": ["dontcare"]}, {}, []),
        make_row("D4", 0, ["a free ? yes yes yes yes yes"], {"hotel-area": ["a"]}, {}, []),
    ]  # fmt: skip
    return dataset(*made)


def encoder(**settings: Any) -> DialogEncoder:
    return DialogEncoder(tokenizer(specials=True, bos_token="<s>"), **settings)


def view(result: Any, variant: str) -> tuple[int, int, int]:
    ceiling = result.views[variant]
    return ceiling.rows, ceiling.right, ceiling.in_input


@pytest.mark.parametrize("causal", [False, True])
def test_whole_inputs_and_targets(causal: bool) -> None:
    result = find_ceiling(rows(), encoder(causal=causal, target_start=() if causal else (1,)))
    # "dontcare" is not in the vocabulary.
    assert view(result, "original") == (5, 4, 4)
    assert view(result, "augmented") == (2, 2, 2)
    assert result.attainable.tolist() == [True, True, False, False, True]
    assert result.views["original"].examples == [
        {
            "row_id": "D3/0",
            "target": "hotel-area = east ; hotel-name = dontcare",
            "read_back": {"hotel-area": ["east"]},
            "expected": {"hotel-area": ["east"], "hotel-name": ["dontcare"]},
        }
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_values_truncated_from_the_input_are_missing(causal: bool) -> None:
    # Sources have at most eight tokens, with special tokens.
    result = find_ceiling(rows(), encoder(causal=causal, max_source_tokens=8))
    # D1/1 lost its names, D4 its "a". "east" of D3 is no name and not in its text.
    assert view(result, "original") == (5, 4, 2)
    assert view(result, "augmented") == (2, 2, 1)
    assert result.attainable.tolist() == [True, False, False, False, False]


def test_truncated_targets_score_as_wrong() -> None:
    cut = find_ceiling(rows(), encoder(max_target_tokens=8))
    assert view(cut, "original") == (5, 2, 4)  # seven tokens and the end: "... ; hotel-name = oak"
    assert view(cut, "augmented") == (2, 0, 2)
    assert [example["row_id"] for example in cut.views["original"].examples] == ["D1/0", "D1/1", "D3/0"]
    assert cut.views["original"].examples[0]["read_back"] == {**EAST, "hotel-name": ["oak"]}
    with pytest.raises(DataError, match="2 of 5 in the original view and 0 of 2 in the augmented view .*'D1/0'"):
        cut.raise_if_low()
    two = find_ceiling(rows().select([0, 1]), encoder())
    two.raise_if_low()


def test_the_preset_determines_the_score() -> None:
    state = {"hotel-name": ["oak house", "a inn"], "hotel-area": ["East"]}
    both = dataset(make_row("D", 0, ["oak house"], state, {}, []))
    for preset, lower_case, right in (("any_of", False, 0), ("any_of", True, 0), ("parlai_v22", True, 1)):
        # The tokenizer has no word "East", and "any_of" minds case.
        result = find_ceiling(both, encoder(preset=preset, lower_case=lower_case))
        assert view(result, "original") == (1, right, 1)
    result = find_ceiling(both, replace(encoder(), preset="parlai_v22", lower_case=True, max_target_tokens=10))
    assert view(result, "original") == (1, 0, 1)  # both alternatives are demanded; the second is cut
    assert result.views["augmented"] == _ViewCeiling()


def test_the_audit_includes_the_ceiling() -> None:
    report = audit(rows(), encoder=encoder())
    assert report.ceiling is not None
    read = json.loads(json.dumps(report.to_dict()))["ceiling"]
    assert (read["preset"], read["attainable"]) == ("any_of", 3)
    assert (read["original"]["right"], read["original"]["right_share"], read["augmented"]["in_input"]) == (4, 0.8, 2)
    assert read["original"]["examples"][0]["row_id"] == "D3/0"
    assert report.ceiling.lines() == [
        ("original view: gold target scores right (any_of)", 4, 5, "D3/0"),
        ("original view: all values are in the input", 4, 5, ""),
        ("augmented view: gold target scores right (any_of)", 2, 2, ""),
        ("augmented view: all values are in the input", 2, 2, ""),
        ("attainable in every view", 3, 5, ""),
    ]
    assert "gold target scores right" in "".join(str(cell) for cell in report.to_table().columns[0].cells)
    without = audit(rows())
    assert without.ceiling is None
    assert without.to_dict()["ceiling"] is None
