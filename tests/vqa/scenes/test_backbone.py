"""The backbone of counting scenes: labels of the cells, forward pass, training and saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import ResNetConfig, ViTConfig

from dair_hf.vqa.scenes.backbone import CellClassifier, CellClassifierConfig, _labeled_scenes
from dair_hf.vqa.scenes.files import BIASED
from dair_hf.vqa.scenes.scene import COLORS, SHAPES, draw_scene, render_scenes
from tests.fixtures.counting_scenes import shapes_in
from tests.fixtures.tiny_saaa import vit

LABELS = len(SHAPES) * len(COLORS) + 1


def resnet() -> ResNetConfig:
    """Return a ResNet with a stride of 16 pixels, for scenes of 64 pixels in 4 x 4 cells."""
    return ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 1, 1], layer_type="basic")


def classifier(backbone: ResNetConfig | ViTConfig, seed: int = 0) -> CellClassifier:
    torch.manual_seed(seed)
    return CellClassifier(CellClassifierConfig(backbone_config=backbone, num_labels=LABELS))


def test_labels_match_the_image() -> None:
    images, labels = _labeled_scenes(10)
    assert (images.shape, images.dtype) == ((10, 3, 64, 64), torch.uint8)
    assert (labels.shape, labels.dtype) == ((10, 16), torch.int64)
    for image, row in zip(images.permute(0, 2, 3, 1).numpy(), labels.tolist(), strict=True):
        seen = shapes_in(np.ascontiguousarray(image), 4)
        for cell, label in enumerate(row):
            kind, color = divmod(label, len(COLORS))
            expected = (SHAPES[kind], list(COLORS)[color]) if label != LABELS - 1 else None
            assert seen.get(cell) == expected


def test_cells_are_filled_independently() -> None:
    _, labels = _labeled_scenes(300)
    empty = labels == LABELS - 1
    filled = (~empty).sum(1).double()
    assert set(filled.int().tolist()) == set(range(17)), "from an empty grid to a full one"
    assert abs(float(filled.mean()) - 8) < 4 * (17**2 / 12 / 300) ** 0.5
    counts = labels[~empty].bincount(minlength=LABELS - 1).double()
    share = float(counts.sum()) / (LABELS - 1)
    assert counts.sub(share).abs().max() < 4 * share**0.5
    # Unlike in the scenes of the questions, a kind and its companion are independent.
    kinds = torch.stack([(labels // len(COLORS) == kind).sum(1) for kind in range(6)]).double()
    shares = kinds / filled.clamp(min=1)
    assert float(torch.corrcoef(shares[:, filled > 0])[0, 1]) < 0


def test_scenes_are_reproducible_and_differ_from_every_split() -> None:
    images, labels = _labeled_scenes(6)
    more, more_labels = _labeled_scenes(9)
    assert torch.equal(more[:6], images) and torch.equal(more_labels[:6], labels)
    # No other scene, and none of a split, has the same background.
    of_splits = []
    for number in (1, 2, 1_000_001, 3_000_001):
        scene, _ = draw_scene(number, np.random.default_rng([0, number]), BIASED)
        of_splits.append(torch.from_numpy(render_scenes([scene])[0]).permute(2, 0, 1))
    every = [*more, *of_splits]
    for place, one in enumerate(every):
        assert all((one == two).double().mean() < 0.3 for two in every[:place])


@pytest.mark.parametrize("backbone", [resnet(), vit(image_size=64, patch_size=16)], ids=["resnet", "vit"])
def test_logits_of_each_position_row_by_row(backbone: ResNetConfig | ViTConfig) -> None:
    model = classifier(backbone).eval()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(LABELS, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = model(images, labels)
        features = model.backbone(images).last_hidden_state
        if features.ndim == 4:
            features = torch.stack([features[:, :, row, column] for row in range(4) for column in range(4)], dim=1)
        expected = features[:, -16:] @ model.classifier.weight.T + model.classifier.bias
    assert output.logits.shape == (2, 16, LABELS)
    assert (output.logits - expected).abs().max() <= 1e-5
    logits = output.logits.double().numpy()
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels.numpy()[..., None], -1)[..., 0]
    assert abs(output.loss.item() - nll.mean()) <= 1e-5
    assert model(images).loss is None
