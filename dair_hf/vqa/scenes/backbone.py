"""A backbone for counting scenes: trained to name what stands in each cell, in place of one from ImageNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, ResNetConfig
from transformers.modeling_outputs import TokenClassifierOutput

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vqa.inputs.pixels import IMAGENET_MEAN, IMAGENET_STD
from dair_hf.vqa.models.backbone import feature_size, grid_features, new_backbone
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.scenes.scene import Scene, Thing, render

MODEL_TYPE = "dair_cell_namer"
FIRST_NUMBER = 1_000_000_000  # of the scenes to learn from: far from those of any split


class CellNamerConfig(PreTrainedConfig):
    """Size of a `CellNamer`.

    Args:
        backbone_config: Configuration of a vision model of the library, or what its `to_dict` gives.
        num_labels: What a cell may hold: each kind in each colour, and nothing.
    """

    model_type = MODEL_TYPE
    backbone_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.backbone_config, dict):
            self.backbone_config = AutoConfig.for_model(**self.backbone_config)
        super().__post_init__(**kwargs)


class CellNamer(PreTrainedModel):
    """A backbone with a linear layer that names what stands at each position of its grid.

    Args:
        config: Backbone and number of names.

    Example:
        >>> from transformers import ResNetConfig
        >>> backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16], depths=[1, 1, 1], layer_type="basic")
        >>> model = CellNamer(CellNamerConfig(backbone_config=backbone, num_labels=31)).eval()
        >>> model(torch.zeros(2, 3, 64, 64)).logits.shape
        torch.Size([2, 16, 31])
    """

    config_class = CellNamerConfig
    main_input_name = "pixel_values"

    def __init__(self, config: CellNamerConfig) -> None:
        super().__init__(config)
        if config.backbone_config is None:
            raise DataError("backbone_config is not set; give the configuration of a vision model")
        self.backbone = new_backbone(config.backbone_config)
        self.classifier = nn.Linear(feature_size(config.backbone_config), config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> TokenClassifierOutput:
        """Name the cells.

        Args:
            pixel_values: `[N, 3, H, W]` floating, normalised.
            labels: `[N, cells]` int64 names.

        Returns:
            `logits` `[N, cells, names]`, cells row by row, and with labels their mean cross-entropy in nats as `loss`.
        """
        features = grid_features(self.backbone, pixel_values)
        logits = self.classifier(features.flatten(2).transpose(1, 2))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


def scene_network(config: SceneConfig) -> ResNetConfig:
    """A small ResNet, one position of whose last features stands for one cell.

    Args:
        config: Size of the scenes.

    Returns:
        Its configuration.

    Raises:
        DataError: The cells have another size than 4, 8, 16, ... pixels.

    Example:
        >>> scene_network(SceneConfig(scene_size=64, scene_grid=4)).hidden_sizes
        [16, 32, 64]
    """
    side = config.stage.cell_size
    stages = side.bit_length() - 2
    if side != 4 * 2 ** (stages - 1):  # the first layers take 4 pixels together, each stage but the first 2 positions
        raise DataError(
            f"scene_size={config.scene_size} and scene_grid={config.scene_grid} make cells of {side} pixels, but the "
            "backbone for scenes needs a power of two; choose other sizes, or name a vision model by backbone"
        )
    widths = [16 * 2**stage for stage in range(stages)]
    return ResNetConfig(embedding_size=16, hidden_sizes=widths, depths=[1] * stages, layer_type="basic")


def named_scenes(config: SceneConfig, count: int) -> tuple[Tensor, Tensor]:
    """Scenes full of things drawn independently of one another, and what stands in each cell.

    Args:
        config: Size of the scenes, and the things (those of the training split).
        count: Scenes, >= 1.

    Returns:
        `[count, 3, size, size]` uint8 pictures and `[count, cells]` int64 names: `kind * colours + colour`, and the
        last for an empty cell.

    Example:
        >>> pictures, names = named_scenes(SceneConfig(), 2)
        >>> pictures.shape, names.shape, int(names.max()) <= 30
        (torch.Size([2, 3, 64, 64]), torch.Size([2, 16]), True)
    """
    sprites, stage = config.sprites_of("train"), config.stage
    colours, cells, room = max(len(sprites.colours), 1), stage.grid**2, stage.cell_size - stage.thing_size + 1
    names = np.full((count, cells), len(sprites.kinds) * colours)
    pictures = np.empty((count, stage.size, stage.size, 3), dtype=np.uint8)
    for row in range(count):
        draws = np.random.default_rng([config.scene_seed, FIRST_NUMBER, row])
        places = draws.permutation(cells)[: draws.integers(cells + 1)]
        kinds, tints = draws.integers(len(sprites.kinds), size=cells), draws.integers(colours, size=cells)
        exemplars, shifts = draws.integers(1 << 30, size=cells), draws.integers(room, size=(cells, 2))
        things = tuple(
            Thing(int(kinds[p]), int(tints[p]), int(exemplars[p]), int(p), (int(shifts[p, 0]), int(shifts[p, 1])))
            for p in places
        )
        names[row, places] = kinds[places] * colours + tints[places]
        pictures[row] = render([Scene(FIRST_NUMBER + row, things)], sprites, stage)[0]
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(names)


def naming_task(config: SceneConfig, count: int) -> tuple[CellNamer, TensorPairs]:
    """Return a new model that names cells, and its training rows.

    Args:
        config: Size of the scenes, and the objects in them.
        count: Number of scenes, >= 1.
    """
    images, labels = named_scenes(config, count)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))

    def view(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"pixel_values": (images[rows] / 255 - mean) / std, "labels": labels[rows]}

    model = CellNamer(CellNamerConfig(backbone_config=scene_network(config), num_labels=int(labels.max()) + 1))
    return model, TensorPairs(view, rows=len(labels))
