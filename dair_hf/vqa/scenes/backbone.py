"""Backbone for counting scenes, in place of one trained on ImageNet: it learns to classify the cells of scenes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, ResNetConfig
from transformers.modeling_outputs import TokenClassifierOutput

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vqa.inputs.features import IMAGENET_MEAN, IMAGENET_STD
from dair_hf.vqa.models.backbone import feature_size, grid_features, new_backbone
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.scenes.scene import Scene, SceneObject, render_scenes

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


def scene_network(config: SceneConfig) -> ResNetConfig:
    """Return the configuration of a small ResNet whose last features have one position per cell."""
    cell_size = config.layout.cell_size
    stages = cell_size.bit_length() - 2
    if cell_size != 4 * 2 ** (stages - 1):  # the stem reduces by 4, each stage but the first by 2
        raise DataError(  # the grid of the backbone would differ from the cells
            f"scene_size={config.scene_size}, scene_grid={config.scene_grid}: expected cells of 8, 16, 32, ... pixels, "
            f"got {cell_size}; for other cells name a vision model as backbone"
        )
    widths = [16 * 2**stage for stage in range(stages)]
    return ResNetConfig(embedding_size=16, hidden_sizes=widths, depths=[1] * stages, layer_type="basic")


def _labeled_scenes(config: SceneConfig, count: int) -> tuple[Tensor, Tensor]:
    """Draw scenes of independent objects, with the class of each cell."""
    sprites, layout = config.sprites_of("train"), config.layout
    colors, cells = max(len(sprites.colors), 1), layout.grid**2
    labels = np.full((count, cells), len(sprites.kinds) * colors)
    images = np.empty((count, layout.size, layout.size, 3), dtype=np.uint8)
    for row in range(count):
        rng = np.random.default_rng([config.scene_seed, FIRST_NUMBER, row])
        filled = rng.permutation(cells)[: rng.integers(cells + 1)]
        kinds, tints = rng.integers(len(sprites.kinds), size=cells), rng.integers(colors, size=cells)
        exemplars, shifts = rng.integers(1 << 30, size=cells), rng.integers(layout.shifts, size=(cells, 2))
        objects = tuple(
            SceneObject(int(kinds[c]), int(tints[c]), int(exemplars[c]), int(c), (int(shifts[c, 0]), int(shifts[c, 1])))
            for c in filled
        )
        labels[row, filled] = kinds[filled] * colors + tints[filled]
        images[row] = render_scenes([Scene(FIRST_NUMBER + row, objects)], sprites, layout)[0]
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def cell_classification(config: SceneConfig, count: int) -> tuple[CellClassifier, TensorPairs]:
    """Return a new cell classifier and its training rows."""
    images, labels = _labeled_scenes(config, count)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))

    def view(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"pixel_values": (images[rows] / 255 - mean) / std, "labels": labels[rows]}

    model = CellClassifier(
        CellClassifierConfig(backbone_config=scene_network(config), num_labels=int(labels.max()) + 1)
    )
    return model, TensorPairs(view, rows=len(labels))
