"""Ceiling: gold targets scored like predictions, and values of the state in the truncated input."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import datasets
import pytest

from dair_hf.dialog.audit.audit import audit
from dair_hf.dialog.audit.ceiling import _ViewCeiling, find_ceiling
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.errors import DataError
from tests.dialog.audit.test_audit import dataset, make_row
from tests.dialog.test_encoding import tokenizer

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
    few = find_ceiling(rows(), encoder(max_target_tokens=8), max_examples=1)
    assert len(few.views["original"].examples) == 1


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
