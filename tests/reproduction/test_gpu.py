"""Comparison of methods at once on a GPU, at tiny size on a CPU: plans by hand, all steps, an early end, figures."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from datasets import load_from_disk

from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json
from dair_hf.io.records import read_predictions
from reproduction import gpu
from tests.fixtures.dialogs import UNSEEN, write_multiwoz21, write_sgd
from tests.fixtures.paths import ROOT


def run(output: Path, *options: str) -> str:
    """Run the command in this process, in the root of the checkout; return its output."""
    printed, argv = io.StringIO(), ["gpu.py", "--tiny", "--output", str(output), *options]
    with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT), mock.patch.object(sys, "argv", argv):
        run_recipe(gpu.main)
    return printed.getvalue()


def test_the_slowest_method_sets_the_number_of_epochs() -> None:
    then, now = (100.0, [0.5, 1.0]), (110.0, [1.5, 1.5])
    # 0.05 epochs a second, for 0.9 of 90 seconds; a method that has ended does not count.
    assert gpu.plan_epochs(then, now, deadline=200.0) == pytest.approx(math.floor(10 * (1.5 + 0.05 * 81)) / 10)
    assert gpu.plan_epochs(then, (110.0, [1.5, math.inf]), deadline=200.0) == pytest.approx(9.6)
    assert gpu.plan_epochs(then, (110.0, [3.7, 1.0]), deadline=200.0) == 3.7  # trained before


def test_the_learning_rate_falls_to_zero_at_the_last_planned_epoch() -> None:
    epochs, progress = SimpleNamespace(value=math.inf), [0.0, 0.0]
    schedule = gpu.Schedule(progress, 1, epochs, SimpleNamespace(warmup_steps=3), first_steps=2, deadline=math.inf)
    control = SimpleNamespace(should_training_stop=False)
    assert [schedule.factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    for step, reported in enumerate([0, 1, 1.5, 2], start=1):
        epochs.value = 2.0 if step >= 3 else math.inf
        assert not control.should_training_stop
        schedule.on_step_end(None, SimpleNamespace(epoch=step / 2, global_step=step), control)
        assert progress == [0, reported]
    assert control.should_training_stop and schedule.factor(9) == 0
    schedule.epoch = 1.5
    assert schedule.factor(9) == 0.25


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of both steps."""
    folder = tmp_path_factory.mktemp("gpu")
    write_multiwoz21(folder / "multiwoz21", 12)
    write_sgd(folder / "sgd")
    assert "| dair | 1 |" in run(folder / "out", "--data", str(folder), "--minutes", "1.5")
    return folder / "out"


@pytest.mark.slow
def test_all_methods_train_the_planned_epochs_and_answer_the_same_dialogues(output: Path) -> None:
    planned = read_json(output / "plan.json")["epochs"]
    for method in ("erm", "da", "kl", "dair"):
        metrics = read_json(output / f"{method}_seed0.json")["metrics"]
        assert planned <= metrics["epochs"] <= planned + 0.5 and metrics["dialogues"] == 6
        state = read_json(output / "runs" / f"{method}_seed0" / "trainer_state.json")
        assert [entry["partner_share"] > 0 for entry in state["log_history"][:2]].count(True) == 2 * (method != "erm")
        rates = [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]
        assert max(rates) == pytest.approx(3e-4, rel=0.35)
    assert (output / "comparison.md").read_text().count("| 6.000 |") == 4


@pytest.mark.slow
def test_the_figures_are_those_of_the_model(output: Path) -> None:
    """Answers are compared with plain `generate`, prompt by prompt."""
    folder = output / "runs" / "dair_seed0"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    lines = list(read_predictions(folder / "predictions.jsonl"))
    predicted = {line["row_id"]: line for line in lines if line["variant"] == "original"}
    test = load_from_disk(str(output / "prepared" / "test"))
    assert predicted.keys() == set(test["row_id"])
    assert len(set(test["dialogue_id"])) == 6 and list(test["dialogue_id"]) != sorted(test["dialogue_id"])
    for row in test:
        prompt = torch.tensor([row["input_ids"]])[:, np.array(row["labels"]) == -100]
        written = model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :]
        answer = predicted[row["row_id"]]["prediction"]
        assert answer.startswith(tokenizer.decode(written, skip_special_tokens=True)[:10]) and answer
    metrics = read_json(output / "dair_seed0.json")["metrics"]
    assert metrics["original_joint_goal_accuracy"] == np.mean([line["correct"] for line in predicted.values()])
    assert metrics["pairs"] == len(lines) - len(predicted) > 0
    states = [entry for line in lines if line["variant"] == "augmented" for entry in line["reference"]]
    names = {entry["values"][0].lower() for entry in states if entry["slot"] == "hotel-name"}
    assert names and names <= {name.lower() for name in UNSEEN}


@pytest.mark.slow
def test_a_training_that_is_out_of_time_is_evaluated_and_the_same_command_goes_on(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "plan_epochs", lambda *times: 1e6)
    monkeypatch.setattr(gpu, "TRAIN_SHARE", 0.2)
    options = ("--folder", str(output / "prepared"), "--methods", "da", "--num_train_epochs", "100000")
    assert "| da | 1 |" in run(tmp_path / "out", *options, "--minutes", "0.8")
    before = read_json(tmp_path / "out" / "da_seed0.json")["metrics"]
    assert 0 < before["epochs"] < 100000 and before["dialogues"] == 6
    answers = (last := tmp_path / "out" / "runs" / "da_seed0" / "answers_002.jsonl").read_text()
    last.unlink()
    run(tmp_path / "out", *options, "--minutes", "0.8")
    assert last.read_text() == answers
    assert (record := read_json(tmp_path / "out" / "da_seed0.json"))["metrics"] == before  # not trained again
    prepared = shutil.copytree(output / "prepared", tmp_path / "prepared")
    for other in (["--learning_rate", "0.1"], ["--folder", str(prepared)]):
        with pytest.raises(SystemExit):
            run(tmp_path / "out", *options, *other, "--minutes", "0.8")
    assert read_json(tmp_path / "out" / "da_seed0.json") == record
