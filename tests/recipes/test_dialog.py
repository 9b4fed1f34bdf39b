"""Dialog recipe, run on a few dialogues for a few steps."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf.dialog.tokenizer import build_tokenizer
from dair_hf.io.files import read_yaml
from dair_hf.modeling import ModelConfig, load_model
from tests.fixtures.dialogs import UNSEEN, write_multiwoz21, write_sgd
from tests.fixtures.launching import forked
from tests.fixtures.recipe_runs import CONFIGS, RECIPES, command_line, methods_of, predictions, read, run_here, weights

RECIPE = "multiwoz_simpletod"
SCRIPT = RECIPES / f"{RECIPE}.py"
SHIPPED = [path for path in sorted(CONFIGS.glob("*.yaml")) if f"recipes/{RECIPE}.py " in path.read_text()]

pytestmark = pytest.mark.slow

# Settings that make any run of the demo tiny, about all kinds of places and without a shortcut.
TINY = {
    "config": "recipes/configs/demo.yaml",
    "demo_domains": ["hotel", "restaurant", "attraction"],
    "demo_names": 24,
    "demo_areas": False,
    "demo_annotation_errors": 0.0,
    "lambdas": "{}",
    "lambda_warmup_steps": 0,
    "train_dialogs": 6,
    "test_dialogs": 4,
    "model_settings": json.dumps(
        {"model_type": "t5", "d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 1, "dropout_rate": 0.1}
    ),
    "max_steps": 4,
    "dair_lambda": 0.5,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 2,
    "disable_tqdm": True,
}
GPT2 = json.dumps({"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512})


def tiny(**overrides: Any) -> list[str]:
    return command_line(**{**TINY, **overrides})


def run(**overrides: Any) -> None:
    run_here(RECIPE, tiny(**overrides))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Folder and output of the demo, run once for several tests."""
    folder = tmp_path_factory.mktemp("recipe") / "demo"
    done = forked(SCRIPT, *tiny(output_dir=folder, methods=["erm", "dair"]))
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, done


def test_demo_writes_records_table_and_plot(demo: Any) -> None:
    folder, done = demo
    assert ", attainable" not in (folder / "comparison.md").read_text()
    assert methods_of(folder) == ["erm", "dair"]
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert {"audit_train.json", "audit_test.json"} <= {path.name for path in folder.iterdir()}
    assert "Traceback" not in done.stderr
    for name in ("erm_seed0", "dair_seed0"):
        record = read(folder / f"{name}.json")
        assert record["metrics"]["rows"] >= record["metrics"]["pairs"] > 0
        # Every turn of the demo is attainable, so that columns of these turns would repeat others.
        assert not any(key.startswith("attainable") for key in record["metrics"])
        lines = predictions(folder / "runs" / name)
        assert len(lines) == record["metrics"]["rows"] + record["metrics"]["pairs"]
        assert lines[0].keys() == {"row_id", "variant", "prediction", "reference", "correct", "cluster"}
        assert all(line["row_id"].startswith(f"{line['cluster']}/") for line in lines)  # its dialogue
    paired = read(folder / "paired.json")
    assert paired["baseline"] == "erm" and paired["differences"].keys() <= {"dair"}
    assert paired["clusters"] == len({line["cluster"] for line in lines}) < paired["rows"] == record["metrics"]["rows"]
    assert (folder / "paired.md").exists() and "about" in done.stdout
    # No incomplete files are left.
    assert not list(folder.rglob(".*"))


def test_demo_fits_two_screens(tmp_path: Path) -> None:
    sizes = {**json.loads(TINY["model_settings"]), "dropout_rate": 0.0}
    settings = {"demo_areas": True, "methods": ["dair"], "disable_tqdm": False, "logging_steps": 1}
    settings |= {"config": CONFIGS / "demo.yaml", "model_settings": json.dumps(sizes), "save_strategy": "no"}
    done = forked(SCRIPT, *tiny(save_steps=None, **settings), cwd=tmp_path, COLUMNS="80")
    lines = done.stdout.splitlines()
    assert "run 1 of 1: dair_seed0" in lines and "misleading" in done.stdout and done.returncode == 0
    assert [line for line in done.stderr.splitlines() if line.strip() and "/s]" not in line] == []  # bars only
    # The demo has three more methods: each a line for the run and one in the table, and four of its log; and two bars.
    assert sum(max(1, math.ceil(len(line) / 80)) for line in lines) + 3 * 6 + 4 * 2 <= 50


def test_names_that_give_areas_away(tmp_path: Path) -> None:
    """Every column of the table has a value, counted again from the predictions."""
    run(output_dir=tmp_path, methods=["dair"], demo_areas=True, test_dialogs=9, preset="parlai_v22", save_strategy="no",
        save_steps=None)  # fmt: skip
    lines = predictions(tmp_path / "runs" / "dair_seed0")
    right = {(line["row_id"], line["variant"]): line["correct"] for line in lines}
    variants = ("original", "augmented", "augmented_2")
    expected = {variant: [right[key] for key in right if key[1] == variant] for variant in variants}
    metrics = read(tmp_path / "dair_seed0.json")["metrics"]
    assert metrics["partners"] == len(expected["augmented"]) + len(expected["augmented_2"]) > metrics["pairs"] > 0
    means = [f"{sum(values) / len(values):.3f}" for values in expected.values()]
    table = [line.split(" | ") for line in (tmp_path / "comparison.md").read_text().splitlines() if line[:1] == "|"]
    assert table[0][2:5] == ["JGA known", "JGA unseen", "JGA misleading"] and table[2][2:5] == means


def test_pairs_of_finished_runs_are_not_audited_again(demo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(output_dir=demo[0], methods=["dair"])
    assert "Audit" in demo[1].stdout and "Audit" not in capsys.readouterr().out


def test_decoder_only_model(tmp_path: Path) -> None:
    settings = {"model_settings": GPT2, "neighbour_attention": 0, "max_steps": 2, "max_source_tokens": 60}
    run(output_dir=tmp_path, methods=["dair"], **settings)
    # The beginning of long dialogues was cut.
    metrics = read(tmp_path / "dair_seed0.json")["metrics"]
    assert metrics["rows"] > metrics["attainable_rows"] > 0
    assert "CM, attainable" in (tmp_path / "comparison.md").read_text()
    settings = read(tmp_path / "runs/dair_seed0/config.json")
    assert settings["model_type"] == "gpt2"
    assert settings["vocab_size"] < 1000


@pytest.fixture(scope="module")
def multiwoz(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings for small MultiWOZ and SGD folders, with a base trained on SGD."""
    folder = tmp_path_factory.mktemp("data")
    return {
        "source": "multiwoz",
        "data_dir": write_multiwoz21(folder / "multiwoz21"),
        "sgd_dir": write_sgd(folder / "sgd"),
        "train_split": "val",
        "train_dialogs": None,
        "test_dialogs": None,
        "max_steps": 2,
        "pretrain": json.dumps({"max_steps": 3, "learning_rate": 0.05}),
    }


def test_multiwoz_with_a_common_base(multiwoz: dict[str, Any], tmp_path: Path) -> None:
    run(output_dir=tmp_path, methods=["erm", "dair"], neighbour_attention=0, **multiwoz)
    (base,) = [path for path in tmp_path.glob("base_*") if not path.name.endswith("_training")]
    start = weights(base)
    for method in ("erm", "dair"):
        record = read(tmp_path / f"{method}_seed0.json")
        assert record["metrics"]["rows"] == 12
        # The second turn of a dialogue has a name in history or state.
        assert record["metrics"]["pairs"] >= 6
        moved = weights(tmp_path / "runs" / f"{method}_seed0")
        assert start.keys() == moved.keys()
        assert any(not torch.equal(start[name], moved[name]) for name in start)
    named = {
        entry["values"][0].lower()
        for line in predictions(tmp_path / "runs/erm_seed0")
        if line["variant"] == "augmented"
        for entry in line["reference"]
        if entry["slot"] == "hotel-name"
    }
    assert named and named <= {name.lower() for name in UNSEEN}
    assert record["data"].keys() == {"train", "test", "renaming", "names", "pretrain"}
    # Other methods, with regularizers and lambdas of their own, start from the stored base and do not train it again.
    made = {path: path.stat().st_mtime_ns for path in base.iterdir()}
    run(output_dir=tmp_path, methods=["dair", "kl"], lambdas='{"kl": 3.0}', neighbour_attention=0, **multiwoz)
    assert {path: path.stat().st_mtime_ns for path in base.iterdir()} == made
    assert len(list(tmp_path.glob("base_*"))) == 2
    # A base that is trained otherwise has another name.
    multiwoz = {**multiwoz, "pretrain": json.dumps({"max_steps": 3, "learning_rate": 0.01})}
    states = {"previous_state": True, "gold_states": True}
    run(output_dir=tmp_path / "other", methods=["da"], neighbour_attention=0, **states, **multiwoz)
    metrics = read(tmp_path / "other" / "da_seed0.json")["metrics"]
    assert metrics["gold_states_rows"] == metrics["rows"] and 0 <= metrics["gold_states_both_correct"] <= 1
    assert "JGA known, gold states" in (tmp_path / "other" / "comparison.md").read_text()
    (other,) = (path for path in (tmp_path / "other").glob("base_*") if not path.name.endswith("_training"))
    assert other.name != base.name


def base_weights(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [weights(path.parent) for path in sorted(folder.glob("base_*/model.safetensors"))]


def test_seeds_have_bases_of_their_own_unless_pretrain_names_a_seed(multiwoz: dict[str, Any], tmp_path: Path) -> None:
    settings: dict[str, Any] = {**multiwoz, "methods": ["da"], "seeds": [0, 1], "neighbour_attention": 0}
    run(output_dir=tmp_path / "own", **settings)
    one, other = base_weights(tmp_path / "own")
    assert any(not torch.equal(one[name], other[name]) for name in one)

    settings["pretrain"] = json.dumps({**json.loads(settings["pretrain"]), "seed": 1})
    run(output_dir=tmp_path / "common", **settings)
    (common,) = base_weights(tmp_path / "common")
    assert any(all(torch.equal(common[name], base[name]) for name in common) for base in (one, other))
    # What follows the base differs between seeds.
    trained = [weights(tmp_path / "common" / "runs" / f"da_seed{seed}") for seed in (0, 1)]
    assert any(not torch.equal(trained[0][name], trained[1][name]) for name in common)


def test_adapters_on_a_decoder_only_base(multiwoz: dict[str, Any], tmp_path: Path) -> None:
    run(
        output_dir=tmp_path,
        methods=["dair"],
        model_settings=GPT2,
        neighbour_attention=0,
        use_peft=True,
        lora_r=2,
        lora_alpha=7,
        **multiwoz,
    )
    (base,) = [path for path in tmp_path.glob("base_*") if not path.name.endswith("_training")]
    assert read(base / "config.json")["model_type"] == "gpt2"
    adapter = read(tmp_path / "runs/dair_seed0/adapter_config.json")
    assert (adapter["r"], adapter["lora_alpha"]) == (2, 7)
    assert adapter["base_model_name_or_path"] == str(base)
    # Prompts are masked: the base is trained on the loss of its targets, tens of nats and not hundreds.
    log = read(Path(f"{base}_training") / "checkpoint-2" / "trainer_state.json")["log_history"]
    assert 0 < log[0]["loss_original"] < 150


def test_two_processes_write_one_set_of_files(multiwoz: dict[str, Any], tmp_path: Path) -> None:
    settings = {
        **multiwoz, "output_dir": tmp_path, "methods": ["dair"], "neighbour_attention": 0, "use_cpu": True,
        "train_dialogs": 2, "test_dialogs": 2, "max_steps": 1, "save_strategy": "no", "save_steps": None,
        "pretrain": json.dumps({"max_steps": 1}),
    }  # fmt: skip
    done = forked(SCRIPT, *tiny(**settings), ranks=2)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sum(line.startswith("dair  ") for line in done.stdout.splitlines()) == 1
    record = read(tmp_path / "dair_seed0.json")
    assert record["hardware"]["processes"] == 2
    lines = predictions(tmp_path / "runs/dair_seed0")
    assert len({(line["row_id"], line["variant"]) for line in lines}) == len(lines)
    assert len(lines) == record["metrics"]["rows"] + record["metrics"]["pairs"]
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("base_")}
    assert names == {
        "audit_test.json", "audit_train.json", "comparison.json", "comparison.md", "comparison.png", "dair_hf.lock",
        "dair_seed0.json", "runs",
    }  # fmt: skip
    assert len(list(tmp_path.glob("base_*/model.safetensors"))) == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_models_from_scratch_are_valid(path: Path) -> None:
    if settings := read_yaml(path).get("model_settings"):
        network = load_model(ModelConfig(model_settings=settings), build_tokenizer(["is it free ?", "is it ?"]))
        assert network.num_parameters() < 3_000_000
