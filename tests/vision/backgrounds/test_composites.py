"""Pictures in eight variants, taken apart again; stripes against their Fourier transform; who gets whose background."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.composites import Composites, VariantView, stripes
from dair_hf.vision.backgrounds.foregrounds import object_foregrounds, shape_foregrounds
from dair_hf.vision.backgrounds.variants import MIXED, VARIANTS

ROWS = torch.arange(180)
MANY = torch.arange(90_000)


def composites(**settings: object) -> Composites:
    """Twenty pictures of each class."""
    defaults = {
        "things": shape_foregrounds(16), "split": "test", "each": 20, "first": 0, "size": 32, "correlation": 0.8,
        "seed": 0,
    }  # fmt: skip
    return Composites(**{**defaults, **settings})


def waves(pictures: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Direction (degrees, 0 to 180) and number of the stripes in each picture: the peak of its spectrum."""
    padded = 8
    grey = pictures.double().sum(1).numpy()
    side = grey.shape[-1]
    window = np.hanning(side + 2)[1:-1]
    grey = (grey - grey.mean((1, 2), keepdims=True)) * window[:, None] * window
    spectrum = np.abs(np.fft.fft2(grey, (side * padded, side * padded)))
    frequencies = np.fft.fftfreq(side * padded, 1 / side)
    y, x = np.unravel_index(spectrum.reshape(len(grey), -1).argmax(axis=1), spectrum.shape[1:])
    return np.degrees(np.arctan2(frequencies[y], frequencies[x])) % 180, np.hypot(frequencies[y], frequencies[x])


# --- stripes --------------------------------------------------------------------------------------------------------


def test_the_direction_of_stripes_tells_their_kind() -> None:
    pictures = stripes(ROWS % 9, ROWS, 64, 0, "test")
    assert (pictures.shape, pictures.dtype) == ((180, 3, 64, 64), torch.float32)
    direction, cycles = waves(pictures)
    off = (direction - 20 * (ROWS.numpy() % 9) + 90) % 180 - 90
    assert np.abs(off).max() < 6.0  # 5 degrees, and the resolution of the spectrum
    assert np.abs(off).mean() > 1.5, "they are not all alike"
    assert 3.8 < cycles.min() < 4.3 and 6.7 < cycles.max() < 7.2


def test_colours_of_stripes_tell_nothing_and_are_darker_than_things() -> None:
    pictures = stripes(ROWS % 9, ROWS, 64, 0, "test")
    dark, bright = pictures.amin((2, 3)), pictures.amax((2, 3))
    assert 0 <= dark.min() < 0.02 and 0.18 < dark.max() < 0.21
    assert 0.19 < bright.min() < 0.23 and 0.58 < bright.max() <= 0.6
    for shade in (dark, bright):
        means = torch.stack([shade[label::9].mean(0) for label in range(9)])
        assert means.std(0).max() < 0.05, "no class has a colour of its own"


def test_stripes_belong_to_their_row_seed_and_stream() -> None:
    every = stripes(ROWS % 9, ROWS, 32, 0, "test")
    assert torch.equal(stripes(ROWS[[7, 3]] % 9, ROWS[[7, 3]], 32, 0, "test"), every[[7, 3]])
    assert not torch.equal(stripes(ROWS % 9, ROWS, 32, 1, "test"), every)
    assert not torch.equal(stripes(ROWS % 9, ROWS, 32, 0, "other"), every)


# --- textures and donors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correlation", [0.0, 0.8, 1.0])
def test_textures_agree_with_the_class_as_often_as_said(correlation: float) -> None:
    found = composites(correlation=correlation, each=10_000).textures(MANY)
    ahead = ((found - MANY % 9) % 9).bincount(minlength=9).double() / len(MANY)
    sigma = 0.5 / np.sqrt(len(MANY))
    assert float(ahead[0]) == pytest.approx(correlation, abs=4 * sigma)
    assert (ahead[1:] - (1 - correlation) / 8).abs().max() < 4 * sigma


def test_donors_are_of_the_class_that_the_variant_says() -> None:
    pictures = composites(each=10_000)
    labels = MANY % 9
    for variant in MIXED:
        donors = pictures.donors(variant, MANY, seed=0)
        assert 0 <= int(donors.min()) and int(donors.max()) < len(MANY)
        ahead = ((donors - labels) % 9).bincount(minlength=9)
        if variant == "mixed_rand":
            assert (ahead.double() / len(MANY) - 1 / 9).abs().max() < 0.005, "of any class, its own included"
        else:
            assert int(ahead[1 if variant == "mixed_next" else 0]) == len(MANY)
        assert len(donors.unique()) > 0.6 * len(MANY), "any of them, one as likely as another: 1 - 1/e"


def test_donors_are_drawn_for_seed_and_epoch() -> None:
    pictures = composites()
    first = pictures.donors("mixed_rand", ROWS, seed=0)
    assert torch.equal(first, pictures.donors("mixed_rand", ROWS, seed=0, epoch=0))
    assert not torch.equal(first, pictures.donors("mixed_rand", ROWS, seed=0, epoch=1))
    assert not torch.equal(first, pictures.donors("mixed_rand", ROWS, seed=1))
    assert torch.equal(pictures.donors("mixed_rand", ROWS[[9, 2]], seed=0), first[[9, 2]])


# --- the eight variants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shapes", "objects"])
def test_pictures_are_foreground_and_background_and_nothing_else(kind: str) -> None:
    things = shape_foregrounds(16)
    if kind == "objects":
        noise = torch.randint(0, 256, (45, 3, 20, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        things = object_foregrounds(noise, torch.arange(45) % 9, [f"class {label}" for label in range(9)])
    pictures = composites(things=things)
    donors = pictures.donors("mixed_next", ROWS, seed=0)
    shown = {
        variant: pictures.show(variant, ROWS, donors if variant in MIXED else None).double() for variant in VARIANTS
    }
    for picture in shown.values():
        assert picture.shape == (180, 3, 32, 32)
        assert 0 <= float(picture.min()) and float(picture.max()) <= 1
    behind, cut_out = shown["only_bg_t"], shown["no_fg"]
    assert torch.equal(behind.float(), pictures.backgrounds(ROWS))
    # How much is covered, by what is missing where something is cut out.
    mask = (1 - cut_out.sum(1, keepdim=True) / behind.sum(1, keepdim=True)).clamp(0, 1)
    assert (cut_out - behind * (1 - mask)).abs().max() < 1e-6
    assert (shown["original"] - (shown["only_fg"] + cut_out)).abs().max() < 1e-6
    assert (shown["only_fg"] * (mask == 0)).abs().max() < 1e-6
    assert float((mask > 0.9).flatten(1).double().mean(1).min()) > 0.02, "something stands in each"
    for variant in MIXED:
        assert (shown[variant] - (shown["only_fg"] + behind[donors] * (1 - mask))).abs().max() < 1e-6
    for place in range(len(ROWS)):
        covered = (cut_out[place] != behind[place]).any(0).numpy()
        y, x = covered.nonzero()
        box = np.zeros_like(covered)
        box[y.min() : y.max() + 1, x.min() : x.max() + 1] = True
        expected = behind[place].numpy() * ~box
        assert np.abs(shown["only_bg_b"][place].numpy() - expected).max() < 1e-6


def test_each_picture_shows_the_next_thing_of_its_class() -> None:
    colors = torch.arange(45, dtype=torch.uint8).view(45, 1, 1, 1).expand(45, 3, 8, 8) * 5
    things = object_foregrounds(colors, torch.arange(45) % 9, [str(label) for label in range(9)])
    pictures = composites(things=things, first=2)
    values = (pictures.show("only_fg", ROWS) * 255 / 5).round().amax((1, 2, 3)).long()
    # The picture of row r shows thing 2 + r // 9 of class r % 9, round and round after five of them.
    assert values.tolist() == [(2 + row // 9) % 5 * 9 + row % 9 for row in ROWS.tolist()]


def test_a_view_has_the_labels_and_draws_anew_only_where_asked() -> None:
    pictures = composites()
    for variant in VARIANTS:
        fixed, fresh = (VariantView(pictures, variant, 0, fresh) for fresh in (False, True))
        first = fixed(ROWS, 0)
        assert torch.equal(first["labels"], ROWS % 9) and first["labels"].dtype == torch.int64
        assert first["pixel_values"].dtype == torch.float32
        assert torch.equal(first["pixel_values"], fixed(ROWS, 1)["pixel_values"])
        assert torch.equal(first["pixel_values"], fresh(ROWS, 0)["pixel_values"])
        changes = not torch.equal(first["pixel_values"], fresh(ROWS, 1)["pixel_values"])
        assert changes == (variant in MIXED)
        assert torch.equal(fixed(ROWS[[5, 1]], 0)["pixel_values"], first["pixel_values"][[5, 1]])


def test_splits_and_seeds_have_pictures_of_their_own() -> None:
    pictures = composites()
    for other in (dataclasses.replace(pictures, split="train"), dataclasses.replace(pictures, seed=1)):
        for variant in ("only_fg", "only_bg_t"):
            same = (pictures.show(variant, ROWS) == other.show(variant, ROWS)).flatten(1).all(1)
            assert not same.any()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_variants_that_do_not_fit() -> None:
    pictures = composites()
    with pytest.raises(
        DataError, match="variant 'no_fg' has no other backgrounds than its own; use one of mixed_rand,"
    ):
        pictures.donors("no_fg", ROWS, seed=0)
    with pytest.raises(DataError, match="variants: mixed unknown"):
        pictures.show("mixed", ROWS)
    for variant in ("mixed_same", "original"):
        with pytest.raises(DataError, match=f"variant '{variant}': give donors for mixed_rand, mixed_same, mixed_next"):
            pictures.show(variant, ROWS, None if variant in MIXED else ROWS)
