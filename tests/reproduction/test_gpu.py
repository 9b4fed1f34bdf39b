"""Parts of the comparison on a GPU, tried at tiny size on a CPU: plans by hand, runs, interruptions, figures."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
import transformers
from datasets import load_from_disk

from dair_hf.dialog.data import read_dialogs
from dair_hf.errors import DataError
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json
from reproduction import gpu, gpu_base, gpu_plans
from tests.fixtures.cifar import noise_images, write_parquet
from tests.fixtures.dialogs import UNSEEN, write_multiwoz21, write_sgd
from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT


def run(data: Path, output: Path, *options: str) -> tuple[int, str]:
    """Run the command in this process, in the root of the checkout; return exit status and output."""
    printed = io.StringIO()
    argv = ["gpu.py", "--data", str(data), "--output", str(output), "--small", *options]
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        contextlib.chdir(ROOT),
        mock.patch.object(sys, "argv", argv),
    ):
        try:
            run_recipe(gpu.main)
        except SystemExit as ended:
            return int(ended.code or 0), printed.getvalue()
    return 0, printed.getvalue()


CALL = gpu.Runner.call


def call(runner: gpu.Runner, argv: list[str], name: str) -> list[float]:
    """Run a command in a fork, in place of `Runner.call`; say that it logged a loss every tenth of a second."""
    done = forked(*argv[1:])
    assert done.returncode == 0, done.stderr
    return [0.1 * number for number in range(done.stdout.count("'loss'"))]


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    """Let the parts start forks."""
    with mock.patch.object(gpu.Runner, "call", call):
        yield


def test_a_command_is_timed_and_its_failure_is_told(tmp_path: Path) -> None:
    runner = gpu.Runner(gpu.parse_options(["--data", "data", "--output", str(tmp_path), "--part", "erm", "--small"]), 0)
    code = "import sys; print({'loss': 1}); print('x'); print({'loss': 2}); sys.exit(sys.argv[1])"
    with pytest.raises(DataError, match="erm: ended with 1; the end of .*\n.*why"):
        CALL(runner, [sys.executable, "-c", code, "why"], "erm")
    assert len(CALL(runner, [sys.executable, "-c", code.replace("sys.argv[1]", "0")], "erm")) == 2


def test_epochs_fill_the_time_and_no_more() -> None:
    timing = gpu_plans.Timing(startup=20, warmup=10, epoch=15, evaluation=60)
    for minutes in (1.95, 2.5, 7.3):
        epochs = gpu_plans.plan_epochs(timing, minutes, most=1000)
        total = [20 + 10 + 15 * count + 60 for count in (epochs, epochs + 1)]
        assert total[0] <= 0.9 * 60 * minutes < total[1]
    assert gpu_plans.plan_epochs(timing, 7.3, most=4) == 4
    with pytest.raises(DataError, match="--minutes 2"):
        gpu_plans.plan_epochs(timing._replace(startup=20.5), 1.9, most=20)


def test_steps_of_the_base_fill_the_time_with_the_fastest_attention() -> None:
    plan = gpu_plans.plan_steps({"flex_attention": 0.05, "sdpa": 0.25}, left=100, seconds=120, most=9999)
    assert (plan["max_steps"], plan["attn_implementation"]) == (1900, "flex_attention")
    assert gpu_plans.plan_steps({"sdpa": 0.25}, left=100, seconds=120, most=7)["max_steps"] == 7
    broken = gpu_plans.plan_steps(
        {"flex_attention": "RuntimeError: no compiler", "sdpa": 0.25}, left=100, seconds=120, most=9999
    )
    assert (broken["max_steps"], broken["attn_implementation"]) == (380, "sdpa")
    assert broken["seconds_per_step"]["flex_attention"] == "RuntimeError: no compiler"
    with pytest.raises(DataError, match="--minutes 1"):
        gpu_plans.plan_steps({"sdpa": 0.25}, left=0.9, seconds=60, most=9999)
    with pytest.raises(DataError, match="no attention works"):
        gpu_plans.plan_steps({"sdpa": "OutOfMemoryError"}, left=100, seconds=120, most=9999)


def test_a_step_is_timed_without_the_first_ones() -> None:
    clock = gpu_base.StepClock()
    clock.ends = [0.0, 50.0, *(60.0 + 2 * step for step in range(20))]
    assert clock.seconds_per_step() == 2
    assert gpu_base.timed(lambda **_: 1 / 0) == "ZeroDivisionError: division by zero"


def test_every_part_needs_a_gpu_unless_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = gpu.parse_options(["--data", str(tmp_path), "--output", str(tmp_path), "--part", "erm"])
    with pytest.raises(DataError, match="--small"):
        gpu.Runner(options, 0)


def test_settings_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.chdir(ROOT)
    options = gpu.parse_options(["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--part", "erm"])
    runner = gpu.Runner(options, 0)
    (tmp_path / "cifar10").mkdir()
    for family in (gpu.DIALOGS, gpu.CIFAR10):
        settings = gpu.read_yaml(runner.settings_file("erm", family, {"attn_implementation": "flex_attention"}))
        assert settings["bf16"] and settings["tf32"] and not settings["use_cpu"]
    settings = gpu.read_yaml(runner.settings_file("erm", gpu.DIALOGS, {"attn_implementation": "flex_attention"}))
    assert settings["attn_implementation"] == "flex_attention" and settings["dataloader_num_workers"] > 0
    # 60 to 100 million parameters, at a vocabulary of some thousand words.
    config = transformers.AutoConfig.for_model(**settings["model_settings"], vocab_size=2500)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert 60e6 < sum(weights.numel() for weights in model.parameters()) < 100e6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_multiwoz21(folder / "multiwoz21", 12)
    write_sgd(folder / "sgd")
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of all parts before the methods."""
    output = tmp_path_factory.mktemp("gpu") / "out"
    for part in ("data", "base", "plan"):
        status, printed = run(data, output, "--part", part, "--minutes", "4")
        assert status == 0, printed
    return output


def test_parts_name_what_is_missing(data: Path, tmp_path: Path) -> None:
    for part, named in (("base", "--part data"), ("dair_0.02", "--part base"), ("cifar10_pgd", "--cifar10")):
        status, printed = run(data, tmp_path, "--part", part)
        assert status == 2 and named in printed and "Traceback" not in printed


@pytest.mark.slow
def test_base_is_trained_on_scrambled_names(trained: Path) -> None:
    pairs = load_from_disk(trained / "data" / "base" / "pairs")
    assert len(pairs) == 6 and all(row["input_ids"] != row["augmented_input_ids"] for row in pairs)
    record = read_json(trained / "base" / "base_seed0.json")
    assert record["metrics"]["steps"] == record["config"]["plan"]["max_steps"] >= gpu_plans.FEWEST_STEPS
    assert record["metrics"]["epochs"] == record["metrics"]["steps"]  # one batch holds all dialogues
    assert record["config"]["training"]["method"] == "da"
    assert not (trained / "base" / "training").exists()


@pytest.mark.slow
def test_the_record_of_a_base_survives_a_kill_before_it_is_written(data: Path, trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(trained, output)
    (output / "base" / "base_seed0.json").unlink()
    status, printed = run(data, output, "--part", "base", "--minutes", "4")
    assert status == 0, printed
    before, record = (read_json(folder / "base" / "base_seed0.json") for folder in (trained, output))
    assert record["metrics"] == before["metrics"] and record["metrics"]["loss"] > 0
    assert record["seconds"] == before["seconds"]


@pytest.mark.slow
def test_a_method_its_figures_and_its_table(data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are those of the model, asked row by row through plain `generate`."""
    plan = read_json(trained / "plan.json")
    assert plan["num_train_epochs"] == gpu.SMALL_EPOCHS and plan["attn_implementation"] == "sdpa"
    monkeypatch.setattr(gpu, "remove_weights", lambda folder: None)
    status, printed = run(data, trained, "--part", "dair_0.02", "--minutes", "4")
    assert status == 0, printed
    record = read_json(trained / "multiwoz21" / "dair_lambda0.02_seed0.json")
    assert record["config"]["training"]["num_train_epochs"] == plan["num_train_epochs"]
    assert record["config"]["model"]["model_name_or_path"] == str(trained / "base" / "model")

    folder = trained / "multiwoz21" / "runs" / "dair_lambda0.02_seed0"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    rows = read_dialogs(trained / "data" / "multiwoz21", "test")
    rows = rows.select(range(12))  # of six dialogues
    encode = runpy.run_path(str(ROOT / "recipes" / "multiwoz_simpletod.py"))["DialogEncoder"]
    encoder = encode(tokenizer, 832, 192, causal=True, lower_case=True)
    answers = {}
    for row in rows:
        prompt = tokenizer(encoder.source(row["history"]) + " <belief>", add_special_tokens=False).input_ids
        written = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0, len(prompt) :]
        answers[row["row_id"]] = tokenizer.decode(written, skip_special_tokens=True)
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    predicted = {line["row_id"]: line for line in lines if line["variant"] == "original"}
    assert predicted.keys() == answers.keys() and any(answers.values())
    assert all(predicted[row]["prediction"].startswith(answer[:20]) for row, answer in answers.items())
    metrics = record["metrics"]
    right = sum(line["correct"] for line in predicted.values())
    assert metrics["original_joint_goal_accuracy"] == pytest.approx(right / 12)
    changed = [line for line in lines if line["variant"] == "augmented"]
    assert metrics["pairs"] == len(changed) > 0
    assert {e["values"][0].lower() for line in changed for e in line["reference"] if e["slot"] == "hotel-name"} <= {
        name.lower() for name in UNSEEN
    }

    shutil.rmtree(folder)
    status, printed = run(data, trained, "--part", "dair_0.02")
    assert status == 0 and "dair_0.02: finished before" in printed and "| dair_lambda0.02 | 1 |" in printed
    assert not folder.exists()
    # Fewer minutes than the epochs were planned for.
    status, printed = run(data, trained, "--part", "da", "--minutes", "1")
    assert status == 2 and "--minutes 4" in printed


@pytest.mark.slow
def test_a_part_that_is_out_of_time_is_stopped(
    data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.Runner, "call", CALL)
    output = tmp_path / "out"
    shutil.copytree(trained, output)
    plan = read_json(output / "plan.json")
    (output / "plan.json").write_text(json.dumps({**plan, "minutes": 0.02}))
    status, printed = run(data, output, "--part", "kl", "--minutes", "0.02")
    assert status == 2 and "kl: not finished within --minutes 0.02" in printed
    assert not (output / "multiwoz21" / "kl_seed0.json").exists()


@pytest.mark.slow
def test_cifar10(tmp_path: Path) -> None:
    images = tmp_path / "images"
    write_parquet(images / "train.parquet", noise_images(100))
    write_parquet(images / "test.parquet", noise_images(40, seed=1))
    output = tmp_path / "out"
    for part in ("cifar10_plan", "cifar10_mart"):
        status, printed = run(tmp_path, output, "--part", part, "--cifar10", str(images), "--minutes", "4")
        assert status == 0, printed
    record = read_json(output / "cifar10" / "mart_lambda6_seed0.json")
    assert (
        record["config"]["training"]["num_train_epochs"] == read_json(output / "cifar10_plan.json")["num_train_epochs"]
    )
    assert record["config"]["attacks"]["epsilon"] == pytest.approx(8 / 255)
    assert "| mart_lambda6 | 1 |" in printed
    folder = output / "cifar10" / "runs" / "mart_lambda6_seed0"
    assert not list(folder.glob("*.safetensors")) and not list(folder.glob("checkpoint-*"))
