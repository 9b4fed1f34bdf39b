"""Settings, files, rows and models that would train nonsense or fail late: class of the error and what it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipForQuestionAnswering,
    GPT2Config,
    ResNetConfig,
    ResNetModel,
)

from dair_hf.errors import DataError
from dair_hf.modeling import ModelConfig
from dair_hf.vqa.answers import AnswerJudge, AnswerVocabulary
from dair_hf.vqa.data import VQAConfig, load_vqa
from dair_hf.vqa.inputs.processors import GeneratorCollator
from dair_hf.vqa.models.backbone import grid_features, load_backbone
from dair_hf.vqa.models.pretrained import load_classifier, load_generator, load_processor, one_row_per_image
from dair_hf.vqa.models.saaa import SAAAConfig
from dair_hf.vqa.pairs import edit_pairs, expand_edits
from dair_hf.vqa.readers.reading import read_edits, read_vqa
from dair_hf.vqa.readers.records import read_records, vqa_files
from dair_hf.vqa.scenes.backbone import scene_network
from dair_hf.vqa.scenes.files import SceneConfig, write_scenes
from dair_hf.vqa.scenes.scene import load_sprites
from dair_hf.vqa.task import NetworkConfig, prepare_task
from tests.fixtures import tiny
from tests.fixtures import vision_language as vl
from tests.fixtures.counting_scenes import write_digits, write_objects
from tests.fixtures.digits import png
from tests.fixtures.tiny_saaa import batch, image_batch, resnet, saaa, vit
from tests.fixtures.vqa_files import (
    CV_EDITS,
    annotations_json,
    questions_json,
    write_cv,
    write_edited_images,
    write_images,
    write_jsons,
    write_vqa,
)

NAN = float("nan")
FOLDERS = {"questions": "q", "images": ["i"], "edits": "e", "edited_images": ["x"]}


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (VQAConfig, {"source": "coco"}),
        (VQAConfig, {"evaluate_on": "val"}),
        (VQAConfig, {"train_questions": 0}),
        (VQAConfig, {"test_questions": -1}),
        (VQAConfig, {"answers": 0}),
        (VQAConfig, {"word_count": 0}),
        (VQAConfig, {"source": "files"}),
        (VQAConfig, {"source": "files", **FOLDERS, "edits": None}),
        (VQAConfig, {"source": "files", **FOLDERS, "images": []}),
        (VQAConfig, {"source": "files", **FOLDERS, "scene_folder": "scenes"}),
        (VQAConfig, {"questions": "q", "images": ["i"]}),  # trains on scenes
        (NetworkConfig, {"network": "transformer"}),
        (NetworkConfig, {"features_dtype": "int8"}),
        (NetworkConfig, {"backbone_scenes": 0}),
        (NetworkConfig, {"image_size": 0}),
        (NetworkConfig, {"saaa": {"hidden": 8}}),
        (NetworkConfig, {"saaa": {"num_labels": 8}}),
        (NetworkConfig, {"saaa": {"hidden_size": "8"}}),
        (NetworkConfig, {"saaa": {"glimpses": 1.5}}),
        (NetworkConfig, {"saaa": {"dropout": None}}),
        (NetworkConfig, {"saaa": {"dropout": 1}}),
        (NetworkConfig, {"saaa": {"glimpses": 0}}),
        (SAAAConfig, {"dropout": 1.0}),
        (SAAAConfig, {"vocab_size": 0}),
        (SceneConfig, {"edit": "swap"}),
        (SceneConfig, {"sprites": "letters"}),
        (SceneConfig, {"sprites": "digits"}),  # without their folder
        (SceneConfig, {"train_scenes": 0}),
        (SceneConfig, {"train_scenes": 1_000_001}),
        (SceneConfig, {"test_scenes": -3}),
        (SceneConfig, {"edits_per_scene": 0}),
        (SceneConfig, {"scene_seed": -1}),
        (SceneConfig, {"scene_size": 66}),
        (SceneConfig, {"scene_size": 36}),  # objects of 7 pixels
        (SceneConfig, {"scene_grid": 1, "most": 1}),
        (SceneConfig, {"scene_grid": 0}),
        (SceneConfig, {"most": 0}),
        (SceneConfig, {"most": 9}),
        (SceneConfig, {"co_occurrence": 1.5}),
        (SceneConfig, {"language_prior": -0.5}),
        (SceneConfig, {"co_occurrence": NAN}),
    ],
    ids=str,
)
def test_settings(settings: Callable[..., Any], wrong: dict[str, Any]) -> None:
    first, value = next(iter(wrong.items()))
    named = next(iter(value)) if first == "saaa" else "sprite_folder" if value == "digits" else first
    with pytest.raises(DataError, match=named):
        settings(**wrong)


def test_settings_at_their_limits() -> None:
    assert VQAConfig(source="files", **FOLDERS).answers == 3000  # type: ignore[arg-type]
    assert SceneConfig(scene_grid=2, most=2).layout.object_size == 30
    assert NetworkConfig(saaa={"dropout": 0}).saaa == {"dropout": 0}


@pytest.mark.parametrize(
    ("network", "model"),
    [
        ({}, {"model_name_or_path": "x"}),
        ({}, {"lora_rank": 4}),
        ({"network": "classifier"}, {}),
        ({"network": "generator"}, {"model_settings": {"model_type": "t5"}}),
    ],
)
def test_models_that_do_not_fit_their_network(network: dict[str, Any], model: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="network="):
        NetworkConfig(**network).check_model(ModelConfig(**model))


def test_saaa_without_a_vision_model(tmp_path: Path) -> None:
    scenes = SceneConfig(train_scenes=12, test_scenes=8, scene_size=32, scene_grid=2, most=1)
    data = load_vqa(VQAConfig(), scenes, tmp_path / "scenes")
    with pytest.raises(DataError, match="backbone"):
        prepare_task(NetworkConfig(), ModelConfig(), VQAConfig(), data)


@pytest.mark.parametrize(("size", "grid"), [(96, 4), (60, 5)])
def test_cells_that_the_backbone_of_scenes_does_not_have(size: int, grid: int) -> None:
    with pytest.raises(DataError, match=f"scene_size={size}, scene_grid={grid}"):
        scene_network(SceneConfig(scene_size=size, scene_grid=grid))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ['{"questions": [', "[]", "7", json.dumps(annotations_json()), '{"questions": {}}'])
def test_files_of_another_kind(tmp_path: Path, content: str) -> None:
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(DataError, match=r"q\.json: "):
        read_records(tmp_path / "q.json", "questions")


def test_files_that_are_missing_or_ambiguous(tmp_path: Path) -> None:
    write_vqa(write_vqa(tmp_path / "two"), "val")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.json").write_text("{}")
    (tmp_path / "latin.json").write_bytes(b'{"questions": ["\xe9"]}')
    for source, split, named in (
        ("absent.json", None, "absent.json"),
        ("two", None, "train2014.*val2014"),
        ("two", "test", "v2_OpenEnded"),
        ("mine", None, "mine.json"),
        ("latin.json", None, "latin.json"),
    ):
        with pytest.raises(DataError, match=named):
            read_records(tmp_path / source, "questions", split)
    for split in ("validation", "test-dev", ""):
        with pytest.raises(DataError, match=f"'{split}'"):
            vqa_files(split)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("questions", {"question": None}),
        ("questions", {"question": 4}),
        ("questions", {"question": "\ud83d?"}),  # half of a surrogate pair
        ("questions", {"question_id": ...}),
        ("questions", {"image_id": ...}),
        ("questions", {"question_id": [9000]}),
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
    with pytest.raises(DataError, match="v2_.*malformed record") as refused:
        read_vqa(folder, folder, write_images(tmp_path / "images"))
    assert "\n" not in str(refused.value)


def test_ids_of_more_than_64_bits_and_of_another_type(tmp_path: Path) -> None:
    for wrong in (1 << 63, "9000", True):
        questions, annotations = questions_json(), annotations_json()
        for record in (questions["questions"][0], annotations["annotations"][-1]):
            record["question_id"] = wrong
        folder = write_jsons(tmp_path / "vqa", questions, annotations)
        with pytest.raises(DataError, match="malformed record"):
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


def test_subset_without_edits(tmp_path: Path) -> None:
    vqa, cv = write_vqa(tmp_path / "vqa"), write_cv(tmp_path / "cv")
    (file,) = cv.glob("*questions.json")
    late = [record for record in json.loads(file.read_text())["questions"] if record["question_id"] != 9000]
    file.write_text(json.dumps({"questions": late}))
    folders = {"images": [str(write_images(tmp_path / "images"))], "edits": str(cv)}
    folders |= {"edited_images": [str(write_edited_images(tmp_path / "edited", CV_EDITS))]}
    config = VQAConfig("files", str(vqa), **folders, train_questions=3, evaluate_on="validation")
    with pytest.raises(DataError, match="3 selected questions"):
        load_vqa(config, SceneConfig(), tmp_path)


GREY = {"bytes": png(np.zeros((28, 28), np.uint8)), "path": None}


@pytest.mark.parametrize(
    "columns",
    [
        {"pixels": [0], "label": [0]},
        {"image": [GREY], "digit": [0]},
        {"image": [b"123"], "label": [0]},
        {"image": [GREY, None], "label": [0, 1]},
        {"image": [GREY, {**GREY, "bytes": b"no"}], "label": [0, 1]},
        {"image": [{**GREY, "bytes": GREY["bytes"][:-30]}], "label": [0]},
        {"image": [GREY, {**GREY, "bytes": png(np.zeros((14, 28), np.uint8))}], "label": [0, 1]},
        None,
    ],
)
def test_unusable_sprites(tmp_path: Path, columns: dict[str, Any] | None) -> None:
    file = tmp_path / "train.parquet"
    if columns is None:
        file.write_bytes(b"PAR1")
    else:
        pq.write_table(pa.table(columns), file)
    with pytest.raises(DataError, match=r"train\.parquet"):
        load_sprites("digits", tmp_path, "train", 14)


def test_sprites_of_other_data(tmp_path: Path) -> None:
    write_digits(tmp_path / "mnist")
    write_objects(tmp_path / "cifar10")
    (tmp_path / "nines").mkdir()
    pq.write_table(pa.table({"image": [GREY], "label": [9]}), tmp_path / "nines" / "train.parquet")
    for kind, folder, named in (
        ("digits", "cifar10", "RGB"),
        ("objects", "mnist", "L"),
        ("digits", "nowhere", "nowhere"),
        ("digits", "nines", "zero, one, two"),
    ):
        with pytest.raises(DataError, match=named):
            load_sprites(kind, tmp_path / folder, "train", 14)


def test_scenes_without_edits_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"split \w+: .*\(cv\)"):
        write_scenes(SceneConfig(train_scenes=1, test_scenes=1), tmp_path / "scenes")
    assert list(tmp_path.iterdir()) == []


# --- answers ----------------------------------------------------------------------------------------------------------


def test_vocabulary_without_answers() -> None:
    with pytest.raises(DataError, match="vocabulary"):
        AnswerVocabulary.from_answers([[], ["the", "?"]])


@pytest.mark.parametrize(("prediction", "error"), [(3, DataError), (-1, DataError), ("2", TypeError), (1.0, TypeError)])
def test_predictions_that_are_not_classes(prediction: Any, error: type[Exception]) -> None:
    judge = AnswerJudge(AnswerVocabulary.from_answers([["a", "b", "c"]]))
    with pytest.raises(error, match=str(prediction) if error is DataError else "integer"):
        judge.answers([0, prediction])


# --- models -----------------------------------------------------------------------------------------------------------


def test_inputs_of_saaa() -> None:
    for mask in ([[0, 1, 1]], [[1, 0, 1]]):
        with pytest.raises(DataError, match="attention_mask"):
            saaa().encode_questions(torch.tensor([[1, 2, 3]]), torch.tensor(mask))
    for wrong in ({"pixel_values": image_batch()["pixel_values"]}, {"image_features": None}):
        with pytest.raises(DataError, match="pixel_values or image_features"):
            saaa()(**{**batch(), **wrong})


def test_tokens_that_fit_no_grid() -> None:
    class Pooled(torch.nn.Module):
        config = vit()

        def forward(self, pixels: torch.Tensor) -> object:
            return type("Output", (), {"last_hidden_state": torch.zeros(len(pixels), 11, 8)})

    with pytest.raises(DataError, match="11 tokens"):
        grid_features(Pooled(), torch.zeros(1, 3, 32, 32))


def test_tiles_with_different_numbers_of_tokens() -> None:
    with pytest.raises(DataError, match=r"\[3, 3\]"):
        one_row_per_image({"input_ids": torch.full((2, 3), 7), "pixel_values": torch.rand(5, 3, 32, 32)}, 7)


def test_backbones_that_cannot_be_loaded(tmp_path: Path) -> None:
    model = ResNetModel(resnet())
    model.config.save_pretrained(tmp_path / "pickled")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    model.save_pretrained(tmp_path / "other")
    ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic").save_pretrained(
        tmp_path / "other"
    )
    for name, message in (("absent", "absent"), ("pickled", "safetensors"), ("other", "weights of ResNetModel")):
        with pytest.raises(DataError, match=message):
            load_backbone(tmp_path / name)


def test_models_of_another_kind(tmp_path: Path) -> None:
    _, processor = vl.made(vl.llava)
    GPT2Config(n_embd=16, n_layer=1, n_head=2).save_pretrained(tmp_path / "gpt2")
    tiny.tokenizer().save_pretrained(tmp_path / "gpt2")
    text = {
        "vocab_size": 30, "hidden_size": 16, "encoder_hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 8, "bos_token_id": 2, "sep_token_id": 3,
    }  # fmt: skip
    settings = BlipConfig(text_config=text, vision_config=vl.VISION, projection_dim=16)
    BlipForQuestionAnswering(settings).save_pretrained(tmp_path / "vqa")
    BlipForConditionalGeneration(settings).save_pretrained(tmp_path / "caption")
    llava = vl.stored(vl.llava, tmp_path / "llava")
    for load, folder, message in (
        (load_processor, "no/where", "no/where"),
        (load_processor, tmp_path / "gpt2", "gpt2.*tokenizer"),
        (lambda config: load_generator(config, processor), tmp_path / "gpt2", "GPT2Config"),
        (lambda config: load_generator(config, processor), tmp_path / "caption", "BlipForConditionalGeneration"),
        (lambda config: load_classifier(config, ["a"]), tmp_path / "vqa", "BlipForQuestionAnswering"),
        (lambda config: load_classifier(config, ["a"]), llava, "LlavaConfig"),
    ):
        with pytest.raises(DataError, match=message) as refused:
            load(ModelConfig(str(folder)))
        assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match="nowhere"):
        load_generator(ModelConfig(llava, lora_rank=2, lora_targets="nowhere"), processor)


def test_templates_and_prompts(tmp_path: Path) -> None:
    _, processor = vl.made(vl.llava)
    for wrong in ({"prompt": "what is it?"}, {"target": "two"}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            GeneratorCollator(processor, **wrong)
    processor.chat_template += "</s>"
    view = {"image": vl.write_images(tmp_path, 1)[0], "question": "how many ?", "answers": ["two"]}
    with pytest.raises(DataError, match="end token"):
        GeneratorCollator(processor)([view])
