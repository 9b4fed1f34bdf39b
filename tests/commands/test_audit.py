"""`dair-hf audit`: every finding, and files that training refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from dair_hf.commands.audit_findings import CHECKS
from dair_hf.commands.main import run
from dair_hf.io.commands import FINDINGS, REFUSED

# Sound rows: distinct inputs, both labels, a partner each.
SOUND = [
    {
        "row_id": f"r{number}",
        "text": f"the meal of table {number} was good",
        "label": "pos",
        "augmented_text": f"the meal of table {number} was bad",
        "augmented_label": "neg",
    }
    for number in range(3)
] + [{"row_id": "r3", "text": "a poor one", "label": "neg", "augmented_text": "a fine one", "augmented_label": "pos"}]


def changed(**columns: Any) -> list[dict[str, Any]]:
    """The sound rows, with other values in the last one."""
    return [*SOUND[:-1], {**SOUND[-1], **columns}]


def findings(
    capsys: pytest.CaptureFixture[str], path: Path, *options: str, status: int | None = FINDINGS
) -> dict[str, dict[str, Any]]:
    """Findings by name; without a status, files with and without findings are accepted."""
    ended = run(["audit", str(path), "--json", "--strict", *options])
    assert ended in ((0, FINDINGS) if status is None else (status,))
    return {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


CASES: dict[str, tuple[list[dict[str, Any]], int, list[str] | None]] = {
    "refused": ([{"text": "a", "augmented_text": "b"}], 1, None),
    "orphan_columns": (changed(augmented_txt="x"), 1, ["augmented_txt"]),
    "mixed_types": (changed(label=0), 1, None),
    "duplicate_row_ids": (changed(row_id="r1"), 1, ["r1"]),
    "duplicate_rows": ([*SOUND, {**SOUND[0], "row_id": "r4"}, {**SOUND[0], "row_id": "r5"}], 2, ["r4", "r5"]),
    "contradictory_labels": (changed(text=SOUND[0]["text"]), 1, ["r3"]),
    "empty_texts": (changed(text=" "), 1, ["r3 original"]),
    "empty_labels": (changed(label=None), 1, ["r3 original"]),
    "broken_characters": (changed(augmented_text="a fine \ufffd one"), 1, ["r3 augmented"]),
    "no_partner": (changed(augmented_text=None, augmented_label=None), 1, ["r3"]),
    "incomplete_partners": (changed(augmented_label=None), 1, ["r3"]),
    "identical_partners": (changed(augmented_text="a poor one", augmented_label="neg"), 1, ["r3"]),
    "relabelled_originals": (changed(augmented_text="a poor one"), 1, ["r3"]),
    "different_texts": (changed(augmented_text="a fine one, and then much more that has been added"), 1, ["r3"]),
    "unseen_labels": (changed(augmented_label="Pos"), 1, ["r3"]),
}


@pytest.mark.parametrize("check", CASES)
def test_each_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str], check: str) -> None:
    rows, count, names = CASES[check]
    found = findings(capsys, write(tmp_path / "pairs.jsonl", rows))
    assert found[check]["count"] == count and names in (None, found[check]["rows"])
    # A label that is missing or of another type is also one that differs.
    assert set(found) - {check} <= {"unseen_labels", "contradictory_labels", "incomplete_partners", "refused"}
    assert findings(capsys, write(tmp_path / "sound.jsonl", SOUND), status=0) == {}


def test_chats_without_an_answer_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training refuses them when it tokenizes, whatever the model."""

    def chat(role: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "2 + 2?"}, {"role": role, "content": "4"}]

    user, answer, other = chat("assistant")[:1], chat("assistant")[1:], chat("asistant")[1:]
    prompts = {"prompt": user, "completion": answer, "augmented_prompt": user, "augmented_completion": answer}
    texts = {"prompt": "a", "completion": "b", "augmented_prompt": "c", "augmented_completion": "d"}
    classes = {"text": "a b", "label": "x", "augmented_text": "a c", "augmented_label": "y", "messages": user}
    for row, named in (
        ({"messages": chat("assistant"), "augmented_messages": chat("asistant")}, "asistant"),
        ({**prompts, "augmented_completion": other}, "asistant"),
        ({**prompts, "prompt": user + answer}, "'completion'"),
        ({"messages": chat("assistant"), "augmented_messages": chat("assistant"), "tools": "a tool"}, "'tools'"),
        ({**prompts, "tools": "[]", "augmented_tools": "5"}, "'augmented_tools'"),
        ({"messages": chat("assistant"), "augmented_messages": None}, None),
        ({**prompts, "tools": [{"name": "add"}]}, None),
        ({**texts, "tools": "hammer"}, None),  # only a template of chats lists tools
        (classes, None),  # a classifier does not read the chat
    ):
        found = findings(capsys, write(tmp_path / "pairs.jsonl", [{"row_id": "a", **row}]), status=None)
        assert ("refused" in found) == (named is not None), row
        if named is not None:
            assert named in found["refused"]["rows"][0] and found["refused"]["rows"][0].startswith("row 'a'")


def test_every_check_is_tested() -> None:
    assert set(CHECKS) - set(CASES) == {"invalid_lines", "leaked_rows", "labels_not_in_other_file"}


def test_one_line_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "augmented_text": None, "augmented_label": None} for row in SOUND * 2]
    path = write(tmp_path / "pairs.jsonl", rows)
    assert run(["audit", str(path)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: 8 rows, 0 partners") and first.endswith("3 findings")
    names = ["duplicate_row_ids", "duplicate_rows", "no_partner"]
    assert [line.partition(":")[0] for line in lines] == names
    assert run(["audit", str(path), "--strict", *(part for name in names for part in ("--allow", name))]) == 0
    assert capsys.readouterr().out.count("\n") == 1  # a clean audit


@pytest.mark.parametrize("missing", [None, float("nan"), " "])
def test_labels_that_are_missing_have_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: Any
) -> None:
    def row(number: int, label: Any, partner: Any) -> dict[str, Any]:
        return {"text": f"w{number}", "label": label, "augmented_text": f"v{number}", "augmented_label": partner}

    labels = [("a", "b"), ("a", "a"), ("b", "b"), ("a", missing), (missing, "a"), (missing, missing)]
    rows = [row(number, *both) for number, both in enumerate(labels)]
    path = write(tmp_path / "pairs.jsonl", rows)
    assert run(["audit", str(path), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts == {"rows": 6, "partners": 6, "label_changed": 1, "label_unchanged": 2}
    rows = [{name: value for name, value in row.items() if name != "augmented_label"} for row in rows]
    assert run(["audit", str(write(path, rows)), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts == {"rows": 6, "partners": 6, "label_changed": 0, "label_unchanged": 4}


def test_lines_that_are_no_json_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "pairs.jsonl", SOUND)
    path.write_text(path.read_text() + '\n["x"]\n{"text": \n' + "[" * 100_000 + "\n")
    found = findings(capsys, path)
    assert found["invalid_lines"]["rows"] == ["line 6", "line 7", "line 8"] and set(found) == {"invalid_lines"}
    assert (found["invalid_lines"]["count"], found["invalid_lines"]["total"]) == (3, 7)
    array = tmp_path / "pairs.json"
    array.write_text(json.dumps(SOUND))
    assert findings(capsys, array, status=0) == {}


def test_leaks_into_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = [
        {"text": "  A FINE one", "label": "pos"},  # the partner of r3, up to case and spaces
        {"text": "something else", "label": "pos"},
    ]
    test, other = write(tmp_path / "test.jsonl", SOUND), write(tmp_path / "train.jsonl", train)
    found = findings(capsys, test, "--against", str(other))
    assert found["leaked_rows"]["rows"] == ["r3"]
    # The partners of r0, r1 and r2 are "neg", and so is the original of r3.
    assert found["labels_not_in_other_file"]["count"] == 4 and set(found) == {"leaked_rows", "labels_not_in_other_file"}
    train = [{"text": "something else", "label": "pos"}, {"text": "and more", "label": "neg"}]
    assert findings(capsys, test, "--against", str(write(other, train)), status=0) == {}
    assert run(["audit", str(test), "--against", str(write(other, [{"source": "x"}]))]) == REFUSED
    assert "'text'" in capsys.readouterr().err
    parts = {"test": Dataset.from_list(SOUND), "train": Dataset.from_list(SOUND[:1])}
    DatasetDict(parts).save_to_disk(tmp_path / "both")
    found = findings(capsys, tmp_path / "both", "--split", "test", "--against-split", "train")
    assert found["leaked_rows"]["rows"] == ["r0"]


PREMISE = "a man plays a guitar on the stage"
INFERENCES: list[dict[str, Any]] = [
    {"text": PREMISE, "text_pair": "a man plays music", "label": "yes",
     "augmented_text": "a man with a guitar is on the stage", "augmented_label": "yes"},
    {"text": PREMISE, "text_pair": "a man sleeps", "label": "no",
     "augmented_text": "a man sleeps on the stage", "augmented_label": "yes"},
    {"text": PREMISE, "text_pair": "a man is famous", "label": "no", "augmented_text": None, "augmented_label": None},
]  # fmt: skip


def test_texts_with_a_common_premise_are_different_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "pairs.jsonl", INFERENCES)
    train = [
        {"text": PREMISE, "text_pair": "a man is tall", "label": "no"},
        {"text": PREMISE, "text_pair": "a man sings", "label": "yes"},
    ]
    against = ["--against", str(write(tmp_path / "train.jsonl", train)), "--allow", "no_partner"]
    assert findings(capsys, path, *against, status=0) == {}
    named = ["--input", "text", "--input", "text_pair"]
    assert findings(capsys, path, *against, *named, status=0) == {}
    # The second text is that of the original also for partners.
    train[0] = {"text": "A man sleeps  on the stage", "text_pair": "a man sleeps", "label": "no"}
    write(tmp_path / "train.jsonl", train)
    for options in ([], named):
        found = findings(capsys, path, *against, *options)
        assert found["leaked_rows"]["rows"] == ["1"] and set(found) == {"leaked_rows"}
    same = {**INFERENCES[2], "text_pair": "a man plays music"}
    found = findings(capsys, write(path, [*INFERENCES[:2], same]))
    assert found["contradictory_labels"]["rows"] == ["2"] and set(found) == {"contradictory_labels", "no_partner"}
    # Without the column of the second text, the files cannot be compared as a whole.
    write(tmp_path / "train.jsonl", [{"text": PREMISE, "label": "no"}])
    assert run(["audit", str(path), *against]) == REFUSED
    assert "'text_pair'" in capsys.readouterr().err


@pytest.mark.parametrize("changed_text", ["text", "text_pair"])
def test_partners_inherit_the_inputs_that_they_have_no_column_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed_text: str
) -> None:
    rows = [
        {"text": f"one {number}", "text_pair": f"two {number}", "label": number % 2,
         f"augmented_{changed_text}": f"{'one' if changed_text == 'text' else 'two'} {number}" if number < 2 else "new",
         "augmented_label": 0}
        for number in range(4)
    ]  # fmt: skip
    path = write(tmp_path / "pairs.jsonl", rows)
    for options in ([], ["--input", "text", "--input", "text_pair"]):
        found = findings(capsys, path, *options)
        assert {name: finding["rows"] for name, finding in found.items()} == {
            "identical_partners": ["0"],
            "relabelled_originals": ["1"],
        }


def test_absent_partners_of_the_other_file_and_empty_inputs_are_no_leak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [
        {"text": "x", "text_pair": "b", "label": 0, "augmented_text": "y", "augmented_text_pair": "c"},
        {"text": "z", "text_pair": "d", "label": 1, "augmented_text": None, "augmented_text_pair": None},
        {"text": " ", "text_pair": "", "label": 1, "augmented_text": "", "augmented_text_pair": ""},
    ]
    rows = [
        {"text": "", "text_pair": " ", "label": 0, "augmented_text": "v"},
        {"text": "", "text_pair": "d", "label": 1, "augmented_text": "z"},
    ]
    pairs, other = write(tmp_path / "pairs.jsonl", rows), write(tmp_path / "train.jsonl", train)
    found = findings(capsys, pairs, "--against", str(other))
    assert found["leaked_rows"]["rows"] == ["1"] and set(found) == {"empty_texts", "leaked_rows"}
    rows[1]["augmented_text"] = "u"
    write(pairs, rows)
    assert set(findings(capsys, pairs, "--against", str(other))) == {"empty_texts"}


def test_messages_second_partners_and_named_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def talk(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    rows = [
        {"messages": talk("a"), "answer": "1", "augmented_messages": talk("b"), "augmented_answer": "2",
         "augmented_2_messages": talk("a"), "augmented_2_answer": "1"},
        {"messages": talk("c"), "answer": "2", "augmented_messages": talk(" "), "augmented_answer": "1"},
    ]  # fmt: skip
    path = write(tmp_path / "pairs.jsonl", rows)
    found = findings(capsys, path, "--label", "answer")
    assert found["identical_partners"]["rows"] == ["0"] and found["identical_partners"]["total"] == 3
    assert set(found) <= {"identical_partners", "empty_texts"}
    assert run(["audit", str(path), "--label", "nope"]) == REFUSED
    assert "'nope'" in capsys.readouterr().err


def test_the_last_answer_of_a_chat_is_its_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def chat(question: str, answer: str) -> list[dict[str, str]]:
        turns = "system", "user", "assistant"
        return [{"role": role, "content": text} for role, text in zip(turns, ("s", question, answer), strict=True)]

    rows = [
        {"messages": chat("a?", "1"), "augmented_messages": chat("a?", "2")},
        {"messages": chat("a?", "3"), "augmented_messages": chat("b?", "1")},
        {"messages": chat("c?", "3"), "augmented_messages": None},
    ]
    path, other = write(tmp_path / "pairs.jsonl", rows), write(tmp_path / "other.jsonl", rows[:1])
    found = findings(capsys, path, "--against", str(other))
    expected = {"relabelled_originals": ["0"], "contradictory_labels": ["1"], "leaked_rows": ["0", "1"]}
    assert {name: found[name]["rows"] for name in expected} == expected


@pytest.mark.parametrize("content", [b'{"text": "caf\xe9"}\n', b"", b"no\n", b'{"text": "a"}\n'])
def test_what_cannot_be_audited_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(content)
    assert run(["audit", str(path)]) == REFUSED
    error = capsys.readouterr().err
    assert str(path) in error and error.count("\n") == 1
