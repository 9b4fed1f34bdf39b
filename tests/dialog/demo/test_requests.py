"""Generated requests: pairs that differ in the restaurant only."""

from __future__ import annotations

import pytest
from datasets import Value

from dair_hf.dialog.demo import example_pairs
from dair_hf.dialog.demo.names import make_names
from dair_hf.errors import DataError


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


def test_example_pairs_depend_on_the_seed():
    assert example_pairs(20)[:] == example_pairs(20)[:]
    assert example_pairs(20)["source"][:] != example_pairs(20, seed=1)["source"][:]
    assert not set(example_pairs(20)["row_id"]) & set(example_pairs(20, seed=1)["row_id"])
    with pytest.raises(DataError, match="n_rows: expected at least 1, found 0"):
        example_pairs(0)


def test_columns_are_texts_even_if_no_row_has_a_partner():
    lonely = next(
        rows for rows in (example_pairs(1, seed=seed) for seed in range(30)) if not rows[0]["augmented_source"]
    )
    assert lonely[0]["augmented_target"] is None
    assert all(feature == Value("string") for feature in lonely.features.values())
