"""Pushing paired runs and metrics to a Hub and loading them again, with the real client, on the loopback interface.

Each side runs in a process of its own with empty caches: what is loaded can only have come over the wire.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import dair_hf
from tests.fixtures.hub_protocol import USER, HubError
from tests.fixtures.hub_server import HubServer

RUN = "-m", "tests.fixtures.pushed_run"
FULL, ADAPTER, BASE = f"{USER}/full-t5", f"{USER}/lora-gpt2", f"{USER}/base-gpt2"
CHECKPOINTS, REFUSED = f"{USER}/checkpoints", f"{USER}/refused"


@pytest.fixture(scope="module")
def pushed(hub_server: HubServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[HubServer, Path]:
    """Push a full model and a LoRA adapter with `DAIRTrainer.push_to_hub`, and record their answers."""
    folder = tmp_path_factory.mktemp("pushed")
    runs = [f"t5={FULL}", f"gpt2={ADAPTER}={BASE}"]
    hub_server.run_python(*RUN, "push", folder, *runs)
    hub_server.run_python(*RUN, "load", folder, *runs, HF_TOKEN="")
    return hub_server, folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_model_of_a_paired_run_predicts_the_same_from_the_hub(pushed: tuple[HubServer, Path], kind: str) -> None:
    before, after = (json.loads((pushed[1] / f"{kind}_{action}.json").read_text()) for action in ("push", "load"))
    assert after["texts"] == before["texts"]
    for left, right in zip(before["logits"], after["logits"], strict=True):
        assert left == pytest.approx(right, abs=1e-5)


@pytest.mark.slow
def test_pushed_files_of_a_paired_run(pushed: tuple[HubServer, Path]) -> None:
    server, _ = pushed
    full, adapter = server.files(FULL), server.files(ADAPTER)
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(full)
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= set(adapter)
    # Only the trained adapter is pushed, without the base model.
    assert "model.safetensors" not in adapter
    assert json.loads(adapter["adapter_config.json"].content)["base_model_name_or_path"] == BASE
    assert server.commits(FULL)[-1] == "End of training"


@pytest.mark.slow
def test_metadata_of_a_paired_run(pushed: tuple[HubServer, Path]) -> None:
    """The text of a card is tested in test_model_card."""
    server, folder = pushed
    metadata, text = server.card(ADAPTER)
    metrics = json.loads((folder / "gpt2_push.json").read_text())["metrics"]
    assert {"dair", "consistency-training"} <= set(metadata["tags"])
    assert (metadata["base_model"], metadata["library_name"]) == (BASE, "peft")
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert (model["name"], result["dataset"]["name"]) == (ADAPTER.split("/")[1], "Tiny test")
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values["original_even_length"] == pytest.approx(metrics["original_even_length"], abs=1e-6)
    assert "cm" not in values  # of fewer than 30 pairs
    assert f"- version: dair_hf {dair_hf.__version__}" in text.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "repo"), [("t5", FULL), ("gpt2", ADAPTER)])
def test_the_code_of_a_card_loads_the_model_and_answers(pushed: tuple[HubServer, Path], kind: str, repo: str) -> None:
    server, folder = pushed
    (code,) = re.findall(r"^```python\n(.*?)^```", server.card(repo)[1], re.DOTALL | re.MULTILINE)
    # As pushed_run.py asked the model before it was pushed: its first prompt, and six tokens, special ones included.
    for given, asked in (
        ("a text as in the training data", "w4 w5 w6"),
        ("max_new_tokens=64", "max_new_tokens=6, do_sample=False"),
        ("skip_special_tokens=True", "skip_special_tokens=False"),
    ):
        assert given in code
        code = code.replace(given, asked)
    answer = server.run_python("-c", code, HF_TOKEN="").stdout.strip()
    expected = json.loads((folder / f"{kind}_push.json").read_text())["texts"][0]
    assert answer == (expected if kind == "t5" else expected.removeprefix("w4 w5 w6").strip())
    absent = code.replace(repo, f"{USER}/nothing")
    assert absent != code
    assert server.run_python("-c", absent, HF_TOKEN="", check=False).returncode != 0


@pytest.mark.slow
def test_a_run_with_adapters_resumes_from_its_checkpoint_on_the_hub(hub_server: HubServer, tmp_path: Path) -> None:
    run = f"gpt2={CHECKPOINTS}={USER}/other-base"
    hub_server.run_python(*RUN, "push_checkpoint", tmp_path, run)
    files = set(hub_server.files(CHECKPOINTS))
    assert {
        "last-checkpoint/adapter_model.safetensors",
        "last-checkpoint/adapter_config.json",
        "last-checkpoint/optimizer.pt",
        "last-checkpoint/trainer_state.json",
    } <= files
    assert not [path for path in files if path.endswith("model.safetensors") and "adapter" not in path]
    hub_server.run_python(*RUN, "resume_checkpoint", tmp_path, run, HF_TOKEN="")
    whole, resumed = (
        json.loads((tmp_path / f"gpt2_{action}.json").read_text())
        for action in ("push_checkpoint", "resume_checkpoint")
    )
    assert resumed.pop("steps") == 4
    assert resumed == whole


PUSH_METRIC = """
import sys
import dair_hf.metrics
from huggingface_hub import HfApi
repo, name = sys.argv[1:]
HfApi().create_repo(repo, repo_type="space", space_sdk="gradio")
HfApi().upload_folder(
    repo_id=repo, repo_type="space", folder_path=getattr(dair_hf.metrics, name), ignore_patterns=["__pycache__/*"]
)
"""
LOAD_METRIC = """
import json, sys, evaluate
metric = evaluate.load(sys.argv[1])
print(json.dumps(metric.compute(**json.loads(sys.argv[2]))))
"""
STATES = {"predictions": ['{"hotel-area": "north"}', "{}"], "references": ['{"hotel-area": "north"}'] * 2}
ANSWERS = {"predictions": ["2", "a cat"], "references": [json.dumps(["2"] * 10), json.dumps(["dog"] * 10)]}
CORRECTNESS = {"original_correct": [True, True, False], "augmented_correct": [True, False, True]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given", "key", "value"),
    [
        ("consistency", CORRECTNESS, "cm", 0.5),
        ("joint_goal_accuracy", STATES, "joint_goal_accuracy", 0.5),
        ("vqa_accuracy", ANSWERS, "vqa_accuracy_simple", 0.5),
    ],
)
def test_a_metric_is_pushed_as_a_space_and_loaded_from_it(
    hub_server: HubServer, tmp_path: Path, name: str, given: dict[str, object], key: str, value: float
) -> None:
    repo = f"{USER}/{name}"
    hub_server.run_python("-c", PUSH_METRIC, repo, name)
    files = set(hub_server.files(f"spaces/{repo}"))
    assert {"README.md", "requirements.txt", f"{name}.py"} <= files
    assert not [path for path in files if "__pycache__" in path]
    done = hub_server.run_python("-c", LOAD_METRIC, repo, json.dumps(given), HF_TOKEN="")
    assert json.loads(done.stdout)[key] == value


@pytest.mark.slow
def test_refused_push_of_a_paired_run_says_why(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.failures.append(("POST", "/commit/", HubError(403, "Your token cannot write here")))
    done = hub_server.run_python(*RUN, "push", tmp_path, f"t5={REFUSED}", check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()
    assert "403 Forbidden" in done.stderr
    assert any("Your token cannot write here" in line for line in last[-5:])
    assert hub_server.commits(REFUSED) == ["initial commit"]
    # The trained model and its card remain in the folder of the run.
    assert {"model.safetensors", "README.md"} <= {path.name for path in (tmp_path / "t5_run").iterdir()}
