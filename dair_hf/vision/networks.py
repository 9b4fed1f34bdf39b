"""The networks that the recipes on pictures train, chosen by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoModelForImageClassification, PreTrainedModel, ResNetConfig, ResNetForImageClassification

from dair_hf.errors import DataError
from dair_hf.vision.cnn import DigitCNN, DigitCNNConfig
from dair_hf.vision.preact_resnet import PreActResNet, PreActResNetConfig
from dair_hf.vision.settings import require_choice

NETWORKS = ("preact_resnet", "resnet", "digit_cnn", "pretrained")


@dataclass
class NetworkConfig:
    """Which network is trained.

    Raises:
        DataError: An unknown network, sizes that do not fit together, or a setting of another network.

    Example:
        >>> NetworkConfig(network="digit_cnn").hidden_sizes
    """

    network: str = field(
        default="preact_resnet",
        metadata={
            "help": "preact_resnet: pre-activation ResNet, of 18 layers by default; resnet: that of transformers, of "
            "50; digit_cnn: the paper's for 28 x 28 pixels; pretrained: what pretrained_model names.",
            "choices": NETWORKS,
        },
    )
    hidden_sizes: list[int] | None = field(
        default=None, metadata={"help": "Channels of each stage of a (pre-activation) ResNet; none: the usual ones."}
    )
    depths: list[int] | None = field(
        default=None, metadata={"help": "Blocks of each stage of a (pre-activation) ResNet; none: the usual numbers."}
    )
    pretrained_model: str | None = field(
        default=None,
        metadata={"help": "Image classifier, from the Hub or a folder, whose last layer is replaced by a new one."},
    )

    def __post_init__(self) -> None:
        require_choice("network", self.network, NETWORKS)
        if (self.network == "pretrained") != (self.pretrained_model is not None):
            raise DataError(
                f"network={self.network} and pretrained_model={self.pretrained_model!r} do not fit together; give "
                "both network=pretrained and a model, or neither"
            )
        if self.network in ("digit_cnn", "pretrained") and (self.hidden_sizes or self.depths):
            raise DataError(f"network={self.network} has sizes of its own; leave hidden_sizes and depths out")
        if (self.hidden_sizes is None) != (self.depths is None) or (
            self.hidden_sizes is not None and self.depths is not None and len(self.hidden_sizes) != len(self.depths)
        ):
            raise DataError(
                f"hidden_sizes={self.hidden_sizes} and depths={self.depths}: give one of each for every stage"
            )


def make_network(config: NetworkConfig, num_channels: int, num_labels: int) -> PreTrainedModel:
    """A network, with fresh weights unless a pretrained one is asked for.

    Args:
        config: Which one.
        num_channels: Channels of the pictures: 1 or 3.
        num_labels: Number of classes.

    Returns:
        `pixel_values` `[N, num_channels, H, W]` -> `logits` `[N, num_labels]`.

    Raises:
        DataError: The pretrained model cannot be loaded, or takes other channels.

    Example:
        >>> make_network(NetworkConfig(hidden_sizes=[8, 16], depths=[1, 1]), 3, 9).num_parameters()
        8305
    """
    sizes: dict[str, Any] = {}
    if config.hidden_sizes is not None:
        sizes = {"hidden_sizes": config.hidden_sizes, "depths": config.depths}
    common = {"num_channels": num_channels, "num_labels": num_labels}
    if config.network == "digit_cnn":
        return DigitCNN(DigitCNNConfig(**common))
    if config.network == "preact_resnet":
        return PreActResNet(PreActResNetConfig(**common, **sizes))
    if config.network == "resnet":
        # Four times as many channels leave a stage of bottlenecks as pass through it.
        if config.hidden_sizes is not None:
            sizes["embedding_size"] = max(1, config.hidden_sizes[0] // 4)
        return ResNetForImageClassification(ResNetConfig(**common, **sizes))
    try:
        model = AutoModelForImageClassification.from_pretrained(
            config.pretrained_model, num_labels=num_labels, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError) as error:
        raise DataError(f"pretrained_model={config.pretrained_model!r}: {error}") from error
    if getattr(model.config, "num_channels", num_channels) != num_channels:
        raise DataError(
            f"pretrained_model={config.pretrained_model!r} takes {model.config.num_channels} channels, the pictures "
            f"have {num_channels}; give a model for those"
        )
    return model
