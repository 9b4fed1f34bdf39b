"""Pushing to a Hub and loading from it again, with the real client against a Hub on the loopback interface.

Each side runs in a process of its own with empty caches: what is loaded can only have come over the wire.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.hub_protocol import TOKEN, USER
from tests.fixtures.hub_server import HubServer

REPO = f"{USER}/tiny-t5"

PUSH = """
import sys
from pathlib import Path
import torch
from huggingface_hub import HfApi
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

repo, folder = sys.argv[1], Path(sys.argv[2])
words = ["<pad>", "</s>", "<unk>", "a", "cheap", "hotel"]
inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
)
torch.manual_seed(3)
model = T5ForConditionalGeneration(T5Config(
    vocab_size=len(words), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
))
model.save_pretrained(folder)
model.push_to_hub(repo)
tokenizer.push_to_hub(repo)
card = folder / "card" / "README.md"
card.parent.mkdir()
card.write_text("---\\nlibrary_name: transformers\\ntags: [dair]\\n---\\n# Tiny\\n")
HfApi().upload_folder(repo_id=repo, folder_path=card.parent, commit_message="Add the card")
"""

LOAD = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
assert tokenizer("a cheap hotel")["input_ids"] == [3, 4, 5], tokenizer("a cheap hotel")
model.save_pretrained(sys.argv[2])
"""

UPLOAD = """
import sys
from huggingface_hub import HfApi

api = HfApi()
api.create_repo(sys.argv[1], exist_ok=True)
api.upload_folder(repo_id=sys.argv[1], folder_path=sys.argv[2], commit_message="Upload")
print(api.list_repo_files(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model card and a file that counts as large."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "README.md").write_text("---\ntags: [dair]\n---\n# Tiny\n")
    return folder


def upload(hub_server: HubServer, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return hub_server.run_python(UPLOAD, REPO, folder, hf_home=folder.parent / "hf", **options)


@pytest.mark.slow
def test_pushed_model_loads_back_the_same(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.run_python(PUSH, REPO, tmp_path / "pushed", hf_home=tmp_path / "hf_push")
    hub_server.run_python(LOAD, REPO, tmp_path / "loaded", hf_home=tmp_path / "hf_load", HF_TOKEN="")

    pushed, loaded = (tmp_path / name / "model.safetensors" for name in ("pushed", "loaded"))
    assert pushed.read_bytes() == loaded.read_bytes()
    stored = hub_server.files(REPO)["model.safetensors"]
    assert stored.large
    assert stored.sha256 == hashlib.sha256(pushed.read_bytes()).hexdigest()
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(hub_server.files(REPO))
    assert hub_server.commits(REPO)[-1] == "Add the card"
    metadata, text = hub_server.card(REPO)
    assert metadata == {"library_name": "transformers", "tags": ["dair"]}
    assert text.strip() == "# Tiny"
    # The large file was downloaded from the storage, without a token.
    assert ("GET", None) in {(request.method, request.token) for request in hub_server.storage_requests}
    assert all(request.token is None for request in hub_server.storage_requests)


def test_upload_is_resumed_after_a_server_error(hub_server: HubServer, folder: Path) -> None:
    hub_server.fail("PUT", "/objects/", 500)
    done = upload(hub_server, folder)
    assert "model.safetensors" in done.stdout
    assert [request.method for request in hub_server.storage_requests] == ["PUT", "PUT"]
    content = (folder / "model.safetensors").read_bytes()
    assert hub_server.files(REPO)["model.safetensors"].content == content


def test_unchanged_files_are_not_sent_again(hub_server: HubServer, folder: Path) -> None:
    upload(hub_server, folder)
    (folder / "README.md").write_text("---\ntags: [dair, dialog]\n---\n")
    upload(hub_server, folder)
    assert len(hub_server.storage_requests) == 1
    assert hub_server.commits(REPO) == ["initial commit", "Upload", "Upload"]
    assert hub_server.card(REPO)[0] == {"tags": ["dair", "dialog"]}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/commit/", 403, ["403 Forbidden", "Your token cannot write here"]),
        ("/commit/", 500, ["500 Internal Server Error", "Your token cannot write here"]),
        ("/api/repos/create", 403, ["403 Forbidden", "Your token cannot write here"]),
    ],
)
def test_refusal_is_reported_and_leaves_nothing_behind(
    hub_server: HubServer, folder: Path, path: str, status: int, said: list[str]
) -> None:
    hub_server.fail("POST", path, status, "Your token cannot write here")
    done = upload(hub_server, folder, check=False)
    assert done.returncode != 0
    assert all(words in done.stderr for words in said), done.stderr
    assert [commit.summary for commit in hub_server.repos.get(REPO, [])] in ([], ["initial commit"])


def test_push_without_a_token_is_refused(hub_server: HubServer, folder: Path) -> None:
    done = upload(hub_server, folder, check=False, HF_TOKEN="")
    assert done.returncode != 0
    assert "401" in done.stderr
    assert hub_server.repos == {}


def test_card_with_broken_metadata_is_refused(hub_server: HubServer, folder: Path) -> None:
    (folder / "README.md").write_text("---\ntags: [dair\n---\n")
    done = upload(hub_server, folder, check=False)
    assert done.returncode != 0
    assert "Invalid metadata in README.md" in done.stderr
    assert hub_server.commits(REPO) == ["initial commit"]


def _post(url: str, body: bytes, method: str = "POST") -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {TOKEN}"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_server_refuses_damaged_and_missing_objects(hub_server: HubServer) -> None:
    content = b"weights"
    oid = hashlib.sha256(content).hexdigest()
    put = f"{hub_server.storage_url}/objects/{oid}?size=7"
    assert _post(put, b"weight5", "PUT")[0] == 400
    assert hub_server.storage == {}

    assert _post(f"{hub_server.url}/api/repos/create", json.dumps({"name": "tiny-t5"}).encode())[0] == 200
    lines = [
        {"key": "header", "value": {"summary": "s", "description": ""}},
        {"key": "lfsFile", "value": {"path": "m.safetensors", "algo": "sha256", "oid": oid, "size": 7}},
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    status, answer = _post(f"{hub_server.url}/api/models/{REPO}/commit/main", body)
    assert (status, answer["error"]) == (400, f"m.safetensors: object {oid} was never uploaded")
    assert _post(put, content, "PUT")[0] == 200
    assert _post(f"{hub_server.url}/api/models/{REPO}/commit/main", body)[0] == 200
    assert hub_server.files(REPO)["m.safetensors"].content == content


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
