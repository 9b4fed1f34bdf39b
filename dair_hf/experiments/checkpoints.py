"""Training that resumes after an interruption, and models that are saved completely or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dair_hf.io.checkpoints import is_finished, last_checkpoint
from dair_hf.io.files import explain_full_disk
from dair_hf.io.folders import atomic_folder, claim_folder
from dair_hf.training.trainer import DAIRTrainer


def train_resumable(trainer: DAIRTrainer) -> None:
    """Train from the last complete checkpoint in the trainer's output folder, or from the start if there is none.

    Raises:
        DataError: The disk is full. The incomplete checkpoint is removed.
    """
    with _remove_on_failure(trainer, lambda path: path.name.startswith("checkpoint-") and not is_finished(path)):
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
