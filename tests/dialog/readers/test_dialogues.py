"""Report of a reader."""

from __future__ import annotations

from dair_hf.dialog.readers.dialogues import ReadReport, summary_table


def test_a_table_has_the_reports_side_by_side() -> None:
    left, right = ReadReport(dialogues=1), ReadReport(turns=2)
    for where in ("d1", "d1", "d0"):
        left.skip("bad span", where)
    right.skip("bad span", "d2")
    right.normalize("none", "d3", 4)
    assert left.examples == {"bad span": ["d1", "d0"]}
    table = [line.split() for line in summary_table({"train": left, "test": right}).splitlines()]
    assert table[:3] == [["train", "test"], ["dialogues", "1", "0"], ["user", "turns", "0", "2"]]
    assert table[7:] == [
        ["skipped:", "bad", "span", "3", "1", "e.g.", "d1"],
        ["normalized:", "none", "0", "4", "e.g.", "d3"],
    ]
