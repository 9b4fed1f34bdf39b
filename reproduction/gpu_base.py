"""Data and base of the trackers that `reproduction.gpu` compares: prepared once, trained for as long as time allows."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import first_dialogs, read_dialogs
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.readers.sgd import read_sgd
from dair_hf.dialog.task import base_pairs
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.errors import DataError
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.checkpoints import train_base_once
from dair_hf.experiments.comparison import ComparisonConfig, with_settings
from dair_hf.experiments.run_records import fingerprint, run_record
from dair_hf.io.files import atomic_folder, read_json, write_json
from dair_hf.modeling import ModelConfig, load_model, load_pretrained
from reproduction.gpu_plans import plan_steps

COLUMNS = ("row_id", "dialogue_id", "input_ids", "attention_mask", "labels")
FIRST_TIMED = 10  # earlier steps are slower: kernels are chosen and compiled
RESERVE = 30.0  # seconds to save the base


class StepClock(TrainerCallback):
    """Notes when optimizer steps end, and stops a training that runs out of time.

    Args:
        deadline: Time (`time.monotonic`) after which `DataError` is raised.
    """

    def __init__(self, deadline: float = float("inf")) -> None:
        self.deadline = deadline
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the time at which the device has finished a step."""
        if torch.accelerator.is_available() and self.deadline == float("inf"):
            torch.accelerator.synchronize()  # only while steps are timed
        self.ends.append(time.monotonic())
        if self.ends[-1] > self.deadline:
            raise DataError(
                f"base: out of time after step {state.global_step} of {state.max_steps}, as steps took longer than "
                "they did at first; run the part again, which resumes from the last checkpoint"
            )

    def seconds_per_step(self) -> float:
        """Return the median time between the ends of later steps."""
        gaps = [later - earlier for earlier, later in zip(self.ends, self.ends[1:], strict=False)]
        return statistics.median(gaps[min(FIRST_TIMED, len(gaps) // 2) :])


def prepare_data(folder: Path, data: Path, settings: Path, call: Callable[..., Any], dialogs: int | None) -> None:
    """Write what the parts read, so that none of them reads raw files again.

    Args:
        folder: Folder of `multiwoz21`, `sgd_names.json` and `base` (encoded pairs of SGD and the tokenizer).
        data: Folder of the public data sets.
        settings: YAML file with the settings of the recipe.
        call: Runs a command: (arguments, name of its log).
        dialogs: Number of SGD dialogues, or None for all.
    """
    for script, source, target in (
        ("prepare_multiwoz", "multiwoz21", "multiwoz21"),
        ("prepare_sgd_entities", "sgd", "sgd_names.json"),
    ):
        if not (folder / target).exists():
            argv = [f"data_scripts/{script}.py", "--source", str(data / source), "--output", str(folder / target)]
            call([sys.executable, *argv], script)
    if (folder / "base").exists():
        return
    config, model, args = read_settings(settings)
    rows = first_dialogs(read_sgd(data / "sgd", "train")[0], dialogs)
    train = read_dialogs(folder / "multiwoz21", config.train_split)
    tokenizer = tokenizer_for([train, rows], config)
    encoder = DialogEncoder.for_model(load_model(model, tokenizer), tokenizer, config)
    processes = min(os.cpu_count() or 1, len(rows) // 1000) or None  # few rows are encoded sooner than processes start
    pairs = base_pairs(rows, encoder, config, base_arguments(args, config), num_proc=processes)
    kept = [name for name in pairs.column_names if name.removeprefix("augmented_") in COLUMNS]
    with atomic_folder(folder / "base") as scratch:
        pairs.select_columns(kept).save_to_disk(scratch / "pairs")
        tokenizer.save_pretrained(scratch / "tokenizer")


def read_settings(file: Path) -> tuple[DialogConfig, ModelConfig, DAIRConfig]:
    """Return the settings of the recipe in a YAML file, checked as the recipe does."""
    config, model, _, args = parse_arguments(
        [DialogConfig, ModelConfig, ComparisonConfig, DAIRConfig], ["--config", str(file)]
    )
    return config, model, args


def base_arguments(args: DAIRConfig, config: DialogConfig, **changes: Any) -> DAIRConfig:
    """Return the training arguments of the base: as in the recipe, by ERM unless `pretrain` says otherwise."""
    return with_settings(args, **{"method": "erm", **(config.pretrain or {}), **changes})


def train_base(
    folder: Path, data: Path, settings: Path, attentions: Sequence[str], start: float, seconds: float, most: int
) -> None:
    """Train the base for as many steps as fit into its time, and write its record.

    The number of steps follows from a short timing, so that the learning rate decays to its end in time. It is stored
    before training, and a training that was interrupted continues to the same number.

    Args:
        folder: Folder of the base: `model`, and the record `base_seed0.json`.
        data: Folder of `prepare_data`.
        settings: YAML file with the settings of the recipe.
        attentions: Implementations of attention to time; the fastest that works is used.
        start: Time (`time.monotonic`) from which the seconds count.
        seconds: Time of the part.
        most: Number of steps, if time allows.

    Raises:
        DataError: The time is too short, or no attention works.
    """
    config, model, args = read_settings(settings)
    pairs = load_from_disk(data / "base" / "pairs")
    tokenizer = load_pretrained(AutoTokenizer, data / "base" / "tokenizer", "the tokenizer of the base")

    def trainer(attention: str, name: str, **changes: Any) -> DAIRTrainer:
        network = load_model(with_attention(model, attention), tokenizer, args.seed)
        arguments = base_arguments(args, config, output_dir=str(folder / name), **changes)
        return DAIRTrainer(network, arguments, DataCollatorForSeq2Seq(tokenizer), pairs, processing_class=tokenizer)

    plan_file = folder / "steps.json"
    if not plan_file.exists():
        timings = {name: timed(lambda name=name, **changes: trainer(name, "timing", **changes)) for name in attentions}
        shutil.rmtree(folder / "timing", ignore_errors=True)
        write_json(plan_file, plan_steps(timings, seconds - RESERVE - (time.monotonic() - start), seconds, most))
    plan = read_json(plan_file)
    clock = StepClock(start + seconds - RESERVE / 2)
    made: list[DAIRTrainer] = []

    def make_trainer() -> DAIRTrainer:
        made.append(trainer(plan["attn_implementation"], "training", max_steps=plan["max_steps"]))
        made[0].add_callback(clock)
        return made[0]

    train_base_once(folder / "model", make_trainer)
    trained = made[0] if made else make_trainer()
    # Not the trainer's state, which is new if an earlier call was killed before it wrote the record.
    state = TrainerState.load_from_json(str(folder / "model" / TRAINER_STATE_NAME))
    metrics = {
        "steps": plan["max_steps"],
        "epochs": state.epoch,
        "loss": _last_logged(state, "loss"),
        "parameters": sum(weights.numel() for weights in trained.model.parameters()),
    }
    used = {"data": config, "model": model, "training": trained.args, "plan": plan}
    parts = {"training": _last_logged(state, "train_runtime")}  # since it was last resumed
    prints = {"pairs": pairs._fingerprint}
    record = run_record("base_seed0", "base", args.seed, used, metrics, parts, prints, fingerprint(used, prints))
    write_json(folder / "base_seed0.json", record)
    shutil.rmtree(folder / "training", ignore_errors=True)


def _last_logged(state: TrainerState, key: str) -> Any:
    """Return the last value that was logged, or None."""
    return next((entry[key] for entry in reversed(state.log_history) if key in entry), None)


def with_attention(model: ModelConfig, attention: str) -> ModelConfig:
    """Return the settings of a model with another implementation of attention."""
    return ModelConfig(**{**vars(model), "attn_implementation": attention})


def timed(make_trainer: Callable[..., DAIRTrainer], steps: int = 3 * FIRST_TIMED) -> float | str:
    """Return the seconds of a step, or why this attention cannot be used."""
    clock = StepClock()
    try:
        trainer = make_trainer(max_steps=steps, save_strategy="no")
        trainer.add_callback(clock)
        trainer.train()
    except Exception as error:  # a compiler of kernels raises anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    del trainer
    gc.collect()  # a trainer and its callbacks hold each other, and the memory of the device
    return clock.seconds_per_step()
