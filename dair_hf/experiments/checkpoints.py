"""Training that resumes after an interruption, and models that are saved completely or not at all."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dair_hf.config import DAIRConfig
from dair_hf.experiments.run_records import Run, fingerprint, shared_settings
from dair_hf.io.checkpoints import is_finished, last_checkpoint
from dair_hf.io.files import explain_full_disk
from dair_hf.io.folders import atomic_folder, claim_folder
from dair_hf.training.trainer import DAIRTrainer

# Beginnings of training settings that say what is logged, evaluated, saved or published.
_NOT_TRAINING = (
    "do_", "eval_", "generation_", "hub_", "log_", "logging_", "per_device_eval", "predict_with", "push_to_hub",
    "report_to", "run_name", "save_", "disable_tqdm", "dataloader_num", "dataloader_pin", "dataloader_persistent",
    "dataloader_prefetch", "project", "trackio",
)  # fmt: skip


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


def base_fingerprint(
    args: DAIRConfig,
    config: Mapping[str, Any],
    data: Mapping[str, str],
    tokenizer: PreTrainedTokenizerBase,
    ignored: tuple[str, ...] = (),
) -> str:
    """Return eight hexadecimal digits that identify the weights of a base.

    They depend on everything but paths and settings of `args` that say what is logged, evaluated, saved or published.

    Args:
        args: Training arguments of the base.
        config: Other settings, by name.
        data: Fingerprint of each data set.
        tokenizer: The tokenizer; its vocabulary and rules count.
        ignored: Beginnings of the dotted names in `config` of settings that do not change the base.
    """
    hidden = (*ignored, *(f"training.{name}" for name in _NOT_TRAINING))
    if args.max_steps > 0:
        hidden += ("training.num_train_epochs",)
    settings = shared_settings(Run("base", args.seed, args), config, data)
    settings = {name: value for name, value in settings.items() if not name.startswith(hidden)}
    objective = (args.method, args.regularizer, args.dair_lambda, args.seed)
    return fingerprint(settings, objective, _content_of(tokenizer))


def _content_of(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return what determines the tokens of a text."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if hasattr(backend, "to_str") else {}
    # Set by every call that pads or truncates.
    rules = {name: value for name, value in rules.items() if name not in ("padding", "truncation")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), rules, special]


def train_base_once(folder: Path, make_trainer: Callable[[], DAIRTrainer]) -> Path:
    """Train a base model that several runs start from, unless `folder` already holds it.

    Args:
        folder: Folder of the model, written completely or not at all. Its name should identify the settings
            (`base_fingerprint`).
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
