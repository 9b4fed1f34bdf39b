"""The paper's CNN against plain PyTorch layers: outputs, gradients, initialization, checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification

from dair_hf.vision.networks import DigitCNN, DigitCNNConfig


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


def test_number_of_parameters() -> None:
    """Weights and biases, layer by layer: 16 per kernel and channel."""
    gray = (16 * 1 * 6 + 6) + (16 * 6 * 16 + 16) + (16 * 16 * 96 + 96) + (96 * 64 + 64) + (64 * 10 + 10)
    assert cnn(1, 10).num_parameters() == gray == 33_184
    assert cnn(3, 1).num_parameters() == gray + 16 * 2 * 6 - 9 * 65


def test_initialization_is_that_of_torch() -> None:
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


def test_save_and_load(tmp_path: Path) -> None:
    model = cnn(3, 1)
    model.save_pretrained(tmp_path)
    images = torch.rand(2, 3, 28, 28)
    for loaded in (DigitCNN.from_pretrained(tmp_path), AutoModelForImageClassification.from_pretrained(tmp_path)):
        assert isinstance(loaded, DigitCNN)
        assert (loaded.config.num_channels, loaded.config.num_labels) == (3, 1)
        assert torch.equal(loaded(images).logits, model.eval()(images).logits)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), DigitCNNConfig)
