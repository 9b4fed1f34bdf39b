"""Collator of ImageNet-9: crop, size, flip, normalization, random crops and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dair_hf.data.collator import PairCollator
from dair_hf.vision.backgrounds.imagenet9 import MEAN, STD, CropCollator, _draw_crops

ROWS = torch.arange(20_000)
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
    crops, mirrored = _draw_crops(ROWS, 0, 0)
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
