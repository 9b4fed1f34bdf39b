"""Subsets of whole dialogues; those that two data sets share are counted in `test_data`."""

from __future__ import annotations

import pytest

from dair_hf.dialog.demo.dialogs import generate_dialogs
from dair_hf.dialog.demo.names import make_names
from dair_hf.dialog.whole_dialogs import first_dialogs, held_out
from dair_hf.errors import DataError


def test_held_out_is_a_tenth_of_the_dialogues() -> None:
    rows = generate_dialogs(30, names=make_names("train"), seed=0)
    kept, rest = held_out(rows)
    assert len(set(kept["dialogue_id"])) == 27
    assert kept["row_id"][:] + rest["row_id"][:] == rows["row_id"][:]
    assert not set(kept["dialogue_id"]) & set(rest["dialogue_id"])
    with pytest.raises(DataError, match="found 1 dialogues, .* so none is left to train on; give at least 2"):
        held_out(generate_dialogs(1, names=make_names("train")))


def test_first_dialogs_returns_whole_dialogues_in_any_order_of_rows() -> None:
    rows = generate_dialogs(4, names=make_names("train"), seed=0)
    order = list(range(0, len(rows), 2)) + list(range(1, len(rows), 2))
    mixed = rows.select(order)
    kept = first_dialogs(mixed, 2)
    wanted = set(list(dict.fromkeys(mixed["dialogue_id"]))[:2])
    assert sorted(kept["row_id"]) == sorted(row["row_id"] for row in rows if row["dialogue_id"] in wanted)
    assert first_dialogs(rows, 99)["row_id"] == rows["row_id"]
    assert first_dialogs(rows, None) is rows
