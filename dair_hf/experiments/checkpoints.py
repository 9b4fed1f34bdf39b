"""Training that resumes after an interruption, and bases that several runs start from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME

from dair_hf.config import DAIRConfig
from dair_hf.experiments.run_records import fingerprint, with_models
from dair_hf.io.checkpoints import last_checkpoint
from dair_hf.io.files import atomic_folder, claim_folder
from dair_hf.modeling import ModelConfig
from dair_hf.training.trainer import DAIRTrainer

_OF_REGULARIZER = ("regularizer", "dair_lambda", "lambda_", "loss_epsilon")


def train_resumable(trainer: DAIRTrainer) -> None:
    """Train from the last complete checkpoint in the trainer's output folder, or from the start if there is none."""
    checkpoint = last_checkpoint(Path(trainer.args.output_dir))
    if checkpoint is not None and PartialState().is_main_process:
        print(f"continues from {checkpoint}")
    trainer.train(resume_from_checkpoint=checkpoint)


def base_fingerprint(
    args: DAIRConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, data: Mapping[str, Any]
) -> str:
    """Return eight hexadecimal digits that identify the weights of a base.

    All training settings count, except the output folder, the rank of the process, and those of a regularizer that the
    base does not use, so that all runs of a comparison start from one base. Files count by their content and not by
    their location; adapters that are added later do not count.
    """
    of_steps = ("num_train_epochs",) if args.max_steps > 0 else ()
    unused = ("output_dir", "local_rank", *of_steps, *(() if args.uses_regularizer else _OF_REGULARIZER))
    settings = {name: value for name, value in args.to_dict().items() if not name.startswith(unused)}
    known = with_models(data, {"model": model})
    location = () if known == data else ("model_name_or_path",)
    hidden = ("use_peft", "lora_", "trust_", *location)
    of_model = {name: value for name, value in asdict(model).items() if not name.startswith(hidden)}
    return fingerprint(settings, of_model, _content_of(tokenizer), known)


def _content_of(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return what determines the tokens of a text."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if hasattr(backend, "to_str") else {}
    # Set by every call that pads or truncates.
    rules = {name: value for name, value in rules.items() if name not in ("padding", "truncation")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), rules, special, tokenizer.padding_side]


def train_base_once(folder: Path, make_trainer: Callable[[], DAIRTrainer]) -> Path:
    """Train a base model that several runs start from, unless `folder` already holds it.

    Args:
        folder: Folder of the model and of the trainer's state, `trainer_state.json`, written completely or not at all.
            Its name should identify the settings (`base_fingerprint`).
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
                trainer.state.save_to_json(str(scratch / TRAINER_STATE_NAME))
        trainer.accelerator.wait_for_everyone()
    return folder
