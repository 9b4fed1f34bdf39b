"""Backbone for counting scenes, in place of one trained on ImageNet: it learns to classify the cells of scenes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, ResNetConfig
from transformers.modeling_outputs import TokenClassifierOutput

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.vqa.inputs.features import IMAGENET_MEAN, IMAGENET_STD
from dair_hf.vqa.models.backbone import feature_size, grid_features, new_backbone
from dair_hf.vqa.scenes.scene import (
    CELL_SIZE,
    COLORS,
    GRID,
    SEED,
    SHAPES,
    SHIFTS,
    SIZE,
    Scene,
    SceneObject,
    render_scenes,
)

MODEL_TYPE = "dair_cell_namer"
FIRST_NUMBER = 1_000_000_000  # of the training scenes; no split has numbers this large


class CellClassifierConfig(PreTrainedConfig):
    """Configuration of `CellClassifier`."""

    model_type = MODEL_TYPE
    backbone_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.backbone_config, dict):
            self.backbone_config = AutoConfig.for_model(**self.backbone_config)
        super().__post_init__(**kwargs)


class CellClassifier(PreTrainedModel):
    """Backbone with a linear layer that classifies each position of its grid."""

    config_class = CellClassifierConfig
    main_input_name = "pixel_values"

    def __init__(self, config: CellClassifierConfig) -> None:
        super().__init__(config)
        assert isinstance(config.backbone_config, PreTrainedConfig)  # a dictionary is converted by the configuration
        self.backbone = new_backbone(config.backbone_config)
        self.classifier = nn.Linear(feature_size(config.backbone_config), config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> TokenClassifierOutput:
        """Classify the cells."""
        features = grid_features(self.backbone, pixel_values)
        logits = self.classifier(features.flatten(2).transpose(1, 2))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


def scene_network() -> ResNetConfig:
    """Return the configuration of a small ResNet whose last features have one position per cell."""
    stages = (CELL_SIZE // 4).bit_length()  # the stem reduces by 4, each stage but the first by 2
    widths = [16 * 2**stage for stage in range(stages)]
    return ResNetConfig(embedding_size=16, hidden_sizes=widths, depths=[1] * stages, layer_type="basic")


def _labeled_scenes(count: int) -> tuple[Tensor, Tensor]:
    """Draw scenes of independent objects, with the class of each cell."""
    cells, colors = GRID**2, len(COLORS)
    labels = np.full((count, cells), len(SHAPES) * colors)
    images = np.empty((count, SIZE, SIZE, 3), dtype=np.uint8)
    for row in range(count):
        rng = np.random.default_rng([SEED, FIRST_NUMBER, row])
        filled = rng.permutation(cells)[: rng.integers(cells + 1)]
        kinds, tints = rng.integers(len(SHAPES), size=cells), rng.integers(colors, size=cells)
        rng.integers(1 << 30, size=cells)  # unused; later draws depend on it
        shifts = rng.integers(SHIFTS, size=(cells, 2))
        objects = tuple(
            SceneObject(int(kinds[c]), int(tints[c]), int(c), (int(shifts[c, 0]), int(shifts[c, 1]))) for c in filled
        )
        labels[row, filled] = kinds[filled] * colors + tints[filled]
        images[row] = render_scenes([Scene(FIRST_NUMBER + row, objects)])[0]
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def cell_classification(count: int) -> tuple[CellClassifier, TensorPairs]:
    """Return a new cell classifier and its training rows."""
    images, labels = _labeled_scenes(count)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))

    def view(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"pixel_values": (images[rows] / 255 - mean) / std, "labels": labels[rows]}

    model = CellClassifier(CellClassifierConfig(backbone_config=scene_network(), num_labels=int(labels.max()) + 1))
    return model, TensorPairs(view, rows=len(labels))
