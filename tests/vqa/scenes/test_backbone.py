"""The backbone of counting scenes: names are those of what is drawn, and it learns them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ViTConfig

from dair_hf.errors import DataError
from dair_hf.vqa.scenes.backbone import CellNamer, CellNamerConfig, named_scenes, scene_network
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.scenes.questions import draw_scene
from dair_hf.vqa.scenes.scene import render
from dair_hf.vqa.scenes.sprites import COLOURS, SHAPES
from tests.fixtures.counting_scenes import cells_of, object_colour, shapes_in, write_objects
from tests.fixtures.tiny_saaa import vit

NAMES = len(SHAPES) * len(COLOURS) + 1


def resnet() -> ResNetConfig:
    """16 pixels of the picture to a position, as scenes of 64 pixels in 4 x 4 cells need."""
    return ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 1, 1], layer_type="basic")


def namer(backbone: ResNetConfig | ViTConfig, seed: int = 0) -> CellNamer:
    torch.manual_seed(seed)
    return CellNamer(CellNamerConfig(backbone_config=backbone, num_labels=NAMES))


def normalised(pictures: Tensor) -> Tensor:
    return pictures / 127.5 - 1


# --- named scenes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SceneConfig(), SceneConfig(scene_size=120, scene_grid=5)])
def test_names_are_those_of_what_is_drawn(config: SceneConfig) -> None:
    grid = config.scene_grid
    pictures, names = named_scenes(config, 30)
    assert (pictures.shape, pictures.dtype) == ((30, 3, config.scene_size, config.scene_size), torch.uint8)
    assert (names.shape, names.dtype) == ((30, grid**2), torch.int64)
    for picture, row in zip(pictures.permute(0, 2, 3, 1).numpy(), names.tolist(), strict=True):
        seen = shapes_in(np.ascontiguousarray(picture), grid)
        for cell, name in enumerate(row):
            kind, colour = divmod(name, len(COLOURS))
            expected = (SHAPES[kind], list(COLOURS)[colour]) if name != NAMES - 1 else None
            assert seen.get(cell) == expected


def test_things_without_colours_are_named_by_their_kind(tmp_path: Path) -> None:
    folder = write_objects(tmp_path / "cifar10")
    config = SceneConfig(sprites="objects", sprite_folder=str(folder), scene_size=48)
    pictures, names = named_scenes(config, 20)
    assert int(names.max()) == 10 and int(names.min()) == 0
    colours = [object_colour(label, "train") for label in range(10)]
    for picture, row in zip(pictures.permute(0, 2, 3, 1).numpy(), names.tolist(), strict=True):
        middles = [tuple(cell[6, 6].tolist()) for cell in cells_of(picture, 4)]
        assert row == [colours.index(middle) if middle in colours else 10 for middle in middles]


def test_cells_are_filled_independently() -> None:
    _, names = named_scenes(SceneConfig(), 600)
    empty = names == NAMES - 1
    filled = (~empty).sum(1).double()
    assert set(filled.int().tolist()) == set(range(17)), "from an empty grid to a full one"
    assert abs(float(filled.mean()) - 8) < 4 * (17**2 / 12 / 600) ** 0.5
    counts = names[~empty].bincount(minlength=NAMES - 1).double()
    share = float(counts.sum()) / (NAMES - 1)
    assert counts.sub(share).abs().max() < 4 * share**0.5
    # A kind and its companion go together in the questions' scenes, not here.
    kinds = torch.stack([(names // len(COLOURS) == kind).sum(1) for kind in range(6)]).double()
    shares = kinds / filled.clamp(min=1)
    assert float(torch.corrcoef(shares[:, filled > 0])[0, 1]) < 0


def test_scenes_are_the_same_every_time_and_those_of_no_split() -> None:
    config = SceneConfig()
    pictures, names = named_scenes(config, 6)
    more, more_names = named_scenes(config, 9)
    assert torch.equal(more[:6], pictures) and torch.equal(more_names[:6], names)
    other, _ = named_scenes(SceneConfig(scene_seed=1), 6)
    assert not any(torch.equal(one, two) for one in pictures for two in other)
    # Neither another scene nor one of a split stands on the same background.
    sprites = config.sprites_of("train")
    of_splits = []
    for number in (1, 2, 1_000_001, 3_000_001):
        draws = np.random.default_rng([config.scene_seed, number])
        scene, _ = draw_scene(number, draws, sprites, config.stage, config.correlations("train"), config.most)
        of_splits.append(torch.from_numpy(render([scene], sprites, config.stage)[0]).permute(2, 0, 1))
    every = [*more, *of_splits]
    for place, one in enumerate(every):
        assert all((one == two).double().mean() < 0.3 for two in every[:place])


# --- the network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", [resnet(), vit(image_size=64, patch_size=16)], ids=["resnet", "vit"])
def test_logits_are_those_of_each_position_row_by_row(backbone: ResNetConfig | ViTConfig) -> None:
    model = namer(backbone).eval()
    pictures = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    names = torch.randint(NAMES, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = model(pictures, names)
        features = model.backbone(pictures).last_hidden_state
        if features.ndim == 4:
            features = torch.stack([features[:, :, row, column] for row in range(4) for column in range(4)], dim=1)
        expected = features[:, -16:] @ model.classifier.weight.T + model.classifier.bias
    assert output.logits.shape == (2, 16, NAMES)
    assert (output.logits - expected).abs().max() <= 1e-5
    logits = output.logits.double().numpy()
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, names.numpy()[..., None], -1)[..., 0]
    assert abs(output.loss.item() - nll.mean()) <= 1e-5
    assert model(pictures).loss is None


def test_a_few_steps_of_training_make_it_look() -> None:
    """The loss falls from that of guessing to less than the frequencies of the names alone allow."""
    pictures, names = named_scenes(SceneConfig(), 64)
    model = namer(resnet()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(24):
        rows = slice(32 * (step % 2), 32 * (step % 2) + 32)
        loss = model(normalised(pictures[rows]), names[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    shares = np.bincount(names.flatten(), minlength=NAMES) / names.numel()
    entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert abs(losses[0] - np.log(NAMES)) < 0.5
    assert np.mean(losses[-2:]) < 0.8 * entropy


@pytest.mark.parametrize("backbone", [resnet(), vit(image_size=64, patch_size=16)], ids=["resnet", "vit"])
def test_saved_and_loaded_it_is_the_same(backbone: ResNetConfig | ViTConfig, tmp_path: Path) -> None:
    model = namer(backbone)
    pictures, _ = named_scenes(SceneConfig(), 4)
    if any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        model.train()(normalised(pictures))  # so that the statistics are others than at the start
    model.eval().save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = CellNamer.from_pretrained(tmp_path)
    assert not loaded.training
    assert type(loaded.config.backbone_config) is type(backbone)
    assert loaded.config.num_labels == NAMES
    with torch.no_grad():
        assert torch.equal(loaded(normalised(pictures)).logits, model(normalised(pictures)).logits)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    with torch.no_grad():
        assert not torch.equal(
            namer(backbone, seed=1).eval()(normalised(pictures)).logits, loaded(normalised(pictures)).logits
        )


def test_without_a_backbone_it_is_refused() -> None:
    with pytest.raises(DataError, match="backbone_config is not set; give the configuration of a vision model"):
        CellNamer(CellNamerConfig(num_labels=NAMES))


@pytest.mark.parametrize(("size", "grid"), [(64, 4), (64, 8), (96, 3), (48, 3)])
def test_a_position_of_the_network_for_scenes_stands_for_a_cell(size: int, grid: int) -> None:
    network = scene_network(SceneConfig(scene_size=size, scene_grid=grid, most=1))
    model = CellNamer(CellNamerConfig(backbone_config=network, num_labels=NAMES)).eval()
    assert model(torch.zeros(1, 3, size, size)).logits.shape == (1, grid**2, NAMES)


@pytest.mark.parametrize(("size", "grid"), [(96, 4), (60, 5)])
def test_cells_that_no_position_fits_are_refused(size: int, grid: int) -> None:
    with pytest.raises(DataError, match=f"scene_size={size} and scene_grid={grid} make cells of {size // grid} pixels"):
        scene_network(SceneConfig(scene_size=size, scene_grid=grid))
