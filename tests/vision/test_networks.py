"""Networks by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dair_hf import DataError
from dair_hf.vision.networks import NetworkConfig, make_network

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
    model = make_network(NetworkConfig(**settings), channels, 9)
    assert model(pixel_values=torch.rand(2, channels, size, size)).logits.shape == (2, 9)


def test_default_sizes_have_18_and_50_layers() -> None:
    counted = [
        make_network(NetworkConfig(network=name), 3, 10).num_parameters() for name in ("preact_resnet", "resnet")
    ]
    # ResNet-50: 23,508,032 below the last layer, which has 2,048 x 10 + 10.
    assert counted == [11_171_146, 23_508_032 + 20_490]


def test_a_pretrained_network_gets_a_new_last_layer(tmp_path: Path) -> None:
    saved = make_network(NetworkConfig(network="resnet", **SMALL), 3, 5)
    saved.save_pretrained(tmp_path)
    found = make_network(NetworkConfig(network="pretrained", pretrained_model=str(tmp_path)), 3, 9)
    assert found(pixel_values=torch.rand(1, 3, 32, 32)).logits.shape == (1, 9)
    weights = saved.resnet.state_dict()
    assert all(torch.equal(values, weights[name]) for name, values in found.resnet.state_dict().items())
    with pytest.raises(DataError, match="takes 3 channels, the images have 1"):
        make_network(NetworkConfig(network="pretrained", pretrained_model=str(tmp_path)), 1, 9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": "vgg"}, "network='vgg' is unknown"),
        ({"network": "pretrained"}, "cannot be combined"),
        ({"pretrained_model": "some/model"}, "cannot be combined"),
        ({"network": "digit_cnn", **SMALL}, "has a fixed size"),
        ({"hidden_sizes": [8]}, "give one of each for every stage"),
        ({"hidden_sizes": [8], "depths": [1, 1]}, "give one of each for every stage"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        NetworkConfig(**settings)


def test_missing_pretrained_models_are_refused(tmp_path: Path) -> None:
    config = NetworkConfig(network="pretrained", pretrained_model=str(tmp_path / "none"))
    with pytest.raises(DataError, match="pretrained_model="):
        make_network(config, 3, 9)
