"""Settings that are saved with each checkpoint: those of the run, and the classes of adapters of a classifier."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

from peft import PeftModel, TaskType
from transformers.trainer_utils import has_length
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.config.objective import ObjectiveConfig
from dair_hf.errors import DataError
from dair_hf.io.checkpoints import finished_checkpoints, holds_optimizer
from dair_hf.io.files import read_json, write_json

logger = logging.get_logger(__name__)
SETTINGS_FILE = "dair_settings.json"
CLASSES_FILE = "dair_classes.json"
CLASS_SETTINGS = ("id2label", "problem_type")
# Settings that change what the steps after a resume do. `Trainer` itself reports other batch sizes.
COMPARED = (
    *(field.name for field in dataclasses.fields(ObjectiveConfig)),
    "forward_mode", "pair_dropout", "max_tokens_per_batch", "share_prefixes", "max_length", "max_steps",
    "num_train_epochs", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs",
    "warmup_steps", "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
    "label_smoothing_factor", "seed", "data_seed", "bf16", "fp16",
)  # fmt: skip
# `Trainer` takes them over from the checkpoint, with the state of the optimizer.
OF_OPTIMIZER = ("learning_rate", "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
# The same state; any other two optimizers may have different ones.
SAME_STATE = {"adamw_torch", "adamw_torch_fused"}


def save_settings(args: DAIRConfig, data: Any, checkpoint: Path) -> None:
    """Write the compared settings of a run, and the number of its training rows, into the folder of a checkpoint."""
    write_json(checkpoint / SETTINGS_FILE, _settings_of(args, data))


def warn_of_other_settings(args: DAIRConfig, data: Any, checkpoint: Path, builds_optimizer: bool = True) -> None:
    """Log one line that names the settings in which a run differs from that of the checkpoint it resumes.

    Checkpoints of a plain `Trainer` have no such file, and say nothing. Of data, only the number of rows is compared:
    equal rows may have different fingerprints.

    Args:
        args: Settings of the run.
        data: Training data; a stream has no number of rows.
        checkpoint: Folder of the checkpoint.
        builds_optimizer: Whether `args.optim` decides on the optimizer, rather than one that the caller made.

    Raises:
        DataError: The optimizer is another one, which may not be able to take over the saved state.
    """
    try:
        saved = read_json(checkpoint / SETTINGS_FILE)
    except DataError:
        return
    now = _settings_of(args, data)
    if not builds_optimizer:
        now = {name: value for name, value in now.items() if name not in ("optim", "optim_args")}
    changed = [name for name in now if isinstance(saved, dict) and name in saved and saved[name] != now[name]]
    has_optimizer = holds_optimizer(checkpoint)
    if "optim" in changed and has_optimizer and not {saved["optim"], now["optim"]} <= SAME_STATE:
        raise DataError(
            f"{checkpoint} holds the optimizer of a run with optim={saved['optim']}, which optim={now['optim']} may "
            "not take over; set the former, or leave resume_from_checkpoint out"
        )
    if changed and args.should_log:
        listed = ", ".join(f"{name}={saved[name]} (now {now[name]})" for name in changed)
        kept = [name for name in changed if name in OF_OPTIMIZER] if has_optimizer else []
        logger.warning(
            f"{checkpoint} is of a run with other settings: {listed}. Training goes on from it with the new ones"
            + (f", but with the old {', '.join(kept)}, which are part of the saved optimizer" if kept else "")
            + "; for a run of its own, name another output_dir, or leave resume_from_checkpoint out."
        )


def warn_of_earlier_run(args: DAIRConfig) -> None:
    """Log one line if there are checkpoints in the output folder of a run from the start; a resume might take them.

    Args:
        args: Settings of the run.
    """
    finished = finished_checkpoints(Path(args.output_dir))
    if finished and args.should_log:
        logger.warning(
            f"{args.output_dir} holds checkpoints of an earlier run, {len(finished)}, such as {finished[-1].name}. "
            "resume_from_checkpoint=True takes the complete one of the highest step, of whichever run it is; for a "
            "run of its own, name another output_dir, or move them away."
        )


def save_classes(model: Any, folder: Path) -> None:
    """Write the names of the classes beside adapters of a classifier, which peft saves without its configuration.

    Args:
        model: The model; without adapters, or if it is no classifier, nothing is written.
        folder: Folder with the adapters.
    """
    if isinstance(model, PeftModel) and model.peft_config[model.active_adapter].task_type == TaskType.SEQ_CLS:
        config: Any = model.config
        write_json(folder / CLASSES_FILE, {name: getattr(config, name) for name in CLASS_SETTINGS})


def read_classes(file: Path) -> dict[str, Any]:
    """Read what `save_classes` has written, as arguments of a configuration.

    Args:
        file: The file.

    Raises:
        DataError: The file is broken, or the names are not those of the classes 0, 1, ...

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / CLASSES_FILE).write_text('{"id2label": {"0": "no", "1": "yes"}}')
        ...     read_classes(Path(folder) / CLASSES_FILE)
        {'id2label': {0: 'no', 1: 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    saved = read_json(file)
    names = saved.get("id2label") if isinstance(saved, dict) else None
    if not isinstance(names, dict) or not names or sorted(names) != sorted(map(str, range(len(names)))):
        raise DataError(f'{file}: give the names of all classes as {{"id2label": {{"0": "...", "1": "...", ...}}}}')
    id2label = {int(number): str(name) for number, name in names.items()}
    classes = {"id2label": id2label, "label2id": {name: number for number, name in id2label.items()}}
    return {**classes, **({"problem_type": saved["problem_type"]} if saved.get("problem_type") else {})}


def _settings_of(args: DAIRConfig, data: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(
        json.dumps({name: getattr(args, name) for name in COMPARED}, default=_name_of_object)
    )
    return values | ({"len(train_dataset)": len(data)} if has_length(data) else {})


def _name_of_object(value: Any) -> str:
    """Return a text for a value that JSON does not have, such as a function, without its address in memory."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))
