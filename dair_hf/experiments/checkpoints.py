"""Training that resumes after an interruption, and models that are saved completely or not at all."""

from __future__ import annotations

import contextlib
import fnmatch
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.io.files import explain_full_disk, read_json
from dair_hf.io.folders import atomic_folder, claim_folder
from dair_hf.training.trainer import DAIRTrainer

logger = logging.get_logger(__name__)
# What a checkpoint consists of -> names of which it has at least one; folders are those of sharded models.
_PARTS = {
    "weights": ("*.safetensors", "*.safetensors.index.json", "pytorch_model*"),
    "optimizer": ("optimizer.pt", "optimizer.bin", "optimizer_*"),
    "scheduler": ("scheduler.pt",),
    "random state": ("rng_state*.pth",),
}


def train_resumable(trainer: DAIRTrainer) -> None:
    """Train from the last complete checkpoint in the trainer's output folder, or from the start if there is none.

    Raises:
        DataError: The disk is full. The incomplete checkpoint is removed.
    """
    with _remove_on_failure(trainer, lambda path: path.name.startswith("checkpoint-") and _step_of(path) is None):
        trainer.train(resume_from_checkpoint=last_checkpoint(Path(trainer.args.output_dir)))


def save_run(trainer: DAIRTrainer, **card: Any) -> None:
    """Save the model, the trainer's state and the model card; on failure none of their new files is left.

    Args:
        trainer: Trainer of the run; saves to its `args.output_dir`.
        **card: Arguments of `DAIRTrainer.create_model_card`.

    Raises:
        DataError: The disk is full.
    """
    with _remove_on_failure(trainer, Path.is_file):
        trainer.save_model()
        trainer.save_state()
        trainer.create_model_card(**card)


def train_base_once(folder: Path, make_trainer: Callable[[], DAIRTrainer]) -> Path:
    """Train a base model that several runs start from, unless `folder` already holds it.

    Args:
        folder: Folder of the model, written completely or not at all. Its name should identify the settings
            (`fingerprint`).
        make_trainer: Returns the trainer; called only if the model is missing.

    Returns:
        `folder`.

    Raises:
        DataError: Another process is training the same model.
    """
    if not folder.exists():
        trainer = make_trainer()
        if trainer.is_world_process_zero():
            claim_folder(trainer.args.output_dir)
        train_resumable(trainer)
        if trainer.is_world_process_zero():
            with atomic_folder(folder) as scratch:
                trainer.save_model(str(scratch))
        trainer.accelerator.wait_for_everyone()
    return folder


def last_checkpoint(folder: Path) -> str | None:
    """Return the path of the newest complete checkpoint in `folder`, or None.

    Unlike `transformers.trainer_utils.get_last_checkpoint`, skips a checkpoint that was being written when its run was
    killed, and warns of one that has lost a file since: `Trainer` would resume from it with a new optimizer. `folder`
    need not exist.
    """
    steps = {step: path for path in folder.glob("checkpoint-*") if (step := _step_of(path)) is not None}
    damaged = []
    for step in sorted(steps, reverse=True):
        if (problem := _problem(steps[step])) is None:
            break
        damaged.append(f"{steps.pop(step)} ({problem})")
    found = str(steps[max(steps)]) if steps else None
    if damaged:
        start = found or "the start; with save_only_model=True every checkpoint is incomplete"
        logger.warning(f"Incomplete, ignored: {', '.join(damaged)}. Training resumes from {start}.")
    return found


def _problem(checkpoint: Path) -> str | None:
    """Return why training could not continue from a checkpoint as if it had never ended, or None."""
    names = [path.name for path in checkpoint.iterdir()]
    if "latest" in names:
        return None  # DeepSpeed's own format, which it checks itself
    for kind, patterns in _PARTS.items():
        if not any(fnmatch.filter(names, pattern) for pattern in patterns):
            return f"{kind} missing"
    for index in checkpoint.glob("*.safetensors.index.json"):
        if absent := sorted({*read_json(index)["weight_map"].values()} - {*names}):
            return f"{absent[0]} missing"
    for path in sorted(checkpoint.rglob("*.safetensors")):
        try:
            safetensors.safe_open(path, "pt")
        except safetensors.SafetensorError:
            return f"{path.name} damaged"
    for path in sorted(checkpoint.glob("*.pt*")):
        if not zipfile.is_zipfile(path):
            return f"{path.name} damaged"
    return None


def _step_of(checkpoint: Path) -> int | None:
    """Return the step of a checkpoint, or None if it is incomplete."""
    try:
        # The Trainer writes this file last.
        return int(read_json(checkpoint / "trainer_state.json")["global_step"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


@contextlib.contextmanager
def _remove_on_failure(trainer: DAIRTrainer, unwanted: Callable[[Path], bool]) -> Iterator[None]:
    """If the body fails, remove the unwanted ones of the paths that it created in the trainer's output folder."""
    folder = Path(trainer.args.output_dir)
    before = set(folder.glob("*"))
    try:
        with explain_full_disk(folder):
            yield
    except BaseException:
        for path in set(folder.glob("*")) - before if trainer.is_world_process_zero() else ():
            if unwanted(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise
