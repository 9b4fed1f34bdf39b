"""Names of the columns of partners, and names that could be misread."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import Subset

from dair_hf.data.checks import require_named_partners
from dair_hf.data.collator import split_views
from dair_hf.data.view_columns import (
    columns_of_views,
    is_augmented,
    parse_column,
    partner_numbers,
    require_numbered,
    require_unambiguous,
    variant_name,
    view_prefix,
)
from dair_hf.errors import DataError
from tests.fixtures import points


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


def test_a_column_that_could_be_that_of_two_partners_is_refused() -> None:
    message = r"'augmented_2_x' is the name of the column 'x' of partner 2, but could belong to the column '2_x'"
    for columns in (["2_x", "augmented_2_x"], ["x", "2_x", "augmented_x", "augmented_2_x"]):
        with pytest.raises(DataError, match=f"^data: {message}; rename '2_x'"):
            require_unambiguous(columns, "data")
        with pytest.raises(DataError, match=message):
            split_views(dict.fromkeys(columns, 1))
        with pytest.raises(DataError, match=message):
            require_named_partners(columns, columns, "train_dataset")
    require_unambiguous(["2_x", "x", "augmented_x", "2d", "augmented_2d", "1_y", "augmented_1_y"], "data")
    assert split_views({"2d": 5, "augmented_2d": 6}) == ({"2d": 5}, {"2d": 6})


@pytest.mark.parametrize("number", ["1", "02", "0", "-2", "two", "second"])
def test_a_partner_with_another_number_is_refused(number: str) -> None:
    columns = ["x", "labels", "augmented_x", f"augmented_{number}_x"]
    message = (
        f"^train_dataset has the column 'augmented_{number}_x', which names no partner's 'x': that of the first "
        "partner is 'augmented_x', of the second 'augmented_2_x', of the third 'augmented_3_x'; rename it"
    )
    with pytest.raises(DataError, match=message):
        require_named_partners(columns, ["x", "labels", "augmented_x"], "train_dataset")
    # A column of the model whose own name begins with a number.
    require_numbered([*columns, f"{number}_x"], ["x", f"{number}_x"], "data")
    # `x` is not read, or is no column of the originals.
    require_numbered(columns, ["labels"], "data")
    require_numbered(columns[1:], ["x", "labels"], "data")
    require_numbered(["x", "augmented_2_x", "augmented_2d_x", "augmented_one"], ["x"], "data")


@pytest.mark.parametrize("kind", ["data set", "stream", "torch data set"])
def test_a_run_does_not_drop_a_partner_with_another_number(tmp_path: Path, kind: str) -> None:
    data = points.rows_of(points.pairs(4))
    data = data.add_column("augmented_1_x", data["x"][:])
    of_kind = {"data set": data, "stream": data.to_iterable_dataset(), "torch data set": Subset(data, range(4))}
    with pytest.raises(DataError, match="has the column 'augmented_1_x', which names no partner's 'x'"):
        points.trainer(tmp_path, of_kind[kind], max_steps=1).train()
