"""Pictures as files: the readers of ImageNet-9 find in them what is drawn as tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.io.folders import MANIFEST
from dair_hf.vision.backgrounds import files as background_files
from dair_hf.vision.backgrounds.drawn import BackgroundsConfig, evaluation_sets, load_foregrounds, train_pairs
from dair_hf.vision.backgrounds.files import write_backgrounds
from dair_hf.vision.backgrounds.pictures import PictureCollator
from dair_hf.vision.backgrounds.variant_folders import pair_variants, read_variants
from dair_hf.vision.backgrounds.variants import MIXED, VARIANTS

CONFIG = BackgroundsConfig(train_each=3, validation_each=1, test_each=2, picture_size=16)
THINGS = load_foregrounds(CONFIG)


def pixels_of(paths: list[str]) -> torch.Tensor:
    collator = PictureCollator(16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return collator([{"image": path} for path in paths])["pixel_values"]


def number_of(row_id: str, first: int = 3) -> int:
    """The row that a name such as `02_triangle/n00000002_00004` tells of: number 1 of class 2, after 3 to train on."""
    found = re.fullmatch(r"(\d\d)_.+/n(\d{8})_(\d{5})", row_id)
    assert found is not None and int(found[1]) == int(found[2])
    return (int(found[3]) - first) * 9 + int(found[2])


def test_the_public_readers_read_what_is_drawn(tmp_path: Path) -> None:
    folder = write_backgrounds(THINGS, CONFIG, tmp_path / "new" / "pictures", suffix=".png")
    assert sorted(path.name for path in folder.iterdir()) == sorted([MANIFEST, *VARIANTS])
    tests = read_variants(folder).rows
    for variant, pairs in evaluation_sets(THINGS, CONFIG).items():
        rows = tests[variant]
        assert rows.features["labels"].names == list(THINGS["test"].names)
        numbers = [number_of(row_id) for row_id in rows["row_id"]]
        assert sorted(numbers) == list(range(18)) and rows["labels"][:] == [number % 9 for number in numbers]
        expected = pairs.__getitems__(numbers)["pixel_values"][:, 0]
        assert (pixels_of(rows["image"][:]) - expected).abs().max() <= 0.51 / 255


def test_training_pairs_are_read_as_they_are_trained_on(tmp_path: Path) -> None:
    folder = write_backgrounds(THINGS, CONFIG, tmp_path / "pictures", suffix=".png")
    rows = read_variants(folder, "train", ("original", "mixed_rand")).rows
    assert not (folder / "no_fg" / "train").exists()
    assert not set(rows["original"]["row_id"]) & set(read_variants(folder).rows["original"]["row_id"])
    pairs = pair_variants(rows["original"], rows["mixed_rand"])
    drawn = train_pairs(THINGS, CONFIG, seed=5).__getitems__([number_of(row_id, 0) for row_id in pairs["row_id"]])
    for view, column in enumerate(("image", "augmented_image")):
        assert (pixels_of(pairs[column][:]) - drawn["pixel_values"][:, view]).abs().max() <= 0.51 / 255


def test_a_mixed_name_tells_whose_background_it_is(tmp_path: Path) -> None:
    folder = write_backgrounds(THINGS, CONFIG, tmp_path / "pictures", suffix=".png")
    tests = read_variants(folder).rows
    behind = dict(zip(tests["only_bg_t"]["row_id"], pixels_of(tests["only_bg_t"]["image"][:]), strict=True))
    things = dict(zip(tests["only_fg"]["row_id"], pixels_of(tests["only_fg"]["image"][:]), strict=True))
    names = [f"{label:02d}_{name}" for label, name in enumerate(THINGS["test"].names)]
    for variant in MIXED:
        for row in tests[variant]:
            found = re.fullmatch(r"fg_(n\d{8}_\d{5})_bg_(n(\d{8})_\d{5})\.png", Path(row["image"]).name)
            assert found is not None and row["row_id"].endswith(found[1])
            donor = behind[f"{names[int(found[3])]}/{found[2]}"]
            free = (things[row["row_id"]] == 0).all(0)
            picture = pixels_of([row["image"]])[0]
            assert (picture - donor)[:, free].abs().max() <= 0.01


def test_public_names_and_little_loss(tmp_path: Path) -> None:
    folder = write_backgrounds(THINGS, CONFIG, tmp_path / "pictures")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    assert len(files) == 9 * (2 * 3 + 8 * 2) and {path.suffix for path in files} == {".JPEG"}
    for path in files[:3]:
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (16, 16), "RGB")
    assert {path.parent.name for path in files} == {f"{k:02d}_{name}" for k, name in enumerate(THINGS["test"].names)}
    rows = read_variants(folder).rows["original"]
    drawn = evaluation_sets(THINGS, CONFIG)["original"].__getitems__([number_of(name) for name in rows["row_id"]])
    assert (pixels_of(rows["image"][:]) - drawn["pixel_values"][:, 0]).abs().mean() < 0.02


def test_the_same_settings_give_the_same_files(tmp_path: Path) -> None:
    one, two = (write_backgrounds(THINGS, CONFIG, tmp_path / name, ".png") for name in ("one", "two"))
    files = [path.relative_to(one) for path in one.rglob("*") if path.is_file()]
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)


def test_a_folder_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []

    def fails(self: Image.Image, path: Any, *args: Any, **settings: Any) -> None:
        saved.append(path)
        if len(saved) == 40:
            raise OSError("no space left on device")
        Path(path).touch()

    with monkeypatch.context() as patched:
        patched.setattr(background_files.Image.Image, "save", fails)
        with pytest.raises(OSError, match="no space left"):
            write_backgrounds(THINGS, CONFIG, tmp_path / "pictures")
    assert list(tmp_path.iterdir()) == []
    write_backgrounds(THINGS, CONFIG, tmp_path / "pictures")
    with pytest.raises(DataError, match="pictures: is there already; name a new folder"):
        write_backgrounds(THINGS, CONFIG, tmp_path / "pictures")
    write_backgrounds(THINGS, CONFIG, tmp_path / "pictures", suffix=".png", overwrite=True)
    assert not list((tmp_path / "pictures").rglob("*.JPEG"))


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"suffix '.bmp' is unknown; use one of .JPEG, .png"):
        write_backgrounds(THINGS, CONFIG, tmp_path / "pictures", suffix=".bmp")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: is a file; name a folder"):
        write_backgrounds(THINGS, CONFIG, tmp_path / "file")
    with pytest.raises(DataError, match="cannot write there"):
        write_backgrounds(THINGS, CONFIG, tmp_path / "file" / "pictures")
    assert np.array_equal(sorted(path.name for path in tmp_path.iterdir()), ["file"])
