"""Objects of counting scenes: shapes compared with Pillow, images with box averages, and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dair_hf.vqa.scenes.scene import DIGITS, OBJECTS, Sprites, _digit_sprites, _object_sprites, load_sprites
from tests.fixtures.counting_scenes import object_color, write_objects

TEN = np.arange(10)


def box_averages(images: NDArray[np.uint8], side: int) -> NDArray[np.float64]:
    """Return means over blocks of side x side pixels, in 0..1."""
    count, height, width, *channels = images.shape
    blocks = images.reshape(count, height // side, side, width // side, side, *channels)
    return blocks.astype(np.float64).mean(axis=(2, 4)) / 255


def test_colored_objects_are_tinted() -> None:
    grey = np.array([[[[0.5, 0.5, 0.5, 0.25]]], [[[1.0, 1.0, 1.0, 1.0]]]], dtype=np.float32)
    sprites = Sprites(("star", "ring"), ("stars", "rings"), ("blue", "red"), (grey[:1], grey))
    assert np.allclose(sprites.image(0, 0, 0), [[[0.075, 0.15, 0.475, 0.25]]], atol=1e-6)  # half of blue
    assert np.allclose(sprites.image(1, 1, 1), [[[0.90, 0.15, 0.15, 1.0]]], atol=1e-6)
    assert (sprites.image(1, 1, 5) == sprites.image(1, 1, 1)).all(), "exemplars are counted modulo the number of images"
    assert (grey[0] == [0.5, 0.5, 0.5, 0.25]).all(), "the image itself is unchanged"


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


def test_objects_come_from_the_file_of_their_split(tmp_path: Path) -> None:
    write_objects(tmp_path / "cifar10")
    for split in ("train", "test"):
        sprites = load_sprites("objects", tmp_path, split, 14)  # anywhere below the folder
        for label, images in enumerate(sprites.images):
            assert len(images) == 2
            assert np.allclose(images[..., :3] * 255, object_color(label, split), atol=1e-3)


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
