"""ImageNet-9: published folders, rows of each split, crops, and the collator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from numpy.typing import NDArray
from PIL import Image

from dair_hf.data.collator import PairCollator
from dair_hf.data.sampling import EpochPairs
from dair_hf.errors import DataError
from dair_hf.experiments.run_records import _is_same, _plain_config
from dair_hf.io.file_values import FileValueCache
from dair_hf.vision.backgrounds.imagenet9 import (
    MEAN,
    STD,
    CropCollator,
    ImageNet9Config,
    _draw_crops,
    _pair_variants,
    _read_variants,
    imagenet9_train_pairs,
    load_imagenet9,
)
from tests.fixtures.variant_images import CLASSES, VARIANTS, file_name, foreground, write_variants


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings for ten training images of each class in two variants, and two test images in all variants."""
    folder = tmp_path_factory.mktemp("imagenet9")
    write_variants(folder / "in9", "train", ("original", "mixed_rand"), each=10)
    write_variants(folder / "bg_challenge")
    return {"train_folder": str(folder / "in9"), "test_folder": str(folder / "bg_challenge")}


def epoch_of(pairs: EpochPairs, epoch: int) -> dict[str, list[Any]]:
    pairs.set_epoch(epoch)
    return pairs.pairs[:]


def test_training_and_test_rows(folders: dict[str, Any]) -> None:
    data = load_imagenet9(ImageNet9Config(**folders))
    assert data.classes == tuple(name[3:] for name in CLASSES)
    assert len(data.train) == 90 and list(data.tests) == list(VARIANTS)
    for index, (label, number) in enumerate((label, number) for label in range(9) for number in range(1, 11)):
        row = data.train[index]
        assert row["row_id"] == f"{CLASSES[label]}/{foreground(label, number)}"
        assert row["image"].endswith(f"original/train/{CLASSES[label]}/{file_name('original', label, number)}")
        assert row["augmented_image"].endswith(
            f"/mixed_rand/train/{CLASSES[label]}/{file_name('mixed_rand', label, number)}"
        )
        assert row["labels"] == row["augmented_labels"] == label
    for variant, rows in data.tests.items():
        assert len(rows) == 18 and all(f"bg_challenge/{variant}/val/" in path for path in rows["image"])


def test_validation_rows_are_held_out(folders: dict[str, Any]) -> None:
    every = load_imagenet9(ImageNet9Config(**folders))
    data = load_imagenet9(ImageNet9Config(evaluate_on="validation", train_folder=folders["train_folder"]))
    assert list(data.tests) == ["original", "mixed_rand"], "the available variants"
    held_out = data.tests["original"]["row_id"][:]
    assert held_out == data.tests["mixed_rand"]["row_id"][:] and len(held_out) == 9
    assert sorted(held_out + data.train["row_id"][:]) == sorted(every.train["row_id"][:])
    assert {label: data.tests["original"]["labels"][:].count(label) for label in range(9)} == dict.fromkeys(range(9), 1)
    # Pairs are kept.
    for row in data.train:
        assert row["augmented_image"] == every.train[every.train["row_id"][:].index(row["row_id"])]["augmented_image"]


def test_fingerprints_follow_the_images_and_not_their_place(folders: dict[str, Any], tmp_path: Path) -> None:
    def fingerprints(**changed: str) -> dict[str, str]:
        data = load_imagenet9(ImageNet9Config(**{**folders, **changed}))
        return dict(data.fingerprints(FileValueCache.of_contents(tmp_path)))

    first = fingerprints()
    assert set(first) == {"train", *VARIANTS}
    moved = Path(shutil.copytree(folders["train_folder"], tmp_path / "moved"))
    assert fingerprints(train_folder=str(moved)) == first
    image = moved / "mixed_rand" / "train" / CLASSES[0] / file_name("mixed_rand", 0, 1)
    Image.new("RGB", (4, 4)).save(image)
    changed = fingerprints(train_folder=str(moved))
    assert {name for name in first if first[name] != changed[name]} == {"train"}
    before, after = ImageNet9Config(**folders), ImageNet9Config(train_folder="a", test_folder="b")
    record = json.loads(json.dumps({"config": _plain_config({"data": before}), "data": first}))
    assert _is_same(record, {"data": after}, first)


def test_both_views_have_the_same_crop(folders: dict[str, Any]) -> None:
    rows = epoch_of(imagenet9_train_pairs(load_imagenet9(ImageNet9Config(**folders)), seed=0), 0)
    assert rows["crop"] == rows["augmented_crop"] and rows["mirrored"] == rows["augmented_mirrored"]
    sizes = [(right - left) * (bottom - top) for left, top, right, bottom in rows["crop"]]
    assert 0.079 < min(sizes) < 0.2 and 0.8 < max(sizes) <= 1.0


def test_crops_are_redrawn_each_epoch_and_reproducible(folders: dict[str, Any]) -> None:
    data = load_imagenet9(ImageNet9Config(**folders))
    pairs = imagenet9_train_pairs(data, seed=0)
    assert isinstance(pairs, EpochPairs)
    first, second = epoch_of(pairs, 0), epoch_of(pairs, 1)
    assert not any(one == other for one, other in zip(first["crop"], second["crop"], strict=True))
    assert first["image"] == second["image"] == data.train["image"][:]
    assert epoch_of(imagenet9_train_pairs(data, seed=0), 1) == second
    assert epoch_of(imagenet9_train_pairs(data, seed=1), 1)["crop"] != second["crop"]
    fingerprints = set()
    alone = imagenet9_train_pairs(data, 0, partners=False)  # for ERM
    assert set(epoch_of(alone, 1)) == {"row_id", "image", "labels", "crop", "mirrored"}
    assert alone.pairs["crop"][:] == second["crop"], "originals are the same for all methods"
    for other_pairs in (pairs, imagenet9_train_pairs(data, 1), alone):
        for epoch in (0, 1):
            other_pairs.set_epoch(epoch)
            fingerprints.add(other_pairs.pairs._fingerprint)
    assert len(fingerprints) == 6, "different content has different fingerprints"


def a_file(folder: Path, variant: str, label: int, number: int, split: str = "val") -> Path:
    return folder / variant / split / CLASSES[label] / file_name(variant, label, number)


def test_rows_are_sorted_by_foreground_whatever_their_names_end_with(tmp_path: Path) -> None:
    """`n_2.JPEG` stands before `n_23.JPEG`, but `fg_n_23_bg` before `fg_n_2_bg`."""
    for variant, names in (
        ("original", ["n_2.JPEG", "n_23.JPEG"]),
        ("mixed_rand", ["fg_n_2_bg_m.JPEG", "fg_n_23_bg_m.JPEG"]),
    ):
        write_variants(tmp_path, variants=(variant,))
        for name in names:
            (tmp_path / variant / "val" / CLASSES[0] / name).touch()
    found = _read_variants(tmp_path, "val", variants=("original", "mixed_rand"))
    assert found["original"]["row_id"][:] == found["mixed_rand"]["row_id"][:]
    assert found["original"]["row_id"][2:4] == ["00_dog/n_2", "00_dog/n_23"]


def test_suffixes_names_and_ignored_files(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original",), each=1)
    folder = tmp_path / "original" / "val" / CLASSES[3]
    ignored = (".hidden.JPEG", "._b.png", "notes.txt", "mask.npy")
    mixed = ("fg_mine_bg_of_bg_yours.png", "fg_m_5_bg_m_5.png", "fg_m.png", "a_bg_b.png", "fg__bg_b.png")
    for name in ("b.png", "c.jpg", "d.jpeg", *ignored, *mixed):
        (folder / name).touch()
    (tmp_path / "original" / "val" / "readme.txt").touch()
    rows = _read_variants(tmp_path, "val", ("original",))["original"]
    found = {row_id.removeprefix("03_reptile/") for row_id in rows["row_id"] if row_id.startswith("03")}
    assert found == {"b", "c", "d", foreground(3, 1), "mine", "m_5", "fg_m", "a_bg_b", "fg__bg_b"}


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_variants(tmp_path)
    a_file(tmp_path, "mixed_rand", 0, 1).unlink()
    a_file(tmp_path, "only_fg", 0, 1).unlink()
    a_file(tmp_path, "only_fg", 4, 2).unlink()
    lost = [f"00_dog/{foreground(0, 1)}", f"04_carnivore/{foreground(4, 2)}"]
    with pytest.raises(DataError, match=f"1 of mixed_rand/val: {lost[0]}; 2 of only_fg/val: {lost[0]}, {lost[1]}"):
        _read_variants(tmp_path, "val")
    # Complete variants are read in full.
    assert len(_read_variants(tmp_path, "val", variants=("original", "mixed_next"))["original"]) == 18


def test_pairs_by_foreground_in_any_order() -> None:
    rows = Dataset.from_dict({"row_id": ["a", "b", "c"], "image": ["a1", "b1", "c1"], "labels": [0, 1, 2]})
    partners = Dataset.from_dict({"row_id": ["c", "d", "a"], "image": ["c2", "d2", "a2"], "labels": [2, 3, 0]})
    assert _pair_variants(rows, partners)[:] == {
        "row_id": ["a", "b", "c"],
        "image": ["a1", "b1", "c1"],
        "labels": [0, 1, 2],
        "augmented_image": ["a2", None, "c2"],
        "augmented_labels": [0, None, 2],
    }


DRAWN = torch.arange(20_000)
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def written(path: Path, pixels: NDArray[np.uint8], **settings: Any) -> str:
    Image.fromarray(pixels).save(path, **settings)
    return str(path)


def pixels_of(view: dict[str, Any], size: int) -> NDArray[np.float64]:
    """`[H, W, 3]` in 0..255."""
    batch = CropCollator(size, **PLAIN)([view])
    assert batch["pixel_values"].shape == (1, 3, size, size)
    return batch["pixel_values"][0].permute(1, 2, 0).double().numpy() * 255


@pytest.mark.parametrize(("height", "width"), [(12, 12), (12, 20), (31, 12), (12, 13)])
def test_the_central_square(tmp_path: Path, height: int, width: int) -> None:
    image = noise(height, width)
    top, left = (height - 12) // 2, (width - 12) // 2
    expected = image[top : top + 12, left : left + 12].astype(np.float64)
    found = pixels_of({"image": written(tmp_path / "a.png", image)}, 12)
    assert np.abs(found - expected).max() < 1e-3, "pixels are not interpolated"


def test_downscaling_averages(tmp_path: Path) -> None:
    """Bilinear with a support that grows with the scale: a slope stays a slope, noise averages out."""
    slope = np.repeat(np.arange(64, dtype=np.uint8)[None, :, None], 64, 0).repeat(3, 2) * 3
    found = pixels_of({"image": written(tmp_path / "a.png", slope)}, 16)
    assert np.abs(found[:, 1:-1, 0] - (np.arange(16) * 12 + 4.5)[1:-1]).max() < 1
    assert pixels_of({"image": written(tmp_path / "b.png", noise(160, 160))}, 8).std() < 10


def test_normalization(tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", np.full((4, 4, 3), (51, 102, 153), dtype=np.uint8))
    batch = CropCollator(4)([{"image": path, "labels": 3}])
    expected = (np.array([0.2, 0.4, 0.6]) - MEAN) / STD
    assert np.abs(batch["pixel_values"][0].permute(1, 2, 0).numpy() - expected).max() < 1e-6
    assert MEAN == (0.4717, 0.4499, 0.3837) and STD == (0.26, 0.2516, 0.2575)


def test_orientation_metadata_are_ignored(tmp_path: Path) -> None:
    """The authors of the mixed variants ignored them; rotated originals would not match."""
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image = noise(8, 8)
    path = written(tmp_path / "a.png", image, exif=exif)
    with Image.open(path) as file:
        assert file.getexif()[0x0112] == 3
    assert np.abs(pixels_of({"image": path}, 8) - image).max() < 1e-3


def test_a_batch_of_pairs(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{shade}.png", np.full((6, 6, 3), shade, dtype=np.uint8)) for shade in (0, 100, 200)]
    rows = [
        {"row_id": "a", "image": paths[0], "labels": 4, "augmented_image": paths[1], "augmented_labels": 4},
        {"row_id": "b", "image": paths[2], "labels": 7, "augmented_image": None, "augmented_labels": None},
    ]
    batch = PairCollator(CropCollator(2, **PLAIN))(rows)
    assert batch["pixel_values"].shape == (2, 2, 3, 2, 2)
    assert (batch["pixel_values"][:, :, 0, 0, 0] * 255).round().tolist() == [[0.0, 100.0], [200.0, 0.0]]
    assert batch["labels"].tolist() == [[4, 4], [7, -100]]
    assert batch["view_mask"].tolist() == [[True, True], [True, False]]
    unlabeled = CropCollator(2)([{"image": paths[0]}])
    assert set(unlabeled) == {"pixel_values"}


def test_distribution_of_crops() -> None:
    crops, mirrored = _draw_crops(DRAWN, 0, 0)
    assert (crops.shape, crops.dtype, mirrored.dtype) == ((20_000, 4), torch.float32, torch.bool)
    left, top, right, bottom = crops.double().numpy().T
    assert min(left.min(), top.min()) >= 0 and max(right.max(), bottom.max()) <= 1
    width, height = right - left, bottom - top
    assert min(width.min(), height.min()) > 0
    area, ratio = width * height, np.log(width / height)
    # Uniform by deciles.
    counts, _ = np.histogram(area, bins=10, range=(0.08, 1))
    assert counts.sum() >= 19_990 and np.abs(counts / 2000 - 1).max() < 0.1
    most = np.log(np.minimum(4 / 3, 1 / area))
    assert (np.abs(ratio) <= most + 1e-4).all()
    wide = area < 0.98
    counts, _ = np.histogram(ratio[wide] / most[wide], bins=10, range=(-1, 1))
    assert np.abs(counts / wide.sum() * 10 - 1).max() < 0.12
    room = width < 0.98
    counts, _ = np.histogram(left[room] / (1 - width[room]), bins=10, range=(0, 1))
    assert np.abs(counts / room.sum() * 10 - 1).max() < 0.12
    assert abs(np.corrcoef(left / (1 - width + 1e-9), top / (1 - height + 1e-9))[0, 1]) < 0.05
    assert float(mirrored.double().mean()) == pytest.approx(0.5, abs=0.015)
    assert abs(np.corrcoef(mirrored.numpy(), area)[0, 1]) < 0.05
