"""Pre-activation ResNet: outputs against numpy, number of parameters, initialization, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification

from dair_hf.vision.networks import PreActResNet, PreActResNetConfig

Array = NDArray[np.float64]


def network(**settings: Any) -> PreActResNet:
    return PreActResNet(PreActResNetConfig(**{"num_labels": 10, **settings}))


def tiny(**settings: Any) -> PreActResNet:
    return network(**{"depths": [2, 1], "hidden_sizes": [3, 5], "num_labels": 4, **settings})


def images(count: int = 3, side: int = 8) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def randomize(model: nn.Module) -> None:
    """Randomize all parameters and statistics, since ones and zeros would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in model.state_dict().items():
            if values.is_floating_point():
                drawn = torch.rand(values.shape, generator=generator)
                values.copy_(drawn + 0.5 if "var" in name or "norm" in name else drawn - 0.5)


def convolved(x: Array, weight: Array, stride: int) -> Array:
    """Convolution by definition, one output position at a time, with zero padding."""
    around = weight.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (around, around), (around, around)))
    height, width = (-(-size // stride) for size in x.shape[2:])
    out = np.empty((len(x), len(weight), height, width))
    for i, j in np.ndindex(height, width):
        window = padded[:, :, i * stride : i * stride + weight.shape[2], j * stride : j * stride + weight.shape[3]]
        out[:, :, i, j] = np.einsum("nchw,kchw->nk", window, weight)
    return out


class Reference:
    """The network in numpy; `training` uses batch statistics."""

    def __init__(self, model: PreActResNet, training: bool = False) -> None:
        self.weights = {name: values.double().numpy() for name, values in model.state_dict().items()}
        self.config, self.training = model.config, training

    def active(self, x: Array, name: str) -> Array:
        mean, variance = self.weights[f"{name}.running_mean"], self.weights[f"{name}.running_var"]
        if self.training:
            mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        scale = self.weights[f"{name}.weight"] / np.sqrt(variance + 1e-5)
        shift = self.weights[f"{name}.bias"] - mean * scale
        return np.maximum(x * scale[:, None, None] + shift[:, None, None], 0)

    def block(self, x: Array, name: str, stride: int) -> Array:
        first = self.active(x, f"{name}.norm1")
        inner = convolved(first, self.weights[f"{name}.conv1.weight"], stride)
        residual = convolved(self.active(inner, f"{name}.norm2"), self.weights[f"{name}.conv2.weight"], 1)
        projection = self.weights.get(f"{name}.shortcut.weight")
        return residual + (x if projection is None else convolved(first, projection, stride))

    def __call__(self, pixel_values: torch.Tensor) -> Array:
        x = pixel_values.double().numpy()
        x = convolved(x, self.weights["embedder.weight"], 1)
        for stage, depth in enumerate(self.config.depths):
            for block in range(depth):
                x = self.block(x, f"stages.{stage}.{block}", 2 if stage and not block else 1)
        return x.mean(axis=(2, 3)) @ self.weights["classifier.weight"].T + self.weights["classifier.bias"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("settings", [{}, {"depths": [1, 1, 2], "hidden_sizes": [2, 2, 4]}])
def test_logits_match_numpy(settings: dict[str, Any], training: bool) -> None:
    model = tiny(**settings).train(training).double()
    randomize(model)
    reference = Reference(model, training)
    for side in (8, 7):  # odd sides are rounded up
        expected = reference(images(side=side))
        found = model(images(side=side).double()).logits
        assert found.shape == (3, 4)
        assert np.abs(found.detach().numpy() - expected).max() < 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("training", [False, True])
def test_gradients_match_finite_differences(training: bool) -> None:
    model = tiny(depths=[1, 1], hidden_sizes=[2, 3])
    randomize(model)
    model.double().train(training)
    pixel_values = images(2, 4).double().requires_grad_()
    names = [name for name, _ in model.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]

    def logits(pixels: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, named, (pixels,)).logits

    assert torch.autograd.gradcheck(logits, (pixel_values, *values), nondet_tol=0.0)


def block_size(channels_in: int, channels: int, projected: bool) -> int:
    """Parameters of two batch norms, two 3 x 3 convolutions and an optional 1 x 1 convolution, without biases."""
    return (
        2 * channels_in
        + 9 * channels_in * channels
        + 2 * channels
        + 9 * channels * channels
        + (channels_in * channels if projected else 0)
    )


def test_number_of_parameters() -> None:
    stages = (
        2 * block_size(64, 64, False)
        + (block_size(64, 128, True) + block_size(128, 128, False))
        + (block_size(128, 256, True) + block_size(256, 256, False))
        + (block_size(256, 512, True) + block_size(512, 512, False))
    )
    full = network()
    assert full.num_parameters() == 9 * 3 * 64 + stages + 512 * 10 + 10 == 11_171_146
    # Eighteen layers: the first, two per block, the last.
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in full.modules()) + 1 == 18
    narrow = (
        block_size(8, 16, True) + block_size(16, 32, True) + 3 * block_size(32, 32, False) + 3 * block_size(8, 8, False)
    )
    settings = {"num_channels": 1, "num_labels": 1, "depths": [3, 1, 4], "hidden_sizes": [8, 16, 32]}
    assert network(**settings).num_parameters() == 9 * 8 + narrow + 33


def test_initialization() -> None:
    """Convolutions: normal, variance 2 / (k * k * channels); classifier: uniform up to 1 / sqrt(512); norms 1, 0."""
    torch.manual_seed(0)
    model = network()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            spread = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            count = module.weight.numel()
            assert abs(module.weight.std().item() / spread - 1) < 5 / (2 * count) ** 0.5
            assert abs(module.weight.mean().item()) < 5 * spread / count**0.5
        elif isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all() and module.bias.eq(0).all()
            assert module.running_mean.eq(0).all() and module.running_var.eq(1).all()
    for values in (model.classifier.weight, model.classifier.bias):
        assert values.abs().max().item() < 512**-0.5 and values.std().item() > 0.3 * 512**-0.5
    torch.manual_seed(0)
    assert torch.equal(network().stages[3][1].conv2.weight, model.stages[3][1].conv2.weight)
    assert not torch.equal(network().classifier.weight, model.classifier.weight)


def test_save_and_load(tmp_path: Path) -> None:
    model = tiny()
    model.train()(images())  # running statistics away from their defaults
    model.eval().save_pretrained(tmp_path)
    for kind in (PreActResNet, AutoModelForImageClassification):
        loaded = kind.from_pretrained(tmp_path)
        assert isinstance(loaded, PreActResNet) and not loaded.training
        assert torch.equal(loaded(images()).logits, model(images()).logits)
        for name in ("depths", "hidden_sizes", "num_labels", "num_channels"):
            assert getattr(loaded.config, name) == getattr(model.config, name)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), PreActResNetConfig)
