"""VQA recipe, run on a few scenes and a few questions in the public formats for a few steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.experiments.comparison import fingerprint
from dair_hf.vqa.inputs.features import Pixels
from dair_hf.vqa.models.backbone import grid_features
from dair_hf.vqa.models.saaa import SAAA
from dair_hf.vqa.scenes.backbone import CellClassifier
from recipes import vqa_saaa
from tests.fixtures import vision_language as vl
from tests.fixtures.recipe_runs import CONFIGS, command_line, predictions, read, run_here
from tests.fixtures.vqa_files import CV_EDITS, write_cv, write_edited_images, write_images, write_vqa

RECIPE = "vqa_saaa"
SIZES = json.dumps({"embedding_size": 8, "question_size": 8, "attention_size": 8, "hidden_size": 8, "dropout": 0.1})

pytestmark = pytest.mark.slow

# Settings that make any run on scenes tiny.
TINY: dict[str, Any] = {
    "train_scenes": 64,
    "test_scenes": 40,
    "image_size": 32,
    "saaa": SIZES,
    "backbone_scenes": 150,
    "seeds": 0,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 16,
    "disable_tqdm": True,
    "use_cpu": True,
}

# Enough training for some correct answers and some flips.
LONGER = {"num_train_epochs": 20, "learning_rate": 0.02}


def run(**overrides: Any) -> None:
    run_here(RECIPE, command_line(**overrides))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which runs share scenes, backbone and features."""
    return tmp_path_factory.mktemp("outputs")


def scenes(outputs: Path, name: str, **overrides: Any) -> dict[str, Any]:
    """Return the settings of a tiny run on scenes."""
    folders = {"output_dir": outputs / name, "features_folder": outputs / "features"}
    return {"config": CONFIGS / "counting_scenes_cv.yaml", **TINY, **folders, **overrides}


@pytest.fixture(scope="module")
def compared(outputs: Path) -> Path:
    """Folder of a comparison, run once for several tests."""
    run(**scenes(outputs, "cv", methods=["erm", "dair"], **LONGER))
    return outputs / "cv"


def test_figures_follow_from_the_predictions(compared: Path) -> None:
    """The others are counted in test_statistics; these need answers and scores of the task."""
    folder = compared / "runs" / "dair_seed0"
    answers = set(read(folder / "config.json")["id2label"].values())
    views: dict[str, dict[str, tuple[str, bool]]] = {"original": {}, "augmented": {}}
    for line in predictions(folder):
        said, right = line["prediction"], line["prediction"] in line["reference"]
        assert said in answers and line["correct"] == right
        views[line["variant"]][line["row_id"]] = (said, right)
    assert views["original"].keys() == views["augmented"].keys()
    # A row id consists of question and edit.
    assert all(name.split("/")[1].split("_")[0] == f"{int(name.split('/')[0]):012d}" for name in views["original"])
    pairs = [(views["original"][name], views["augmented"][name]) for name in views["original"]]
    shares = {
        "flipped": [one != other for (one, _), (other, _) in pairs],
        "neg_to_neg_flipped": [one != other and not before and not after for (one, before), (other, after) in pairs],
        "both_correct": [before and after for (_, before), (_, after) in pairs],
        "original_vqa_accuracy": [before for (_, before), _ in pairs],
        "augmented_vqa_accuracy": [after for _, (_, after) in pairs],
    }
    metrics = read(compared / "dair_seed0.json")["metrics"]
    assert {name: metrics[name] for name in shares} == pytest.approx(
        {name: sum(held) / len(pairs) for name, held in shares.items()}
    )
    assert 0 < sum(shares["original_vqa_accuracy"])


def test_accuracy_is_that_of_the_saved_model(compared: Path, outputs: Path) -> None:
    folder = compared / "runs" / "dair_seed0"
    model, tokenizer = SAAA.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    (stored_backbone,) = [path for path in outputs.glob("scene_backbone_*") if not path.name.endswith("_training")]
    backbone = CellClassifier.from_pretrained(stored_backbone).backbone.eval()
    record = read(compared / "dair_seed0.json")
    drawn, metrics = outputs / f"counting_scenes_{fingerprint(record['config']['scenes'])}", record["metrics"]
    for split, key in (("test", "vqa_accuracy"), ("familiar", "familiar_vqa_accuracy")):
        asked = read(drawn / split / "questions.json")["questions"]
        answered = {a["question_id"]: a for a in read(drawn / split / "annotations.json")["annotations"]}
        words = tokenizer([question["question"] for question in asked], padding=True, return_tensors="pt")
        images = [str(drawn / split / "images" / f"{question['image_id']:012d}.png") for question in asked]
        with torch.no_grad():
            features = grid_features(backbone, Pixels(size=32)(images))
            logits = model(words["input_ids"], words["attention_mask"], image_features=features).logits
        said = [model.config.id2label[number] for number in logits.argmax(1).tolist()]
        wanted = [answered[question["question_id"]]["multiple_choice_answer"] for question in asked]
        share = sum(one == other for one, other in zip(said, wanted, strict=True)) / len(asked)
        assert metrics[key] == pytest.approx(share)
        assert metrics[f"{key}_low"] <= share <= metrics[f"{key}_high"]


def backbone_training(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of the shared backbone, and the settings of its training without folders."""
    trained: list[tuple[str, dict[str, Any]]] = []

    def stop(path: Path, make_trainer: Callable[[], DAIRTrainer]) -> Path:
        settings = make_trainer().args.to_dict()
        trained.append((path.name, {name: value for name, value in settings.items() if "dir" not in name}))
        raise InterruptedError

    monkeypatch.setattr(vqa_saaa, "train_base_once", stop)
    with pytest.raises(InterruptedError):
        vqa_saaa.scene_backbone(60, DAIRConfig(str(folder / "run"), use_cpu=True, **settings))
    return trained[0]


def test_no_setting_of_a_run_changes_the_shared_backbone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, training = backbone_training(monkeypatch, tmp_path)
    odd = {"optim": "sgd", "adam_beta1": 0.1, "adam_epsilon": 0.3, "dair_lambda": 7.0, "bf16": True}
    assert backbone_training(monkeypatch, tmp_path, **odd) == (name, training)
    assert (training["learning_rate"], training["num_train_epochs"], training["seed"]) == (0.004, 3, 0)
    monkeypatch.setitem(vqa_saaa.BACKBONE, "learning_rate", 0.1)
    assert backbone_training(monkeypatch, tmp_path)[0] != name


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Settings of a tiny run on small versions of VQA v2 and CV-VQA."""
    for split in ("train", "val"):
        write_vqa(tmp_path / "vqa", split)
        write_cv(tmp_path / "cv", split)
    return {
        "source": "files",
        "questions": tmp_path / "vqa",
        "images": write_images(tmp_path / "images"),
        "edits": tmp_path / "cv",
        "edited_images": write_edited_images(tmp_path / "edited", CV_EDITS),
        "features_folder": tmp_path / "features",
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 2,
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "learning_rate": 0.01,
        "disable_tqdm": True,
        "use_cpu": True,
    }


def test_a_generator_with_adapters(files: dict[str, Any], tmp_path: Path) -> None:
    model = vl.stored(vl.llava, tmp_path / "llava")
    settings = {"target": "{answer}", "network": "generator", "model_name_or_path": model, "use_peft": True}
    run(**files, **settings, lora_r=2, lora_alpha=5, methods=["dair"], output_dir=tmp_path / "out")
    assert {"vqa_accuracy", "cm", "both_correct"} <= set(read(tmp_path / "out/dair_seed0.json")["metrics"])
    adapter = read(tmp_path / "out/runs/dair_seed0/adapter_config.json")
    assert (adapter["r"], adapter["lora_alpha"], adapter["base_model_name_or_path"]) == (2, 5, model)
    assert (tmp_path / "out/runs/dair_seed0/tokenizer.json").exists()
    # Predictions are answers, not logits or ids.
    assert all(isinstance(line["prediction"], str) for line in predictions(tmp_path / "out/runs/dair_seed0"))
