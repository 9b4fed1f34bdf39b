"""Command line of the joint goal accuracy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dair_hf.metrics.command_line import jga

Write = Callable[[str, list[Any]], str]

REFERENCES = [
    {"row_id": "A/0", "state": {"hotel-name": ["acorn \u2028 house", "acorn"]}},
    {"row_id": "A/1", "state": {"hotel-area": ["east"]}},
    {"row_id": "B/0", "state": {}},
]
PREDICTIONS = [
    {"dialogue_id": "B", "turn_id": 0, "state": {"hotel-area": "west"}},
    "",
    {"row_id": "A/1", "state": {"hotel": {"area": "east"}}},
    {"id": "A/0", "state": '{"hotel-name": "acorn"}'},
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_lines(name: str, rows: list[Any]) -> str:
        path = tmp_path / name
        # With ensure_ascii=False a string contains a line separator, which must not end the line.
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), "utf-8")
        return str(path)

    return write_lines


def test_command_prints_table_and_writes_json(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out.json"
    files = ["--predictions", write("p", PREDICTIONS), "--references", write("r", REFERENCES)]
    assert jga([*files, "--json", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0].split() == ["preset", "any_of"]
    assert lines[1].split()[:3] == ["joint_goal_accuracy", "66.67", "%"]
    assert lines[1].endswith("2/3")
    results = json.loads(out.read_text())
    assert results["joint_goal_accuracy"] == pytest.approx(2 / 3)
    assert results["by_domain"]["hotel"]["joint_goal_accuracy"] == 1.0
    assert results["switches"]["match"] == "exact"
    with pytest.raises(SystemExit, match="2"):
        jga([*files, "--consistency_slots", "hotel-name"])  # has no effect on the joint goal accuracy


@pytest.mark.parametrize(
    ("predictions", "extra", "named"),
    [
        ([*PREDICTIONS[:2], '{"row_id": '], [], "{p}:3: expected JSON"),
        (PREDICTIONS[:3], [], "{r}:1"),
        ([*PREDICTIONS, {"row_id": "A/2", "state": {}}], [], "{p}:5"),
        (PREDICTIONS, ["--slots", "hotel-aera"], "hotel-aera"),
        (PREDICTIONS, ["--json", "/proc/no/out.json"], "/proc/no/out.json"),
    ],
)
def test_errors_are_one_line_with_file_and_line(
    predictions: list[Any], extra: list[str], named: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path, references = write("p", predictions), write("r", REFERENCES)
    assert jga(["--predictions", path, "--references", references, *extra]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1
    assert named.replace("{p}", path).replace("{r}", references) in printed


def test_a_gold_state_is_no_prediction(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A file alone has its predictions under `prediction`, or it would be compared with itself."""
    both = write("b", [{**row, "prediction": "hotel-area = east"} for row in REFERENCES])
    for files in ([both], [both, "--references", write("r", REFERENCES)]):
        assert jga(["--predictions", *files]) == 0
        assert capsys.readouterr().out.splitlines()[1].endswith("1/3")
    for rows in (REFERENCES, [row["state"] for row in REFERENCES]):
        assert jga(["--predictions", write("p", rows)]) == 2
        assert "expected the key 'prediction'" in capsys.readouterr().err


def test_json_output_replaces_no_other_file(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = write("p", [{"row_id": "A/0", "state": {}}])
    settings = write("settings.json", ['{"name": "a", "preset": 1, "c": 2}'])
    arguments = ["--predictions", row, "--references", row, "--json"]
    for target in (row, settings):
        before = Path(target).read_bytes()
        for extra in ([], ["--overwrite"]):
            assert jga([*arguments, target, *extra]) == 2
            printed = capsys.readouterr()
            assert (printed.out, printed.err.count("\n")) == ("", 1) and target in printed.err
            assert Path(target).read_bytes() == before
    new = str(tmp_path / "new.json")
    assert [jga([*arguments, new, *extra]) for extra in ([], [], ["--overwrite"])] == [0, 2, 0]


@pytest.mark.parametrize(
    "form",
    [
        {"prediction": "hotel area east , train leaveat 10:00"},
        {"prediction": "<|belief|> hotel area east <|endofbelief|>"},
        {"state": {"hotel_area": "east"}},
    ],
)
def test_predictions_in_another_form_are_refused(
    form: dict[str, Any], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read as they are, they would have an accuracy of 0 with an interval; a few of many only count as wrong."""
    gold = write("r", [{"row_id": str(row), "state": {"hotel-area": ["east"]}} for row in range(20)])
    right: dict[str, Any] = {"state": {"hotel-area": "east"}}
    for unread, status in ((20, 2), (19, 2), (10, 0)):
        rows = [{"row_id": str(row), **(form if row < unread else right)} for row in range(20)]
        assert jga(["--predictions", write("p", rows), "--references", gold]) == status
        printed = capsys.readouterr()
        assert printed.err.startswith("warning: " if status == 0 else "error: ")
        assert ("10/20" in printed.out) == (status == 0)
