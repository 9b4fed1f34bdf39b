"""Splits by the names of files and folders, for every reader and form of a source; reports and pinned downloads."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dair_hf.dialog.readers.dialogues import ReadReport
from dair_hf.dialog.readers.files import SPLITS, files_of_split
from dair_hf.dialog.readers.multiwoz import read_multiwoz, splits_in
from dair_hf.dialog.readers.sgd import read_entity_names, read_sgd
from dair_hf.dialog.readers.woz2 import read_woz2
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from data_scripts.downloads import dialog_files
from tests.dialog.readers import test_multiwoz, test_sgd, test_woz2

# One file or folder per split, in the order train, dev, test.
LAYOUTS = [
    "train.json val.json test.json",
    "multiwoz_train.json multiwoz_dev.json multiwoz_test.json",
    "train_dials.json dev_dials.json test_dials.json",
    "train_corrected.json validation-2.1.json MultiWOZ_2.1.Test.json",
    "training.json devset.json testing.json",
    "train/data.json dev/data.json test/data.json",
    "mwz/train_set/mwz.json mwz/dev_set/mwz.json mwz/test_set/mwz.json",
    "dialogues_train/dialogues_001.json dialogues_valid/dialogues_001.json dialogues_test/dialogues_001.json",
    "woz_train_en.json woz_validate_en.json woz_test_en.json",
]
OF_VERSION = {"2.1": LAYOUTS[1], "2.2": LAYOUTS[7], "sgd": LAYOUTS[7], "woz2": LAYOUTS[8]}
READERS = {"2.1": read_multiwoz, "2.2": read_multiwoz, "sgd": read_sgd, "woz2": read_woz2}


def content(version: str, number: int, split: str) -> str:
    if version == "2.1":
        return json.dumps({split: test_multiwoz.talk()})
    if version == "woz2":
        return json.dumps([test_woz2.talk(number)])
    if version == "sgd":
        return json.dumps([test_sgd.dialogue(name=split)])
    (dialogue,) = json.loads((test_multiwoz.FIXTURES / "dev" / "dialogues_001.json").read_text())
    return json.dumps([dialogue | {"dialogue_id": split}])


def members(version: str) -> dict[str, str]:
    names = OF_VERSION[version].split()
    files = {name: content(version, i, ("train", "dev", "test")[i]) for i, name in enumerate(names)}
    if version == "sgd":
        files |= {str(Path(name).parent / "schema.json"): json.dumps(test_sgd.SCHEMA) for name in files}
    if version == "woz2":
        files["woz_test_de.json"] = content(version, 3, "test")  # another language
    return files


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_split_is_selected_wherever_a_name_shows_it(tmp_path: Path, layout: str) -> None:
    files = layout.split()
    for name in files:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    source = Source(tmp_path / "data")
    for alias, split in SPLITS.items():
        assert files_of_split(source, source.names, alias) == [files[("train", "dev", "test").index(split)]], alias
    assert files_of_split(source, source.names, None) == source.names


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("version", OF_VERSION)
def test_every_reader_selects_a_split(tmp_path: Path, version: str, archive: bool) -> None:
    source = tmp_path / ("data.zip" if archive else "data")
    files = members(version)
    if archive:
        test_multiwoz.pack(source, files)
    for name, text in {} if archive else files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    read = READERS[version]
    for place, split in enumerate(("train", "dev", "test")):
        assert set(read(source, split)[0]["dialogue_id"]) == {str(place) if version == "woz2" else split}
    assert len(set(read(source)[0]["dialogue_id"])) == 3
    if version[0] == "2":
        assert splits_in(Source(source)) == ["train", "dev", "test"]


@pytest.mark.parametrize("file", ["mwz.json", "data.json", "latest.json", "train_test.json", "all/mwz.json"])
def test_a_source_that_shows_no_split_is_refused(tmp_path: Path, file: str) -> None:
    path = tmp_path / "test_run" / file
    path.parent.mkdir(parents=True)
    path.write_text(content("2.1", 0, "A"))
    zipped = test_multiwoz.pack(tmp_path / "mwz.zip", {file: content("2.1", 0, "A")})
    for source in (path, tmp_path / "test_run", zipped):
        for split in ("train", "dev", "test"):
            with pytest.raises(DataError, match=f"split '{split}'"):
                read_multiwoz(source, split)
        assert read_multiwoz(source)[1].dialogues == 1


def test_a_folder_or_file_whose_own_name_shows_the_split(tmp_path: Path) -> None:
    folder = tmp_path / "sgd" / "test_set"
    folder.mkdir(parents=True)
    (folder / "schema.json").write_text(json.dumps(test_sgd.SCHEMA))
    (folder / "dialogues_001.json").write_text(content("sgd", 0, "test"))
    assert read_entity_names(folder, "test")["hotel"] == ["Aspen Lodge"]
    file = test_multiwoz.write(tmp_path, {"A": test_multiwoz.talk()}, "mwz_test.json")
    with zipfile.ZipFile(tmp_path / "mwz_test.json.zip", "w") as archive:
        archive.write(file, "mwz.json")
    for source in (file, tmp_path / "mwz_test.json.zip"):
        assert read_multiwoz(source, "test")[1].dialogues == 1
        with pytest.raises(DataError, match="split 'train'"):
            read_multiwoz(source, "train")
    with pytest.raises(DataError, match="split 'dev'"):
        read_sgd(folder, "dev")


def test_lists_without_one_of_the_splits_select_nothing(tmp_path: Path) -> None:
    test_multiwoz.write(tmp_path, {"A": test_multiwoz.talk(), "B": test_multiwoz.talk()}, "data.json")
    (tmp_path / "valListFile.txt").write_text("A.json")
    with pytest.raises(DataError, match="split 'train'"):
        read_multiwoz(tmp_path, "train")  # it would have the test dialogues


@pytest.mark.parametrize("read", [read_multiwoz, read_sgd, read_woz2])
def test_unknown_splits_and_absent_files_are_refused(tmp_path: Path, read: Callable[..., Any]) -> None:
    for name, source in (("tset", test_multiwoz.FIXTURES), ("test", test_multiwoz.FIXTURES), (None, tmp_path)):
        with pytest.raises(DataError, match=f"split '{name or 'all'}'"):
            read(source, name)
    with pytest.raises(DataError, match="absent"):
        read(tmp_path / "absent")


def test_pinned_manifests() -> None:
    files = [file for data in ("2.1", "2.2", "sgd", "woz2") for file in dialog_files(data)]
    assert len(files) == 3 + 1 + 17 + 2 + 2 + 3 + 127 + 20 + 34 + 3
    assert len({file.url for file in files}) == len(files)
    assert all("/master/" not in file.url and "/main/" not in file.url for file in files)
    known = {file.name for file in files if file.sha256}
    assert known == {"schema.json", "val.json.zip", "test.json.zip", *test_woz2.FILES.values()}
    assert all(len(file.sha256 or "0" * 64) == 64 for file in files)


def test_a_place_is_an_example_once() -> None:
    report = ReadReport()
    for where in ("d1", "d1", "d0"):
        report.skip("bad span", where)
    assert (report.skipped, report.examples) == ({"bad span": 3}, {"bad span": ["d1", "d0"]})
