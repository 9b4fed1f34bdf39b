"""Backbones: features, layout of tokens, and loading."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    ConvNextConfig,
    DeiTConfig,
    Dinov2WithRegistersConfig,
    PreTrainedConfig,
    ResNetConfig,
    ResNetForImageClassification,
    ResNetModel,
    SwinConfig,
    ViTModel,
)

from dair_hf.vqa.models.backbone import feature_size, grid_features, load_backbone, new_backbone
from tests.fixtures.tiny_saaa import resnet, vit

LAYERS = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PATCHES = {"image_size": 32, "patch_size": 8}


def swin() -> SwinConfig:
    return SwinConfig(embed_dim=4, depths=[1, 1], num_heads=[1, 2], window_size=2, image_size=32, patch_size=4)


@pytest.mark.parametrize(
    ("config", "channels"),
    [
        (resnet(), 16),
        (ConvNextConfig(num_stages=2, hidden_sizes=[4, 8], depths=[1, 1]), 8),
        (vit(), 8),
        (DeiTConfig(**LAYERS, **PATCHES), 8),
        (Dinov2WithRegistersConfig(**LAYERS, **PATCHES, num_register_tokens=3), 8),
        (swin(), 8),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_every_kind_gives_a_grid(config: PreTrainedConfig, channels: int) -> None:
    assert feature_size(config) == channels
    backbone = new_backbone(config).eval()
    features = grid_features(backbone, torch.rand(2, 3, 32, 32))
    assert features.shape == (2, channels, 4, 4)
    assert features.isfinite().all()


def test_patch_tokens_are_arranged_row_by_row() -> None:
    backbone = new_backbone(vit()).eval()
    images = torch.rand(2, 3, 32, 16)
    with torch.no_grad():
        tokens = backbone(images, interpolate_pos_encoding=True).last_hidden_state
    assert tokens.shape == (2, 1 + 4 * 2, 8)

    class Interpolating(torch.nn.Module):
        config = backbone.config

        def forward(self, pixels: torch.Tensor) -> object:
            return backbone(pixels, interpolate_pos_encoding=True)

    features = grid_features(Interpolating(), images)
    for row in range(4):
        for column in range(2):
            assert torch.equal(features[:, :, row, column], tokens[:, 1 + 2 * row + column])


def test_tokens_of_a_hierarchical_transformer() -> None:
    backbone = new_backbone(swin()).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = backbone(images, output_hidden_states=True).reshaped_hidden_states[-1]
        features = grid_features(backbone, images)
    # transformers arranges the last stage before its norm.
    normed = backbone.layernorm(expected.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert (features - normed).abs().max() < 1e-5


def test_all_weights_are_used() -> None:
    """Each parameter of a new backbone gets a gradient."""
    for config in (resnet(), vit()):
        backbone = new_backbone(config)
        grid_features(backbone, torch.rand(2, 3, 32, 32)).square().sum().backward()
        assert [name for name, values in backbone.named_parameters() if values.grad is None] == []
    assert any("pooler" in name for name, _ in ViTModel(vit()).named_parameters())  # removed, since it would have none


@pytest.mark.parametrize("kind", [ResNetModel, ResNetForImageClassification])
def test_loaded_as_it_was_saved(kind: type, tmp_path: Path) -> None:
    model = kind(resnet()).eval()
    with torch.no_grad():
        for name, values in model.named_buffers():
            if name.endswith("running_mean"):
                values.uniform_(-1, 1)
    model.save_pretrained(tmp_path)
    images = torch.rand(2, 3, 32, 32)
    inner = model if kind is ResNetModel else model.resnet
    with torch.no_grad():
        assert torch.equal(grid_features(load_backbone(tmp_path).eval(), images), grid_features(inner, images))


def test_half_precision_file_is_loaded_in_float32(tmp_path: Path) -> None:
    ResNetModel(resnet()).half().save_pretrained(tmp_path)
    assert {values.dtype for values in load_backbone(tmp_path).parameters()} == {torch.float32}


def test_vision_model_of_clip_is_loaded(tmp_path: Path) -> None:
    text = {**LAYERS, "vocab_size": 20, "max_position_embeddings": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={**LAYERS, **PATCHES}, projection_dim=8)).eval()
    model.save_pretrained(tmp_path)
    backbone = load_backbone(tmp_path).eval()
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        expected = model.vision_model(images).last_hidden_state
        assert torch.equal(grid_features(backbone, images), expected[:, 1:].transpose(1, 2).unflatten(2, (4, 4)))


def test_gradients_of_strided_convolutions_of_few_channels_are_those_in_double_precision() -> None:
    """With the channels-last memory format, oneDNN writes past its memory here."""
    torch.manual_seed(0)
    backbone = new_backbone(ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic"))
    images = torch.rand(3, 3, 32, 32)
    gradients = []
    for precision in (torch.float64, torch.float32):
        backbone.to(precision).zero_grad()
        grid_features(backbone, images.to(precision)).square().sum().backward()
        gradients.append(
            [parameter.grad.double().clone() for parameter in backbone.parameters() if parameter.grad is not None]
        )
    assert len(gradients[0]) == len(gradients[1]) > 5
    for exact, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))
