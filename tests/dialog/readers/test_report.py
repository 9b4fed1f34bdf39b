"""Report of a reader."""

from __future__ import annotations

from dair_hf.dialog.readers.report import ReadReport, summary_table


def test_reports_add_up_and_print() -> None:
    left, right = ReadReport(dialogues=1), ReadReport(turns=2)
    left.skip("bad span", "d1", 2)
    right.skip("bad span", "d2")
    right.normalize("none", "d3")
    both = left + right
    assert (both.dialogues, both.turns, both.skipped, both.normalized) == (1, 2, {"bad span": 3}, {"none": 1})
    assert both.examples == {"bad span": ["d1", "d2"], "none": ["d3"]}
    table = summary_table({"train": left, "test": right}).splitlines()
    assert table[0].split() == ["train", "test"]
    assert table[7].split() == ["skipped:", "bad", "span", "2", "1", "e.g.", "d1"]
