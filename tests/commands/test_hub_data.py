"""Data sets of the Hub, from a Hub on the loopback interface, and folders that are laid out like them."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from dair_hf import DataError, pairs_from_jsonl
from dair_hf.io.records import is_hub_id
from tests.fixtures.hub_server import HubServer

CARD = """---
configs:
- config_name: reviews
  data_files: [{split: train, path: train.jsonl}, {split: test, path: test.jsonl}]
- config_name: other
  data_files: other.jsonl
---
"""
ROWS = [{"text": f"a {n}", "label": n % 2, "augmented_text": f"b {n}", "augmented_label": 0} for n in range(6)]
FILES = {
    "README.md": CARD,
    **{
        f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in rows)
        for name, rows in {"train": ROWS[:3], "test": ROWS[3:], "other": ROWS[:1]}.items()
    },
}
COMMANDS = """
import json, sys
from dair_hf.commands.main import run
for arguments in json.loads(sys.argv[1]):
    assert run(arguments) == 0, arguments
"""


@pytest.mark.slow
def test_commands_read_a_data_set_of_the_hub(hub_server: HubServer, tmp_path: Path) -> None:
    name, files = "tester/pairs", {path: text.encode() for path, text in FILES.items()}
    first = hub_server.add_commit(f"datasets/{name}", files)
    hub_server.add_commit(f"datasets/{name}", {**files, "test.jsonl": files["other.jsonl"]})
    answers = [{"row_id": str(n), "view": view, "answer": "0"} for n in range(3) for view in (0, 1)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answers))
    source = ["--config", "reviews", "--split", "test", "--revision", first]
    calls = [
        ["audit", name, "--json", *source, "--against", name, "--against-split", "train"],
        ["prompts", name, *source],
        ["evaluate", str(tmp_path / "answers.jsonl"), name, *source, "--output", str(tmp_path / "out"), "--json"],
        ["audit", name, "--json", "--config", "other"],
        ["audit", name, "--json", "--split", "test", "--name", "reviews"],
    ]
    done = hub_server.run_python("-c", COMMANDS, json.dumps(calls))
    audit, *prompts, evaluation, other, newest = map(json.loads, done.stdout.splitlines())
    assert (audit["file"], audit["split"], audit["revision"]) == (name, "test", first)
    assert audit["counts"]["rows"] == 3 and audit["findings"] == []
    assert [line["prompt"] for line in prompts] == [
        row[f"{view}text"] for view in ("", "augmented_") for row in ROWS[3:]
    ]
    assert evaluation["pairs"]["path"] == name and evaluation["settings"]["source"]["split"] == "test"
    assert evaluation["metrics"]["original_accuracy"] == pytest.approx(1 / 3)  # labels 1, 0, 1
    assert (other["counts"]["rows"], newest["counts"]["rows"]) == (1, 1)


def test_folders_in_the_layout_of_the_hub(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    rows = pairs_from_jsonl(tmp_path, name="reviews", split="test")
    assert rows["text"] == [row["text"] for row in ROWS[3:]] and pairs_from_jsonl(tmp_path, name="other").num_rows == 1
    for source in ({"name": "reviews"}, {"name": "reviews", "split": "dev"}, {"name": "nope"}):
        with pytest.raises(DataError, match=str(tmp_path)):
            pairs_from_jsonl(tmp_path, **source)


def test_saved_splits_and_files(tmp_path: Path) -> None:
    parts = {"train": datasets.Dataset.from_list(ROWS[:4]), "test": datasets.Dataset.from_list(ROWS[4:])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "both")
    datasets.DatasetDict(test=parts["test"]).save_to_disk(tmp_path / "one")
    assert pairs_from_jsonl(tmp_path / "both", split="train").num_rows == 4
    assert pairs_from_jsonl(tmp_path / "one").num_rows == 2
    parts["test"].save_to_disk(tmp_path / "plain")
    (tmp_path / "a.jsonl").write_text(FILES["test.jsonl"])
    for path, source in (
        ("both", {}), ("both", {"split": "dev"}), ("one", {"revision": "main"}), ("plain", {"split": "test"}),
        ("a.jsonl", {"split": "test"}), ("a.jsonl", {"name": "x"}),
    ):  # fmt: skip
        with pytest.raises(DataError, match=path):  # else all rows would be read
            pairs_from_jsonl(tmp_path / path, **source)


def test_what_exists_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user" / "there").mkdir(parents=True)
    ids = {"user/pairs": True, "user/v1.5_a-b": True, "user/there": False, "user/pairs.jsonl": False, "pairs": False,
           "./pairs": False, "../pairs": False, "a/b/c": False, "/user/pairs": False, "user/p.tsv": False}  # fmt: skip
    assert {name: is_hub_id(Path(name)) for name in ids} == ids
