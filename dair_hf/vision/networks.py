"""Networks of the image recipes, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import AutoModelForImageClassification, PreTrainedModel, ResNetConfig, ResNetForImageClassification

from dair_hf.errors import DataError
from dair_hf.modeling import load_pretrained, output_layers, renew_layers, require_all_weights
from dair_hf.settings import Count, Settings
from dair_hf.vision.cnn import DigitCNN, DigitCNNConfig
from dair_hf.vision.preact_resnet import PreActResNet, PreActResNetConfig


@dataclass
class ImageNetworkConfig(Settings):
    """Network to train."""

    network: Literal["preact_resnet", "resnet", "digit_cnn", "pretrained"] = field(
        default="preact_resnet",
        metadata={
            "help": "preact_resnet: pre-activation ResNet, 18 layers by default; resnet: ResNet of transformers, 50 "
            "layers by default; digit_cnn: the paper's CNN for 28 x 28 pixels; pretrained: load pretrained_model."
        },
    )
    hidden_sizes: list[Count] | None = field(
        default=None, metadata={"help": "Channels of each stage of a (pre-activation) ResNet; none: the defaults."}
    )
    depths: list[Count] | None = field(
        default=None, metadata={"help": "Blocks of each stage of a (pre-activation) ResNet; none: the defaults."}
    )
    pretrained_model: str | None = field(
        default=None,
        metadata={"help": "Image classifier from the Hub or a folder, safetensors only; its output layer is replaced."},
    )

    def check(self) -> None:
        """Refuse settings that the network would ignore."""
        if (self.network == "pretrained") != (self.pretrained_model is not None):
            raise DataError(
                f"network={self.network}, pretrained_model={self.pretrained_model}: expected both network=pretrained "
                "and a model, or neither"
            )
        sizes, depths = self.hidden_sizes or [], self.depths or []
        if len(sizes) != len(depths) or (sizes and "resnet" not in self.network):
            raise DataError(
                f"network={self.network}, hidden_sizes={sizes}, depths={depths}: expected one of each for every stage "
                "of a ResNet"
            )


def make_network(config: ImageNetworkConfig, num_channels: int, num_labels: int) -> PreTrainedModel:
    """Create a network, with new weights unless it is pretrained.

    Args:
        num_channels: Channels of the images: 1 or 3.

    Returns:
        A model from `pixel_values` `[N, num_channels, H, W]` to `logits` `[N, num_labels]`.

    Raises:
        DataError: The pretrained model cannot be loaded from safetensors, or lacks weights below its output layer.

    Example:
        >>> make_network(ImageNetworkConfig(hidden_sizes=[8, 16], depths=[1, 1]), 3, 9).num_parameters()
        5185
    """
    common: dict[str, Any] = {"num_channels": num_channels, "num_labels": num_labels}
    if config.network == "pretrained":
        return _pretrained(str(config.pretrained_model), num_labels)
    if config.network == "digit_cnn":
        return DigitCNN(DigitCNNConfig(**common))
    if config.hidden_sizes is not None:
        common |= {"hidden_sizes": config.hidden_sizes, "depths": config.depths}
    if config.network == "preact_resnet":
        return PreActResNet(PreActResNetConfig(**common))
    # A stage of bottleneck blocks outputs four times the channels that it processes.
    if config.hidden_sizes is not None:
        common["embedding_size"] = max(1, config.hidden_sizes[0] // 4)
    return ResNetForImageClassification(ResNetConfig(**common))


def _pretrained(name: str, num_labels: int) -> PreTrainedModel:
    """Load a pretrained classifier and replace its output layer, even if the checkpoint has as many classes."""
    label = f"pretrained_model={name!r}"
    model, report = load_pretrained(
        AutoModelForImageClassification,
        name,
        label,
        num_labels=num_labels,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    outputs = output_layers(model, num_labels, label)
    require_all_weights(model, report, label, outputs)
    renew_layers(model, outputs)
    return model
