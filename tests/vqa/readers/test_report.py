"""The report of a reader as JSON, text and error."""

from __future__ import annotations

import json

import pytest

from dair_hf.errors import DataError
from dair_hf.vqa.readers.report import VQAReport, summary_table


def report() -> VQAReport:
    found = VQAReport({"questions": 40, "rows": 14})
    for number in range(25):
        found.skip("missing_image", str(number), f"image {number}")
    found.skip("empty_question", "77")
    return found


def test_every_record_is_kept_with_its_id() -> None:
    plain = json.loads(json.dumps(report().to_dict()))
    assert plain["counts"] == {"questions": 40, "rows": 14}
    assert plain["skipped"]["empty_question"] == [{"id": "77", "detail": ""}]
    assert [record["id"] for record in plain["skipped"]["missing_image"]] == [str(number) for number in range(25)]


def test_reports_side_by_side() -> None:
    other = VQAReport({"questions": 7, "rows": 5, "images": 3})
    other.skip("empty_question", "5")
    assert summary_table({"train": report(), "val": other}).splitlines() == [
        "                                       train  val",
        "questions                                 40    7",
        "rows                                      14    5",
        "images                                          3",
        "skipped: no such image in the folders     25    0  e.g. 0 (image 0)",
        "skipped: the question is blank             1    1  e.g. 77",
    ]
    assert summary_table({}) == ""


def test_strict_refuses_skipped_records() -> None:
    VQAReport({"rows": 1}).check("q.json", 1, strict=True)
    report().check("q.json", 14)
    with pytest.raises(DataError) as refused:
        report().check("q.json", 14, strict=True)
    first, images, blank = str(refused.value).splitlines()
    assert first == "q.json: some records cannot be used:"
    assert images.startswith("  missing_image: 25 (no such image in the folders): 0 (image 0), ")
    assert "19 (image 19), and 5 more; download the images" in images
    assert blank == "  empty_question: 1 (the question is blank): 77; remove it"


def test_data_without_usable_records_is_refused() -> None:
    with pytest.raises(DataError, match="q.json: no record can be used:\n  missing_image: 25"):
        report().check("q.json", 0)
