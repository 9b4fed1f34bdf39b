"""The report of a reader, as table, text, JSON and error."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from dair_hf.errors import DataError
from dair_hf.vqa.readers.report import PROBLEMS, VQAReport, summary_table


def report() -> VQAReport:
    found = VQAReport({"questions": 40, "rows": 14})
    for number in range(25):
        found.skip("missing_image", str(number), f"image {number} [bold]")
    found.skip("empty_question", "77")
    return found


def test_every_record_is_kept_with_its_id() -> None:
    plain = json.loads(json.dumps(report().to_dict()))
    assert plain["counts"] == {"questions": 40, "rows": 14}
    assert plain["skipped"]["empty_question"] == [{"id": "77", "detail": ""}]
    assert [record["id"] for record in plain["skipped"]["missing_image"]] == [str(number) for number in range(25)]


def test_the_table_shows_counts_and_examples() -> None:
    shown = io.StringIO()
    Console(width=160, file=shown).print(report().to_table("Training"))
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.getvalue().splitlines()]
    assert "Training" in lines
    assert {"questions 40", "rows 14"} <= set(lines)
    wanted = "0 (image 0 [bold]), 1 (image 1 [bold]), 2 (image 2 [bold]), and 22 more"
    assert f"skipped: {PROBLEMS['missing_image'][0]} 25 {wanted}" in lines
    assert f"skipped: {PROBLEMS['empty_question'][0]} 1 77" in lines


def test_reports_side_by_side() -> None:
    other = VQAReport({"questions": 7, "rows": 5, "images": 3})
    other.skip("empty_question", "5")
    assert summary_table({"train": report(), "val": other}).splitlines() == [
        "                                       train  val",
        "questions                                 40    7",
        "rows                                      14    5",
        "images                                          3",
        "skipped: no such image in the folders     25    0  e.g. 0 (image 0 [bold])",
        "skipped: the question is blank             1    1  e.g. 77",
    ]
    assert summary_table({}) == ""


def test_strict_refuses_what_was_skipped_and_nothing_else() -> None:
    VQAReport({"rows": 1}).check("q.json", 1, strict=True)
    report().check("q.json", 14)
    with pytest.raises(DataError) as refused:
        report().check("q.json", 14, strict=True)
    first, images, blank = str(refused.value).splitlines()
    assert first == "q.json: not all of it can be used:"
    assert images.startswith("  missing_image: 25 (no such image in the folders): 0 (image 0 [bold]), ")
    assert "19 (image 19 [bold]), and 5 more; fetch the images" in images
    assert blank == "  empty_question: 1 (the question is blank): 77; remove it"


def test_nothing_left_is_refused_in_any_case() -> None:
    with pytest.raises(DataError, match="q.json: nothing of it can be used:\n  missing_image: 25"):
        report().check("q.json", 0)
