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
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig, fingerprint, runs_of
from dair_hf.experiments.search import GRIDS
from dair_hf.modeling import ModelConfig
from dair_hf.vqa.data import VQAConfig
from dair_hf.vqa.inputs.features import Pixels
from dair_hf.vqa.models.backbone import grid_features, new_backbone
from dair_hf.vqa.models.saaa import SAAA
from dair_hf.vqa.scenes.backbone import CellClassifier
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.task import NetworkConfig
from recipes import vqa_saaa
from tests.fixtures import vision_language as vl
from tests.fixtures.recipe_runs import (
    CONFIGS,
    command_line,
    methods_of,
    predictions,
    read,
    run_here,
)
from tests.fixtures.tiny_saaa import resnet
from tests.fixtures.vqa_files import ASKED, CV_EDITS, write_cv, write_edited_images, write_images, write_vqa

RECIPE = "vqa_saaa"
SHIPPED = [path for path in sorted(CONFIGS.glob("*.yaml")) if f"recipes/{RECIPE}.py " in path.read_text()]
SETTINGS = (VQAConfig, SceneConfig, NetworkConfig, ModelConfig, ComparisonConfig, DAIRConfig)
METRICS = {
    "vqa_accuracy", "familiar_vqa_accuracy", "cm", "cm_numerator", "cm_denominator", "both_correct", "flipped",
    "pos_to_neg", "neg_to_pos", "neg_to_neg_flipped", "original_vqa_accuracy", "augmented_vqa_accuracy",
}  # fmt: skip
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

METHODS = ["erm", "kl", "dair"]
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
    run(**scenes(outputs, "cv", methods=METHODS, **LONGER))
    return outputs / "cv"


def test_every_method_is_trained_and_listed(compared: Path) -> None:
    assert methods_of(compared) == METHODS
    text = (compared / "comparison.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [title.strip() for title in lines[0].split("|")[1:-1]] == [
        "method", "runs", "accuracy", "accuracy, as in training", "CM", "both right", "flipped", "pos->neg", "neg->pos",
        "neg->neg",
    ]  # fmt: skip
    assert len(lines) == 2 + len(METHODS)
    assert text.startswith("# Answers under edited images, counting scenes (CV), test\n")
    assert "lambda 1 (per pair: objective = sum of f / rows)." in text
    for method in METHODS:
        record = read(compared / f"{method}_seed0.json")
        assert METRICS <= set(record["metrics"])
        assert record["config"]["scenes"]["edit"] == "cv"
        assert record["config"]["training"]["method"] == {"kl": "dair"}.get(method, method)
        assert record["config"]["network"]["saaa"] == json.loads(SIZES)
        assert set(record["data"]) == {"train", "train_edits", "test", "test_edits"}
    # No incomplete files are left.
    assert not list(compared.parent.rglob(".*"))


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


def test_lambda_is_chosen_on_validation_scenes(compared: Path, outputs: Path) -> None:
    run(**scenes(outputs, "validation", methods="erm", evaluate_on="validation"))
    record = read(outputs / "validation" / "erm_seed0.json")
    assert list(read(outputs / "validation" / "data.json"))[-3:-1] == ["validation", "validation, edits"]
    assert record["data"]["train"] == read(compared / "erm_seed0.json")["data"]["train"]
    assert record["data"]["test"] != read(compared / "erm_seed0.json")["data"]["test"]
    lines = predictions(outputs / "validation/runs/erm_seed0")
    # No scene is of the test split.
    tested = predictions(compared / "runs/erm_seed0")
    assert not {line["row_id"] for line in lines} & {line["row_id"] for line in tested}


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder with a vision model."""
    folder = tmp_path_factory.mktemp("vision_model")
    torch.manual_seed(0)
    new_backbone(resnet()).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a tiny run on small versions of VQA v2 and CV-VQA."""
    folder = tmp_path_factory.mktemp("files")
    for split in ("train", "val"):
        write_vqa(folder / "vqa", split)
        write_cv(folder / "cv", split)
    return {
        "source": "files",
        "questions": folder / "vqa",
        "images": write_images(folder / "images"),
        "edits": folder / "cv",
        "edited_images": write_edited_images(folder / "edited", CV_EDITS),
        "features_folder": folder / "features",
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


def test_questions_in_the_public_formats(files: dict[str, Any], vision_model: str, tmp_path: Path, capsys: Any) -> None:
    settings = {
        "backbone": vision_model,
        "image_size": 32,
        "saaa": SIZES,
        "methods": ["erm", "dair"],
        "output_dir": tmp_path / "out",
    }
    run(**files, **settings, answers=10, dataloader_num_workers=1)
    record = read(tmp_path / "out" / "dair_seed0.json")
    pairs = sum(map(len, CV_EDITS.values()))
    assert (record["metrics"]["rows"], record["metrics"]["pairs"]) == (pairs, pairs)
    assert not [key for key in record["metrics"] if key.startswith("familiar")]
    reports = read(tmp_path / "out" / "data.json")
    assert reports["val"]["counts"]["rows"] == len(ASKED)
    assert reports["without an answer in the vocabulary"]["train_edits"] == 2
    settings = read(tmp_path / "out/runs/dair_seed0/config.json")
    assert (len(settings["id2label"]), settings["image_feature_size"]) == (10, 16)
    assert "edits with other answers" in capsys.readouterr().out
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert table.startswith("# Answers under edited images, VQA v2 val\n")
    assert "| method | runs | accuracy | CM |" in table


def test_a_generator_with_adapters(files: dict[str, Any], tmp_path: Path) -> None:
    model = vl.stored(vl.llava, tmp_path / "llava")
    settings = {"target": "{answer}", "network": "generator", "model_name_or_path": model, "use_peft": True}
    run(**files, **settings, lora_r=2, lora_alpha=5, methods=["dair"], output_dir=tmp_path / "out")
    assert METRICS - {"familiar_vqa_accuracy"} <= set(read(tmp_path / "out/dair_seed0.json")["metrics"])
    adapter = read(tmp_path / "out/runs/dair_seed0/adapter_config.json")
    assert (adapter["r"], adapter["lora_alpha"], adapter["base_model_name_or_path"]) == (2, 5, model)
    assert (tmp_path / "out/runs/dair_seed0/tokenizer.json").exists()
    # Predictions are answers, not logits or ids.
    assert all(isinstance(line["prediction"], str) for line in predictions(tmp_path / "out/runs/dair_seed0"))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"backbon": "x"}, "--backbon"),
    ({"source": "files"}, "questions"),
    ({"train_scenes": 0}, "train_scenes"),
    ({"network": "classifier"}, "model_name_or_path"),
]


@pytest.mark.parametrize(("overrides", "named"), BAD)
def test_bad_settings_are_one_line(overrides: dict[str, Any], named: str, tmp_path: Path) -> None:
    settings = {**scenes(tmp_path, "out"), "train_scenes": 16, "test_scenes": 16, "methods": "erm", **overrides}
    with pytest.raises(SystemExit) as ended:
        run(**settings)
    message = str(ended.value)
    assert message.startswith("error: ") and "\n" not in message and named in message
    assert not list(tmp_path.rglob("*_seed0.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    folders = {"questions": "q", "images": ["a", "b"], "edits": "e", "edited_images": "x"}
    text = path.read_text()
    source = folders if "source: files" in text else {}
    # bf16 needs a GPU, which the test machine may lack.
    parsed = parse_arguments(SETTINGS, ["--config", str(path), *command_line(**source, bf16=False)])
    data, drawn, network, model, comparison, args = parsed
    assert {run.method for run in runs_of(comparison, args)} >= {"erm", "da", "dair"}
    assert (args.dair_lambda, args.normalization) == (1, "pair")
    if data.source != "files":
        assert drawn.edit == path.stem[-2:]
        return
    assert all(f"--{name} " in text for name in folders)
    assert (data.answers, network.network) == (3000, "classifier" if model.model_name_or_path else "saaa")
    if network.network == "classifier":
        assert model.use_peft
        return
    assert args.ddp_timeout >= 24 * 3600  # the features take hours
    swept = text.split("--lambda_sweep ")[1].split("\n")[0].split()
    assert tuple(map(float, swept)) == pytest.approx(GRIDS["vqa"], rel=1e-2)
