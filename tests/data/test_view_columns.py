"""Names of the columns of partners, and names that could be misread."""

from __future__ import annotations

import pytest

from dair_hf.data.collator import split_views
from dair_hf.data.view_columns import (
    columns_by_view,
    columns_of_views,
    is_augmented,
    parse_column,
    partner_numbers,
    variant_name,
    view_prefix,
)
from dair_hf.errors import DataError


@pytest.mark.parametrize(
    ("name", "view", "column"),
    [
        ("input_ids", 0, "input_ids"),
        ("augmented_input_ids", 1, "input_ids"),
        ("augmented_2_input_ids", 2, "input_ids"),
        ("augmented_10_input_ids", 10, "input_ids"),
        ("augmented_2_augmented_x", 2, "augmented_x"),
        # Not a number, not one of a further partner, or without an underscore behind it: a column of the first partner.
        ("augmented_2d_boxes", 1, "2d_boxes"),
        ("augmented_0_x", 1, "0_x"),
        ("augmented_1_x", 1, "1_x"),
        ("augmented_02_x", 1, "02_x"),
        ("augmented_2", 1, "2"),
        ("augmented_x_2", 1, "x_2"),
        ("augmented_²_x", 1, "²_x"),
        # No prefix.
        ("augmented", 0, "augmented"),
        ("augmented2_x", 0, "augmented2_x"),
        ("my_augmented_2_x", 0, "my_augmented_2_x"),
        ("Augmented_x", 0, "Augmented_x"),
    ],
)
def test_columns_are_read_strictly(name: str, view: int, column: str) -> None:
    assert parse_column(name) == (view, column)
    assert is_augmented(name) == (view > 0)
    assert view_prefix(view) + column == name


def test_names_of_views() -> None:
    assert [variant_name(view) for view in (0, 1, 2, 11)] == ["original", "augmented", "augmented_2", "augmented_11"]
    assert partner_numbers(["x", "augmented_12_x", "augmented_x", "augmented_12_y"]) == [1, 12]
    assert columns_of_views("x", ["augmented_3_x", "augmented_2_y", "x"]) == {0: "x", 3: "augmented_3_x"}
    assert columns_of_views("augmented_x", ["augmented_x"]) == {0: "augmented_x"}


@pytest.mark.parametrize(
    "columns",
    [
        ["x", "labels", "augmented_x", "augmented_sentiment"],  # labels under another name would be inherited
        ["x", "labels", "augmented_x", "augmented_label"],
        ["2_x", "augmented_2_x"],  # read as x of the second partner
    ],
)
def test_columns_that_are_not_those_of_the_originals_are_refused(columns: list[str]) -> None:
    with pytest.raises(DataError, match="^data: "):
        columns_by_view(columns, "data")
    with pytest.raises(DataError, match="^row 'a': "):
        split_views({"row_id": "a", **dict.fromkeys(columns, 1)})


def test_columns_by_view() -> None:
    assert columns_by_view(["2d", "augmented_2d", "y"], "data") == {
        0: {"2d": "2d", "y": "y"},
        1: {"2d": "augmented_2d"},
    }
    assert split_views({"2d": 5, "augmented_2d": 6}) == ({"2d": 5}, {"2d": 6})
    with pytest.raises(DataError, match="augmented_2_x"):  # of the second partner, and not the 2_x of the first
        split_views({"x": 1, "2_x": 1, "augmented_x": 1, "augmented_2_x": 1})
