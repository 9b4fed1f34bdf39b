"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from dair_hf import DataError
from dair_hf.vision.networks import ImageNetworkConfig, make_network

SMALL = {"hidden_sizes": [8, 16], "depths": [1, 1]}


@pytest.mark.parametrize(
    ("settings", "size", "channels"),
    [
        ({"network": "digit_cnn"}, 28, 1),
        ({"network": "preact_resnet", **SMALL}, 32, 3),
        ({"network": "resnet", **SMALL}, 32, 3),
    ],
)
def test_networks_return_one_logit_per_class(settings: dict, size: int, channels: int) -> None:
    model = make_network(ImageNetworkConfig(**settings), channels, 9)
    assert model(pixel_values=torch.rand(2, channels, size, size)).logits.shape == (2, 9)


def pretrained(folder: Path, labels: int = 9) -> PreTrainedModel:
    return make_network(ImageNetworkConfig(network="pretrained", pretrained_model=str(folder)), 3, labels)


def test_the_last_layer_is_new_for_the_same_number_of_classes_too(tmp_path: Path) -> None:
    saved = make_network(ImageNetworkConfig(network="resnet", **SMALL), 3, 9)
    saved.save_pretrained(tmp_path)
    torch.manual_seed(1)
    found = pretrained(tmp_path)
    assert not torch.equal(found.classifier[1].weight, saved.classifier[1].weight)
    assert all(
        torch.equal(values, saved.state_dict()[f"resnet.{n}"]) for n, values in found.resnet.state_dict().items()
    )
    torch.manual_seed(1)
    assert torch.equal(pretrained(tmp_path).classifier[1].weight, found.classifier[1].weight)


def test_a_network_without_base_model_gets_a_new_last_layer_only(tmp_path: Path) -> None:
    saved = make_network(ImageNetworkConfig(network="digit_cnn"), 3, 64)  # its hidden layer has 64 outputs, too
    saved.save_pretrained(tmp_path)
    found = pretrained(tmp_path, 64)
    assert torch.equal(found.hidden.weight, saved.hidden.weight)
    assert not torch.equal(found.classifier.weight, saved.classifier.weight)


def without_encoder(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values for name, values in weights.items() if "encoder" not in name}


def with_other_convolution(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = next(name for name, values in weights.items() if "encoder" in name and values.ndim == 4)
    return {**weights, name: torch.zeros(1, 1, 1, 1)}


@pytest.mark.parametrize("damage", [without_encoder, with_other_convolution])
def test_checkpoints_that_lack_weights_are_refused(tmp_path: Path, damage: Callable[[dict], dict]) -> None:
    make_network(ImageNetworkConfig(network="resnet", **SMALL), 3, 5).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(damage(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(DataError, match="encoder"):
        pretrained(tmp_path)
