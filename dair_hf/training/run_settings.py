"""What the folder of a run holds: checkpoints of an earlier run, and the classes of adapters of a classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.io.checkpoints import finished_checkpoints
from dair_hf.io.files import read_json, write_json
from dair_hf.training.sample_loss import can_generate

logger = logging.get_logger(__name__)
CLASSES_FILE = "dair_classes.json"
CLASS_SETTINGS = ("id2label", "problem_type")


def warn_of_earlier_run(args: DAIRConfig) -> None:
    """Log one line if there are checkpoints in the output folder of a run from the start; a resume might take them."""
    finished = finished_checkpoints(Path(args.output_dir))
    if finished and args.should_log:
        logger.warning(
            f"{args.output_dir} holds checkpoints of an earlier run, {len(finished)}, such as {finished[-1].name}. "
            "resume_from_checkpoint=True takes the complete one of the highest step, of whichever run it is; for a "
            "run of its own, name another output_dir, or move them away."
        )


def replaces_head(model: Any) -> bool:
    """Return whether a model has adapters and a head of classes that was trained with them."""
    settings = model.peft_config[model.active_adapter] if isinstance(model, PeftModel) else None
    return settings is not None and bool(settings.modules_to_save) and not can_generate(model)


def save_classes(model: Any, folder: Path) -> None:
    """Write the names of the classes next to adapters whose head was replaced; peft saves no configuration of it."""
    if replaces_head(model):
        config: Any = model.config
        write_json(folder / CLASSES_FILE, {name: getattr(config, name) for name in CLASS_SETTINGS})


def read_classes(file: Path) -> dict[str, Any]:
    """Read what `save_classes` has written, as arguments of a configuration."""
    saved = read_json(file)
    names = saved.get("id2label") if isinstance(saved, dict) else None
    if not isinstance(names, dict) or not names or sorted(names) != sorted(map(str, range(len(names)))):
        raise DataError(f'{file}: give the names of all classes as {{"id2label": {{"0": "...", "1": "...", ...}}}}')
    id2label = {int(number): str(name) for number, name in names.items()}
    classes = {"id2label": id2label, "label2id": {name: number for number, name in id2label.items()}}
    return {**classes, **({"problem_type": saved["problem_type"]} if saved.get("problem_type") else {})}
