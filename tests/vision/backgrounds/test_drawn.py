"""Drawn stand-in for ImageNet-9: pairs, splits, and accuracy of a classifier of stripes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.config import DAIRConfig
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.training.trainer import DAIRTrainer
from dair_hf.vision.backgrounds.drawn import (
    BackgroundsConfig,
    _composites_of,
    background_tests,
    background_train_pairs,
    load_foregrounds,
)
from dair_hf.vision.backgrounds.variants import VARIANTS, _variant_metrics, evaluate_variants
from dair_hf.vision.networks import DigitCNN, DigitCNNConfig
from tests.fixtures.counting_scenes import write_digits, write_objects

SMALL = {"train_each": 12, "validation_each": 4, "test_each": 6}
SHAPES = load_foregrounds(BackgroundsConfig())


def small(**settings: Any) -> BackgroundsConfig:
    return BackgroundsConfig(**{**SMALL, **settings})


def whole(pairs: TensorPairs, epoch: int = 0) -> dict[str, torch.Tensor]:
    pairs.set_epoch(epoch)
    return pairs.__getitems__(range(len(pairs)))


def class_of_stripes(images: torch.Tensor) -> np.ndarray:
    """Classify images by their stripes alone, from the mean direction of the gradient."""
    gray = images.sum(1).numpy()
    dy, dx = np.gradient(gray, axis=(1, 2))
    # Double the angle, so that opposite gradients agree, and limit the weight of the steep edges of foregrounds.
    strength = np.minimum(np.hypot(dx, dy), 0.3)
    twice = (strength * np.exp(2j * np.arctan2(dy, dx))).sum((1, 2))
    return np.round(np.degrees(np.angle(twice)) / 2 % 180 / 20).astype(int) % 9


# --- spurious backgrounds -------------------------------------------------------------------------------------------


def test_accuracy_of_a_classifier_of_stripes() -> None:
    sets = background_tests(SHAPES, BackgroundsConfig(correlation=0.9, picture_size=64, test_each=40))
    correct = {}
    for variant, pairs in sets.items():
        batch = whole(pairs)
        correct[variant] = class_of_stripes(batch["pixel_values"][:, 0]) == batch["labels"][:, 0].numpy()
    found = _variant_metrics(correct, intervals=False)
    assert found["rows"] == 360
    assert found["accuracy_only_bg_t"] == pytest.approx(0.9, abs=0.04)
    for variant in ("original", "mixed_same"):
        assert found[f"accuracy_{variant}"] > 0.75
    assert found["accuracy_mixed_rand"] == pytest.approx(1 / 9, abs=0.05)
    assert found["accuracy_mixed_next"] < 0.06  # 0.1 / 8 plus classification errors
    assert found["accuracy_only_fg"] < 0.25
    assert found["background_gap"] > 0.6 and found["cm"] < 0.2


# --- training pairs -------------------------------------------------------------------------------------------------


def test_a_training_pair_is_one_foreground_on_two_backgrounds() -> None:
    config = small()
    pairs = background_train_pairs(SHAPES, config, seed=0)
    assert len(pairs) == 108
    assert (pairs.row_ids[0], pairs.row_ids[-1]) == ("train/0", "train/107")
    batch = whole(pairs)
    images, labels = batch["pixel_values"], batch["labels"]
    assert (images.shape, images.dtype) == ((108, 2, 3, 32, 32), torch.float32)
    assert labels.tolist() == [[row % 9, row % 9] for row in range(108)]
    rows = torch.arange(108)
    composites = _composites_of(SHAPES, config, "train")
    foreground, cut_out = composites.render("only_fg", rows, 0), composites.render("no_fg", rows, 0)
    behind = [images[:, view] - foreground for view in (0, 1)]
    assert (behind[0] - cut_out).abs().max() < 1e-6
    uncovered = (foreground == 0).all(1, keepdim=True).expand_as(foreground)
    backgrounds = composites.backgrounds(rows)
    for row in range(108):
        inside = uncovered[row]
        same = ((behind[1][row] - backgrounds).abs()[:, inside] < 1e-6).all(1)
        assert int(same.sum()) == 1, "the whole background of one training image"


def test_only_fresh_partners_change_with_the_epoch() -> None:
    for fresh in (False, True):
        config = small(fresh_backgrounds=fresh)
        pairs = background_train_pairs(SHAPES, config, seed=0)
        first, second = whole(pairs, 0)["pixel_values"], whole(pairs, 1)["pixel_values"]
        assert torch.equal(first[:, 0], second[:, 0])
        assert torch.equal(first[:, 1], second[:, 1]) != fresh
        assert torch.equal(whole(pairs, 0)["pixel_values"], first)
        other = whole(background_train_pairs(SHAPES, config, seed=1))["pixel_values"]
        assert torch.equal(first[:, 0], other[:, 0]), "originals are the same for all training seeds"
        assert torch.equal(first[:, 1], other[:, 1]) != fresh


def test_partial_augmentation() -> None:
    masks = [background_train_pairs(SHAPES, small(partner_fraction=f), 0).partner_mask for f in (0.25, 0.5, 1.0, 0.0)]
    assert [int(mask.sum()) for mask in masks] == [27, 54, 108, 0]
    assert bool((masks[1] | ~masks[0]).all())
    assert (masks[1] != background_train_pairs(SHAPES, small(partner_fraction=0.5), 1).partner_mask).any()


def test_images_do_not_depend_on_their_number() -> None:
    few, many = (whole(background_train_pairs(SHAPES, small(train_each=each), 0)) for each in (3, 12))
    assert torch.equal(few["pixel_values"][:, 0], many["pixel_values"][:27, 0])


def test_backgrounds_seed_changes_all_images() -> None:
    first, second = (
        whole(background_train_pairs(SHAPES, small(backgrounds_seed=seed), 0))["pixel_values"] for seed in (0, 1)
    )
    assert not (first == second).flatten(2).all(2).any()


# --- test sets ------------------------------------------------------------------------------------------------------


def test_variants_hold_the_same_foregrounds_in_the_same_order() -> None:
    for split, each in (("test", 6), ("validation", 4)):
        sets = background_tests(SHAPES, small(), split)
        assert list(sets) == list(VARIANTS)
        batches = {variant: whole(pairs) for variant, pairs in sets.items()}
        for variant, pairs in sets.items():
            assert pairs.row_ids.tolist() == [f"{split}/{row}" for row in range(9 * each)]
            assert not pairs.partner_mask.any()
            assert batches[variant]["labels"].tolist() == [[row % 9] for row in range(9 * each)]
            assert torch.equal(batches[variant]["pixel_values"], whole(pairs, 1)["pixel_values"])
        shown = {variant: batch["pixel_values"] for variant, batch in batches.items()}
        assert (shown["original"] - shown["only_fg"] - shown["no_fg"]).abs().max() < 1e-6
        first = shown["original"][:8]
        assert not any(torch.equal(first, shown[variant][:8]) for variant in VARIANTS if variant != "original")


def test_splits_are_disjoint() -> None:
    config = small()
    originals = [whole(background_train_pairs(SHAPES, config, 0))["pixel_values"][:, 0]]
    originals += [
        whole(background_tests(SHAPES, config, split)["original"])["pixel_values"][:, 0]
        for split in ("validation", "test")
    ]
    assert len({image.numpy().tobytes() for part in originals for image in part}) == 9 * (12 + 4 + 6)


# --- digits and objects ---------------------------------------------------------------------------------------------


def test_no_digit_is_used_twice(tmp_path: Path) -> None:
    write_digits(tmp_path, each=16)
    config = small(foreground="digits", foreground_source=str(tmp_path))
    foregrounds = load_foregrounds(config)
    assert [part.counts for part in foregrounds.values()] == [(16,) * 9] * 2
    shown = {}
    for split, each in (("train", 12), ("validation", 4), ("test", 6)):
        composites = _composites_of(foregrounds, config, split)
        rows = torch.arange(9 * each)
        assert len(composites) == len(rows)
        shown[split] = composites.foregrounds.indices(rows % 9, composites.first + rows // 9).tolist()
        assert composites.foregrounds is foregrounds["test" if split == "test" else "train"]
    assert len(set(shown["train"] + shown["validation"])) == 9 * 16
    assert len(set(shown["test"])) == 9 * 6


def test_objects_keep_their_colors(tmp_path: Path) -> None:
    write_objects(tmp_path, each=16)
    config = small(foreground="objects", foreground_source=str(tmp_path))
    foregrounds = load_foregrounds(config)
    assert foregrounds["train"].names[:2] == ("airplane", "automobile") and len(foregrounds["train"].names) == 9
    image = whole(background_tests(foregrounds, config)["only_fg"])["pixel_values"][4, 0]
    # `object_colour` of the fixture for class 4 in the test file.
    assert [round(float(value) * 255) for value in image.amax((1, 2))] == [100, 155, 0]


def test_too_few_foregrounds_are_refused(tmp_path: Path) -> None:
    write_digits(tmp_path, each=15)
    config = small(foreground="digits", foreground_source=str(tmp_path))
    foregrounds = load_foregrounds(config)
    background_train_pairs(foregrounds, config, 0)
    with pytest.raises(DataError, match="validation.*16"):
        background_tests(foregrounds, config, "validation")
    with pytest.raises(DataError, match="train.*20"):
        background_train_pairs(
            foregrounds, small(foreground="digits", foreground_source=str(tmp_path), train_each=20), 0
        )


@pytest.mark.realdata
def test_the_real_digits_and_objects(real_data: Path) -> None:
    for kind, folder in (("digits", "mnist"), ("objects", "cifar10")):
        config = BackgroundsConfig(foreground=kind, foreground_source=str(real_data / folder))
        foregrounds = load_foregrounds(config)
        for split, each in (("train", 500), ("validation", 100), ("test", 450)):
            assert len(_composites_of(foregrounds, config, split)) == 9 * each
        images = whole(background_tests(foregrounds, config, "validation")["only_fg"])["pixel_values"]
        covered = (images > 0.02).any(2).double().mean((2, 3))
        assert 0.02 < float(covered.min()) and float(covered.max()) < 0.75


# --- with the trainer -----------------------------------------------------------------------------------------------


def test_pairs_and_variants_with_the_trainer(tmp_path: Path) -> None:
    config = small(picture_size=28)
    torch.manual_seed(0)
    model = DigitCNN(DigitCNNConfig(num_channels=3, num_labels=9))
    args = DAIRConfig(
        str(tmp_path), method="dair", dair_lambda=1.0, max_steps=2, per_device_train_batch_size=16,
        per_device_eval_batch_size=32, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    foregrounds = load_foregrounds(config)
    trainer = DAIRTrainer(
        model, args, train_dataset=background_train_pairs(foregrounds, config, 0), sample_loss="classification"
    )
    trainer.train()
    sets = background_tests(foregrounds, config)
    found = evaluate_variants(trainer.evaluate_pairs, sets, "stripes", intervals=False)
    correct = {}
    with torch.no_grad():
        for variant, pairs in sets.items():
            batch = whole(pairs)
            logits = model.eval()(batch["pixel_values"][:, 0]).logits
            correct[variant] = (logits.argmax(1) == batch["labels"][:, 0]).double()
    for variant, values in correct.items():
        assert found[f"accuracy_{variant}"] == pytest.approx(float(values.mean()))
    both = int((correct["original"] * correct["mixed_rand"]).sum())
    assert (found["cm_numerator"], found["cm_denominator"]) == (both, int(correct["original"].sum()))
