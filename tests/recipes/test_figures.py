"""Figures of the recipes on digits and tables, with models whose answers are known."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.regression.data import RegressionConfig, RegressionData
from dair_hf.regression.linear import LinearRegression, LinearRegressionConfig
from dair_hf.vision.mnist.colored import ColoredConfig
from dair_hf.vision.mnist.digits import Digits
from dair_hf.vision.mnist.rotated import RotatedConfig
from dair_hf.vision.mnist.six_nine import SixNineConfig
from tests.fixtures.digits import noise_digits
from tests.fixtures.paths import ROOT

RECIPES = ROOT / "recipes"


class Known(nn.Module):
    """Model that answers by a rule; the optimizer needs its one weight."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule, self.weight = rule, nn.Parameter(torch.zeros(()))

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ModelOutput:
        return ModelOutput(logits=self.rule(pixel_values) + 0 * self.weight)


def evaluate(recipe: str, model: nn.Module, folder: Path, loss: str, *data: Any) -> dict[str, Any]:
    """Return what a recipe's `evaluate` returns for a model on the test split."""
    args = DAIRConfig(str(folder), report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no")
    trainer = DAIRTrainer(model, args, sample_loss=loss)
    metrics: dict[str, Any] = runpy.run_path(str(RECIPES / f"{recipe}.py"))["evaluate"](trainer, *data, "test")
    return metrics


def blobs(angles: Any, levels: Any) -> Tensor:
    """Return `[N, 28, 28]` uint8 images of a bright disc, nine pixels from the center at a counter-clockwise angle."""
    rows, columns = np.mgrid[:28, :28] - 13.5
    images = []
    for angle, level in zip(angles, levels, strict=True):
        x, y = 9 * math.cos(math.radians(angle)), -9 * math.sin(math.radians(angle))
        images.append(np.where(np.hypot(rows - y, columns - x) < 3, level, 0))
    return torch.from_numpy(np.stack(images).astype(np.uint8))


def angle_and_level(pixel_values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angle of the disc in (-180, 180] degrees and its level in 0..255, which rotation hardly changes."""
    image = pixel_values[:, 0]
    rows, columns = torch.meshgrid(torch.arange(28) - 13.5, torch.arange(28) - 13.5, indexing="ij")
    x, y = (image * columns).sum((1, 2)), -(image * rows).sum((1, 2))
    return torch.rad2deg(torch.atan2(y, x)), image.amax((1, 2)) * 255


@pytest.mark.parametrize(("setup", "augmentation"), [("adv", 0.9), ("rnd", 0.5)])
def test_colored_mnist_by_a_model_that_sees_color_only(setup: str, augmentation: float, tmp_path: Path) -> None:
    def greener(pixels: Tensor) -> Tensor:
        return (pixels[:, 1] - pixels[:, 0]).mean((1, 2))[:, None]

    data = ColoredConfig(setup=setup, test_source="test", test_rows=3000)
    metrics = evaluate("colored_mnist", Known(greener), tmp_path, "binary", {"test": noise_digits(3000)}, data)
    # Green agrees with class 1 in 8 of 10 rows under C1, 1 of 10 under C3, 9 of 10 under C2; C4 draws random colors.
    expected = {"accuracy_c1": 0.8, "accuracy_c3": 0.1, "accuracy_augmentation": augmentation}
    expected |= {"cm_c1_c3": 0.1, "cm_c1_augmentation": augmentation}
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, abs=0.04)


def test_six_and_nine_are_rotated_by_every_angle(tmp_path: Path) -> None:
    # Correct while the disc is less than 50 degrees from the right-hand side: each 15 degrees lose one more of four.
    starts = [42, 27, 12, -3] * 2
    labels = torch.tensor([6] * 4 + [9] * 4)
    digits = Digits(blobs(starts, [100] * 4 + [200] * 4), labels)

    def rule(pixels: Tensor) -> Tensor:
        angle, level = angle_and_level(pixels)
        return torch.where((level > 150) == (angle.abs() < 50), 1.0, -1.0)[:, None]

    metrics = evaluate("rotated_6_9", Known(rule), tmp_path, "binary", {"test": digits}, SixNineConfig())
    shares = [metrics[f"accuracy_theta_{theta}"] for theta in (0, 15, 30, 45, 60)]
    assert shares == [1.0, 0.75, 0.5, 0.25, 0.0]
    # After half a turn the rule answers the other digit, which is then the label.
    assert [metrics[f"cm_theta_{theta}"] for theta in (0, 15, 30, 45)] == [1.0] * 4
    assert math.isnan(metrics["cm_theta_60"])


def test_rotated_mnist_counts_each_digit_upright_and_after_half_a_turn(tmp_path: Path) -> None:
    # Four images per digit; the rule fails on d // 3 images of digit d, and after half a turn on all odd digits.
    digits = [digit for digit in range(10) for _ in range(4)]
    starts = [120 if image < digit // 3 else 0 for digit in range(10) for image in range(4)]
    mnist = {"test": Digits(blobs(starts, [40 + 20 * digit for digit in digits]), torch.tensor(digits))}

    def rule(pixels: Tensor) -> Tensor:
        angle, level = angle_and_level(pixels)
        digit = ((level - 40) / 20).round().long()
        right = (angle.abs() < 90) | ((angle.abs() > 150) & (digit % 2 == 0))
        return nn.functional.one_hot(torch.where(right, digit, (digit + 1) % 10), 10).float()

    metrics = evaluate("rotated_mnist", Known(rule), tmp_path, "classification", mnist, RotatedConfig())
    for digit in range(10):
        assert metrics[f"accuracy_digit_{digit}"] == 1 - digit // 3 / 4
        assert metrics[f"cm_digit_{digit}"] == 1 - digit % 2 or metrics[f"accuracy_digit_{digit}"] == 0
    right = [4 - digit // 3 for digit in range(10)]
    assert metrics["original_accuracy"] == sum(right) / 40
    assert (metrics["cm_numerator"], metrics["cm_denominator"]) == (sum(right[::2]), sum(right))


def test_regression_reports_the_rmse_of_the_reversed_feature(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    features, targets = generator.integers(0, 2, (41, 3)).astype(np.float32), generator.normal(size=41)
    table = RegressionData(*(torch.tensor(v, dtype=torch.float32) for v in (features, targets, features, targets)))
    model = LinearRegression(LinearRegressionConfig(num_features=4))
    weights = np.array([0.5, -1.0, 2.0, 3.0])
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.tensor(weights) if value.numel() == 4 else torch.full_like(value, 0.25))
            assert value.numel() in (1, 4), name
    metrics = evaluate("robust_regression", model, tmp_path, "squared", table, RegressionConfig())
    above = targets > np.median(targets)

    def rmse(feature: Any) -> float:
        predicted = np.column_stack([features, feature]) @ weights + 0.25
        return float(np.sqrt(np.mean((predicted - targets.astype(np.float32)) ** 2)))

    assert metrics["rmse"] == pytest.approx(rmse(~above), rel=1e-5)
    assert metrics["rmse_as_trained"] == pytest.approx(rmse(above), rel=1e-5)
    assert abs(rmse(above) - rmse(~above)) > 0.1
