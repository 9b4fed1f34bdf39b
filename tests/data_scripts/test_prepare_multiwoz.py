"""Command that prepares MultiWOZ."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from datasets import load_from_disk

from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import load_dialogs
from dair_hf.dialog.rows import FEATURES
from dair_hf.errors import DataError
from data_scripts.downloads import dialog_files
from tests.data_scripts.scripts import ROOT, Done, run_script
from tests.dialog.readers import test_woz2
from tests.fixtures.dialogs import write_multiwoz21, write_sgd

FIXTURES = ROOT / "tests" / "fixtures" / "multiwoz22"


def run(*arguments: object) -> Done:
    return run_script("prepare_multiwoz.py", *arguments)


def test_writes_rows_and_a_summary(tmp_path: Path) -> None:
    done = run("--source", FIXTURES, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    data = load_from_disk(str(tmp_path / "out"))
    assert list(data) == ["dev"]
    assert data["dev"].features == FEATURES
    assert data["dev"]["row_id"][:] == ["PMUL0001/0", "PMUL0001/1"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["dev"]["turns"] == 2
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["dialogues", "1"] in lines
    assert ["user", "turns", "2"] in lines
    assert ["names", "in", "the", "text", "1"] in lines
    assert any(line[:5] == ["skipped:", "span", "outside", "the", "text"] for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_woz2_is_detected_and_read_alike_raw_and_prepared(tmp_path: Path) -> None:
    for number, name in enumerate(test_woz2.FILES.values()):
        test_woz2.write(tmp_path / "raw", [test_woz2.talk(number)], name)
    done = run("--source", tmp_path / "raw", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert list(load_from_disk(str(tmp_path / "out"))) == ["train", "dev", "test"]
    for evaluate_on in ("test", "validation"):
        raw, ours = (
            load_dialogs(DialogConfig("woz2", str(tmp_path / name), evaluate_on=evaluate_on)) for name in ("raw", "out")
        )
        assert raw.name == ours.name
        assert (raw.train.to_list(), raw.test.to_list()) == (ours.train.to_list(), ours.test.to_list())
    with pytest.raises(DataError, match="prepared.json: expected kind and version .*multiwoz.*woz2"):
        load_dialogs(DialogConfig("multiwoz", str(tmp_path / "out"), "sgd", train_split="train"))
    some = run("--source", tmp_path / "raw", "--output", tmp_path / "some", "--split", "validate", "--version", "woz2")
    assert some.returncode == 0 and list(load_from_disk(str(tmp_path / "some"))) == ["validate"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with MultiWOZ 2.1, raw and prepared, and SGD."""
    folder = tmp_path_factory.mktemp("prepared")
    done = run("--source", write_multiwoz21(folder / "raw", dialogues=20), "--output", folder / "out")
    assert done.returncode == 0, done.stderr
    write_sgd(folder / "sgd")
    return folder


@pytest.mark.parametrize(("evaluate_on", "train_split"), [("test", "val"), ("validation", "dev")])
def test_recipe_reads_the_same_rows_raw_and_prepared(prepared: Path, evaluate_on: str, train_split: str) -> None:
    settings = {"source": "multiwoz", "sgd_dir": str(prepared / "sgd"), "train_split": train_split}
    raw, ours = (
        load_dialogs(DialogConfig(data_dir=str(prepared / name), evaluate_on=evaluate_on, **settings))
        for name in ("raw", "out")
    )
    assert len(raw.train) >= 36 and len(raw.test) >= 4
    for expected, rows in ((raw.train, ours.train), (raw.test, ours.test)):
        assert rows.to_list() == expected.to_list()
        assert (rows.features, rows._fingerprint) == (expected.features, expected._fingerprint)
    before = digests(prepared / "out")
    ours.train.map(lambda row: {"length": len(row["history"])})
    assert digests(prepared / "out") == before, "no cache files in the folder"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prepared.json", None),
        ("prepared.json", b'{"kind": "multiwoz", "version": 3}'),
        ("prepared.json", b'{"kind": "vqa", "version": 2}'),
        ("prepared.json", b'{"kind": "multiwoz", "version": 2, "splits": {"test": 0}}'),
        ("prepared.json", b'{"kind": "multiwoz", "version": 2, "splits": {"dev": {"rows": 41, "fingerprint": ""}}}'),
        ("dev/data-00000-of-00001.arrow", b""),
        ("dev/state.json", b"{}"),
    ],
)
def test_other_versions_and_broken_folders_are_refused(
    prepared: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = shutil.copytree(prepared / "out", tmp_path / "out")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        load_dialogs(DialogConfig("multiwoz", str(folder), str(prepared / "sgd"), train_split="val"))
    assert str(folder) in str(refused.value)


def digests(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_of_the_user_are_kept_and_own_output_is_replaced_on_request(tmp_path: Path) -> None:
    raw, mine, out, new = (tmp_path / name for name in ("raw", "mine", "out", "new"))
    shutil.copytree(FIXTURES, raw)
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    (tmp_path / "broken.json").write_text('{"A": {"log"')
    assert run("--source", raw, "--output", out).returncode == 0
    before = digests(tmp_path)
    for source, output, said in (
        (raw, raw, "raw"),
        (raw, mine, "notes.txt"),
        (out, new, str(out)),
        (tmp_path / "absent", new, "absent"),
        (tmp_path / "broken.json", new, "broken.json"),
    ):
        for more in ([], ["--overwrite"]):
            done = run("--source", source, "--output", output, *more)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and said in done.stderr
            assert digests(tmp_path) == before
    assert "--overwrite" in run("--source", raw, "--output", out).stderr
    (out / "report.json").write_text("{}")
    assert run("--source", raw, "--output", out, "--overwrite").returncode == 0
    assert digests(tmp_path).keys() == before.keys() and json.loads((out / "report.json").read_text()) != {}


@pytest.mark.realdata
def test_known_checksums_are_those_of_the_public_files(real_data: Path) -> None:
    contents = {name: (real_data / "multiwoz21" / name).read_bytes() for name in ("val.json.zip", "test.json.zip")}
    with zipfile.ZipFile(real_data / "woz2" / "woz2.zip") as archive:
        contents |= {file.name: archive.read(file.name) for file in dialog_files("woz2")}
    known = {file.name: file.sha256 for data in ("2.1", "woz2") for file in dialog_files(data) if file.sha256}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()} == known
