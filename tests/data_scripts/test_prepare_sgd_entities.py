"""Command that collects the names of SGD."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import _read_names, load_dialogs
from dair_hf.errors import DataError
from data_scripts.downloads import dialog_files
from tests.data_scripts.scripts import Done, mirror_path, run_script, served
from tests.fixtures.dialogs import write_multiwoz21


def run(*arguments: object) -> Done:
    return run_script("prepare_sgd_entities.py", *arguments)


def dialogues(hotel: str) -> str:
    frame = {"service": "Hotels_1", "state": {"slot_values": {"hotel_name": [hotel, "Elm Inn"]}}}
    dialogue = {"dialogue_id": hotel, "turns": [{"speaker": "USER", "utterance": "hi", "frames": [frame]}]}
    return json.dumps([dialogue])


HOTELS = [{"service_name": "Hotels_1", "slots": [{"name": "hotel_name", "description": "Name of the hotel"}]}]


def write(folder: Path, **hotels: str) -> Path:
    for split, hotel in hotels.items():
        (folder / split).mkdir(parents=True)
        (folder / split / "dialogues_001.json").write_text(dialogues(hotel))
        (folder / split / "schema.json").write_text(json.dumps(HOTELS))
    return folder


def test_bank_is_written_and_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "sgd", train="Oak", dev="Ash", test="Fir")
    done = run("--source", source, "--output", tmp_path / "bank.json")
    assert done.returncode == 0, done.stderr
    bank = json.loads((tmp_path / "bank.json").read_text())
    removed = bank.pop("removed")
    hotels = {split: (kinds["hotel"], removed[split]["hotel"]) for split, kinds in bank.items()}
    assert hotels == {"train": (["Elm Inn", "Oak"], []), "dev": (["Ash"], ["Elm Inn"]), "test": (["Fir"], ["Elm Inn"])}
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["split", "hotel", "restaurant", "attraction", "place", "removed"]
    assert lines[1:4] == [
        ["train", "2", "0", "0", "0", "0"],
        ["dev", "1", "0", "0", "0", "1"],
        ["test", "1", "0", "0", "0", "1"],
    ]


def test_recipe_reads_the_same_names_raw_and_prepared(tmp_path: Path) -> None:
    """A test name that dev has too, and train has not, stays unseen: training never used it."""
    source = write(tmp_path / "sgd", train="Oak", dev="Ash", test="Fir")
    for split in ("dev", "test"):
        path = source / split / "dialogues_001.json"
        path.write_text(path.read_text().replace("Elm Inn", "elm inn" if split == "dev" else "ash"))
    assert run("--source", source, "--output", tmp_path / "names.json").returncode == 0
    for split in ("train", "dev", "test"):
        assert _read_names(tmp_path / "names.json", split) == _read_names(source, split)
    data = str(write_multiwoz21(tmp_path / "multiwoz"))
    for evaluate_on, expected in (("test", ["Fir", "ash"]), ("validation", ["Ash"])):
        raw, prepared = (
            load_dialogs(DialogConfig("multiwoz", data, str(path), train_split="val", evaluate_on=evaluate_on))
            for path in (source, tmp_path / "names.json")
        )
        assert raw.unseen_names == prepared.unseen_names
        assert raw.unseen_names["hotel"] == expected


def test_names_of_another_version_and_broken_files_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "sgd", train="Oak", dev="Ash", test="Fir")
    path = tmp_path / "names.json"
    assert run("--source", source, "--output", path).returncode == 0
    whole = json.loads(path.read_text())
    earlier = {split: kinds for split, kinds in whole.items() if split != "removed"}
    part = {"train": whole["train"], "removed": whole["removed"]}
    data = str(write_multiwoz21(tmp_path / "multiwoz"))
    texts = [earlier, {**whole, "removed": {}}, part, {**whole, "train": {"hotel": "Oak"}}, []]
    for text in [*map(json.dumps, texts), path.read_text()[:40]]:
        path.write_text(text)
        with pytest.raises(DataError, match=f"^{re.escape(str(path))}"):
            load_dialogs(DialogConfig("multiwoz", data, str(path), train_split="val"))
    path.write_text(json.dumps(whole))
    with pytest.raises(DataError, match="sgd_dir=.*pretrain"):
        load_dialogs(DialogConfig("multiwoz", data, str(path), train_split="val", pretrain={"max_steps": 1}))


def test_only_names_of_an_earlier_call_are_overwritten(tmp_path: Path) -> None:
    source, path = write(tmp_path / "sgd", train="Oak", dev="Ash", test="Fir"), tmp_path / "names.json"
    for text in ('{"mine": 1}', '{"train": [1]}', '{"removed": 1, "test": {"hotel": ["Oak"]}}', "[]", "x = 1"):
        path.write_text(text)
        done = run("--source", source, "--output", path, "--overwrite")
        assert (done.returncode, path.read_text()) == (2, text) and str(path) in done.stderr
    path.write_text("")
    for split in ("dev", "train"):
        assert run("--source", source, "--split", split, "--output", path, "--overwrite").returncode == 0
    assert json.loads(path.read_text()).keys() == {"train", "removed"}


def test_downloads_are_trusted_once_and_then_verified(tmp_path: Path) -> None:
    root = tmp_path / "mirror"
    for file in dialog_files("sgd", "dev", "http://mirror"):
        texts = {"dev/dialogues_001.json": dialogues("Ash"), "dev/schema.json": json.dumps(HOTELS)}
        mirror_path(root, file).write_text(texts.get(file.name, "[]"))
    with served(root) as host:
        common = ("--download", "--split", "dev", "--host", host, "--output", tmp_path / "bank.json")
        first = run(*common, "--source", tmp_path / "down")
        checksums = ("--checksums", tmp_path / "down" / "checksums.json")
        refused = run(*common, "--source", tmp_path / "down", *checksums)
        again = run(*common, "--source", tmp_path / "down", *checksums, "--overwrite")
        (tmp_path / "wrong.json").write_text(json.dumps({file.name: "0" * 64 for file in dialog_files("sgd", "dev")}))
        wrong = run(*common, "--source", tmp_path / "other", "--checksums", tmp_path / "wrong.json", "--overwrite")
    digest = hashlib.sha256(dialogues("Ash").encode()).hexdigest()
    assert first.returncode == 0, first.stderr
    assert f"trusted on first use: {digest}  dev/dialogues_001.json" in first.stdout
    assert "--overwrite" in refused.stderr
    assert again.returncode == 0, again.stderr
    assert "trusted on first use" not in again.stdout
    assert wrong.returncode == 2
    assert "checksum mismatch" in wrong.stderr
    assert list((tmp_path / "other").rglob("*.json")) == []
