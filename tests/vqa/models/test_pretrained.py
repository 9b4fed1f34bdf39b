"""Pretrained models from a folder: heads, adapters, padded patches, and a training step of each kind on pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.utils import is_torchvision_available

from dair_hf import DAIRTrainer, PairEvaluator
from dair_hf.modeling import ModelConfig
from dair_hf.vqa.inputs.processors import ClassifierCollator, GeneratorCollator
from dair_hf.vqa.models.pretrained import (
    load_classifier,
    load_generator,
    load_processor,
    one_row_per_image,
    take_padded_patches,
)
from tests.fixtures import tiny
from tests.fixtures import vision_language as vl

ANSWERS = ["blue", "three", "one", "yes", "2"]  # "2" is "two" after normalization


def trained_parts(model: torch.nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def test_known_answers_keep_their_rows(stored: Callable[..., ModelConfig]) -> None:
    saved, _ = vl.made(vl.vilt)
    model = load_classifier(stored("vilt"), ANSWERS)
    assert model.config.num_labels == model.num_labels == 5
    assert model.config.id2label == dict(enumerate(ANSWERS))
    assert model.config.label2id == {answer: row for row, answer in enumerate(ANSWERS)}
    old, new = saved.classifier[-1], model.classifier[-1]
    assert new.weight.shape == (5, old.in_features)
    for row, known in ((0, 3), (2, 0), (4, 1)):
        assert torch.equal(new.weight[row], old.weight[known])
        assert torch.equal(new.bias[row], old.bias[known])
    for row in (1, 3):
        assert 0 < new.weight[row].abs().max() < 0.2  # standard deviation 0.02
        assert new.bias[row] == 0
    # The rest of the head and the model are the checkpoint's.
    kept = {name: value for name, value in saved.state_dict().items() if not name.startswith("classifier.3")}
    found = model.state_dict()
    assert len(kept) == len(found) - 2
    assert all(torch.equal(found[name], value) for name, value in kept.items())


def test_head_of_a_classifier_has_no_adapters(stored: Callable[..., ModelConfig]) -> None:
    model = load_classifier(stored("vilt", use_peft=True, lora_r=2, lora_alpha=6), ANSWERS)
    trained = trained_parts(model)
    assert {name for name in trained if "lora_" not in name} == {
        f"base_model.model.classifier.modules_to_save.default.{layer}.{part}"
        for layer in (0, 1, 3)
        for part in ("weight", "bias")
    }
    assert any("lora_" in name for name in trained)
    assert not any("lora_" in name and "classifier" in name for name in trained)
    assert ClassifierCollator.for_model(model, load_processor(stored("vilt"))).num_answers == 5


def test_generators_are_greedy_and_stop_at_the_end_token(stored: Callable[..., ModelConfig], tmp_path: Path) -> None:
    model, processor = vl.made(vl.llava)
    model.generation_config.update(do_sample=True, temperature=0.7, top_p=0.9, top_k=5, eos_token_id=[9])
    model.save_pretrained(tmp_path)
    found = load_generator(ModelConfig(model_name_or_path=str(tmp_path)), processor).generation_config
    assert (found.do_sample, found.temperature, found.top_p, found.top_k) == (False, None, None, None)
    assert found.eos_token_id == [9, vl.END]
    assert found.pad_token_id == vl.PAD
    found.save_pretrained(tmp_path)
    assert load_generator(stored("llava"), processor).generation_config.eos_token_id == [vl.END]


@pytest.mark.parametrize(("name", "task"), [("llava", "CAUSAL_LM"), ("florence2", "SEQ_2_SEQ_LM")])
def test_adapters_of_a_generator(stored: Callable[..., ModelConfig], name: str, task: str) -> None:
    where = stored(name, use_peft=True, lora_r=2, lora_alpha=6)
    processor = load_processor(where)
    model = load_generator(where, processor)
    assert all("lora_" in part for part in trained_parts(model))
    (found,) = model.peft_config.values()
    assert (found.r, found.lora_alpha, found.task_type) == (2, 6, task)
    plain = load_generator(stored(name), processor)
    assert trained_parts(plain) == [part for part, _ in plain.named_parameters()]
    inner = model.get_base_model()
    assert (GeneratorCollator.for_model(model, processor).causal, inner.config.model_type) == (name == "llava", name)
    named = load_generator(stored(name, use_peft=True, lora_r=2, lora_target_modules=["q_proj", "v_proj"]), processor)
    assert {part.split(".lora_")[0].rsplit(".", 1)[-1] for part in trained_parts(named)} == {"q_proj", "v_proj"}


@pytest.mark.skipif(is_torchvision_available(), reason="their parts for videos load")
@pytest.mark.parametrize("name", sorted(vl.PUBLISHED))
def test_published_folders_load_without_torchvision(
    stored: Callable[..., ModelConfig], name: str, tmp_path: Path
) -> None:
    files = vl.PUBLISHED[name]
    processor = load_processor(stored(name))
    settings = files["preprocessor_config.json"]
    assert type(processor).__name__ == settings["processor_class"]
    template = files["chat_template.jinja"] if name == "internvl" else files["chat_template.json"]["chat_template"]
    assert processor.chat_template == template
    assert list(processor.image_processor.image_mean) == settings["image_mean"]
    assert processor.image_processor.resample == settings.get("resample", 3)
    images, texts = [[image] for image in opened(tmp_path)], ["how many circles ?", "red ?"]
    prompts = processor.apply_chat_template(
        [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}] for text in texts]
    )
    inputs = {"images": images, "text": prompts, "padding": True, "return_tensors": "pt"}
    expected = processor(**inputs)
    # Saved and loaded again, with the published settings for videos.
    processor.save_pretrained(tmp_path / "stored")
    again = load_processor(ModelConfig(model_name_or_path=str(tmp_path / "stored")))
    assert all(torch.equal(again(**inputs)[key], values) for key, values in expected.items())
    assert again.video_processor.to_dict() == files.get("video_preprocessor_config.json", settings)


def opened(folder: Path) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in vl.write_images(folder, 2)]


def row_losses(model: Any, collator: Any, views: list[dict[str, Any]], shift: int) -> np.ndarray:
    """Compute the loss of every view separately, in numpy float64."""
    losses = []
    for view in views:
        batch = collator([view])
        labels = batch.pop("labels")
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        if hasattr(inner, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = inner.prepare_decoder_input_ids_from_labels(labels)
        labels = labels[0].numpy()
        with torch.no_grad():
            logits = model(**batch).logits[0].double().numpy()
        logs = logits - logits.max(-1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
        if labels.dtype == np.float32:
            losses.append(-(labels * logs).sum())
        else:
            losses.append(-sum(logs[place - shift, labels[place]] for place in np.flatnonzero(labels != -100)))
    return np.array(losses)


def objective(model: Any, collator: Any, data: Any, dair_lambda: float, shift: int) -> float:
    """Compute the mean of 1/2 l + 1/2 l~ + lambda (sqrt l - sqrt l~)^2 over the rows, l for rows without partner."""
    rows = list(data)
    names = collator.columns
    originals = row_losses(model, collator, [{name: row[name] for name in names} for row in rows], shift)
    total = 0.0
    for row, loss in zip(rows, originals, strict=True):
        if row["augmented_image"] is None:
            total += loss
            continue
        (other,) = row_losses(model, collator, [{name: row[f"augmented_{name}"] for name in names}], shift)
        total += (loss + other) / 2 + dair_lambda * (np.sqrt(loss) - np.sqrt(other)) ** 2
    return total / len(rows)


KINDS = [("vilt", 2), ("llava", 0), ("paligemma", 0), ("qwen2_vl", 2), ("florence2", 2)]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # of PaliGemma
@pytest.mark.parametrize(("name", "rank"), KINDS)
def test_steps_on_pairs_a_resumed_run_and_its_evaluation(
    name: str, rank: int, stored: Callable[..., ModelConfig], tmp_path: Path
) -> None:
    where = stored(name, use_peft=bool(rank), lora_r=rank or 1)
    processor, data = load_processor(where), vl.pairs(tmp_path)
    arguments = tiny.config(
        tmp_path, max_steps=2, per_device_train_batch_size=5, learning_rate=0.1, lr_scheduler_type="constant",
        remove_unused_columns=False, logging_strategy="steps", logging_steps=1, dair_lambda=0.5, save_strategy="steps",
        save_steps=1,
    )  # fmt: skip

    def made(seed: int) -> tuple[DAIRTrainer, Any]:
        if name == "vilt":
            model = load_classifier(where, ["one", "two", "red", "blue"], seed)
            collator: Any = ClassifierCollator.for_model(model, processor)
        else:
            model = load_generator(where, processor, seed)
            collator = GeneratorCollator.for_model(model, processor, prompt=vl.PROMPTS.get(name, "{question}"))
        sample_loss = "soft_score" if name == "vilt" else None
        settings: Any = {"processing_class": processor, "sample_loss": sample_loss}
        return DAIRTrainer(model, arguments, collator, data, **settings), collator

    whole, collator = made(0)
    model = whole.model
    before, shift = tiny.weights(model), int(getattr(collator, "causal", False))
    expected = objective(model.eval(), collator, data, 0.5, shift)
    whole.train()
    assert whole.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    trained = set(trained_parts(model))
    moved = {part for part, value in model.named_parameters() if not torch.equal(value, before[part])}
    assert moved
    assert moved <= trained
    trainer, _ = made(1)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    after = tiny.weights(model)
    model = trainer.model
    assert [part for part, value in tiny.weights(model).items() if not torch.equal(value, after[part])] == []
    file = tmp_path / "predictions.jsonl"
    found = trainer.evaluate_pairs(
        data,
        PairEvaluator(
            lambda predictions, references: [
                (prediction in answers) if isinstance(prediction, str) else prediction in (0, 2)
                for prediction, answers in zip(predictions, references, strict=True)
            ],
            references="answers",
        ),
        intervals=False,
        predictions_file=file,
        **({} if name == "vilt" else {"max_new_tokens": 3, "suppress_tokens": placeholders(processor)}),
    )
    assert (found["rows"], found["pairs"]) == (5, 4)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    check_predictions(model.eval(), processor, collator, data, lines)


def placeholders(processor: Any) -> list[int]:
    """Return the ids of image tokens and the like, which a random model might generate."""
    return list(range(vl.END + 1, processor.tokenizer.convert_tokens_to_ids(vl.WORDS[0])))


def check_predictions(model: Any, processor: Any, collator: Any, data: Any, lines: list[dict[str, Any]]) -> None:
    """Compare every recorded prediction with the output of the model for that view alone."""
    assert len(lines) == 9
    rows = {row["row_id"]: row for row in data}
    for line in lines:
        prefix = "augmented_" if line["variant"] == "augmented" else ""
        view = {name: rows[line["row_id"]][prefix + name] for name in collator.columns}
        assert line["reference"] == rows[line["row_id"]][prefix + "answers"]
        if isinstance(collator, ClassifierCollator):
            batch = collator([view])
            batch.pop("labels")
            with torch.no_grad():
                logits = model(**batch).logits[0]
            assert line["prediction"] == int(logits.argmax())
            continue
        assert line["prediction"] == greedy(model, processor, collator, view, 3)


def greedy(model: Any, processor: Any, collator: GeneratorCollator, view: dict[str, Any], length: int) -> str:
    """Decode one view greedily without padding."""
    if collator.causal:
        inputs = collator.prompts([view])
    else:
        inputs = {
            name: value for name, value in collator([view]).items() if name not in ("labels", "decoder_input_ids")
        }
    settings: Any = {"max_new_tokens": length, "do_sample": False, "suppress_tokens": placeholders(processor)}
    with torch.no_grad():
        written = model.generate(**inputs, **settings)[0]
    return processor.decode(written[inputs["input_ids"].shape[1] if collator.causal else 0 :], skip_special_tokens=True)


def test_rows_of_images_of_different_size() -> None:
    listed = torch.arange(14.0).reshape(7, 2)
    batch = {"pixel_values": listed, "image_grid_thw": torch.tensor([[1, 2, 2], [1, 1, 3]]), "input_ids": torch.ones(2)}
    found = one_row_per_image(batch)
    assert found["pixel_values"].tolist() == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11], [12, 13], [0, 0]],
    ]
    assert found["input_ids"] is batch["input_ids"]
    assert batch["pixel_values"] is listed


def test_pixels_passed_by_name() -> None:
    class Tower(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
            return pixel_values

    tower = Tower()
    take_padded_patches(tower)
    found = tower(pixel_values=torch.tensor([[[1.0], [2.0]], [[3.0], [0.0]]]), grid_thw=torch.tensor([[2], [1]]))
    assert found.tolist() == [[1.0], [2.0], [3.0]]
