"""ImageNet-9: rows of each split, crops, and errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import PairCollator
from dair_hf.data.sampling import EpochPairs
from dair_hf.experiments.run_records import Run, _plain_config, changed_settings
from dair_hf.io.file_values import FileValueCache
from dair_hf.vision.backgrounds.imagenet9 import CropCollator, ImageNet9Config, imagenet9_train_pairs, load_imagenet9
from tests.fixtures.variant_images import CLASSES, VARIANTS, file_name, foreground, gray_of, write_variants


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Any]:
    """Settings for thirty training images of each class in two variants, and two test images in all variants."""
    write_variants(tmp_path / "in9", "train", ("original", "mixed_rand"), each=30)
    write_variants(tmp_path / "bg_challenge")
    return {"train_folder": str(tmp_path / "in9"), "test_folder": str(tmp_path / "bg_challenge")}


def epoch_of(pairs: EpochPairs, epoch: int) -> dict[str, list[Any]]:
    pairs.set_epoch(epoch)
    return pairs.pairs[:]


def test_training_and_test_rows(folders: dict[str, Any]) -> None:
    data = load_imagenet9(ImageNet9Config(**folders))
    assert data.classes == tuple(name[3:] for name in CLASSES)
    assert len(data.train) == 270 and list(data.tests) == list(VARIANTS)
    for index, (label, number) in enumerate((label, number) for label in range(9) for number in range(1, 31)):
        row = data.train[index]
        assert row["row_id"] == f"{CLASSES[label]}/{foreground(label, number)}"
        assert row["image"].endswith(f"original/train/{CLASSES[label]}/{file_name('original', label, number)}")
        assert row["augmented_image"].endswith(
            f"/mixed_rand/train/{CLASSES[label]}/{file_name('mixed_rand', label, number)}"
        )
        assert row["labels"] == row["augmented_labels"] == label
    for variant, rows in data.tests.items():
        assert len(rows) == 18 and all(f"bg_challenge/{variant}/val/" in path for path in rows["image"])


def test_validation_rows_are_held_out(folders: dict[str, Any], tmp_path: Path) -> None:
    every = load_imagenet9(ImageNet9Config(**folders))
    data = load_imagenet9(ImageNet9Config(evaluate_on="validation", train_folder=folders["train_folder"]))
    assert list(data.tests) == ["original", "mixed_rand"], "the available variants"
    held_out = data.tests["original"]["row_id"][:]
    assert held_out == data.tests["mixed_rand"]["row_id"][:] and len(held_out) == 27
    assert sorted(held_out + data.train["row_id"][:]) == sorted(every.train["row_id"][:])
    assert {label: data.tests["original"]["labels"][:].count(label) for label in range(9)} == dict.fromkeys(range(9), 3)
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
    run, data = Run("erm", 0, DAIRConfig("out")), {"data": ImageNet9Config(**folders)}
    record = {"config": _plain_config({**data, "training": run.args}), "data": first}
    assert changed_settings(record, run, {"data": ImageNet9Config(train_folder="a", test_folder="b")}, first) == {}


def test_both_views_have_the_same_crop(folders: dict[str, Any]) -> None:
    rows = epoch_of(imagenet9_train_pairs(load_imagenet9(ImageNet9Config(**folders)), seed=0), 0)
    assert rows["crop"] == rows["augmented_crop"] and rows["mirrored"] == rows["augmented_mirrored"]
    sizes = [(right - left) * (bottom - top) for left, top, right, bottom in rows["crop"]]
    assert 0.079 < min(sizes) < 0.12 and 0.9 < max(sizes) <= 1.0


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
    for other_pairs in (
        pairs,
        imagenet9_train_pairs(data, 1),
        imagenet9_train_pairs(data, 0, partners=False),
    ):
        for epoch in (0, 1):
            other_pairs.set_epoch(epoch)
            fingerprints.add(other_pairs.pairs._fingerprint)
    assert len(fingerprints) == 6, "different content has different fingerprints"


def test_erm_needs_no_partners(folders: dict[str, Any]) -> None:
    data = load_imagenet9(ImageNet9Config(**folders))
    alone = epoch_of(imagenet9_train_pairs(data, seed=0, partners=False), 2)
    assert set(alone) == {"row_id", "image", "labels", "crop", "mirrored"}
    paired = epoch_of(imagenet9_train_pairs(data, seed=0), 2)
    assert alone["crop"] == paired["crop"], "originals are the same for all methods"


def test_a_batch_holds_both_images_of_a_foreground(folders: dict[str, Any]) -> None:
    pairs = imagenet9_train_pairs(load_imagenet9(ImageNet9Config(**folders)), seed=0)
    collator = CropCollator(8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    batch = PairCollator(collator)(pairs.__getitems__([0, 31, 260]))
    expected = [[gray_of(v, k, n) for v in ("original", "mixed_rand")] for k, n in ((0, 1), (1, 2), (8, 21))]
    shades = (batch["pixel_values"].mean((2, 3, 4)) * 255).tolist()
    assert shades == [pytest.approx(row, abs=1.0) for row in expected]
    assert batch["labels"].tolist() == [[0, 0], [1, 1], [8, 8]]
