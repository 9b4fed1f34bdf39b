"""CIFAR-10 as pairs: which rows they hold, how they are cropped, and which partners there are."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.counter_rng import uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.cifar10.pairs import Cifar10Config, CroppedView, evaluation_pairs, train_pairs
from dair_hf.vision.correctness import is_correct
from dair_hf.vision.labelled_images import LabelledImages
from dair_hf.vision.preact_resnet import PreActResNet, PreActResNetConfig
from tests.fixtures.cifar import noise_pictures

CIFAR = {"train": noise_pictures(120), "test": noise_pictures(30, seed=1)}


def small(**settings: Any) -> Cifar10Config:
    return Cifar10Config(**{"train_rows": 80, "validation_rows": 25, "test_rows": 20, **settings})


def whole(pairs: TensorPairs, epoch: int = 0) -> dict[str, Any]:
    pairs.set_epoch(epoch)
    return pairs.__getitems__(range(len(pairs)))


def plain(file: str, start: int, stop: int) -> torch.Tensor:
    return CIFAR[file].images[start:stop].float() / 255


def by_hand(image: np.ndarray, drawn: np.ndarray, padding: int, flip: bool) -> np.ndarray:
    """Pad with black, cut 32 x 32 at one of the equally likely places, turn round."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    top, left = (int(number * (2 * padding + 1)) for number in drawn[:2])
    cut = padded[:, top : top + 32, left : left + 32]
    return cut[:, :, ::-1] if flip and drawn[2] < 0.5 else cut


# --- training pairs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("padding", "flip"), [(4, True), (4, False), (0, True), (31, True)])
def test_originals_are_cropped_and_mirrored(padding: int, flip: bool) -> None:
    pairs = train_pairs(CIFAR, small(crop_padding=padding, flip=flip), seed=5)
    batch = whole(pairs, epoch=3)
    assert (batch["pixel_values"].shape, batch["pixel_values"].dtype) == ((80, 1, 3, 32, 32), torch.float32)
    assert batch["labels"].tolist() == CIFAR["train"].labels[:80, None].tolist()
    drawn = uniform(torch.arange(80), 5, 3, "cifar10/train/original", count=3).numpy()
    for found, image, numbers in zip(batch["pixel_values"][:, 0], CIFAR["train"].images, drawn, strict=False):
        expected = by_hand(image.numpy(), numbers, padding, flip).astype(np.float32) / np.float32(255)
        assert np.array_equal(found.numpy(), expected)
    assert pairs.row_ids[[0, 79]].tolist() == ["train/0", "train/79"]
    assert batch["view_mask"].tolist() == [[True]] * 80


def test_without_crop_and_flip_pictures_are_as_they_are() -> None:
    pairs = train_pairs(CIFAR, small(crop_padding=0, flip=False), seed=0)
    for epoch in (0, 1):
        assert torch.equal(whole(pairs, epoch)["pixel_values"][:, 0], plain("train", 0, 80))


def test_partners_have_crops_of_their_own() -> None:
    alone, paired = (train_pairs(CIFAR, small(partner=partner), seed=0) for partner in ("none", "crop"))
    first, second = whole(paired, 0)["pixel_values"], whole(paired, 1)["pixel_values"]
    assert first.shape == (80, 2, 3, 32, 32)
    # The partners do not change the originals.
    assert torch.equal(first[:, :1], whole(alone, 0)["pixel_values"])
    drawn = uniform(torch.arange(80), 0, 1, "cifar10/train/augmented", count=3).numpy()
    for found, image, numbers in zip(second[:, 1], CIFAR["train"].images, drawn, strict=False):
        assert np.array_equal((found * 255).round().numpy(), by_hand(image.numpy(), numbers, 4, True))
    differ = (first[:, 0] != first[:, 1]).flatten(1).any(dim=1)
    assert differ.sum() > 70  # a crop in 162 is that of the original
    labels = whole(paired)["labels"]
    assert torch.equal(labels[:, 0], labels[:, 1])


def test_crops_are_drawn_anew_each_epoch_and_for_each_seed() -> None:
    pairs = train_pairs(CIFAR, small(partner="crop"), seed=0)
    first = whole(pairs, 0)["pixel_values"]
    other = whole(train_pairs(CIFAR, small(partner="crop"), seed=1))["pixel_values"]
    for view in (0, 1):
        for changed in (whole(pairs, 1)["pixel_values"], other):
            assert (first[:, view] != changed[:, view]).flatten(1).any(dim=1).sum() > 70
    assert torch.equal(whole(pairs, 0)["pixel_values"], first)
    assert torch.equal(pairs.__getitems__([7, 3])["pixel_values"], first[[7, 3]])


def test_two_views_of_one_stream_show_the_same_crops() -> None:
    images, labels = CIFAR["train"]
    views = [CroppedView(shown, labels, torch.arange(80), 4, True, "both") for shown in (images, images // 2)]
    pixels = (whole(TensorPairs(*views, rows=80))["pixel_values"] * 255).round()
    assert torch.equal(pixels[:, 1], (pixels[:, 0] / 2).floor())


def test_pairs_survive_pickling() -> None:
    pairs = train_pairs(CIFAR, small(partner="crop"), seed=0)
    assert torch.equal(whole(pickle.loads(pickle.dumps(pairs)))["pixel_values"], whole(pairs)["pixel_values"])


# --- evaluation pairs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "file", "start", "stop"), [("test", "test", 0, 20), ("validation", "train", 95, 120)]
)
def test_pictures_are_evaluated_as_they_are(split: str, file: str, start: int, stop: int) -> None:
    pairs = evaluation_pairs(CIFAR, small(), split)
    batch = whole(pairs, epoch=2)
    assert torch.equal(batch["pixel_values"][:, 0], plain(file, start, stop))
    assert batch["pixel_values"].shape[1] == 1
    assert batch["labels"][:, 0].tolist() == CIFAR[file].labels[start:stop].tolist()
    assert pairs.row_ids[[0, -1]].tolist() == [f"{file}/{start}", f"{file}/{stop - 1}"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_partners_that_were_made_before(dtype: torch.dtype) -> None:
    attacked = (plain("test", 0, 20).to(dtype) + 0.01).clamp(max=1.0).requires_grad_()
    batch = whole(evaluation_pairs(CIFAR, small(), partners=attacked))
    assert torch.equal(batch["pixel_values"][:, 0], plain("test", 0, 20))
    assert torch.equal(batch["pixel_values"][:, 1], attacked.detach().float())
    assert batch["pixel_values"].dtype == torch.float32 and not batch["pixel_values"].requires_grad
    assert batch["labels"].tolist() == CIFAR["test"].labels[:20, None].expand(20, 2).tolist()


def test_which_rows_are_which() -> None:
    count = torch.arange(50_000)
    marked = torch.zeros(50_000, 3, 1, 1, dtype=torch.uint8)
    for channel in range(3):  # each picture holds its own number
        marked[:, channel, 0, 0] = count // 256**channel % 256
    big = {"train": LabelledImages(marked, count % 10), "test": LabelledImages(marked[:10_000], count[:10_000] % 10)}

    def ends(pairs: TensorPairs) -> list[int]:
        pixels = (pairs.__getitems__([0, len(pairs) - 1])["pixel_values"][:, 0, :, 0, 0] * 255).round().long()
        return (pixels * torch.tensor([1, 256, 256**2])).sum(dim=1).tolist()

    still = {"crop_padding": 0, "flip": False}
    assert ends(train_pairs(big, Cifar10Config(**still), 0)) == [0, 44_999]
    assert ends(train_pairs(big, Cifar10Config(train_rows=50_000, **still), 0)) == [0, 49_999]
    assert ends(evaluation_pairs(big, Cifar10Config(), "validation")) == [45_000, 49_999]
    assert ends(evaluation_pairs(big, Cifar10Config(train_rows=1_000), "validation")) == [45_000, 49_999]
    assert ends(evaluation_pairs(big, Cifar10Config(train_rows=47_000, validation_rows=1_000), "validation")) == [
        49_000,
        49_999,
    ]
    assert ends(evaluation_pairs(big, Cifar10Config())) == [0, 9_999]
    assert ends(evaluation_pairs(big, Cifar10Config(test_rows=1_000))) == [0, 999]
    assert ends(evaluation_pairs(big, Cifar10Config(test_rows=20_000))) == [0, 9_999]
    with pytest.raises(DataError, match="validation: rows 48000 to 52999 asked for, but the file ends with row 49999"):
        evaluation_pairs(big, Cifar10Config(train_rows=48_000), "validation")


def test_the_pairs_train_and_test_a_network(tmp_path: Path) -> None:
    """Once through the trainer: cropped partners while training, pictures with given partners in the test."""
    args = DAIRConfig(str(tmp_path), max_steps=2, per_device_train_batch_size=20, report_to="none", save_strategy="no")
    model = PreActResNet(PreActResNetConfig(num_labels=10, depths=[1, 1], hidden_sizes=[4, 8]))
    pairs = train_pairs(CIFAR, small(partner="crop"), seed=0)
    trainer = DAIRTrainer(model, args, train_dataset=pairs, sample_loss="classification")
    trainer.train()
    tested = evaluation_pairs(CIFAR, small(), partners=plain("test", 0, 20))
    found = trainer.evaluate_pairs(tested, is_correct, n_bootstrap=0)
    assert found["original_accuracy"] == found["augmented_accuracy"]
    assert found["cm_numerator"] == found["cm_denominator"] == round(20 * found["original_accuracy"])


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_rows": 0}, "train_rows=0 must be at least 1"),
        ({"validation_rows": -5}, "validation_rows=-5 must be at least 1"),
        ({"test_rows": 0}, "test_rows=0 must be at least 1"),
        ({"crop_padding": -1}, "crop_padding=-1 must be 0 to 31, or nothing of a picture may be left"),
        ({"crop_padding": 32}, "crop_padding=32 must be 0 to 31"),
        ({"partner": "attack"}, "partner: 'attack' does not exist; use one of none, crop"),
        (
            {"partner": "crop", "crop_padding": 0, "flip": False},
            "makes partners that are the originals; set one of them",
        ),
    ],
)
def test_settings_that_cannot_hold(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Cifar10Config(**settings)


def test_what_is_not_there() -> None:
    with pytest.raises(DataError, match="split: 'dev' does not exist; use one of test, validation"):
        evaluation_pairs(CIFAR, small(), "dev")
    with pytest.raises(DataError, match="test: needs the test file of CIFAR-10; pass {'test': load_cifar10"):
        evaluation_pairs({"train": CIFAR["train"]}, small())
    with pytest.raises(DataError, match="training: needs the train file of CIFAR-10"):
        train_pairs({}, small(), 0)
    with pytest.raises(DataError, match="training: rows 0 to 44999 asked for, but the file ends with row 119"):
        train_pairs(CIFAR, Cifar10Config(), 0)


@pytest.mark.parametrize(
    ("partners", "found"),
    [
        (plain("test", 0, 19), r"torch.float32 \[19, 3, 32, 32\]"),
        (CIFAR["test"].images[:20], r"torch.uint8 \[20, 3, 32, 32\]"),
        (plain("test", 0, 20)[:, :1], r"torch.float32 \[20, 1, 32, 32\]"),
    ],
)
def test_partners_that_do_not_fit(partners: torch.Tensor, found: str) -> None:
    with pytest.raises(DataError, match=rf"test: partners must be floating \[20, 3, 32, 32\], one .*, found {found}"):
        evaluation_pairs(CIFAR, small(), partners=partners)


def test_settings_have_no_name_of_the_trainer() -> None:
    assert not {f.name for f in dataclasses.fields(Cifar10Config)} & {f.name for f in dataclasses.fields(DAIRConfig)}
