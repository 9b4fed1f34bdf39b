"""Networks: by name, against numpy and plain layers, initialization, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification

from dair_hf.vision.networks import (
    DigitCNN,
    DigitCNNConfig,
    PreActResNet,
    PreActResNetConfig,
)

SMALL = {"hidden_sizes": [8, 16], "depths": [1, 1]}


def plain(channels: int, classes: int) -> nn.Sequential:
    """The layers in the order of the paper."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 96, 4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, classes)),
    )


def cnn(channels: int, classes: int) -> DigitCNN:
    return DigitCNN(DigitCNNConfig(num_channels=channels, num_labels=classes))


@pytest.mark.parametrize(("channels", "classes"), [(1, 10), (3, 1)])
def test_outputs_and_gradients_match_plain_layers(channels: int, classes: int) -> None:
    model, reference = cnn(channels, classes), plain(channels, classes)
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            other.copy_(parameter)
    images = torch.rand(8, channels, 28, 28, generator=torch.Generator().manual_seed(0))
    logits, expected = model(images).logits, reference(images)
    assert logits.shape == (8, classes)
    assert torch.equal(logits, expected)
    weights = torch.rand(8, classes)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - other.grad).abs().max() < 1e-6


def test_initialization_of_the_cnn_is_that_of_torch() -> None:
    """The last draws of the constructor come from `reset_parameters` of each layer, in order."""
    torch.manual_seed(0)
    model = cnn(1, 10)
    torch.manual_seed(0)
    reference = plain(1, 10)
    for layer in reference:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))
    # Uniform up to 1 / sqrt(fan in), including biases, which transformers would set to 0.
    assert 0.9 / 16 < model.conv3.weight.abs().max().item() < 1 / 16
    assert model.classifier.bias.abs().min().item() > 0


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

    assert torch.autograd.gradcheck(logits, (pixel_values, *values), fast_mode=True)


def test_number_of_parameters_of_the_resnet() -> None:
    with torch.device("meta"):
        full = network()
    assert full.num_parameters() == 11_171_146  # as published for CIFAR-10
    # Eighteen layers: the first, two per block, the last.
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in full.modules()) + 1 == 18


def test_initialization_of_the_resnet() -> None:
    """Convolutions: normal, variance 2 / (k * k * channels); classifier: uniform up to 1 / sqrt(128); norms 1, 0."""
    sizes = {"hidden_sizes": [16, 32, 64, 128]}
    torch.manual_seed(0)
    model = network(**sizes)
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
        assert values.abs().max().item() < 128**-0.5 and values.std().item() > 0.3 * 128**-0.5
    torch.manual_seed(0)
    assert torch.equal(network(**sizes).stages[3][1].conv2.weight, model.stages[3][1].conv2.weight)
    assert not torch.equal(network(**sizes).classifier.weight, model.classifier.weight)


@pytest.mark.parametrize("kind", ["cnn", "preact"])
def test_save_and_load(kind: str, tmp_path: Path) -> None:
    model = tiny() if kind == "preact" else cnn(3, 1)
    pixels = images(side=28)
    model.train()(pixels)  # running statistics away from their defaults
    model.eval().save_pretrained(tmp_path)
    for loader in (type(model), AutoModelForImageClassification):
        loaded = loader.from_pretrained(tmp_path)
        assert type(loaded) is type(model) and not loaded.training
        torch.testing.assert_close(loaded(pixels).logits, model(pixels).logits)
        assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
