"""Pixels by hand; the feature cache: equal outputs, reuse, broken runs, several processes, and fingerprints."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from transformers import ResNetForImageClassification, ResNetModel

from dair_hf.errors import DataError
from dair_hf.io.archives import sha256_of
from dair_hf.vqa.inputs import features
from dair_hf.vqa.inputs.features import FeatureCache, Pixels, _model_fingerprint
from dair_hf.vqa.inputs.processors import VQACollator
from dair_hf.vqa.readers.images import load_image
from tests.fixtures.ranks import on_ranks
from tests.fixtures.tiny_saaa import backed, resnet, saaa, vit

LOADED: list[str] = []


def counted_image(path: str) -> NDArray[np.uint8]:
    """Load an image and record its path."""
    LOADED.append(path)
    return load_image(path)


def cache_in(folder: Path, **settings: Any) -> FeatureCache:
    """Return a cache of the tiny ResNet in shards of four images, in float32 by default."""
    torch.manual_seed(0)
    sizes = {"size": 32, **{name: settings.pop(name) for name in ("size", "mean", "std") if name in settings}}
    return FeatureCache(folder, ResNetModel(resnet()), Pixels(counted_image, **sizes), shard_images=4, **settings)


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Write ten different images of noise."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(10):
        noise = np.random.default_rng(number).integers(0, 256, (40, 30, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the images that are loaded for computation."""
    monkeypatch.setattr(sys.modules[__name__], "LOADED", [])
    return LOADED


def shards(cache: FeatureCache) -> list[Path]:
    return sorted(cache.folder.glob("*.safetensors"))


def metadata_of(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header["__metadata__"]


def modified_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


@pytest.mark.parametrize("backbone", [resnet(), vit()], ids=["resnet", "vit"])
def test_cached_features_give_the_same_logits(backbone: object, images: list[str], tmp_path: Path) -> None:
    model, pixels = backed(backbone).eval(), Pixels(size=32)
    cache = FeatureCache(tmp_path / "cache", model.backbone, pixels, shard_images=3)
    assert cache.fill(images, batch_size=4) == 10
    rows = [{"input_ids": [3, 4][: 1 + i % 2], "image": path} for i, path in enumerate(images)]
    expected = model(**VQACollator(pixels, num_answers=7)(rows)).logits
    batch = VQACollator(cache, num_answers=7)(rows)
    assert list(batch) == ["input_ids", "attention_mask", "image_features"]
    assert batch["image_features"].dtype == torch.float32
    assert (model(**batch).logits - expected).abs().max() < 1e-5
    # A model without backbone, as trained on features, gives the same logits.
    small = saaa(image_feature_size=model.config.image_feature_size).eval()
    small.load_state_dict({k: v for k, v in model.state_dict().items() if "backbone" not in k})
    assert (small(**batch).logits - expected).abs().max() < 1e-5
    wrong = VQACollator(cache, num_answers=7)([{**row, "image": images[0]} for row in rows])
    assert (model(**wrong).logits - expected).abs().max() > 1e-4


def test_only_what_is_missing_is_computed(images: list[str], loaded: list[str], tmp_path: Path) -> None:
    first = cache_in(tmp_path / "cache")
    assert first.fill(images[:6], batch_size=4) == 6
    assert loaded == images[:6]
    assert [len(json.loads(metadata_of(path)["keys"])) for path in sorted(shards(first), key=modified_ns)] == [4, 2]
    before = {path: path.read_bytes() for path in shards(first)}
    again = cache_in(tmp_path / "cache")  # of another run, with the same weights
    assert again.fill([*images, *images]) == 4
    assert loaded == images
    assert again.fill(images) == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    assert torch.equal(again(images[:6]), first(images[:6]))


def test_images_are_identified_by_their_content(images: list[str], loaded: list[str], tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    cache.fill(images)
    expected = cache(images)
    moved = str(tmp_path / "moved.png")
    shutil.copy(images[3], moved)
    assert cache_in(tmp_path / "cache").fill([moved, images[3]]) == 0
    assert torch.equal(cache_in(tmp_path / "cache")([moved])[0], expected[3])  # also without fill
    assert len(loaded) == 10
    shutil.copy(images[4], images[3])  # another image under the old name
    changed = cache_in(tmp_path / "cache")
    assert changed.fill(images) == 0
    assert torch.equal(changed(images)[3], expected[4])
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(images[3])
    assert changed.fill(images) == 1
    assert not torch.equal(changed(images)[3], expected[4])


def test_a_broken_run_loses_at_most_one_shard(
    images: list[str], loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = features.save_file

    def dying_write(tensors: Any, path: Path, metadata: Any) -> None:
        write(tensors, path, metadata)
        if shards(cache):  # the second shard
            os.truncate(path, path.stat().st_size // 2)
            raise KeyboardInterrupt

    cache = cache_in(tmp_path / "cache")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(features, "save_file", dying_write)
        cache.fill(images, batch_size=2)
    loaded.clear()
    cache = cache_in(tmp_path / "cache")
    assert len(shards(cache)) == 1
    assert cache.fill(images, batch_size=2) == 6
    assert loaded == images[4:]
    whole = cache_in(tmp_path / "whole")
    whole.fill(images, batch_size=2)
    assert torch.equal(cache(images), whole(images))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_precision_takes_half_the_space(
    dtype: torch.dtype, error: float, images: list[str], tmp_path: Path
) -> None:
    full, half = cache_in(tmp_path / "cache"), cache_in(tmp_path / "cache", dtype=dtype)
    full.fill(images)
    half.fill(images)
    expected, found = full(images), half(images)
    assert found.dtype == torch.float32
    assert ((found - expected).abs() <= expected.abs() * error + 1e-7).all()
    values = expected.numel()
    for cache, each in ((full, 4), (half, 2)):
        room = sum(path.stat().st_size for path in shards(cache))
        assert values * each < room < values * each + 2000 * len(shards(cache))


def test_features_out_of_range_of_the_dtype_are_refused(images: list[str], tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache", dtype=torch.float16, std=(1e-9, 1e-9, 1e-9))
    with pytest.raises(DataError, match=r"0\.png: .*torch\.float16"):
        cache.fill(images)
    assert shards(cache) == []


def test_backbone_runs_in_evaluation_mode_and_is_unchanged(images: list[str], tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    cache.backbone.train()
    before = {name: values.clone() for name, values in cache.backbone.state_dict().items()}
    cache.fill(images[:5])
    assert cache.backbone.training
    assert all(torch.equal(values, before[name]) for name, values in cache.backbone.state_dict().items())
    expected = cache.backbone.eval()(cache.pixels(images[:5])).last_hidden_state
    assert (cache(images[:5]) - expected).abs().max() < 1e-5


def test_changed_backbone_is_refused(images: list[str], tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    with torch.no_grad():
        next(cache.backbone.parameters()).mul_(2)
    with pytest.raises(DataError, match="weights"):
        cache.fill(images)


def test_worker_process_reads(images: list[str], tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    cache.fill(images)
    expected = cache(images)
    content = pickle.dumps(cache)
    assert len(content) < 10_000  # contains neither the backbone nor features
    copy = pickle.loads(content)
    assert torch.equal(copy(images), expected)
    loader = torch.utils.data.DataLoader(images, batch_size=4, collate_fn=cache, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), expected)


def test_processes_share_the_images(images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = cache_in(tmp_path / "alone")
    alone.fill(images)
    caches = [cache_in(tmp_path / "cache") for _ in range(2)]
    LOADED.clear()
    assert on_ranks(monkeypatch, 2, lambda rank: caches[rank].fill(images, batch_size=2)) == [10, 10]
    assert sorted(LOADED) == sorted(images)
    keys = [json.loads(safe_open(shard, framework="pt").metadata()["keys"]) for shard in shards(caches[0])]
    assert len(keys) > 2  # of both processes, each in shards of four
    assert sorted(key for part in keys for key in part) == sorted(sha256_of(image) for image in images)
    assert all(torch.allclose(cache(images), alone(images), atol=1e-6) for cache in caches)
    # An unreadable image on one process stops both, with its name.
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    errors = on_ranks(monkeypatch, 2, lambda rank: caches[rank].fill([*images, str(broken)]))
    assert [type(error) for error in errors] == [DataError] * 2
    assert all("broken.png: " in str(error) for error in errors)


def test_a_batch_may_be_changed(images: list[str], tmp_path: Path) -> None:
    """The memory-mapped files must stay unchanged."""
    cache = cache_in(tmp_path / "cache")
    cache.fill(images)
    expected = cache(images).clone()
    cache(images).zero_()
    assert torch.equal(cache(images), expected)
    assert torch.equal(cache_in(tmp_path / "cache")(images), expected)


def test_damaged_shard_is_named(images: list[str], tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    cache.fill(images, batch_size=2)
    broken = shards(cache)[0]
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(DataError, match=broken.name):
        cache_in(tmp_path / "cache")
    broken.unlink()
    assert cache_in(tmp_path / "cache").fill(images) in (2, 4)


def model(seed: int = 0, **settings: Any) -> ResNetModel:
    torch.manual_seed(seed)
    config = resnet()
    for name, value in settings.items():
        setattr(config, name, value)
    return ResNetModel(config)


def test_fingerprint_depends_only_on_the_computation(tmp_path: Path) -> None:
    first = _model_fingerprint(model(), size=64)
    assert len(first) == 64
    assert _model_fingerprint(model().eval(), size=64) == first
    # The source of the weights and the labels of an absent head do not matter.
    labeled = ResNetForImageClassification(resnet())
    labeled.resnet.load_state_dict(model().state_dict())
    labeled.config.id2label = {0: "cat", 1: "dog", 2: "cow"}
    labeled.save_pretrained(tmp_path)
    assert _model_fingerprint(ResNetModel.from_pretrained(tmp_path), size=64) == first


def test_fingerprint_changes_with_weights_settings_and_configuration() -> None:
    first = _model_fingerprint(model(), size=64)
    shifted, counted = model(), model()
    with torch.no_grad():
        next(shifted.parameters()).view(-1)[0] += 1e-6
        next(values for name, values in counted.named_buffers() if "running_var" in name).add_(1)
    others = [
        _model_fingerprint(model(), size=32),
        _model_fingerprint(model(seed=1), size=64),
        _model_fingerprint(model().half(), size=64),
        _model_fingerprint(model(hidden_act="gelu"), size=64),
        _model_fingerprint(shifted, size=64),
        _model_fingerprint(counted, size=64),
    ]
    assert len({first, *others}) == 1 + len(others)


def noise(height: int, width: int) -> Callable[[int], NDArray[np.uint8]]:
    """Return a loader of images by number."""
    return lambda number: np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_hand(image: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float64]:
    return ((image.astype(np.float64) / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1)


def test_values_and_order_of_the_axes() -> None:
    loader, mean, std = noise(4, 5), (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    pixels = Pixels(loader, size=(4, 5), mean=mean, std=std)([3, 8])
    assert pixels.shape == (2, 3, 4, 5)
    assert pixels.dtype == torch.float32
    assert pixels.is_contiguous()
    for row, number in enumerate((3, 8)):
        assert np.abs(pixels[row].double().numpy() - by_hand(loader(number), mean, std)).max() < 1e-5


def test_resized_like_pillow() -> None:
    loader = noise(9, 6)
    pixels = Pixels(loader, size=(4, 3), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))([1])
    resized = np.asarray(Image.fromarray(loader(1)).resize((3, 4), Image.Resampling.BILINEAR))
    assert torch.equal((pixels[0] * 255).round().byte(), torch.from_numpy(resized.transpose(2, 0, 1).copy()))
    assert Pixels(loader, size=4)([1]).shape == (1, 3, 4, 4)


def test_settings_contain_everything_that_affects_the_result() -> None:
    settings = Pixels(size=(4, 5), mean=(0.1, 0.2, 0.3)).settings()
    assert settings == {
        "load_image": "dair_hf.vqa.readers.images.load_image",
        "size": [4, 5],
        "resize": "bilinear",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.229, 0.224, 0.225],
    }
