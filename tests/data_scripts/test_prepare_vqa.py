"""Command that prepares VQA v2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from datasets import load_from_disk

from dair_hf.errors import DataError
from dair_hf.vqa.data import VQAConfig, load_vqa
from dair_hf.vqa.pairs import expand_edits
from dair_hf.vqa.readers.images import load_image
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES
from dair_hf.vqa.scenes.files import SceneConfig
from tests.data_scripts.scripts import Done, run_script, served
from tests.fixtures.vqa_files import CV_EDITS, write_cv, write_edited_images, write_images, write_vqa, zip_release

EDITS = sum(map(len, CV_EDITS.values()))


def run(*arguments: object) -> Done:
    return run_script("prepare_vqa.py", *arguments)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two splits of VQA v2 and CV-VQA, which share their image folders."""
    for split in ("train", "val"):
        write_vqa(tmp_path / "vqa", split)
        write_cv(tmp_path / "cv", split)
    write_images(tmp_path / "images")
    write_edited_images(tmp_path / "edited", CV_EDITS)
    return tmp_path


def edits_of(folder: Path) -> tuple[object, ...]:
    return "--edits", folder / "cv", "--edited_images", folder / "edited"


def test_writes_rows_edits_and_a_summary(data: Path) -> None:
    before = {path.name for path in data.iterdir()}
    arguments = ("--source", data / "vqa", "--images", data / "images", *edits_of(data), "--output", data / "out")
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    rows, edits = (load_from_disk(str(data / "out" / name)) for name in ("rows", "edits"))
    assert list(rows) == list(edits) == ["train", "val"]
    assert (rows["val"].features, edits["val"].features) == (ROW_FEATURES, EDIT_FEATURES)
    assert len(rows["train"]) == 24
    pairs = expand_edits(rows["train"], edits["train"])
    assert len(pairs) == EDITS
    assert load_image(pairs[0]["augmented_image"]).shape == (6, 8, 3)
    report = json.loads((data / "out" / "report.json").read_text())
    assert report["rows"]["train"] == {
        "counts": {"questions": 24, "annotations": 24, "rows": 24, "images": 8},
        "skipped": {},
    }
    assert report["edits"]["val"]["counts"]["edits with other answers"] == EDITS
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[:3] == [["rows"], ["train", "val"], ["questions", "24", "24"]]
    assert ["questions", "with", "edits", "5", "5"] in lines
    assert lines[-1] == ["written:", str(data / "out")]
    assert {path.name for path in data.iterdir()} == before | {"out"}


def test_recipe_reads_the_same_rows_raw_and_prepared(data: Path) -> None:
    (image,) = (data / "images").glob("*_000000000025.*")
    image.write_bytes(b"no image")  # skipped rows and reports are compared as well
    arguments = ("--source", data / "vqa", "--images", data / "images", *edits_of(data), "--output", data / "out")
    assert run(*arguments).returncode == 0
    folders = {"images": [str(data / "images")], "edits": str(data / "cv"), "edited_images": [str(data / "edited")]}
    raw = VQAConfig("files", str(data / "vqa"), **folders)
    prepared = VQAConfig("files", str(data / "out"))
    raw_data, prepared_data = (load_vqa(config, SceneConfig(), data / "unused") for config in (raw, prepared))
    assert (prepared_data.name, prepared_data.familiar) == (raw_data.name, None)
    assert prepared_data.reports == raw_data.reports
    assert raw_data.reports["train"].skipped
    for name in ("train", "train_edits", "test", "test_edits"):
        rows, expected = getattr(prepared_data, name), getattr(raw_data, name)
        assert len(rows) > 0 and rows.to_list() == expected.to_list()
        assert (rows.features, rows._fingerprint) == (expected.features, expected._fingerprint)
    for broken in ("report.json", "edits/val/dataset_info.json"):
        content = (data / "out" / broken).read_bytes()
        (data / "out" / broken).unlink()
        with pytest.raises(DataError, match=f"{data}/out"):
            load_vqa(prepared, SceneConfig(), data / "unused")
        (data / "out" / broken).write_bytes(content)


def test_skipped_records_are_in_the_report(data: Path) -> None:
    (image,) = (data / "images").glob("*_000000000025.*")
    image.write_bytes(b"no image")
    arguments = ("--source", data / "vqa", "--split", "train", "--images", data / "images", "--output", data / "out")
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads((data / "out" / "report.json").read_text())
    skipped = report["rows"]["train"]["skipped"]["unreadable_image"]
    assert [record["id"] for record in skipped] == ["25000", "25001", "25002"]
    assert "skipped: the image cannot be decoded" in done.stdout
    assert not (data / "out" / "edits").exists()

    strict = run(*arguments[:-1], data / "strict", "--strict")
    assert strict.returncode == 2
    assert "\n  unreadable_image: 3 " in strict.stderr
    assert not (data / "strict").exists()
    assert run(*arguments[:-1], data / "all", "--strict", "--skip_verify").returncode == 0


def test_edits_and_their_images_go_together(data: Path) -> None:
    for option in (("--edits", data / "cv"), ("--edited_images", data / "edited"), ("--checksums", data / "cv")):
        with pytest.raises(SystemExit, match="2"):
            run("--source", data / "vqa", "--images", data / "images", "--output", data / "out", *option)


@pytest.fixture
def mirror(data: Path) -> Iterator[str]:
    """Local server with the paths of the public one and the archives of both splits."""
    root = data / "mirror"
    for split in ("train", "val"):
        zip_release(root / "cvmlp" / "vqa" / "mscoco" / "vqa", data / "vqa", split)
    with served(root) as host:
        yield host


def test_downloads_are_recorded_and_read(data: Path, mirror: str) -> None:
    downloads = data / "down"
    arguments = ("--download", "--host", mirror, "--source", downloads, "--images", data / "images", "--output")
    done = run(*arguments, data / "out")
    assert done.returncode == 0, done.stderr
    names = ["v2_Annotations_Train_mscoco.zip", "v2_Annotations_Val_mscoco.zip"]
    names += ["v2_Questions_Train_mscoco.zip", "v2_Questions_Val_mscoco.zip", "checksums.json"]
    assert sorted(path.name for path in downloads.iterdir()) == sorted(names)
    assert done.stdout.count("trusted on first use: ") == 4
    rows = load_from_disk(str(data / "out" / "rows"))
    assert {name: len(split) for name, split in rows.items()} == {"train": 24, "val": 24}

    (downloads / names[0]).write_bytes(b"another file")
    changed = run(*arguments, data / "again")
    assert changed.returncode == 2
    assert f"{names[0]}: checksum mismatch" in changed.stderr
    assert not (data / "again").exists()
