"""Settings, files, rows and models that would train nonsense or fail late: class of the error and what it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ResNetConfig, ResNetModel

from dair_hf.errors import DataError
from dair_hf.modeling import ModelConfig
from dair_hf.vqa.answers import AnswerJudge, AnswerVocabulary
from dair_hf.vqa.data import VQAConfig
from dair_hf.vqa.inputs.processors import GeneratorCollator
from dair_hf.vqa.models.backbone import load_backbone
from dair_hf.vqa.models.pretrained import one_row_per_image
from dair_hf.vqa.pairs import edit_pairs, expand_edits
from dair_hf.vqa.readers.reading import read_edits, read_vqa
from dair_hf.vqa.readers.records import read_records
from dair_hf.vqa.scenes.files import SceneConfig, write_scenes
from dair_hf.vqa.task import NetworkConfig
from tests.fixtures import vision_language as vl
from tests.fixtures.tiny_saaa import batch, image_batch, resnet, saaa
from tests.fixtures.vqa_files import annotations_json, questions_json, write_cv, write_images, write_jsons, write_vqa

FOLDERS = {"questions": "q", "images": ["i"], "edits": "e", "edited_images": ["x"]}


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (VQAConfig, {"source": "files"}),
        (VQAConfig, {"source": "files", **FOLDERS, "edits": None}),
        (VQAConfig, {"source": "files", **FOLDERS, "scene_folder": "scenes"}),
        (VQAConfig, {"questions": "q", "images": ["i"]}),  # trains on scenes
        (NetworkConfig, {"saaa": {"hidden": 8}}),
        (NetworkConfig, {"saaa": {"num_labels": 8}}),
        (NetworkConfig, {"saaa": {"hidden_size": "8"}}),
        (NetworkConfig, {"saaa": {"dropout": 1}}),
        (SceneConfig, {"train_scenes": 1_000_001}),
    ],
    ids=str,
)
def test_settings(settings: Callable[..., Any], wrong: dict[str, Any]) -> None:
    first, value = next(iter(wrong.items()))
    named = next(iter(value)) if first == "saaa" else first
    with pytest.raises(DataError, match=named):
        settings(**wrong)


@pytest.mark.parametrize(
    ("network", "model"),
    [
        ({}, {"model_name_or_path": "x"}),
        ({}, {"use_peft": True}),
        ({"network": "classifier"}, {}),
        ({"network": "generator"}, {"model_settings": {"model_type": "t5"}}),
    ],
)
def test_models_that_do_not_fit_their_network(network: dict[str, Any], model: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="network="):
        NetworkConfig(**network).check_model(ModelConfig(**model))


@pytest.mark.parametrize("content", ['{"questions": [', "[]", "7", json.dumps(annotations_json()), '{"questions": {}}'])
def test_files_of_another_kind(tmp_path: Path, content: str) -> None:
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(DataError, match=r"q\.json: "):
        read_records(tmp_path / "q.json", "questions")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("questions", {"question": 4}),
        ("questions", {"question": "\ud83d?"}),  # half of a surrogate pair
        ("questions", {"question_id": ...}),
        ("questions", "text"),
        ("annotations", {"answers": None}),
        ("annotations", {"answers": ["4"] * 9 + [4]}),
        ("annotations", {"answers": [{"answer_id": 1}] * 10}),
        ("annotations", {"question_type": 3}),
        ("annotations", {"answer_type": ...}),
    ],
)
def test_malformed_records(tmp_path: Path, kind: str, change: Any) -> None:
    files = {"questions": questions_json(), "annotations": annotations_json()}
    records = files[kind][kind]
    place = next(row for row, record in enumerate(records) if record["question_id"] == 9000)
    records[place] = change if isinstance(change, str) else {**records[place], **change}
    if isinstance(change, dict):
        records[place] = {name: value for name, value in records[place].items() if value is not ...}
    folder = write_jsons(tmp_path / "vqa", files["questions"], files["annotations"])
    with pytest.raises(DataError, match="v2_"):
        read_vqa(folder, folder, write_images(tmp_path / "images"))


def test_data_of_which_nothing_can_be_used(tmp_path: Path) -> None:
    vqa, images, cv = write_vqa(tmp_path / "vqa"), write_images(tmp_path / "images"), write_cv(tmp_path / "cv")
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"questions\.json: .*\n  missing_image: 24 "):
        read_vqa(vqa, vqa, tmp_path / "other")
    rows = read_vqa(vqa, vqa, images)[0].select([1])
    with pytest.raises(DataError, match="orphan_edit: 9 "):
        read_edits(rows, cv, cv, images)
    for make in (lambda *data: edit_pairs(*data, seed=0), expand_edits):
        with pytest.raises(DataError, match="edits"):
            make(rows, rows.select_columns(["question_id", "image_id"]).map(lambda row: {"question_id": 7}))


def test_scenes_without_edits_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"split \w+: .*\(cv\)"):
        write_scenes(SceneConfig(train_scenes=1, test_scenes=1), tmp_path / "scenes")
    assert list(tmp_path.iterdir()) == []


def test_predictions_that_are_not_classes() -> None:
    for prediction in (3, -1):
        with pytest.raises(DataError, match=str(prediction)):
            AnswerJudge(AnswerVocabulary.from_answers([["a", "b", "c"]])).answers([0, prediction])


def test_inputs_of_saaa() -> None:
    for mask in ([[0, 1, 1]], [[1, 0, 1]]):
        with pytest.raises(DataError, match="attention_mask"):
            saaa().encode_questions(torch.tensor([[1, 2, 3]]), torch.tensor(mask))
    for wrong in ({"pixel_values": image_batch()["pixel_values"]}, {"image_features": None}):
        with pytest.raises(DataError, match="pixel_values or image_features"):
            saaa()(**{**batch(), **wrong})


def test_tiles_with_different_numbers_of_tokens() -> None:
    with pytest.raises(DataError, match=r"\[3, 3\]"):
        one_row_per_image({"input_ids": torch.full((2, 3), 7), "pixel_values": torch.rand(5, 3, 32, 32)}, 7)


def test_a_backbone_with_weights_of_another_model(tmp_path: Path) -> None:
    ResNetModel(resnet()).save_pretrained(tmp_path)
    other = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    other.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="weights of ResNetModel"):
        load_backbone(tmp_path)


def test_templates_and_prompts(tmp_path: Path) -> None:
    _, processor = vl.made(vl.llava)
    for wrong in ({"prompt": "what is it?"}, {"target": "two"}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            GeneratorCollator(processor, **wrong)
    processor.chat_template += "</s>"
    view = {"image": vl.write_images(tmp_path, 1)[0], "question": "how many ?", "answers": ["two"]}
    with pytest.raises(DataError, match="end token"):
        GeneratorCollator(processor)([view])
