"""Few pairs: which rows keep their partners."""

from __future__ import annotations

from datasets import Dataset

from dair_hf.data.sampling import keep_partners


def test_some_rows_lose_their_partner() -> None:
    count = 50
    rows = Dataset.from_dict(
        {"x": list(range(count)), "augmented_x": list(range(count)), "augmented_y": [[row] for row in range(count)]}
    )
    kept = {
        share: {row["x"] for row in keep_partners(rows, share, 0) if row["augmented_x"] is not None}
        for share in (0.1, 0.5)
    }
    assert [len(kept[share]) for share in (0.1, 0.5)] == [5, 25] and kept[0.1] < kept[0.5]
    half = keep_partners(rows, 0.5, 0)
    assert half["x"][:] == list(range(count)) and half.features == rows.features
    for row in half:
        has_partner = row["x"] in kept[0.5]
        assert (row["augmented_x"], row["augmented_y"]) == ((row["x"], [row["x"]]) if has_partner else (None, None))
    assert keep_partners(rows, 0.5, 1)["augmented_x"][:] != half["augmented_x"][:]
    assert keep_partners(rows, 1.0, 0) is rows


def test_columns_keep_their_type_where_a_whole_batch_loses_its_partners() -> None:
    rows = Dataset.from_dict({"augmented_x": list(range(3000))})
    one = keep_partners(rows, 1 / 3000, 0)
    assert one.features == rows.features
    assert sum(value is not None for value in one["augmented_x"]) == 1


def test_groups_keep_or_lose_their_partners_together() -> None:
    names = [f"d{number % 20}" for number in range(100)]
    rows = Dataset.from_dict({"dialogue_id": names, "augmented_x": [1] * 100, "augmented_2_x": [2] * 100})
    half = keep_partners(rows, 0.5, 3, groups="dialogue_id")
    kept = {row["dialogue_id"] for row in half if row["augmented_x"] is not None}
    assert len(kept) == 10
    for row in half:
        expected = (1, 2) if row["dialogue_id"] in kept else (None, None)
        assert (row["augmented_x"], row["augmented_2_x"]) == expected
    alone = keep_partners(Dataset.from_dict({"group": [None] * 100, "augmented_x": [1] * 100}), 0.2, 0, groups="group")
    assert sum(value is not None for value in alone["augmented_x"]) == 20


def test_a_format_of_the_rows_changes_nothing() -> None:
    rows = Dataset.from_dict(
        {
            "group": [row % 5 for row in range(20)],
            "input_ids": [[row, row] for row in range(20)],
            "augmented_input_ids": [[row] * (row % 3) if row % 4 else None for row in range(20)],
        }
    )
    expected = keep_partners(rows, 0.4, 0, groups="group")
    assert len({row["group"] for row in expected if row["augmented_input_ids"] is not None}) == 2
    for columns in (["group", "input_ids"], ["input_ids"]):
        found = keep_partners(rows.with_format("torch", columns=columns), 0.4, 0, groups="group")
        assert found.with_format(None)[:] == expected[:]
        assert (found.format["type"], found.format["columns"]) == ("torch", columns)
