"""Tasks of each kind of network: columns, features, models by seed, and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors import safe_open
from torch import nn

from dair_hf.modeling import ModelConfig
from dair_hf.training.sample_loss import derived_sample_loss
from dair_hf.vqa import task as vqa_task
from dair_hf.vqa.data import VQAConfig, VQAData, load_vqa
from dair_hf.vqa.inputs.features import FeatureCache, Pixels
from dair_hf.vqa.models.backbone import grid_features, new_backbone
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.task import NetworkConfig, VQATask, prepare_task
from tests.fixtures import tiny
from tests.fixtures.tiny_saaa import resnet

SIZES = {"embedding_size": 6, "question_size": 7, "attention_size": 8, "glimpses": 3, "hidden_size": 9, "dropout": 0.0}
NO_MODEL = ModelConfig()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> VQAData:
    config = SceneConfig(train_scenes=24, test_scenes=8)
    return load_vqa(VQAConfig(), config, tmp_path_factory.mktemp("data") / "scenes")


def backbone(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return new_backbone(resnet()).eval()


def network(folder: Path, **settings: Any) -> NetworkConfig:
    return NetworkConfig(**{"saaa": SIZES, "image_size": 32, "features_folder": str(folder), **settings})


def parts(data: VQAData) -> list[Dataset]:
    assert data.familiar is not None
    return [data.train, data.train_edits, data.test, data.test_edits, data.familiar]


def rows(task: VQATask, count: int = 5) -> list[dict[str, Any]]:
    return [{name: row[name] for name in task.collator.columns} for row in task.data.train.select(range(count))]


def equal(left: nn.Module, right: nn.Module) -> bool:
    return tiny.distance(tiny.weights(left), tiny.weights(right)) == 0


def test_rows_are_encoded_with_the_vocabulary_of_the_training_rows(
    scenes: VQAData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(vqa_task.logger, "warning", warnings.append)
    task = prepare_task(network(tmp_path), NO_MODEL, VQAConfig(answers=3), scenes, backbone())
    counted: dict[str, int] = {}
    for answers in scenes.train["answers"][:]:
        counted[answers[0]] = counted.get(answers[0], 0) + 1
    expected = sorted(counted, key=lambda answer: (-counted[answer], answer))[:3]
    assert task.judge.vocabulary is not None
    assert list(task.judge.vocabulary.spellings) == expected
    words = task.processing_class.get_vocab()
    known = {word for question in scenes.train["question"][:] for word in re.findall("[a-z]+", question.lower())}
    assert set(words) == known | {"<pad>", "<unk>"}
    for before, after in zip(parts(scenes), parts(task.data), strict=True):
        assert set(after.column_names) == {*before.column_names, "input_ids", "answer_ids", "answer_scores"}
        assert after["question_id"][:] == before["question_id"][:]
        for row in after:
            answer = row["answers"][0]
            assert row["answer_ids"] == ([expected.index(answer)] if answer in expected else [])
            spelled = [word if word in known else "<unk>" for word in re.findall("[a-z]+", row["question"].lower())]
            assert row["input_ids"] == [words[word] for word in spelled]
    unknown = {
        name: sum(answers[0] not in expected for answers in getattr(scenes, name)["answers"][:])
        for name in ("train", "train_edits", "test", "test_edits")
    }
    assert task.unknown_answers == unknown and unknown["train_edits"] > 0
    assert len(warnings) == 1 and all(f"{unknown[name]} of" in warnings[0] for name in ("train", "train_edits"))
    assert task.data.reports is scenes.reports
    assert (task.data.name, task.sample_loss) == (scenes.name, "soft_score")


def test_features_of_all_images_are_cached(scenes: VQAData, tmp_path: Path) -> None:
    eyes = backbone()
    task = prepare_task(network(tmp_path), NO_MODEL, VQAConfig(), scenes, eyes)
    assert isinstance(task.collator.images, FeatureCache)
    files = sorted(tmp_path.rglob("*.safetensors"))
    with safe_open(files[0], framework="pt") as shard:
        assert shard.get_tensor("features").dtype == torch.float32
    images = {Path(path).read_bytes() for part in parts(scenes) for path in part["image"][:]}
    assert sum(len(json.loads(safe_open(file, framework="pt").metadata()["keys"])) for file in files) == len(images)
    batch = task.collator(rows(task))
    with torch.no_grad():
        expected = grid_features(eyes, Pixels(size=32)(task.data.train["image"][:5]))
    assert (batch["image_features"] - expected).abs().max() < 1e-5
    # Another run reuses them.
    made = {file: file.stat().st_mtime_ns for file in files}
    prepare_task(network(tmp_path), NO_MODEL, VQAConfig(), scenes, backbone())
    assert {file: file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("*.safetensors"))} == made
    prepare_task(network(tmp_path), NO_MODEL, VQAConfig(), scenes, backbone(seed=1))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2 * len(files)


def test_models_depend_only_on_the_seed(scenes: VQAData, tmp_path: Path) -> None:
    task = prepare_task(network(tmp_path), NO_MODEL, VQAConfig(), scenes, backbone())
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(models))
        models.append(task.make_model(seed))
    assert equal(models[0], models[1])
    assert not equal(models[0], models[2])
    config = models[0].config
    assert {name: getattr(config, name) for name in SIZES} == SIZES
    assert (config.vocab_size, config.pad_token_id) == (len(task.processing_class), 0)
    assert task.judge.vocabulary is not None
    assert config.id2label == dict(enumerate(task.judge.vocabulary.spellings))
    assert (config.image_feature_size, models[0].backbone) == (16, None)
    batch = task.collator(rows(task))
    assert models[0](**batch).logits.shape == batch["labels"].shape == (5, len(task.judge.vocabulary))


@pytest.mark.parametrize("rank", [0, 2])
def test_classifier(scenes: VQAData, stored: Callable[..., ModelConfig], tmp_path: Path, rank: int) -> None:
    settings = network(tmp_path / "features", network="classifier")
    task = prepare_task(settings, stored("vilt", use_peft=bool(rank), lora_r=rank or 1), VQAConfig(answers=4), scenes)
    assert task.judge.vocabulary is not None and len(task.judge.vocabulary) == 4
    models = [task.make_model(seed).eval() for seed in (3, 3, 4)]
    assert equal(models[0], models[1])
    assert not equal(models[0], models[2])
    assert models[0].config.id2label == dict(enumerate(task.judge.vocabulary.spellings))
    assert ("lora_" in str(dict(models[0].named_parameters()).keys())) == bool(rank)
    batch = task.collator(rows(task))
    with torch.no_grad():
        assert models[0](**batch).logits.shape == batch["labels"].shape == (5, 4)
    assert task.sample_loss == "soft_score"
    assert task.processing_class.tokenizer is not None
    assert set(task.collator.columns) <= set(task.data.train_edits.column_names)
    assert not (tmp_path / "features").exists()


@pytest.mark.parametrize(("name", "sample_loss"), [("llava", "causal"), ("florence2", "seq2seq")])
def test_generator(
    scenes: VQAData, stored: Callable[..., ModelConfig], tmp_path: Path, name: str, sample_loss: str
) -> None:
    prompt = {"prompt": "how {question}", "target": "the {answer}"}
    settings = network(tmp_path, network="generator", **prompt)
    task = prepare_task(settings, stored(name, use_peft=True, lora_r=2), VQAConfig(), scenes)
    assert (task.sample_loss, task.judge.vocabulary) == (None, None)
    assert (task.collator.prompt, task.collator.target) == ("how {question}", "the {answer}")
    assert task.data is scenes
    models = [task.make_model(seed) for seed in (3, 3, 4)]
    assert derived_sample_loss(models[0]) == sample_loss
    assert equal(models[0], models[1])
    assert not equal(models[0], models[2])
    trained = [name for name, value in models[0].named_parameters() if value.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert torch.isfinite(models[0](**task.collator(rows(task))).loss)
