"""Each shipped configuration in a tiny setting: started, interrupted in its second run, continued, and tabulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pytest
import scipy.io
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DefaultFlowCallback,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from dair_hf.io.files import read_yaml
from dair_hf.text import chat_data
from dair_hf.vqa.models.backbone import new_backbone
from tests.dialog.readers import test_woz2
from tests.fixtures import chats, cifar, counterfactuals, digits, vision_language
from tests.fixtures.dialogs import write_multiwoz21, write_sgd
from tests.fixtures.recipe_runs import CONFIGS, command_line, equal_weights, methods_of, predictions, read, run
from tests.fixtures.tiny_saaa import resnet
from tests.fixtures.variant_images import write_variants
from tests.fixtures.vqa_files import (
    CV_EDITS,
    IV_EDITS,
    write_cv,
    write_edited_images,
    write_images,
    write_iv,
    write_vqa,
)

# The runs of compare_pairs.yaml are interrupted in test_compare_pairs.
SETTINGS = {path.stem: read_yaml(path) for path in sorted(CONFIGS.glob("*.yaml")) if path.stem != "compare_pairs"}
STEPS = {
    "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "seeds": 0, "per_device_train_batch_size": 8,
    "bf16": False, "dataloader_num_workers": 0, "logging_steps": 1,
}  # fmt: skip
NO_WARMUP = {"warmup_steps": 0}
DIGITS = {"train_rows": 32, "validation_rows": 20}
T5 = {"model_type": "t5", "d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 1}
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "max_position_embeddings": 1024}  # fmt: skip
TALKS = {"train_dialogs": 6, "test_dialogs": 2, **NO_WARMUP}

pytestmark = pytest.mark.slow


class InterruptedAt(DefaultFlowCallback):
    """Records the steps of a run and ends its process, as Ctrl-C does, after the given one."""

    run, at, steps = "", 0, list[int]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = super().on_step_end(args, state, control, **kwargs)
        if Path(args.output_dir).name.startswith(self.run):
            self.steps.append(state.global_step)
            if state.global_step == self.at:
                raise KeyboardInterrupt
        return control


def chat_model(folder: Path, make: Callable[[Any], PreTrainedModel] = chats.llama) -> Path:
    tokenizer = chats.tokenizer()
    make(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def gpt2(tokenizer: Any) -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=1024, n_embd=16, n_layer=1, n_head=2))


def bart(tokenizer: Any) -> PreTrainedModel:
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids |= {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.eos_token_id}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 1024}
    return BartForConditionalGeneration(
        BartConfig(vocab_size=len(tokenizer), **sizes, **layers, **ids, forced_eos_token_id=None)
    )


def chat_pairs(name: str, folder: Path) -> dict[str, Any]:
    if name == "arithmetic":
        return NO_WARMUP
    lengths = {"max_length": 200, "generation_max_length": 240}
    return {"model_name_or_path": chat_model(folder / "model"), **lengths, **NO_WARMUP}


def gsm8k(name: str, config: str) -> datasets.DatasetDict:
    """Two problems in place of those of the Hub."""
    row = {"question": "Ann has 23 pens and buys 14.", "answer": "23+14=<<23+14=37>>37 pens #### 37"}
    return datasets.DatasetDict({split: datasets.Dataset.from_list([row] * 2) for split in ("train", "test")})


def mnist(folder: Path) -> Path:
    for split, rows in (("train", 600), ("test", 100)):
        digits.write_parquet(folder / f"{split}.parquet", digits.noise_digits(rows, seed=rows))
    return folder


def rotated_mnist(name: str, folder: Path) -> dict[str, Any]:
    return {"mnist": mnist(folder), **DIGITS, "lr_drop_epochs": 1, "max_steps": None, "num_train_epochs": 1}


def rotated_6_9(name: str, folder: Path) -> dict[str, Any]:
    return {**rotated_mnist(name, folder), "lambda_sweep": 1}


def colored_mnist(name: str, folder: Path) -> dict[str, Any]:
    test = {"test_source": "test", "test_rows": 50}
    if name == "colored_mnist_irm":
        return {"mnist": mnist(folder), **DIGITS, **test, "penalty_anneal_steps": 1}
    return {**rotated_mnist(name, folder), **test}


def cifar10_adversarial(name: str, folder: Path) -> dict[str, Any]:
    steps = {"lambda_sweep": 1, "train_steps": 2, "test_steps": 2, **DIGITS, "test_rows": 20}
    if name == "mnist_adversarial":
        return {"mnist": mnist(folder), **steps}
    for split in ("train", "test"):
        cifar.write_parquet(folder / f"{split}.parquet", cifar.noise_images(64))
    return {"cifar10": folder, **steps, "hidden_sizes": [4, 8], "depths": [1, 1]}


def imagenet9(name: str, folder: Path) -> dict[str, Any]:
    sizes = {"hidden_sizes": [4, 8], "depths": [1, 1], "train_each": 4, "test_each": 2}
    if name == "backgrounds":
        return sizes
    write_variants(folder / "in9", "train", ("original", "mixed_rand"), each=4)
    write_variants(folder / "bg_challenge")
    folders = {"train_folder": folder / "in9", "test_folder": folder / "bg_challenge", "input_size": 16}
    return {**folders, **sizes, "lr_drop_epochs": 1, "max_steps": None, "num_train_epochs": 1,
            "per_device_train_batch_size": 9}  # fmt: skip


def counterfactual_text(name: str, folder: Path) -> dict[str, Any]:
    content = counterfactuals.files({"train": 16, "dev": 8, "test": 8})
    cad = counterfactuals.write_zip(folder / "cad.zip", content)
    return {"cad": cad, "eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 2}


def robust_regression(name: str, folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    rows = {f"X_{split}": generator.integers(0, 2, (40, 5)) for split in ("train", "test")}
    targets = {f"y_{split}": generator.normal(size=(40, 1)) for split in ("train", "test")}
    scipy.io.savemat(folder / "qsar.mat", {**rows, **targets})
    return {"data_file": folder / "qsar.mat"}


def multiwoz_simpletod(name: str, folder: Path) -> dict[str, Any]:
    if name == "demo":
        return {"model_settings": json.dumps(T5), "neighbour_attention": 0, "lambda_warmup_steps": 0, **TALKS}
    if name.startswith("woz2"):
        for number, file in enumerate(test_woz2.FILES.values()):
            test_woz2.write(folder, [test_woz2.talk(number)], file)
        pretrained = {"model_name_or_path": chat_model(folder / "model"), "max_source_tokens": 160}
        model = {"model_settings": json.dumps(T5), "neighbour_attention": 0} if name == "woz2" else pretrained
        return {"data_dir": folder, **model, "allow_low_ceiling": True, **NO_WARMUP}
    data = {"data_dir": write_multiwoz21(folder / "multiwoz21", dialogues=2), "sgd_dir": write_sgd(folder / "sgd")}
    data |= {"train_split": "val", "max_source_tokens": 400, "max_target_tokens": 100, **NO_WARMUP}
    if name == "multiwoz21_small":
        return {**data, "model_settings": json.dumps(T5), "neighbour_attention": 0, "pretrain": '{"max_steps": 1}'}
    if name == "multiwoz21_causal":
        return {**data, "model_settings": json.dumps(LLAMA), "pretrain": '{"max_steps": 1}'}
    make: Any = {"multiwoz22_bart": bart, "multiwoz22_gpt2_lora": gpt2}.get(name)
    make = make or (lambda tokenizer: chats.llama(tokenizer, max_position_embeddings=1024))
    return {**data, "model_name_or_path": chat_model(folder / "model", make)}


def vqa_saaa(name: str, folder: Path) -> dict[str, Any]:
    sizes = json.dumps({"embedding_size": 8, "question_size": 8, "attention_size": 8, "hidden_size": 8})
    small = {"image_size": 32, "saaa": sizes, "features_folder": folder / "features"}
    if name.startswith("counting_scenes"):
        return {"train_scenes": 40, "test_scenes": 16, "backbone_scenes": 50, **small}
    write_edits, edits = (write_iv, IV_EDITS) if name == "iv_vqa" else (write_cv, CV_EDITS)
    for split in ("train", "val"):
        write_vqa(folder / "vqa", split)
        write_edits(folder / "edits", split)
    data = {"questions": folder / "vqa", "images": write_images(folder / "images"), "edits": folder / "edits"}
    data |= {"edited_images": write_edited_images(folder / "edited", edits), "answers": 10}
    if name == "vilt_lora":
        return {
            **data,
            "model_name_or_path": vision_language.stored(vision_language.vilt, folder / "vilt"),
            **NO_WARMUP,
        }
    new_backbone(resnet()).save_pretrained(folder / "backbone")
    return {**data, "backbone": folder / "backbone", **small}


OPTIONS = {
    make.__name__: make
    for make in (
        *(chat_pairs, rotated_mnist, rotated_6_9, colored_mnist, cifar10_adversarial, imagenet9, counterfactual_text),
        *(robust_regression, multiwoz_simpletod, vqa_saaa),
    )
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_configuration_is_interrupted_and_continued(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat_data, "TRAIN_PROBLEMS", 40)
    monkeypatch.setattr(chat_data, "TEST_PROBLEMS", 8)
    monkeypatch.setattr(datasets, "load_dataset", gsm8k)
    recipe, methods = SETTINGS[name]["recipe"], SETTINGS[name]["methods"]
    first, last = methods[0], "dair" if "dair" in methods else methods[-1]
    both = list(dict.fromkeys([first, last]))
    (tmp_path / "data").mkdir()
    options = {**STEPS, **OPTIONS[recipe](name, tmp_path / "data")}

    def run_until(folder: Path, methods: list[str], step: int = 0) -> list[int]:
        callback = type("Interrupting", (InterruptedAt,), {"run": last, "at": step, "steps": []})
        with mock.patch("transformers.trainer.DEFAULT_CALLBACKS", [callback]):
            run(recipe, name, folder, *command_line(**options, methods=methods))
        return callback.steps

    with pytest.raises(SystemExit, match="130|interrupt"):
        run_until(tmp_path / "parted", both, step=3)
    assert {path.name.split("_")[0] for path in (tmp_path / "parted").glob("*_seed0.json")} == set(both) - {last}
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "parted").glob("*_seed0.json")}
    assert run_until(tmp_path / "parted", both) == [3, 4]
    assert "continues from" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert [method.split("_lambda")[0] for method in methods_of(tmp_path / "parted")] == both
    assert "| method |" in (tmp_path / "parted" / "comparison.md").read_text()
    if name == "rotated_6_9":
        assert {path.name for path in (tmp_path / "parted").glob("*.png")} > {"theta.png", "lambda.png"}
    assert run_until(tmp_path / "whole", [last]) == [1, 2, 3, 4]
    (parted,), (whole,) = ((tmp_path / part / "runs").glob(f"{last}*_seed0") for part in ("parted", "whole"))
    assert equal_weights(parted, whole, "adapter_model" if (whole / "adapter_config.json").exists() else "model")
    metrics = [read(path / f"{whole.name}.json")["metrics"] for path in (tmp_path / "parted", tmp_path / "whole")]
    assert str(metrics[0]) == str(metrics[1])  # of which some are NaN
    if (whole / "predictions.jsonl").exists():
        assert predictions(parted) == predictions(whole)
