"""Lookup of images by id, decoding of all modes to RGB, and damaged files."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vqa.readers.images import ImageFolder, load_image


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("file", "image_id"),
    [
        ("COCO_train2014_000000458752.jpg", 458752),
        ("COCO_train2014_000000458752.jpg", "COCO_train2014_000000458752"),
        ("COCO_val2014_000000262148_000000000005.JPG", "000000262148_000000000005"),
        ("000000262148_000000000005.jpeg", "000000262148_000000000005"),
        ("17.png", 17),
        ("below/and/deeper/COCO_train2014_000000458752.jpg", 458752),
        ("kitchen_3.png", "kitchen_3"),
    ],
)
def test_image_is_found_by_its_id(tmp_path: Path, file: str, image_id: int | str) -> None:
    images = ImageFolder(touch(tmp_path, file))
    assert images.find(image_id) == str(tmp_path / file)


@pytest.mark.parametrize(
    ("file", "image_id"),
    [
        ("kitchen_3.png", 3),  # a number of fewer than twelve digits belongs to the name
        ("COCO_val2014_000000262148_000000000005.jpg", 262148),  # an edit is not its original
        ("COCO_val2014_000000262148.jpg", "000000262148_000000000005"),
        ("000000262148_000000000005_mask.png", "000000262148_000000000005"),
        ("COCO_train2014_000000458752.gif.jpg", 458752),
    ],
)
def test_no_image_is_found_by_another_id(tmp_path: Path, file: str, image_id: int | str) -> None:
    assert ImageFolder(touch(tmp_path, file)).find(image_id) is None


def test_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/COCO_train2014_000000000009.jpg", "b/COCO_val2014_000000000025.jpg", "c/000000000030.jpg")
    monkeypatch.chdir(tmp_path)
    images = ImageFolder("a", tmp_path / "b")
    assert images.find(9) == str(tmp_path / "a" / "COCO_train2014_000000000009.jpg")  # absolute for a relative folder
    assert (images.find(25) is None, images.find(30) is None) == (False, True)


def test_duplicate_id_is_refused_at_lookup(tmp_path: Path) -> None:
    touch(tmp_path, "a/COCO_val2014_000000000009.jpg", "a/dog_1.jpg", "b/000000000009.png", "b/cat_1.jpg")
    images = ImageFolder(tmp_path / "a", tmp_path / "b")
    with pytest.raises(DataError, match=r"image 9: .*COCO_val2014_000000000009\.jpg and .*000000000009\.png"):
        images.find("9")
    assert images.find("dog_1") == str(tmp_path / "a" / "dog_1.jpg")
    assert ImageFolder(tmp_path / "b").find(9) is not None


def png_of_16_bits(values: np.ndarray) -> bytes:
    """Build a grayscale PNG of 16 bits by the specification of the format."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, 0, 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_channels_are_rgb(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    loaded = load_image(tmp_path / "a.png")
    assert (loaded.dtype, loaded.shape) == (np.uint8, (5, 7, 3))
    assert np.array_equal(loaded, pixels)
    loaded[0, 0, 0] = 0  # writable


@pytest.mark.parametrize(
    ("mode", "value", "suffix", "expected"),
    [
        ("1", 1, "png", (255, 255, 255)),
        ("LA", (100, 0), "png", (255, 255, 255)),
        ("RGBA", (10, 20, 30, 0), "png", (255, 255, 255)),
        ("RGBA", (0, 100, 200, 51), "png", (204, 224, 244)),  # a fifth of the color, four fifths of white
        ("CMYK", (0, 255, 255, 0), "jpg", (255, 0, 0)),
        ("L", 77, "jpg", (77, 77, 77)),
    ],
)
def test_every_mode_becomes_rgb(
    tmp_path: Path, mode: str, value: int | tuple[int, ...], suffix: str, expected: tuple[int, int, int]
) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.new(mode, (16, 8), value).save(path)
    loaded = load_image(path)
    assert loaded.shape == (8, 16, 3)
    # JPEG is lossy, but errors of a wrong conversion are far larger.
    assert np.abs(loaded.astype(int) - expected).max() <= (2 if suffix == "jpg" else 0)


def test_palettes_with_and_without_a_transparent_entry(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 0])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png").tolist() == [[[10, 20, 30], [200, 100, 0]]]
    image.save(tmp_path / "b.png", transparency=0)
    assert load_image(tmp_path / "b.png").tolist() == [[[255, 255, 255], [200, 100, 0]]]


def test_16_bit_gray_keeps_its_upper_byte(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_of_16_bits(np.array([[0, 255, 256], [32_768, 40_000, 65_535]])))
    gray = np.array([[0, 0, 1], [128, 156, 255]])
    assert np.array_equal(load_image(tmp_path / "a.png"), np.stack([gray] * 3, axis=-1))


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (3, 2))
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise, which moves the upper left corner to the upper right
    image.save(tmp_path / "a.png", exif=exif)
    loaded = load_image(tmp_path / "a.png")
    assert loaded.shape == (3, 2, 3)
    assert np.argwhere(loaded[:, :, 0]).tolist() == [[0, 1]]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Write one valid image and, under the ids 1 to 5, five unreadable ones."""
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(stream, "JPEG")
    content = stream.getvalue()
    (tmp_path / "000000000009.jpg").write_bytes(content)
    (tmp_path / "000000000001.jpg").write_bytes(content[: len(content) // 2])
    (tmp_path / "000000000002.jpg").write_bytes(b"")
    (tmp_path / "000000000003.jpg").write_bytes(b"<html>404</html>")
    whole = png_of_16_bits(np.zeros((4, 4)))
    (tmp_path / "000000000004.png").write_bytes(whole.replace(b"IDAT", b"IDAt"))
    Image.fromarray(np.zeros((2, 2), dtype=np.float32)).save(tmp_path / "000000000005.png", "TIFF")
    return tmp_path


def paths(folder: Path, *numbers: int) -> list[str]:
    return [str(next(folder.glob(f"{number:012d}.*"))) for number in numbers]


def test_unreadable_images_are_found(damaged: Path) -> None:
    images = ImageFolder(damaged)
    found = images.unreadable(paths(damaged, 9, 1, 2, 3, 4, 5, 9))
    assert list(found) == paths(damaged, 1, 2, 3, 4, 5)
    assert all(found.values())
    assert images.unreadable(paths(damaged, 9)) == {}
