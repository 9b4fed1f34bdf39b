"""Loading of pairs for the trainer: order of rows, epochs, columns of partners, and masks of repeated rows."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from peft import PeftConfig, PeftModel, TaskType, get_peft_model
from peft.utils.save_and_load import load_peft_weights
from torch import nn
from torch.utils.data import BatchSampler
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
)
from transformers.trainer_utils import RemoveColumnsCollator, has_length
from transformers.utils import CONFIG_NAME, cached_file, find_adapter_config_file

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import BatchLayout, view_mask
from dair_hf.data.checks import columns_of
from dair_hf.data.collator import LAYOUT
from dair_hf.data.sampling import (
    EpochPairs,
    PairLengthSampler,
    RowNumbers,
    TokenBatchSampler,
    view_counts,
    view_lengths,
)
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.texts.forms import INPUT_IDS, LABEL, TEXT, classes_of
from dair_hf.data.view_columns import is_augmented, parse_column
from dair_hf.errors import DataError, explained

if TYPE_CHECKING:
    from dair_hf.modeling import ModelConfig

CLASS_OF_TASK: dict[str | None, Any] = {  # `task_type` of adapters
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
}
CLASSIFIER = "ForSequenceClassification"  # end of the name of a class
# (model, batch [B, V, ...] on its device, generator) -> batch with partners (`collator.add_partners`).
OnlineAugmenter = Callable[[nn.Module, Mapping[str, Any], torch.Generator], Mapping[str, Any]]


def prepare_model(model: Any, adapters: Any, processing_class: Any, data: Any, seed: int) -> tuple[Any, Any]:
    """Load model and processing class by name where necessary, and add adapters; return both."""
    from dair_hf.modeling import ModelConfig, load_named_model, load_pretrained, load_text_classifier, load_tokenizer

    is_name = isinstance(model, (str, os.PathLike))
    name = str(model) if is_name else getattr(getattr(model, "config", None), "name_or_path", "")
    columns = [] if data is None else columns_of(data) or [INPUT_IDS]  # unknown ones may be tokens
    saved, places = adapters_of(name) if is_name else (None, [ModelConfig(name)])
    # Training sets the special tokens of a model to its tokenizer's: rows of tokens may have been padded with others.
    if processing_class is None and name and (is_name or INPUT_IDS not in columns):
        kinds = load_tokenizer, lambda place: load_pretrained(AutoImageProcessor, place.model_name_or_path, name)
        for load, place in itertools.product(kinds, places):
            with contextlib.suppress(DataError):  # models of images have no tokenizer, those of tables nothing
                processing_class = processing_class or load(place)
    if saved is not None:
        model = load_adapted(name, saved, is_trainable=True, dtype="float32", use_safetensors=True)
    elif is_name:
        config = load_pretrained(AutoConfig, name, name)
        classes = _class_names(data)
        if classes and not any(kind.endswith(CLASSIFIER) for kind in config.architectures or ()):
            model = load_text_classifier(ModelConfig(name), processing_class, classes, seed)
        else:
            model = load_named_model(name, config=config, dtype="float32", use_safetensors=True)
    if adapters is not None:
        if adapters.task_type is None and type(model).__name__.endswith(CLASSIFIER):
            adapters = copy.copy(adapters)
            adapters.task_type = TaskType.SEQ_CLS  # saves the output layer, too
        torch.manual_seed(seed)
        model = get_peft_model(model, adapters)
    return model, processing_class


def _class_names(data: Any) -> list[str] | None:
    """Return the names of the classes of labelled texts, in the order of their numbers; None for other data."""
    columns = columns_of(data) or []
    if not {TEXT, LABEL} <= set(columns):
        return None
    feature = (getattr(data, "features", None) or {}).get(LABEL)
    if isinstance(feature, datasets.ClassLabel):
        names: list[str] = feature.names
        return names
    if isinstance(data, datasets.IterableDataset):
        return None
    try:
        found = classes_of(data)[1]
    except DataError:  # of a regression
        return None
    if all(isinstance(label, int) for label in found):
        return [f"LABEL_{number}" for number in range(max(found, default=-1) + 1)]
    return found if all(isinstance(label, str) for label in found) else None


def adapters_of(name: str) -> tuple[PeftConfig | None, list[ModelConfig]]:
    """Return the configuration of adapters, and where their tokenizer may be: next to them, or next to their base.

    None for a model, even with adapters in its folder.
    """
    from dair_hf.modeling import ModelConfig

    with contextlib.suppress(OSError):
        if cached_file(name, CONFIG_NAME) is not None:
            return None, [ModelConfig(name)]
    with explained(name, Exception):
        if find_adapter_config_file(name) is None:
            return None, [ModelConfig(name)]
    with explained(f"{name}: adapter_config.json", Exception):
        adapters = PeftConfig.from_pretrained(name)  # JSON
    base, revision = adapters.base_model_name_or_path, adapters.revision
    if not base:
        raise DataError(f"{name}: expected base_model_name_or_path in adapter_config.json to name a model")
    return adapters, [ModelConfig(name), ModelConfig(base, model_revision=revision or "main")]


def load_adapted(name: str, adapters: PeftConfig, is_trainable: bool = False, **options: Any) -> Any:
    """Load adapters on their base model, which gets the options of `from_pretrained`."""
    from dair_hf.modeling import load_named_model, load_pretrained

    base, revision = str(adapters.base_model_name_or_path), adapters.revision
    saved = load_peft_weights(name, device="cpu")
    setting = f"{name}: base_model_name_or_path={base!r} in adapter_config.json"
    config = load_pretrained(AutoConfig, base, setting, revision=revision)
    if adapters.task_type == TaskType.SEQ_CLS:
        _set_classes(config, name, saved)
    heads = {key.removeprefix("base_model.").removeprefix("model.").rpartition(".")[0] for key in saved}
    kind = CLASS_OF_TASK.get(adapters.task_type)
    model = load_named_model(base, setting, kind=kind, config=config, new_modules=heads, revision=revision, **options)
    with explained(f"{name}: its adapters do not fit the model {base!r}", Exception):
        return PeftModel.from_pretrained(model, name, is_trainable=is_trainable)


def _set_classes(config: Any, name: str, saved: Mapping[str, Any]) -> None:
    """Give the configuration of a base model the classes of adapters: their names, or else their number."""
    from dair_hf.modeling import output_layers
    from dair_hf.training.model_card import CLASSES_FILE, read_classes

    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    sizes = {
        len(weight)
        for layer in output_layers(model, config.num_labels, name)
        for key, weight in saved.items()
        if key.endswith(f".{layer}.weight")
    }
    with contextlib.suppress(OSError):
        file = cached_file(name, CLASSES_FILE)
        classes = read_classes(Path(str(file)))
        if sizes - {len(classes["id2label"])}:
            raise DataError(f"{file}: expected {max(sizes)} classes, as the head has, got {len(classes['id2label'])}")
        config.update(classes)
        return
    if sizes and max(sizes) != config.num_labels:
        config.num_labels = max(sizes)


class EpochCallback(TrainerCallback):
    """Sets the epoch of a `DAIRTrainer`'s training pairs and of their sampler; refuses an epoch without a target."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to resume a stream after its first pass, since `Trainer` does not know which rows come next."""
        if (state.epoch or 0.0) > 1 and not (has_length(kwargs["train_dataloader"]) or args.ignore_data_skip):
            raise DataError(
                f"resume_from_checkpoint: step {state.global_step} is after the first pass of a stream, whose length "
                "is unknown; set ignore_data_skip=True to start again from its first row"
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the number of the epoch."""
        # A resumed run continues within an epoch: 2.37 belongs to epoch 2.
        epoch = math.floor((state.epoch or 0.0) + 1e-9)
        for data in (self.trainer.train_dataset, getattr(kwargs.get("train_dataloader"), "dataset", None)):
            if isinstance(data, (EpochPairs, TensorPairs)):
                data.set_epoch(epoch)
        if self.trainer.pair_sampler is not None:
            self.trainer.pair_sampler.set_epoch(epoch)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse a run in which no row had a target, or a partner that is trained."""
        # A run that ends within an epoch, or within a stream, has not seen all rows.
        is_whole = has_length(kwargs["train_dataloader"]) and float(state.epoch).is_integer()
        if state.global_step and (is_whole or not (control.should_training_stop or control.should_epoch_stop)):
            # An augmenter may make partners later.
            self.trainer.require_pairs_and_targets(expects_pairs=self.trainer.augmenter is None)


def train_sampler(dataset: Any, args: DAIRConfig, batch_size: int) -> Any:
    """Return the training sampler of `share_prefixes`, `pair_group_by_length` or `max_tokens_per_batch`.

    `batch_size` is the number of rows per batch on each process, which `auto_find_batch_size` may have lowered.
    """
    if not isinstance(dataset, (datasets.Dataset, EpochPairs)):
        raise DataError(
            "share_prefixes, pair_group_by_length, max_tokens_per_batch: expected a datasets.Dataset or EpochPairs as "
            f"train_dataset, got {type(dataset).__name__}"
        )
    seed = args.data_seed if args.data_seed is not None else args.seed
    ranks = (args.world_size, args.process_index, seed)
    if args.share_prefixes is not None:
        from dair_hf.trees.batches import tree_sampler

        first = dataset.at(0) if isinstance(dataset, EpochPairs) else dataset
        return tree_sampler(
            first, args.share_prefixes, batch_size, args.max_tokens_per_batch, args.uses_partners, *ranks
        )

    @functools.lru_cache(maxsize=1)
    def measured(epoch: int) -> tuple[np.ndarray, np.ndarray]:
        rows = dataset.at(epoch) if isinstance(dataset, EpochPairs) else dataset
        if not args.uses_partners:
            rows = rows.select_columns([name for name in rows.column_names if not is_augmented(name)])
        return view_lengths(rows), view_counts(rows)

    # The lengths of epoch 0, even if the data are in another epoch after an earlier run.
    lengths: RowNumbers = measured(0)[0]
    views: RowNumbers = measured(0)[1]
    if isinstance(dataset, EpochPairs):
        lengths, views = (lambda epoch: measured(epoch)[0]), (lambda epoch: measured(epoch)[1])
    if args.max_tokens_per_batch is None:
        return PairLengthSampler(lengths, batch_size * args.world_size, seed)
    return TokenBatchSampler(lengths, args.max_tokens_per_batch, views, *ranks, functools.partial(_epochs, args))


def _epochs(args: DAIRConfig, batches: int) -> int:
    """Return the number of epochs of a run."""
    if args.max_steps <= 0:
        return math.ceil(args.num_train_epochs)
    return math.ceil(args.max_steps / math.ceil(batches / args.gradient_accumulation_steps))


def eval_order(dataset: Any, group_column: str | None = None) -> list[int] | None:
    """Return row numbers by group, or in the order of decreasing length; None if rows are not token lists."""
    if not isinstance(dataset, (datasets.Dataset, EpochPairs)):
        return None
    if group_column is not None:
        from dair_hf.trees.batches import rows_by_group

        rows = dataset.pairs if isinstance(dataset, EpochPairs) else dataset
        by_group: list[int] = np.concatenate(rows_by_group(rows, group_column)).tolist()
        return by_group
    try:
        lengths = view_lengths(dataset)
    except DataError:
        return None
    order: list[int] = np.argsort(-lengths, kind="stable").tolist()
    return order


def add_known_partners(known: list[str], view_columns: Collection[str], columns: Iterable[str]) -> list[str]:
    """Add columns of partners to the columns that are read, in place, and return these."""
    known += [name for name in columns if name not in known and parse_column(name)[1] in view_columns]
    return known


def collate_known_partners(collator: RemoveColumnsCollator, view_columns: Collection[str], rows: Sequence[Any]) -> Any:
    """Collate rows with a collator that drops unknown columns, but keep those of all partners."""
    names = dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row)
    collator.signature_columns = add_known_partners(list(collator.signature_columns), view_columns, names)
    return collator(rows)


def mask_repeated_rows(batch: dict[str, Any], layout: BatchLayout, accelerator: Accelerator) -> None:
    """Mask, in place, the rows that `accelerate` repeats at the end of an epoch to give all ranks equally many.

    Otherwise the update would depend on the number of ranks.
    """
    state = accelerator.gradient_state
    if accelerator.num_processes == 1 or not state.end_of_dataloader:
        return
    count = _rows_in_last_batch(state.active_dataloader)
    if count is not None:
        view_mask(batch)[count:] = False
        batch[LAYOUT] = layout.first(count)


def _rows_in_last_batch(loader: Any) -> int | None:
    """Return how many rows of the last batch of this rank are not repeated; they come first.

    `accelerate` knows the number in `GradientState.remainder`, but not in a resumed epoch, whose sampler is wrapped in
    a `SkipBatchSampler` without a batch size.
    """
    sampler = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    while isinstance(sampler, SkipBatchSampler):
        sampler = sampler.batch_sampler
    if not isinstance(sampler, BatchSamplerShard) or sampler.drop_last or sampler.batch_size is None:
        return None
    of_all_ranks = sampler.batch_size * (1 if sampler.split_batches else sampler.num_processes)
    remainder = len(getattr(sampler.batch_sampler, "sampler", loader.dataset)) % of_all_ranks
    if remainder == 0:
        return None
    of_rank = of_all_ranks // sampler.num_processes
    return min(max(0, remainder - sampler.process_index * of_rank), of_rank)
