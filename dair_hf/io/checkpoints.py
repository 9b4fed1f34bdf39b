"""Checkpoints of `Trainer` on disk: the newest one from which training can resume."""

from __future__ import annotations

import copy
import fnmatch
import itertools
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.utils import load_peft_weights
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.io.files import read_json

logger = logging.get_logger(__name__)
# Part of a checkpoint -> file names, at least one of which must exist; sharded models have folders.
_PARTS = {
    "weights": ("*model*.safetensors", "*.safetensors.index.json", "pytorch_model*"),
    "optimizer": ("optimizer.pt", "optimizer.bin", "optimizer_*"),
    "scheduler": ("scheduler.pt",),
    "random state": ("rng_state*.pth",),
}


def last_checkpoint(folder: Path) -> str | None:
    """Return the path of the newest complete checkpoint in `folder`, or None.

    Unlike `transformers.trainer_utils.get_last_checkpoint`, skips with a warning a newer checkpoint that was being
    written when its run was killed, or has lost a file since: `Trainer` would fail, or resume from it with a new
    optimizer. `folder` need not exist.
    """
    steps = {step: path for path in folder.glob("checkpoint-*") if (step := _step_of(path)) is not None}
    unfinished = [path for path in folder.glob("checkpoint-*") if path not in steps.values()]
    damaged = []
    for step in sorted(steps, reverse=True):
        if (problem := _problem(steps[step])) is None:
            break
        damaged.append(f"{steps.pop(step)} ({problem})")
    found = str(steps[max(steps)]) if steps else None
    newer = [path for path in unfinished if _number_of(path) > max(steps, default=-1)]
    damaged += [f"{path} (cut off while it was saved)" for path in sorted(newer, key=_number_of, reverse=True)]
    if damaged:
        start = found or "the start; with save_only_model=True every checkpoint is incomplete"
        logger.warning(f"Incomplete, ignored: {', '.join(damaged)}. Training resumes from {start}.")
    return found


def resumable_checkpoint(path: str | bool, folder: str) -> str:
    """Return the path of the checkpoint from which a run resumes."""
    found = last_checkpoint(Path(folder)) if path is True else str(path)
    if found is None or not _is_finished(Path(found)):
        held = ", ".join(path.name for path in sorted(Path(folder).glob("checkpoint-*"), key=_number_of))
        raise DataError(
            f"resume_from_checkpoint={path!r}: expected a complete checkpoint of a Trainer, with trainer_state.json; "
            f"{folder} holds {held or 'none'}"
        )
    return found


def load_weights(model: PreTrainedModel, checkpoint: Path) -> None:
    """Load the weights of a checkpoint as `from_pretrained` does, which renames and merges weights of some models."""
    # On a copy without data, since the conversion replaces parameters, which an optimizer may hold.
    tensors = itertools.chain(model.parameters(), model.buffers())
    loaded = copy.deepcopy(model, {id(tensor): torch.empty_like(tensor, device="meta") for tensor in tensors})
    files = sorted(checkpoint.glob("model*.safetensors")) or sorted(checkpoint.glob("pytorch_model*.bin"))
    mapping = LoadStateDictConfig(weight_mapping=get_model_conversion_mapping(model))
    found, _ = model._load_pretrained_model(loaded, None, [str(file) for file in files], mapping)
    model._adjust_missing_and_unexpected_keys(found)
    own, absent = model.state_dict(keep_vars=True), found.missing_and_mismatched()
    # By tensor and not by name, since only one of several tied weights is saved.
    new = {id(own[name]): tensor for name, tensor in loaded.state_dict().items() if not tensor.is_meta}
    model.load_state_dict({n: new.get(id(old), old) for n, old in own.items() if id(old) in new or n not in absent})


def require_adapters(model: PeftModel, checkpoint: Path) -> None:
    """Refuse a checkpoint that lacks a weight of an adapter, which peft would silently leave unchanged."""
    for name in model.peft_config:
        folder = checkpoint / name if (checkpoint / name).is_dir() else checkpoint
        own = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        if absent := sorted(own.keys() - load_peft_weights(str(folder), device="cpu").keys()):
            raise RuntimeError(f"missing in {folder}: {', '.join(absent)}")


def _problem(checkpoint: Path) -> str | None:
    """Return why training cannot continue from a checkpoint as if it had never stopped, or None."""
    names = [path.name for path in checkpoint.iterdir()]
    if "latest" in names:
        return None  # DeepSpeed's own format, which it checks itself
    for kind, patterns in _PARTS.items():
        if not any(fnmatch.filter(names, pattern) for pattern in patterns):
            return f"{kind} missing"
    return None


def finished_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder that were not cut off while they were saved, by their number."""
    return sorted(filter(_is_finished, folder.glob("checkpoint-*")), key=_number_of)


def _is_finished(checkpoint: Path) -> bool:
    """Return whether the file that `Trainer` writes last into a checkpoint is there and whole."""
    return _step_of(checkpoint) is not None


def _number_of(checkpoint: Path) -> int:
    """Return the step in the name of a checkpoint; -1 if there is none."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _step_of(checkpoint: Path) -> int | None:
    """Return the step of a checkpoint, or None if it is incomplete."""
    try:
        # The Trainer writes this file last.
        return int(read_json(checkpoint / "trainer_state.json")["global_step"])
    except (DataError, KeyError, TypeError, ValueError):
        return None
