"""Objects of counting scenes: shapes compared with Pillow, images with box averages, and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dair_hf.vqa.scenes import sprites as sprites_module
from dair_hf.vqa.scenes.scene import (
    DIGITS,
    OBJECTS,
    SHAPES,
    Sprites,
    _digit_sprites,
    _object_sprites,
    _plural,
    _shape_sprites,
    load_sprites,
)
from tests.fixtures.counting_scenes import object_color, shape_mask, write_digits, write_objects

TEN = np.arange(10)


def box_averages(images: NDArray[np.uint8], side: int) -> NDArray[np.float64]:
    """Return means over blocks of side x side pixels, in 0..1."""
    count, height, width, *channels = images.shape
    blocks = images.reshape(count, height // side, side, width // side, side, *channels)
    return blocks.astype(np.float64).mean(axis=(2, 4)) / 255


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 14, 22, 61])
def test_shapes_equal_those_of_pillow(size: int) -> None:
    sprites = _shape_sprites(size)
    assert sprites.kinds == SHAPES
    for name, images in zip(SHAPES, sprites.images, strict=True):
        assert (images.shape, images.dtype) == ((1, size, size, 4), np.float32)
        assert (images[..., :3] == 1).all(), "white, to be colored"
        opacity = images[0, ..., 3].astype(np.float64)
        assert opacity.min() >= 0 and opacity.max() <= 1
        distance = abs(opacity - shape_mask(name, size))
        assert distance.mean() < 0.04 and distance.max() < 0.4, name


def test_the_smallest_shapes_differ_by_a_tenth() -> None:
    opacities = [images[0, ..., 3] for images in _shape_sprites(8).images]
    for place, one in enumerate(opacities):
        assert all(abs(one - other).sum() >= 7 for other in opacities[:place])


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
    several = {name: _plural(name) for name in SHAPES + DIGITS + OBJECTS}
    odd = {one: many for one, many in several.items() if many != one + "s"}
    assert odd == {"cross": "crosses", "six": "sixes", "deer": "deer"}
    assert _shape_sprites(8).plurals == tuple(several[name] for name in SHAPES)


# --- digits and objects -----------------------------------------------------------------------------------------------


def test_ink_of_digits_is_opaque() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    sprites = _digit_sprites(images, np.concatenate([TEN, TEN[::-1]]), 14)
    assert (sprites.kinds, sprites.plurals[6], len(sprites.colors)) == (DIGITS, "sixes", 5)
    ink = box_averages(images, 2)
    for digit, found in enumerate(sprites.images):
        assert (found.shape, found.dtype) == ((2, 14, 14, 4), np.float32)
        assert (found[..., :3] == 1).all()
        assert abs(found[..., 3] - ink[[digit, 19 - digit]]).max() <= 1.01 / 255  # rounded, along each axis


def test_objects_are_opaque_squares_in_their_own_colors() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    sprites = _object_sprites(images, np.repeat(TEN, 2), 16)
    assert (sprites.kinds, sprites.colors) == (OBJECTS, ())
    averages = box_averages(images, 2)
    for label, found in enumerate(sprites.images):
        assert (found.shape, found.dtype) == ((2, 16, 16, 4), np.float32)
        assert (found[..., 3] == 1).all()
        assert abs(found[..., :3] - averages[2 * label : 2 * label + 2]).max() <= 1.01 / 255


# --- files ------------------------------------------------------------------------------------------------------------


def test_shapes_need_no_data() -> None:
    for split in ("train", "test"):
        loaded = load_sprites("shapes", None, split, 14)
        assert all((a == b).all() for a, b in zip(loaded.images, _shape_sprites(14).images, strict=True))


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
