"""Command line of the VQA accuracy; test_evaluate_exchange.py tests it as an `evaluate` module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dair_hf.metrics.vqa_accuracy.__main__ import main
from tests.fixtures.paths import ROOT

ANNOTATIONS: dict[str, Any] = {
    "info": {"version": "2.0"},
    "annotations": [
        {
            "question_type": "what is this",
            "multiple_choice_answer": "net",
            "answers": [
                {"answer": answer, "answer_confidence": "yes", "answer_id": number}
                for number, answer in enumerate(["a net"] * 3 + ["racket"] * 7, start=1)
            ],
            "image_id": 458752,
            "answer_type": "other",
            "question_id": 458752000,
        },
        {
            "question_type": "how many",
            "multiple_choice_answer": "2",
            "answers": [{"answer": "2", "answer_confidence": "yes", "answer_id": number} for number in range(1, 11)],
            "image_id": 524291,
            "answer_type": "number",
            "question_id": 524291000,
        },
    ],
}
RESULTS = [{"question_id": 524291000, "answer": "2"}, {"question_id": 458752000, "answer": "Net."}]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    predictions, references = tmp_path / "results.json", tmp_path / "annotations.json"
    predictions.write_text(json.dumps(RESULTS), "utf-8")
    references.write_text(json.dumps(ANNOTATIONS), "utf-8")
    return ["--predictions", str(predictions), "--references", str(references)]


def test_command_prints_table_and_writes_json(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out.json"
    assert main([*files, "--json", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [line.split() for line in printed.out.splitlines()] == [
        ["normalize", "disputed"],
        # Two questions: an interval of nearly all there is.
        ["vqa_accuracy", "95.00", "%", "[1.10,", "100.00]"],
        ["vqa_accuracy_simple", "100.00", "%", "[1.22,", "100.00]"],
        ["vqa_correct", "100.00", "%", "[1.22,", "100.00]"],
        ["by_answer_type"],
        ["number", "100.00", "%", "of", "1"],
        ["other", "90.00", "%", "of", "1"],
        ["by_question_type"],
        ["how", "many", "100.00", "%", "of", "1"],
        ["what", "is", "this", "90.00", "%", "of", "1"],
        ["questions", "2"],
        ["undisputed", "1"],
        ["not_ten_annotators", "0"],
        ["empty_predictions", "0"],
    ]
    results = json.loads(out.read_text())
    assert results["vqa_accuracy"] == pytest.approx(0.95)
    assert results["by_question_type"]["how many"]["questions"] == 1


def test_json_has_null_for_undefined_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = tmp_path / "lines", tmp_path / "out.json"
    lines.write_text('["a", "a", "a", "a"]\n', "utf-8")
    (tmp_path / "predictions").write_text('"a"\n', "utf-8")
    assert main(["--predictions", str(tmp_path / "predictions"), "--references", str(lines), "--json", str(out)]) == 0
    assert "by_answer_type" not in capsys.readouterr().out
    results = json.loads(out.read_text())
    assert (results["vqa_accuracy"], results["vqa_accuracy_low"]) == (1.0, None)  # one question has no variance


def test_errors_are_one_line(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    for content, message in (
        ('[{"question_id": 1, ', f"error: {broken}: line 1, column 21: not valid JSON"),
        ('[{"question_id": 1}]', f"error: {broken}: [0]: the key 'answer' is missing; found 'question_id'"),
        (json.dumps(RESULTS[:1]), "error: ids of predictions and references differ: 1 (e.g. 458752000) without"),
        (json.dumps(RESULTS * 2), f"error: {broken}: [2]: the id 524291000 was already used at {broken}: [0]"),
    ):
        broken.write_text(content, "utf-8")
        assert main(["--predictions", str(broken), *files[2:]]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(message)
        assert printed.count("\n") == 1
    assert main([*files, "--normalize", "often"]) == 2
    assert "error: normalize: unknown value 'often'; use one of disputed, always, never" in capsys.readouterr().err
    assert main(["--predictions", str(tmp_path / "absent"), *files[2:]]) == 2
    assert "absent: no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_command_runs_with_python_m(files: list[str]) -> None:
    command = [sys.executable, "-W", "error", "-m", "dair_hf.metrics.vqa_accuracy", *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("normalize")
