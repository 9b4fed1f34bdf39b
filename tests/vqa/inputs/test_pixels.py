"""Image loading: values by hand, resizing, the cache, and errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.pixels import Pixels, open_image


class Loader:
    """Loader of images by number that records its calls."""

    def __init__(self, height: int, width: int) -> None:
        self.shape = (height, width, 3)
        self.calls: list[int] = []

    def __call__(self, number: int) -> NDArray[np.uint8]:
        self.calls.append(number)
        return np.random.default_rng(number).integers(0, 256, self.shape, dtype=np.uint8)


def by_hand(image: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float64]:
    return ((image.astype(np.float64) / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1)


def test_values_and_order_of_the_axes() -> None:
    loader, mean, std = Loader(4, 5), (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    pixels = Pixels(loader, size=(4, 5), mean=mean, std=std)([3, 8])
    assert pixels.shape == (2, 3, 4, 5)
    assert pixels.dtype == torch.float32
    assert pixels.is_contiguous()
    for row, number in enumerate((3, 8)):
        assert np.abs(pixels[row].double().numpy() - by_hand(loader(number), mean, std)).max() < 1e-5


def test_resized_like_pillow() -> None:
    loader = Loader(9, 6)
    pixels = Pixels(loader, size=(4, 3), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))([1])
    resized = np.asarray(Image.fromarray(loader(1)).resize((3, 4), Image.Resampling.BILINEAR))
    assert torch.equal((pixels[0] * 255).round().byte(), torch.from_numpy(resized.transpose(2, 0, 1).copy()))
    assert Pixels(loader, size=4)([1]).shape == (1, 3, 4, 4)


def test_path_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.full((2, 2, 3), (255, 0, 51), dtype=np.uint8)).save(path)
    pixels = Pixels(size=2, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))([str(path)])
    assert torch.allclose(pixels[0, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]))


def test_cached_images_are_loaded_once_and_stay_the_same() -> None:
    loader = Loader(8, 8)
    pixels, plain = Pixels(loader, size=4, cache_megabytes=1), Pixels(loader, size=4)
    first = pixels([1, 2, 1])
    assert loader.calls == [1, 2]
    first.zero_()  # changes to a batch must not affect the next one
    again = pixels([2, 1])
    assert loader.calls == [1, 2]
    assert torch.equal(again, plain([2, 1]))
    assert loader.calls == [1, 2, 2, 1]


def test_full_cache() -> None:
    loader = Loader(512, 512)
    pixels = Pixels(loader, size=512, cache_megabytes=2)  # 768 KiB an image: room for two
    pixels([1, 2, 3])
    pixels([1, 2, 3])
    assert loader.calls == [1, 2, 3, 3]


def test_pixels_can_be_pickled(tmp_path: Path) -> None:
    path = str(tmp_path / "a.png")
    Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(path)
    pixels = Pixels(size=2)
    assert torch.equal(pickle.loads(pickle.dumps(pixels))([path]), pixels([path]))


def test_three_rows_of_pixels_are_not_channels() -> None:
    array = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)
    found = open_image("a", {"a": array}.__getitem__)
    assert found.size == (4, 3)
    assert found.mode == "RGB"
    assert found.getpixel((1, 0)) == (3, 4, 5)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4), dtype=np.uint8), r"image 'a': load_image returned shape \[4, 4\] of uint8"),
        (np.zeros((3, 4, 4), dtype=np.uint8), r"shape \[3, 4, 4\]"),
        (np.zeros((4, 4, 3)), r"of float64; it must return \[H, W, 3\] of uint8"),
    ],
)
def test_other_arrays_are_not_opened(array: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_image("a", lambda image: array)


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)]
)
def test_other_arrays_are_refused(image: NDArray[np.generic]) -> None:
    with pytest.raises(DataError, match=r"image 'a\.jpg'.*\[H, W, 3\] of uint8"):
        Pixels(lambda path: image, size=4)(["a.jpg"])


def test_settings_are_checked() -> None:
    with pytest.raises(DataError, match="size=0"):
        Pixels(size=0)
    with pytest.raises(DataError, match="three numbers"):
        Pixels(mean=(0.5,))
    with pytest.raises(DataError, match="above 0"):
        Pixels(std=(1.0, 0.0, 1.0))


def test_settings_contain_everything_that_affects_the_result() -> None:
    settings = Pixels(size=(4, 5), mean=(0.1, 0.2, 0.3)).settings()
    assert settings == {
        "load_image": "dair_hf.vqa.readers.images.load_image",
        "size": [4, 5],
        "resize": "bilinear",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.229, 0.224, 0.225],
    }
    assert Pixels(Loader(1, 1)).settings()["load_image"] == f"{Loader.__module__}.Loader"
