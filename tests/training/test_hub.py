"""Pushing a paired run to a Hub and loading it again, with the real client against a Hub on the loopback interface.

Each side runs in a process of its own with empty caches: what is loaded can only have come over the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.hub_protocol import USER
from tests.fixtures.hub_server import HubServer

RUN = "import runpy, sys; runpy.run_module('tests.fixtures.pushed_run', run_name='__main__')"
FULL, ADAPTER, BASE = f"{USER}/full-t5", f"{USER}/lora-gpt2", f"{USER}/base-gpt2"


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubServer, Path]]:
    """Push a full model and a LoRA adapter with `DAIRTrainer.push_to_hub`, and record their answers."""
    folder = tmp_path_factory.mktemp("pushed")
    runs = [f"t5={FULL}", f"gpt2={ADAPTER}={BASE}"]
    with HubServer() as server:
        server.run_python(RUN, "push", folder, *runs, hf_home=folder / "hf_push")
        server.run_python(RUN, "load", folder, *runs, hf_home=folder / "hf_load", HF_TOKEN="")
        yield server, folder


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
@pytest.mark.parametrize(("kind", "repo"), [("t5", FULL), ("gpt2", ADAPTER)])
def test_card_of_a_paired_run(pushed: tuple[HubServer, Path], kind: str, repo: str) -> None:
    server, folder = pushed
    metadata, text = server.card(repo)
    metrics = json.loads((folder / f"{kind}_push.json").read_text())["metrics"]
    assert {"dair", "consistency-training"} <= set(metadata["tags"])
    (model,) = metadata["model-index"]
    assert model["name"] == repo.split("/")[1]
    (result,) = model["results"]
    assert result["dataset"]["name"] == "Tiny test"
    values = {metric["type"]: (metric["name"], metric["value"]) for metric in result["metrics"]}
    name, value = values["original_even_length"]
    assert name == "even length, original (strict)"
    assert value == pytest.approx(metrics["original_even_length"], abs=1e-6)
    assert values["cm"] == ("consistency metric (strict)", pytest.approx(metrics["cm"], abs=1e-6))
    for line in (
        "- method: `dair`",
        "- regularizer: `sq`",
        "- lambda: 0.25 (token: objective = losses / target tokens + lambda * R / pairs)",
        "- normalization: `token`",
        "### Tiny test",
    ):
        assert line in text.splitlines(), line
    assert "Tiny training" in text
    rows = [line for line in text.splitlines() if line.startswith("| even length, original (strict) |")]
    assert len(rows) == 1
    assert re.search(r"\| \d\.\d{4} to \d\.\d{4} \|$", rows[0])
    assert re.search(
        r"^The consistency metric is \d+ / \d+: .* 8 of 12 rows have an augmented view; ", text, re.MULTILINE
    )
    if kind == "gpt2":
        assert (metadata["base_model"], metadata["library_name"]) == (BASE, "peft")


@pytest.mark.slow
def test_refused_push_of_a_paired_run_says_why(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.fail("POST", "/commit/", 403, "Your token cannot write here")
    done = hub_server.run_python(RUN, "push", tmp_path, f"t5={FULL}", hf_home=tmp_path / "hf", check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()
    assert "403 Forbidden" in done.stderr
    assert any("Your token cannot write here" in line for line in last[-5:])
    assert hub_server.commits(FULL) == ["initial commit"]
    # The trained model and its card remain in the folder of the run.
    assert {"model.safetensors", "README.md"} <= {path.name for path in (tmp_path / "t5_run").iterdir()}
