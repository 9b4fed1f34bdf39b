"""Objects of counting scenes: shapes compared with Pillow, images with box averages, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.vqa.scenes import sprites as sprites_module
from dair_hf.vqa.scenes.sprites import (
    DIGITS,
    OBJECTS,
    SHAPES,
    Sprites,
    digit_sprites,
    load_sprites,
    object_sprites,
    plural,
    shape_sprites,
)
from tests.fixtures.counting_scenes import object_color, shape_mask, write_digits, write_image_table, write_objects
from tests.fixtures.digits import png

TEN = np.arange(10)


def box_averages(images: NDArray[np.uint8], side: int) -> NDArray[np.float64]:
    """Return means over blocks of side x side pixels, in 0..1."""
    count, height, width, *channels = images.shape
    blocks = images.reshape(count, height // side, side, width // side, side, *channels)
    return blocks.astype(np.float64).mean(axis=(2, 4)) / 255


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 14, 22, 61])
def test_shapes_equal_those_of_pillow(size: int) -> None:
    sprites = shape_sprites(size)
    assert sprites.kinds == SHAPES
    for name, images in zip(SHAPES, sprites.images, strict=True):
        assert (images.shape, images.dtype) == ((1, size, size, 4), np.float32)
        assert (images[..., :3] == 1).all(), "white, to be colored"
        opacity = images[0, ..., 3].astype(np.float64)
        assert opacity.min() >= 0 and opacity.max() <= 1
        distance = abs(opacity - shape_mask(name, size))
        assert distance.mean() < 0.04 and distance.max() < 0.4, name


def test_the_smallest_shapes_differ_by_a_tenth() -> None:
    opacities = [images[0, ..., 3] for images in shape_sprites(8).images]
    for place, one in enumerate(opacities):
        assert all(abs(one - other).sum() >= 7 for other in opacities[:place])


@pytest.mark.parametrize("size", [7, 0, -2])
def test_shapes_too_small_to_tell_apart_are_refused(size: int) -> None:
    with pytest.raises(
        DataError, match=f"objects of {size} pixels are too small to tell apart; raise scene_size or lower"
    ):
        shape_sprites(size)


# --- one object -------------------------------------------------------------------------------------------------------


def test_colored_objects_are_tinted() -> None:
    grey = np.array([[[[0.5, 0.5, 0.5, 0.25]]], [[[1.0, 1.0, 1.0, 1.0]]]], dtype=np.float32)
    sprites = Sprites(("star", "ring"), ("stars", "rings"), ("blue", "red"), (grey[:1], grey))
    assert np.allclose(sprites.image(0, 0, 0), [[[0.075, 0.15, 0.475, 0.25]]], atol=1e-6)  # half of blue
    assert np.allclose(sprites.image(1, 1, 1), [[[0.90, 0.15, 0.15, 1.0]]], atol=1e-6)
    assert (sprites.image(1, 1, 5) == sprites.image(1, 1, 1)).all(), "exemplars are counted modulo the number of images"
    assert (grey[0] == [0.5, 0.5, 0.5, 0.25]).all(), "the image itself is unchanged"


def test_objects_without_colors_keep_their_own() -> None:
    own = np.array([[[[0.1, 0.2, 0.3, 1.0]]]], dtype=np.float32)
    sprites = Sprites(("cat",), ("cats",), (), (own,))
    assert (sprites.image(0, 3, 2) == own[0]).all()


def test_plurals() -> None:
    several = {name: plural(name) for name in SHAPES + DIGITS + OBJECTS}
    odd = {one: many for one, many in several.items() if many != one + "s"}
    assert odd == {"cross": "crosses", "six": "sixes", "deer": "deer"}
    assert shape_sprites(8).plurals == tuple(several[name] for name in SHAPES)


# --- digits and objects -----------------------------------------------------------------------------------------------


def test_ink_of_digits_is_opaque() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    sprites = digit_sprites(images, np.concatenate([TEN, TEN[::-1]]), 14)
    assert (sprites.kinds, sprites.plurals[6], len(sprites.colors)) == (DIGITS, "sixes", 5)
    ink = box_averages(images, 2)
    for digit, found in enumerate(sprites.images):
        assert (found.shape, found.dtype) == ((2, 14, 14, 4), np.float32)
        assert (found[..., :3] == 1).all()
        assert abs(found[..., 3] - ink[[digit, 19 - digit]]).max() <= 1.01 / 255  # rounded, along each axis


def test_objects_are_opaque_squares_in_their_own_colors() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    sprites = object_sprites(images, np.repeat(TEN, 2), 16)
    assert (sprites.kinds, sprites.colors) == (OBJECTS, ())
    averages = box_averages(images, 2)
    for label, found in enumerate(sprites.images):
        assert (found.shape, found.dtype) == ((2, 16, 16, 4), np.float32)
        assert (found[..., 3] == 1).all()
        assert abs(found[..., :3] - averages[2 * label : 2 * label + 2]).max() <= 1.01 / 255


def test_a_class_without_image_is_refused() -> None:
    labels = np.where(TEN < 8, TEN, 0)
    with pytest.raises(DataError, match="digits: no image of eight, nine; give a data set with all 10 classes"):
        digit_sprites(np.zeros((10, 28, 28), np.uint8), labels, 14)
    with pytest.raises(DataError, match="objects: no image of ship, truck; give a data set with all 10 classes"):
        object_sprites(np.zeros((10, 32, 32, 3), np.uint8), labels, 14)
    with pytest.raises(DataError, match="objects of 7 pixels"):
        digit_sprites(np.zeros((10, 28, 28), np.uint8), TEN, 7)


# --- files ------------------------------------------------------------------------------------------------------------


def test_shapes_need_no_data() -> None:
    for split in ("train", "test"):
        loaded = load_sprites("shapes", None, split, 14)
        assert all((a == b).all() for a, b in zip(loaded.images, shape_sprites(14).images, strict=True))


def test_objects_come_from_the_file_of_their_split(tmp_path: Path) -> None:
    write_objects(tmp_path / "cifar10")
    for split in ("train", "test"):
        sprites = load_sprites("objects", tmp_path, split, 14)  # anywhere below the folder
        for label, images in enumerate(sprites.images):
            assert len(images) == 2
            assert np.allclose(images[..., :3] * 255, object_color(label, split), atol=1e-3)


def test_digits_of_the_two_files_differ(tmp_path: Path) -> None:
    write_digits(tmp_path, each=3)
    train, test = (load_sprites("digits", tmp_path, split, 14) for split in ("train", "test"))
    for one, other in zip(train.images, test.images, strict=True):
        assert one.shape == other.shape == (3, 14, 14, 4)
        assert all((a != b).any() for a in one for b in other)


def test_number_of_images_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_objects(tmp_path, each=4)
    monkeypatch.setattr(sprites_module, "MAX_IMAGES", 38)
    assert [len(images) for images in load_sprites("objects", tmp_path, "train", 14).images] == [4] * 9 + [2]
    monkeypatch.setattr(sprites_module, "MAX_IMAGES", 36)
    with pytest.raises(DataError, match="objects: no image of truck"):
        load_sprites("objects", tmp_path, "train", 14)


@pytest.mark.realdata
def test_the_real_digits_and_objects(real_data: Path) -> None:
    for kind, folder, names in (("digits", "mnist", DIGITS), ("objects", "cifar10", OBJECTS)):
        train, test = (load_sprites(kind, real_data / folder, split, 14) for split in ("train", "test"))
        for sprites in (train, test):
            assert sprites.kinds == names
            assert sum(map(len, sprites.images)) == 2000
            assert min(map(len, sprites.images)) > 150
        known = {image.tobytes() for images in train.images for image in images}
        assert not any(image.tobytes() in known for images in test.images for image in images)
    ink = [float(images[..., 3].mean()) for images in load_sprites("digits", real_data / "mnist", "train", 14).images]
    assert max(range(10), key=ink.__getitem__) == 0 and min(range(10), key=ink.__getitem__) == 1
    # Sky and sea behind airplanes and ships, grass behind frogs and deer.
    blue = [float((images[..., 2] - images[..., 0]).mean()) for images in train.images]
    assert min(blue[0], blue[8]) > max(blue[4], blue[6])


# --- errors ------------- ---------------------------------------------------------------------------------------------


def test_missing_objects(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sprites='letters' is unknown; use shapes, digits or objects"):
        load_sprites("letters", tmp_path, "train", 14)
    for kind, data in (("digits", "MNIST"), ("objects", "CIFAR-10")):
        with pytest.raises(DataError, match=f"sprites='{kind}' needs sprite_folder, .* parquet files of {data}"):
            load_sprites(kind, None, "train", 14)
    with pytest.raises(DataError, match=r"nowhere: no train\*\.parquet; give the folder"):
        load_sprites("digits", tmp_path / "nowhere", "train", 14)
    write_digits(tmp_path)
    (tmp_path / "test.parquet").unlink()
    with pytest.raises(DataError, match=r"no test\*\.parquet"):
        load_sprites("digits", tmp_path, "test", 14)


def test_folder_of_the_other_data_set(tmp_path: Path) -> None:
    write_digits(tmp_path / "mnist")
    write_objects(tmp_path / "cifar10")
    with pytest.raises(
        DataError, match=r"train.parquet: row 0: image of mode RGB, but digits are grayscale \(L\); give"
    ):
        load_sprites("digits", tmp_path / "cifar10", "train", 14)
    with pytest.raises(DataError, match=r"row 0: image of mode L, but objects are in color \(RGB\); give the fold"):
        load_sprites("objects", tmp_path / "mnist", "train", 14)


GREY = {"bytes": png(np.zeros((28, 28), np.uint8)), "path": None}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"pixels": [0], "label": [0]}, "expected the columns image or img, and label; found pixels, label"),
        ({"image": [GREY], "digit": [0]}, "expected the columns image or img, and label; found image, digit"),
        ({"image": [GREY][:0], "label": [0][:0]}, "contains no rows; download it again"),
        ({"image": [GREY], "label": ["0"]}, "column label must hold an integer in each row"),
        ({"image": [GREY] * 2, "label": [0, None]}, "column label must hold an integer in each row"),
        ({"image": [b"123"], "label": [0]}, "row 0: expected an encoded image as struct<bytes, path>"),
        ({"image": [GREY, None], "label": [0, 1]}, "row 1: expected an encoded image"),
        ({"image": [GREY, {**GREY, "bytes": None}], "label": [0, 1]}, "row 1: expected an encoded image"),
        ({"image": [GREY, {**GREY, "bytes": b"no"}], "label": [0, 1]}, "row 1: not a readable image"),
        ({"image": [{**GREY, "bytes": GREY["bytes"][:-30]}], "label": [0]}, "row 0: not a readable image"),
        (
            {"image": [GREY, {**GREY, "bytes": png(np.zeros((14, 28), np.uint8))}], "label": [0, 1]},
            "images of 2 sizes; they must have one size",
        ),
        ({"image": [GREY], "label": [10]}, "digits: no image of zero, one,"),
    ],
)
def test_unusable_parquet(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=message):
        load_sprites("digits", tmp_path, "train", 14)


def test_file_that_is_not_parquet(tmp_path: Path) -> None:
    file = write_image_table(tmp_path / "train.parquet", [np.zeros((28, 28), np.uint8)], [0])
    for content in (b"", file.read_bytes()[:-20]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"train.parquet: not a readable parquet file .* download it again"):
            load_sprites("digits", tmp_path, "train", 14)
