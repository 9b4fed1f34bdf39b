"""The report of a reader, and the garbage collector."""

from __future__ import annotations

import gc

import pytest

from dair_hf.dialog.readers.report import ReadReport, collector_paused, summary_table


def test_reports_add_up_and_print() -> None:
    left, right = ReadReport(dialogues=1), ReadReport(turns=2)
    left.skip("bad span", "d1", 2)
    right.skip("bad span", "d2")
    right.normalise("none", "d3")
    both = left + right
    assert (both.dialogues, both.turns, both.skipped, both.normalised) == (1, 2, {"bad span": 3}, {"none": 1})
    assert both.examples == {"bad span": ["d1", "d2"], "none": ["d3"]}
    table = summary_table({"train": left, "test": right}).splitlines()
    assert table[0].split() == ["train", "test"]
    assert table[7].split() == ["skipped:", "bad", "span", "2", "1", "e.g.", "d1"]


def test_the_collector_runs_again_after_an_error() -> None:
    with pytest.raises(KeyError), collector_paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
