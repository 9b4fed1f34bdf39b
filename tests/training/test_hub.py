"""Paired runs are pushed to the Hub and loaded again: `HfApi` copies to folders, from which models load as they do."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import HfApi
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import dair_hf
from dair_hf import PairEvaluator
from dair_hf.modeling import ModelConfig, load_model
from tests.fixtures import tiny

PROMPTS = [[4, 5, 6], [7, 8], [20, 4, 11, 5]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the pushed repositories, in which an id is a path."""
    repos = tmp_path / "hub"
    repos.mkdir()
    monkeypatch.chdir(repos)

    def create_repo(api: HfApi, name: str, **settings: Any) -> SimpleNamespace:
        (repos / name).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(repo_id=name)

    def upload_folder(api: HfApi, *, repo_id: str, folder_path: str, **settings: Any) -> Future[None]:
        ignored = shutil.ignore_patterns(*(settings.get("ignore_patterns") or ()))
        target = repos / repo_id / (settings.get("path_in_repo") or "")
        shutil.copytree(folder_path, target, ignore=ignored, dirs_exist_ok=True)
        (done := Future[None]()).set_result(None)
        return done

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return repos


def even_length(predictions: list[str], references: list[str]) -> list[bool]:
    """A measure that an untrained model sometimes meets: the length is even."""
    return [len(text) % 2 == 0 for text in predictions]


def predicted(model: Any) -> tuple[list[str], list[float]]:
    """Return the answers of a model: greedy texts and the logits of fixed inputs."""
    model.eval()
    texts, logits = [], list[float]()
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            written = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
            logits += model(input_ids=ids, labels=ids).logits.flatten().tolist()
        texts.append(tiny.tokenizer().decode(written[0]))
    return texts, logits


def with_adapters(hub: Path) -> Any:
    base = hub / "tester" / "base"
    tiny.model("gpt2", dtype=torch.float32).save_pretrained(base)
    tiny.tokenizer().save_pretrained(base)
    config = ModelConfig(model_name_or_path="tester/base", use_peft=True, lora_r=2, lora_alpha=64)
    return load_model(config, tiny.tokenizer(), seed=4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Could not find a config file in tester/base:UserWarning")
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_pushed_model_answers_as_before_by_the_code_of_its_card(hub: Path, tmp_path: Path, kind: str) -> None:
    """A full T5 and an adapter of GPT-2; the text of a card is tested in test_model_card."""
    built = tiny.model(kind, dtype=torch.float32) if kind == "t5" else with_adapters(hub)
    settings = {"max_steps": 4, "dair_lambda": 0.25, "normalization": "token", "learning_rate": 0.05}
    trainer = tiny.trainer(
        tmp_path / "run", kind, tiny.pairs(kind, 8), built=built, hub_model_id=f"tester/{kind}", **settings
    )
    trainer.train()
    evaluator = PairEvaluator(even_length, accuracy_name="even_length", preset="strict")
    test = tiny.pairs(kind, 12, seed=1)
    found = trainer.evaluate_pairs(test, evaluator, data_name="Tiny test", max_new_tokens=6)
    with contextlib.chdir(tmp_path):  # where the base model is no folder
        trainer.push_to_hub(dataset="Tiny training")

    repo = hub / "tester" / kind
    files = {path.name for path in repo.iterdir()}
    weights = {"config.json", "model.safetensors"} if kind == "t5" else {"adapter_config.json"}
    assert files >= {"README.md", "tokenizer.json", *weights}
    assert kind == "t5" or "model.safetensors" not in files  # only the trained adapter is pushed
    loaded = (AutoModelForSeq2SeqLM if kind == "t5" else AutoPeftModelForCausalLM).from_pretrained(repo)
    before, after = predicted(trainer.model), predicted(loaded)
    assert before[0] == after[0] and before[1] == pytest.approx(after[1], abs=1e-5)

    _, header, text = (repo / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    metadata = yaml.safe_load(header)
    assert {"dair", "consistency-training"} <= set(metadata["tags"])
    if kind == "gpt2":
        assert (metadata["base_model"], metadata["library_name"]) == ("tester/base", "peft")
    ((result,),) = [model["results"] for model in metadata["model-index"]]
    assert (metadata["model-index"][0]["name"], result["dataset"]["name"]) == (kind, "Tiny test")
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values["original_even_length"] == pytest.approx(found["original_even_length"], abs=1e-6)
    assert "cm" not in values  # of fewer than 30 pairs
    assert f"- version: dair_hf {dair_hf.__version__}" in text.splitlines()

    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    # The first prompt, and six tokens, special ones included.
    for given, asked in (
        ("a text as in the training data", "w4 w5 w6"),
        ("max_new_tokens=64", "max_new_tokens=6, do_sample=False"),
        ("skip_special_tokens=True", "skip_special_tokens=False"),
    ):
        assert given in code and f"tester/{kind}" in code
        code = code.replace(given, asked)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "card"})
    assert printed.getvalue().strip() == before[0][0].removeprefix("w4 w5 w6" if kind == "gpt2" else "").strip()
    assert AutoTokenizer.from_pretrained(repo)("w4 w5")["input_ids"] == tiny.tokenizer()("w4 w5")["input_ids"]


@pytest.mark.parametrize("name", dair_hf.metrics.__all__)
def test_the_folder_of_a_metric_is_a_space(name: str) -> None:
    """The Hub refuses a Space whose README.md does not say how to run it."""
    folder = Path(getattr(dair_hf.metrics, name))
    metadata = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert metadata["sdk"] == "gradio" and (folder / metadata["app_file"]).is_file()
    assert (folder / "requirements.txt").is_file() and (folder / f"{name}.py").is_file()
