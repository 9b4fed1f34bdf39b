"""Command line of the joint goal accuracy, and both metrics of the predictions of a run."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import BeliefTextWarning, DataError, UndefinedMetricWarning
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.evaluation.view_index import PairIndex
from dair_hf.metrics.command_line import main as joint_goal_main
from dair_hf.metrics.consistency_items import compare_models, consistency_metrics, judge_pairs, read_correctness
from dair_hf.metrics.state.conventions import resolve_pair_convention
from dair_hf.metrics.state.items import pair_turns, read_items, read_items_file

Write = Callable[[str, list[Any]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_lines(name: str, rows: list[Any]) -> str:
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
        return str(path)

    return write_lines


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


def test_command_prints_table_and_writes_json(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out.json"
    # With ensure_ascii=False the string contains a line separator, which must not end the line.
    references = write("r", [json.dumps(row, ensure_ascii=False) for row in REFERENCES])
    code = joint_goal_main(["--predictions", write("p", PREDICTIONS), "--references", references, "--json", str(out)])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    lines = printed.out.splitlines()
    assert lines[0].split() == ["preset", "any_of"]
    assert lines[1].split()[:3] == ["joint_goal_accuracy", "66.67", "%"]
    assert lines[1].endswith("2/3")
    assert "undefined" not in lines[1]
    results = json.loads(out.read_text())
    assert results["joint_goal_accuracy"] == pytest.approx(2 / 3)
    assert results["by_domain"]["hotel"]["joint_goal_accuracy"] == 1.0
    assert results["switches"]["match"] == "exact"


def test_table_names_switches_and_undefined_ratios(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--predictions", write("p", [{}]), "--references", write("r", [{}]), "--preset", "parlai_v22"]
    assert joint_goal_main([*arguments, "--domains", "hotel,train", "--confidence", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "parlai_v22(domains=hotel+train)" in printed
    assert "undefined  0/0" in printed


def test_json_has_null_for_undefined_ratios(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    joint_goal_main(["--predictions", write("p", [{}]), "--references", write("r", [{}]), "--json", str(out)])
    assert "NaN" not in out.read_text()
    assert json.loads(out.read_text())["slot_f1"] is None


@pytest.mark.parametrize(
    ("predictions", "extra", "message"),
    [
        ([*PREDICTIONS[:2], '{"row_id": '], [], "error: {p}:3: invalid JSON at column 12"),
        ([{"row_id": "A/0", "belief": {}}], [], "error: {p}:1: the key 'state' is missing; found 'row_id', 'belief'"),
        ([{"row_id": "A/0", "state": {"a-x": None}}], [], "error: {p}:1: the slot 'a-x' has None"),
        (
            [PREDICTIONS[0], {"row_id": "A/1", "state": None}],
            [],
            "error: {p}:2: a state must be an object of slots and v",
        ),
        (
            [PREDICTIONS[0], "", {"row_id": "A/1", "state": "hotel-area = east"}],
            [],
            "error: {p}:3: invalid JSON at column 1",
        ),
        (
            ['{"row_id": "A/0", "state": {"a-x": "1", "a-x": "2"}}'],
            [],
            "{p}:1: invalid JSON at column 1 ('a-x' is repeate",
        ),
        (
            ["[" + ", ".join(map(json.dumps, REFERENCES)) + "]"],
            [],
            "error: {p}:1: found a list of items, starting with {'row_id",
        ),
        (PREDICTIONS[:3], [], "ids of predictions and references differ: 1 (e.g. A/0 (original)) without prediction"),
        (PREDICTIONS[:3], [], "give every reference exactly one prediction (see {r}:1)"),
        ([*PREDICTIONS, {"row_id": "A/2", "state": {}}], [], "give every reference exactly one prediction (see {p}:5)"),
        ([*PREDICTIONS, PREDICTIONS[0]], [], "error: {p}:5: the id B/0 (original) was already used at {p}:1"),
        ([*PREDICTIONS, {}], [], "predictions: 1 of 4 items have no id, the first at {p}:5"),
        ([], [], "error: {p}: contains no lines"),
        (PREDICTIONS, ["--preset", "best"], "error: preset: unknown name 'best'; use one of any_of,"),
        (
            PREDICTIONS,
            ["--domains", "hotle"],
            "error: domains: no reference has 'hotle'; did you mean 'hotel'? References have: h",
        ),
        (
            PREDICTIONS,
            ["--slots", "hotel-aera"],
            "error: slots: no reference has 'hotel-aera'; did you mean 'hotel-are",
        ),
        (PREDICTIONS, ["--domains", "train"], "error: nothing to compare: no reference has a slot of domains t"),
        (PREDICTIONS, ["--dontcare", "maybe"], "error: dontcare: unknown value 'maybe'; use one of keep,"),
        (PREDICTIONS, ["--confidence", "95"], "error: confidence: must lie between 0 and 1, found 95.0"),
        (PREDICTIONS, ["--json", "/proc/no/out.json"], "error: /proc/no/out.json: cannot write there"),
        (["[" * 100_000], [], "error: {p}:1: invalid JSON at column 1 (nested too deeply)"),
        (
            ['{"row_id": "A/0", "state": ' + "1" * 5000 + "}"],
            [],
            "error: {p}:1: invalid JSON at column 1 (Exceeds the limit",
        ),
        (PREDICTIONS, ["--confidence", "nan"], "error: confidence: must lie between 0 and 1, found nan"),
    ],
)
def test_errors_are_one_line_with_file_and_line(
    predictions: list[Any], extra: list[str], message: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path, references = write("p", predictions), write("r", REFERENCES)
    code = joint_goal_main(["--predictions", path, "--references", references, *extra])
    printed = capsys.readouterr().err
    assert code == 2
    assert printed.count("\n") == 1
    assert message.replace("{p}", path).replace("{r}", references) in printed


def test_warning_of_unknown_slots_is_one_line_on_stderr(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"hotel-price range": "cheap"}, {"hotel-pricerange": "x"}]
    gold = [{"hotel-pricerange": "x"}] * 2
    code = joint_goal_main(["--predictions", write("p", rows), "--references", write("r", gold)])
    printed = capsys.readouterr()
    assert code == 0
    assert printed.out.splitlines()[1].endswith("1/2")
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("warning: predictions have slots that no reference has: 'hotel-price range' (1 turn")


def test_warning_of_text_in_another_form(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    gold = {"hotel-area": ["a=b"], "hotel-stars": ["4"]}
    texts = [
        "hotel-area = a\\=b ; hotel-stars = 4",
        "hotel-area=x, hotel-stars=4",
        "hotel area x",
        "",
        "hotel-area = x",
    ]
    predictions = [{"row_id": f"r{number}", "prediction": text} for number, text in enumerate(texts)]
    references = [{"row_id": f"r{number}", "state": gold} for number in range(len(texts))]
    path = write("p", predictions)
    assert joint_goal_main(["--predictions", path, "--references", write("r", references)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].endswith("1/5")
    (line,) = printed.err.splitlines()
    assert line.startswith(
        f"warning: 2 of 5 predictions, such as {path}:2, are text in another form than that of a state,"
    )
    both = [row | {"variant": view} for view in ("original", "augmented") for row in predictions]
    gold_of_both = [row | {"variant": view} for view in ("original", "augmented") for row in references]
    with pytest.warns(BeliefTextWarning, match=r"^4 of 10 predictions, such as predictions\[1\], are text in"):
        consistency(both, gold_of_both)
    for text in ("hotel-area=x, hotel-stars=4", "hotel-area: x ; hotel-stars = 4"):
        wrong = write("w", [{"row_id": "r0", "reference": text}])
        assert joint_goal_main(["--predictions", path, "--references", wrong]) == 2
        assert f"'reference' holds {text!r}, which is no belief text" in capsys.readouterr().err


@pytest.mark.parametrize("encode", [lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")])
def test_files_with_byte_order_mark_or_windows_line_ends(encode: Callable[[bytes], bytes], write: Write) -> None:
    references, predictions = write("r", REFERENCES), write("p", PREDICTIONS)
    for path in map(Path, (references, predictions)):
        path.write_bytes(encode(path.read_bytes()))
    assert [turn.row_id for turn in read_items_file(references)] == ["A/0", "A/1", "B/0"]
    assert joint_goal_main(["--predictions", predictions, "--references", references]) == 0


def test_compressed_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    assert joint_goal_main(["--predictions", str(path), "--references", str(path)]) == 2
    assert (
        capsys.readouterr().err == f"error: {path}: this file is compressed; unpack it first, for example with gunzip\n"
    )


def test_json_output_replaces_no_other_file(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = write("p", views("A/0", {}, {}))
    folder, linked, bound = tmp_path / "precious", tmp_path / "link", tmp_path / "socket"
    os.mknod(bound, stat.S_IFSOCK | 0o600)
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")
    linked.symlink_to(row)
    settings = write("settings.json", ['{"name": "a", "preset": 1, "c": 2}'])
    empty = write("empty.json", ["{}"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    arguments = ["--predictions", row, "--references", row, "--json"]
    for target, extra, message in (
        (folder, [], "precious: is a folder; name a file"),
        (bound, ["--overwrite"], "socket: is not a regular file"),
        (row, ["--overwrite"], f"p: is also read ({row}); name another file to write"),
        (linked, ["--overwrite"], f"link: is also read ({row}); name another file to write"),
        (settings, [], "settings.json: was not written by this command; name another file, or move this one away"),
        (settings, ["--overwrite"], "settings.json: was not written by this command; name another file"),
        (empty, ["--overwrite"], "empty.json: was not written by this command"),
    ):
        assert joint_goal_main([*arguments, str(target), *extra]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert message in printed.err
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert joint_goal_main([*arguments, str(tmp_path / "new.json")]) == 0
    assert joint_goal_main([*arguments, str(tmp_path / "new.json")]) == 2
    assert "new.json: already exists; name another file, or give --overwrite" in capsys.readouterr().err
    assert joint_goal_main([*arguments, str(tmp_path / "new.json"), "--overwrite"]) == 0


def test_missing_and_binary_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent, binary = tmp_path / "absent", tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert joint_goal_main(["--predictions", str(absent), "--references", str(absent)]) == 2
    assert joint_goal_main(["--predictions", str(binary), "--references", str(binary)]) == 2
    printed = capsys.readouterr().err
    assert f"{absent}: cannot be read" in printed
    assert f"{binary}: line 1: not UTF-8 text (byte 0xff)" in printed


def views(name: str, original: Any, augmented: Any = None) -> list[dict[str, Any]]:
    rows = [{"row_id": name, "state": original}]
    return rows if augmented is None else [*rows, {"row_id": name, "variant": "augmented", "state": augmented}]


# Fifteen rows of four dialogues: (row, gold of both views, predictions of both views, H of both views by hand).
PAIRS: list[tuple[str, tuple[Any, ...], tuple[Any, ...], str]] = [
    ("A/0", ({"hotel-name": ["a", "b"]}, {"hotel-name": ["c", "d"]}), ({"hotel-name": "b"}, {"hotel-name": "d"}), "11"),
    ("A/1", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "a"}), "10"),
    ("A/2", ({"hotel-area": ["dontcare"]},), ({"hotel-area": "dontcare"},), "1-"),
    ("A/3", ({"hotel-area": ["dontcare"]},), ({},), "0-"),
    ("B/0", ({}, {}), ({}, {}), "11"),
    ("B/1", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({}, {}), "00"),
    ("B/2", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "c"}, {"hotel-name": "c"}), "01"),
    ("B/3", ({"hotel-name": ["a; b"]}, {"hotel-name": ["c, d"]}), ({"hotel-name": "a; b"}, {"hotel-name": "c"}), "10"),
    ("C/0", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "c"}), "11"),
    ("C/1", ({"hotel-stars": ["4"]},), ({"hotel-stars": "4", "hotel-area": "none"},), "1-"),
    ("C/2", ({"train-day": ["monday"]},), ({"train-day": "friday"},), "0-"),
    (
        "C/3",
        ({"hotel-name": ["a"], "hotel-area": ["x"]}, {"hotel-name": ["c"], "hotel-area": ["x"]}),
        ({"hotel-name": "a", "hotel-area": "y"}, {"hotel-name": "c", "hotel-area": "y"}),
        "00",
    ),
    ("D/0", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "c e"}), "10"),
    ("D/1", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "c"}), "11"),
    ("D/2", ({"hotel-name": ["dontcare"]},), ({},), "0-"),
]


def consistency(predictions: list[Any], references: list[Any], preset: str = "any_of") -> dict[str, Any]:
    turns = pair_turns(read_items(predictions, "predictions"), read_items(references, "references"))
    return consistency_metrics(judge_pairs(turns, resolve_pair_convention(preset)[1]))


def consistency_of_pairs(preset: str = "any_of") -> dict[str, Any]:
    references = [row for name, gold, _, _ in PAIRS for row in views(name, *gold)]
    predictions = [row for name, _, predicted, _ in PAIRS for row in views(name, *predicted)]
    return consistency(predictions[::-1], references, preset)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # 11: A0 B0 C0 D1; 10: A1 B3 D0; 01: B2; 00: B1 C3; without augmented view A2 C1 correct, A3 C2 D2 wrong.
        # Of 10 pairs 4 are correct on both views, 2 on neither. All rows: 9 and 6. The gold states of B0 are the same.
        ("any_of", (3, 6, 1, 1, 6, 9, 4 / 10, 3 / 10, 1 / 10, 2 / 10)),
        # dair_released compares the two names only, cut at comma and space: B3 becomes 11, C3 too (its wrong area does
        # not count), A3 and C2 become correct (they have no name). It requires all alternatives: A0 becomes 00.
        # dontcare is a value of a name, so D2 stays wrong.
        # 11: B0 B3 C0 C3 D1; 10: A1 D0; 01: B2; 00: A0 B1; without augmented view A2 A3 C1 C2 correct, D2 wrong.
        ("dair_released", (4, 6, 1, 1, 9, 11, 5 / 10, 2 / 10, 1 / 10, 2 / 10)),
    ],
)
def test_consistency_of_hand_worked_states(preset: str, expected: tuple[float, ...]) -> None:
    results = consistency_of_pairs(preset)
    names = ("cm", "cm_same_answer", "cm_all_rows")
    counts = [f"{name}_{part}" for name in names for part in ("numerator", "denominator")]
    keys = (*counts, "both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")
    assert [results[key] for key in keys] == pytest.approx(list(expected))
    assert results["pairs"] == 10


def correctness(pattern: str) -> list[dict[str, Any]]:
    """Rows from pairs of characters such as "10"; "-" means no augmented view."""
    value = {"1": True, "0": False, "-": None}
    return [
        {"row_id": f"A/{i}", "original_correct": value[pair[0]], "augmented_correct": value[pair[1]]}
        for i, pair in enumerate(pattern.split())
    ]


def test_correctness_gives_the_same_results_as_states() -> None:
    rows = correctness(" ".join(pair for *_, pair in PAIRS))
    for row, (name, *_) in zip(rows, PAIRS, strict=True):
        row["row_id"] = name
    given, judged = consistency_metrics(read_correctness(rows)), consistency_of_pairs()
    # Without references CM is over all pairs.
    assert (given["cm_numerator"], given["cm_denominator"], "cm_same_answer" in given) == (4, 7, False)
    for key in ("both_correct", "neg_to_neg", "cm_all_rows", "cm_all_rows_low", "original_accuracy_pairs_high"):
        assert given[key] == judged[key]


def prediction_lines() -> list[dict[str, Any]]:
    """Lines as `DAIRTrainer.evaluate_pairs` writes them: all originals, then the augmented views."""
    gold = [{"slot": "hotel-area", "values": ["east", "the east"]}]
    lines = [
        ("A/0", "original", "hotel-area = the east", gold, True),
        ("A/1", "original", "", gold, False),
        ("B/0", "original", "hotel-area = east ;", gold, True),
        ("A/0", "augmented", "hotel-area = west", gold, False),
        ("A/1", "augmented", "hotel-area = east", gold, True),
    ]
    return [dict(zip(("row_id", "variant", "prediction", "reference", "correct"), line, strict=True)) for line in lines]


def test_commands_read_the_predictions_of_a_run(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write("predictions.jsonl", prediction_lines()), tmp_path / "out.json"
    both = ["--predictions", path, "--references", path]
    assert joint_goal_main([*both, "--json", str(out)]) == 0
    results = json.loads(out.read_text())
    counts = [
        results[f"{view}_joint_goal_accuracy_{end}"]
        for view in ("original", "augmented")
        for end in ("numerator", "denominator")
    ]
    # Augmented: A/0 wrong, A/1 right, B/0 as its original.
    assert counts == [2, 3, 2, 3]
    printed = capsys.readouterr().out
    assert re.search(r"^original_joint_goal_accuracy +66\.67 %", printed, re.MULTILINE)
    assert re.search(r"^augmented_turns +3$", printed, re.MULTILINE)
    # From the states or from their correctness, with the same result.
    found = consistency(prediction_lines(), prediction_lines())
    assert found == pytest.approx(consistency_metrics(read_correctness(prediction_lines())), nan_ok=True)
    assert (found["cm_numerator"], found["cm_denominator"], found["neg_to_pos"]) == (0, 1, 0.5)
    # Under parlai_v22 the empty answer is skipped by the accuracy, but not by figures of pairs, and their name says so.
    lines = [line | {"reference": [{"slot": "hotel-area", "values": ["east"]}]} for line in prediction_lines()]
    path = write("p", lines)
    both = ["--predictions", path, "--references", path, "--preset", "parlai_v22", "--overwrite"]
    assert joint_goal_main([*both, "--json", str(out)]) == 0
    results = json.loads(out.read_text())
    assert (results["original_joint_goal_accuracy"], results["original_turns_skipped"]) == (0.5, 1)
    results = consistency(lines, lines, "parlai_v22")
    assert (results["original_accuracy"], results["rows"]) == (pytest.approx(1 / 3), 3)


def test_rows_without_augmented_view_are_not_pairs() -> None:
    with pytest.warns(UndefinedMetricWarning) as caught:
        found = consistency_metrics(read_correctness(correctness("1- 0- 1-")))
    assert len(caught) == 2  # of one cluster, and without pairs
    assert (found["pairs"], found["cm_all_rows_numerator"], found["cm_all_rows_denominator"]) == (0, 2, 2)


def test_comparison_of_two_models() -> None:
    ours = read_correctness(correctness("11 11 11 11 11 1- 0-"))
    theirs = read_correctness(correctness("10 10 10 10 01 1- 1-")[::-1])
    test = compare_models(ours, theirs)
    # Original view: only A in row 4, only B in row 6, p = 1. Augmented view, 5 pairs: only A in rows 0-3, p = 2 / 2^4.
    assert (test["original"]["only_a"], test["original"]["only_b"], test["original"]["p_value"]) == (1, 1, 1.0)
    assert (test["augmented"]["only_a"], test["augmented"]["only_b"]) == (4, 0)
    assert test["augmented"]["p_value"] == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ([{"original_correct": True}], "augmented_correct"),
        ([{"original_correct": None, "augmented_correct": True}], "original_correct"),
        ([{"original_correct": 0.1, "augmented_correct": True}], "original_correct"),
        ([{"original_correct": 1, "augmented_correct": "no"}], "augmented_correct"),
        ([3], "object"),
        (correctness("11") * 2, "A/0"),
        ([*prediction_lines(), prediction_lines()[0]], "A/0"),
        ([*prediction_lines(), *correctness("11")], "correct"),
        (prediction_lines()[1:], "A/0"),
        ([{"correct": True}], "id"),
        ([{"row_id": "A/0", "correct": "yes"}], "correct"),
    ],
)
def test_lines_without_correctness_are_refused(lines: list[Any], field: str) -> None:
    with pytest.raises(DataError, match=field):
        read_correctness(lines)


def test_comparison_requires_the_same_rows() -> None:
    ours = read_correctness(correctness("11 10"))
    without_id = [{"original_correct": 1, "augmented_correct": 1}]
    for rows in (correctness("11"), correctness("11 1-"), without_id):
        with pytest.raises(DataError):
            compare_models(ours, read_correctness(rows))


def test_predictions_of_another_task_are_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"row_id": "0", "variant": "original", "prediction": "10 ok", "reference": "10 ok", "correct": True}]
    file = write("predictions.jsonl", lines)
    assert joint_goal_main(["--predictions", file, "--references", file]) == 2
    assert "predictions.jsonl:1: 'reference' holds '10 ok', which is no belief text" in capsys.readouterr().err
    # Without ids, lines are compared in order.
    lines = [{"prediction": "hotel-area = east", "reference": "hotel-area = west"}]
    lines += [{"prediction": "hotel-stars = 4 ; hotel-area = a", "reference": "hotel-area = a ; hotel-stars = 4"}]
    file = write("in_order.jsonl", lines)
    assert joint_goal_main(["--predictions", file, "--references", file]) == 0
    assert "50.00 %" in capsys.readouterr().out
    lines = [{"row_id": "0", "variant": "original", "prediction": "10 ok", "reference": "10 ok", "correct": True}]
    # An empty reference is an empty state.
    lines[0] |= {"prediction": "hotel-area = east", "reference": ""}
    file = write("empty.jsonl", lines)
    assert joint_goal_main(["--predictions", file, "--references", file]) == 0


@pytest.mark.parametrize(
    "form",
    [
        {"prediction": "hotel area east , train leaveat 10:00"},
        {"prediction": "<|belief|> hotel area east <|endofbelief|>"},
        {"prediction": "[hotel] area east [train] leave 10:00"},
        {"prediction": '{"hotel-area": "east"}'},
        {"state": {"hotel_area": "east"}},
        {"state": {"Hotel-Area": "East"}},
        {"state": ["hotel-area-east"]},
        {"state": {"hotel": {"semi": {"area": "east"}, "book": {"booked": []}}}},
    ],
)
def test_predictions_in_another_form_are_refused(
    form: dict[str, Any], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read as they are, they would have an accuracy of 0 with an interval; a few of many only count as wrong."""
    gold = write("r", [{"row_id": str(row), "state": {"hotel-area": ["east"]}} for row in range(20)])
    right: dict[str, Any] = {"state": {"hotel-area": "east"}}
    for unread in (20, 19):
        rows = [{"row_id": str(row), **(form if row < unread else right)} for row in range(20)]
        assert joint_goal_main(["--predictions", write("p", rows), "--references", gold]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("error: ")
    if "state" not in form or "hotel-area-east" not in form["state"] and "hotel" not in form["state"]:
        rows = [{"row_id": str(row), **(form if row < 10 else right)} for row in range(20)]
        assert joint_goal_main(["--predictions", write("p", rows), "--references", gold]) == 0
        assert "10/20" in capsys.readouterr().out


@pytest.mark.parametrize("own_file", [False, True])
def test_predictions_of_an_evaluation_have_its_intervals(
    own_file: bool, tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows r/0 to r/7 of four documents: both metrics take these as units, not the one prefix of all ids."""
    states, wrong = ["hotel-area = east"] * 8, "hotel-area = west"
    predictions = [wrong if row in (1, 4) else states[row] for row in range(8)]
    augmented = [wrong if row in (1, 4, 5, 6) else states[row] for row in range(8)]
    evaluator = PairEvaluator(lambda predictions, references: list(map(str.__eq__, predictions, references)))
    index = PairIndex(np.ones(8, dtype=bool), [f"r/{row}" for row in range(8)])
    documents = list("aabbccdd")
    found = evaluator.evaluate_views(index, [*predictions, *augmented], states * 2, documents)
    path = tmp_path / "predictions.jsonl"
    index.write(path, found.predictions, found.references, found.correct, documents)
    gold = str(path)
    if own_file:  # which names no clusters
        views = [{"row_id": f"r/{row}", "variant": v} for v in ("original", "augmented") for row in range(8)]
        gold = write("gold", [view | {"state": {"hotel-area": "east"}} for view in views])
    lines, gold_lines = ([json.loads(line) for line in Path(name).read_text().splitlines()] for name in (path, gold))
    for results in (consistency_metrics(read_correctness(lines)), consistency(lines, gold_lines)):
        for key in ("both_correct_low", "both_correct_high", "cm_low", "cm_high", "augmented_accuracy_low"):
            assert results[key] == pytest.approx(found.metrics[key], rel=1e-12), key
        # Right in both views: 1, 1, 0 and 2 of the 2 rows of a document. The variance of their mean share 4 / 8 is
        # 4 / 3 * (0 + 0 + 1 + 1) / 64, and 3.182 the t quantile of three degrees of freedom (Wilson's limits).
        trials = 0.25 / (4 / 3 * 2 / 64)
        for limit in (results["both_correct_low"], results["both_correct_high"]):
            assert (0.5 - limit) ** 2 == pytest.approx(3.182446**2 * limit * (1 - limit) / trials, rel=1e-5)
    assert (
        joint_goal_main(["--predictions", str(path), "--references", gold, "--json", str(tmp_path / "jga.json")]) == 0
    )
    results = json.loads((tmp_path / "jga.json").read_text())
    for view in ("original", "augmented"):
        for end in ("low", "high"):
            expected = found.metrics[f"{view}_accuracy_{end}"]
            assert results[f"{view}_joint_goal_accuracy_{end}"] == pytest.approx(expected, rel=1e-12)
    assert capsys.readouterr().err == ""


def test_rows_of_one_cluster_are_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"row_id": f"r/{row}", "original_correct": row > 0, "augmented_correct": True} for row in range(4)]
    with pytest.warns(UndefinedMetricWarning, match="all 4 rows, such as 'r/0', are in the same cluster, 'r',"):
        assert math.isnan(consistency_metrics(read_correctness(rows))["both_correct_low"])
    states = write("s", [{"row_id": f"r/{row}", "state": {"hotel-area": "east"}} for row in range(4)])
    assert joint_goal_main(["--predictions", states, "--references", states]) == 0
    assert capsys.readouterr().err.startswith("warning: no intervals: all 4 rows, such as 'r/0', are in the same clus")
    # Units of their own, by another name of the rows or by a cluster.
    for independent in (
        [row | {"row_id": row["row_id"].replace("/", "-")} for row in rows],
        [row | {"cluster": number} for number, row in enumerate(rows)],
        [{key: row[key] for key in row if key != "row_id"} | {"cluster": number} for number, row in enumerate(rows)],
    ):
        assert consistency_metrics(read_correctness(independent))["both_correct_low"] > 0


@pytest.mark.parametrize("change", [{"cluster": "x"}, {"cluster": 0.5}])
@pytest.mark.parametrize(
    "values", [{"original_correct": True, "augmented_correct": True}, {"correct": True}, {"state": {}}]
)
def test_clusters_of_some_rows_are_refused(values: dict[str, Any], change: dict[str, Any]) -> None:
    rows = [{"row_id": f"r/{row}", **values, **(change if row == 0 else {})} for row in range(3)]
    with pytest.raises(DataError, match="cluster"):
        consistency(rows, rows) if "state" in values else read_correctness(rows)


def test_ids_of_some_rows_are_refused() -> None:
    rows = [{"original_correct": True, "augmented_correct": True}] * 2
    with pytest.raises(DataError, match="2 of 3 rows have no id"):
        consistency_metrics(read_correctness([rows[0] | {"row_id": "A/0"}, *rows]))
