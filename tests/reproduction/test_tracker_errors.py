"""Errors of trackers, against counts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from reproduction.tracker_errors import FOLDER, errors_table, main

AREA, FOOD, STARS = "restaurant-area", "restaurant-food", "hotel-stars"


def line(turn: int, prediction: str, gold: dict[str, str], variant: str = "original") -> str:
    reference = [{"slot": slot, "values": [value]} for slot, value in gold.items()]
    row = {"row_id": f"d/1/{turn}", "variant": variant, "prediction": prediction, "reference": reference}
    return json.dumps({**row, "correct": False}) + "\n"


def test_errors_are_counted_by_turn_slot_and_kind(tmp_path: Path) -> None:
    both = {AREA: "east", FOOD: "thai"}
    lines = [
        line(2, f"{AREA} = west", both),  # as in the turn before, without the extra slot
        line(0, f"{AREA} = east", {AREA: "east"}),
        line(1, f"{AREA} = west ; {FOOD} = none ; {STARS} = 4", both),
        line(1, f"{AREA} = east ; {FOOD} = thai", both, "augmented"),  # the only turn with a partner
        line(1, "", both, "augmented_2"),
    ]
    folder, output = tmp_path / "outputs", tmp_path / FOLDER
    (folder / "runs" / "da_seed0").mkdir(parents=True)
    (folder / "runs" / "da_seed0" / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
    record = {"name": "da_seed0", "method": "da", "config": {"data": {"preset": "any_of"}}}
    (folder / "da_seed0.json").write_text(json.dumps(record), encoding="utf-8")
    main([str(folder), "--output", str(output)])
    errors = json.loads((output / "da_seed0.json").read_text(encoding="utf-8"))
    assert errors["original"] == {
        "turns": {"0": 1, "1": 1, "2": 1}, "right": {"0": 1, "1": 0, "2": 0}, "after_right": [1, 0],
        "slots": {AREA: {"wrong": 2, "new": 1}, FOOD: {"missed": 2, "new": 1}, STARS: {"extra": 1, "new": 1}},
    }  # fmt: skip
    assert errors["augmented"] == {
        "turns": {"0": 1, "1": 1, "2": 1}, "right": {"0": 1, "1": 1, "2": 0}, "after_right": [2, 1],
        "slots": {AREA: {"wrong": 1, "new": 1}, FOOD: {"missed": 1, "new": 1}},
    }  # fmt: skip
    by_turn, by_slot = errors_table(tmp_path).split("\n\n")
    assert by_slot.splitlines()[2:] == [f"| {AREA} | 66.7 |", f"| {FOOD} | 66.7 |", f"| {STARS} | 33.3 |"]
    cells = by_turn.splitlines()[2].split(" | ")
    assert cells[3:6] == ["1.000", "0.000", "0.000"]
    assert cells[-5:] == ["0.000", "66.7", "33.3", "66.7", "100.0 |"]


def test_without_runs_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        errors_table(tmp_path)
    with pytest.raises(DataError, match="no record"):
        main([str(tmp_path), "--output", str(tmp_path / FOLDER)])
