"""How pairs reach a trainer: columns, loaders, the order of the rows, and the counts of one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import LayoutCollator, view_mask
from dair_hf.data.checks import columns_of, no_pairs
from dair_hf.data.collator import (
    AUGMENTED_PREFIX,
    FILLER,
    LABELS,
    LAYOUT,
    ROW_ID,
    VIEW_MASK,
    collate_unless_ready,
    on_device,
)
from dair_hf.data.counter_rng import generator_for
from dair_hf.data.sampling import (
    EpochPairs,
    FilledStream,
    PairLengthSampler,
    TokenBatchSampler,
    view_counts,
    view_lengths,
)
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.evaluation.target_tokens import check_targets
from dair_hf.io.processes import gather_results
from dair_hf.losses.objective import Counts
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.training.forward import PairLoss

logger = logging.get_logger(__name__)

# (model, batch [B, V, ...] on its device, generator) -> the batch with partners, V = 2 (`collator.add_partners`).
Augmenter = Callable[[nn.Module, Mapping[str, Any], torch.Generator], Mapping[str, Any]]

STEPS_WATCHED = 100  # of a stream, until which a pair must have come


class EpochCallback(TrainerCallback):
    """Tells the training pairs and their sampler which epoch begins, after a resume as well."""

    def __init__(self, trainer: PairLoading) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass the number of the epoch on."""
        # A resumed run stands inside its epoch: 2.37 belongs to epoch 2.
        epoch = math.floor((state.epoch or 0.0) + 1e-9)
        loaded = getattr(kwargs.get("train_dataloader"), "dataset", None)
        for part in (self.trainer.train_dataset, loaded, self.trainer.pair_sampler):
            if isinstance(part, (EpochPairs, TensorPairs, PairLengthSampler, TokenBatchSampler)):
                part.set_epoch(epoch)


class PairLoading(Seq2SeqTrainer):
    """The part of `DAIRTrainer` that loads pairs: whole, in batches of all ranks, with what they count.

    Attributes:
        args: The run's configuration.
        augmenter: Makes the partners of a batch while training; None: they are those of the data.
        keeps_order: Whether evaluation data is read in its order, as predictions come; else by length.
        generates: Whether predictions are generated, so that labels must be what generation can write.
        pair_sampler: The sampler of `pair_group_by_length` or `max_tokens_per_batch`, once there is one.
    """

    args: DAIRConfig
    augmenter: Augmenter | None = None
    keeps_order: bool = False
    generates: bool = False
    pair_sampler: PairLengthSampler | TokenBatchSampler | None = None
    _checked_targets = False
    _saw_pair: bool = True
    _saw_here: bool = False
    _read_to_end: bool = False
    _steps_watched: int = 0

    @property
    def pair_loss(self) -> PairLoss:
        """Losses and counts of batches."""
        raise NotImplementedError

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            known: list[str] = vars(self)["_signature_columns"]
            # What the model does not know its collator may need, paths of images or texts; and the sample loss, labels.
            known += [LABELS, *getattr(self.data_collator.base_collator, "columns", ())]
            known += [AUGMENTED_PREFIX + name for name in known] + [ROW_ID, FILLER]

    def _known_columns(self, data: Any) -> list[str]:
        """Columns of the data that are read: all, or those of the model and the collator for both views."""
        if not self.args.remove_unused_columns:
            return columns_of(data) or []
        self._set_signature_columns_if_needed()
        return list(self._signature_columns or ())

    def _remove_unused_columns(self, dataset: datasets.Dataset, description: str | None = None) -> datasets.Dataset:
        if not self.args.uses_partners and description is not None and description.lower() == "training":
            # ERM never looks at the partners: they are neither read nor collated.
            dataset = dataset.select_columns([n for n in dataset.column_names if not n.startswith(AUGMENTED_PREFIX)])
        return super()._remove_unused_columns(dataset, description=description)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        return partial(collate_unless_ready, super()._get_collator_with_removed_columns(data_collator, description))

    def _get_dataloader(self, dataset: Any, description: str, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        if description == "Training" and isinstance(dataset, TensorPairs) and not self.args.uses_partners:
            dataset = dataset.originals()
        if self.accelerator.num_processes > 1 and isinstance(dataset, torch.utils.data.IterableDataset):
            dataset = FilledStream(dataset, batch_size * self.accelerator.num_processes)
        loader = super()._get_dataloader(dataset, description, batch_size, *args, **kwargs)
        # Here and not in the collator: a `TensorPairs` makes its batches without one.
        inner = getattr(loader, "base_dataloader", loader)
        inner.collate_fn = LayoutCollator(inner.collate_fn, self.pair_loss.target_rule)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        args, dataset = self.args, train_dataset if train_dataset is not None else self.train_dataset
        if not args.pair_group_by_length and args.max_tokens_per_batch is None:
            return super()._get_train_sampler(train_dataset)
        if not isinstance(dataset, (datasets.Dataset, EpochPairs)):
            name = "pair_group_by_length" if args.pair_group_by_length else "max_tokens_per_batch"
            raise DataError(
                f"{name} needs the length of every row, but train_dataset is a {type(dataset).__name__}; "
                "pass a datasets.Dataset or EpochPairs, or leave it at its default"
            )
        seed = args.data_seed if args.data_seed is not None else args.seed
        lengths = view_lengths(dataset)
        if args.max_tokens_per_batch is None:
            # Not the size of the arguments: `auto_find_batch_size` may have found a smaller one.
            self.pair_sampler = PairLengthSampler(lengths, self._train_batch_size * args.world_size, seed)
        else:
            views = view_counts(dataset) if args.uses_partners else None
            self.pair_sampler = TokenBatchSampler(
                lengths, args.max_tokens_per_batch, views, args.world_size, args.process_index, seed
            )
        return self.pair_sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        if self.keeps_order:
            return torch.utils.data.SequentialSampler(eval_dataset)
        if self.args.dataloader_drop_last or not isinstance(eval_dataset, (datasets.Dataset, EpochPairs)):
            return super()._get_eval_sampler(eval_dataset)
        try:
            lengths = view_lengths(eval_dataset)
        except DataError:  # no lists of tokens
            return super()._get_eval_sampler(eval_dataset)
        # What is evaluated are sums over rows; predictions come by themselves, in the order of the data.
        return np.argsort(-lengths, kind="stable").tolist()

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of one optimizer step and the counts of all of them, on all ranks."""
        batches = []
        for _ in range(num_batches):
            batch = next(epoch_iterator, None)
            if batch is None:
                break
            batches.append(batch)
        if not batches:
            return batches, None
        self._mask_repeated_rows(batches[-1])
        if not self._checked_targets:
            self._checked_targets = True
            columns = {name: batches[0].get(name) for name in ("input_ids", LABELS)}
            originals = {name: values[:, 0] for name, values in columns.items() if isinstance(values, Tensor)}
            # On all ranks together: their rows differ, and one that refuses its own must not leave the others waiting.
            gather_results(lambda: check_targets(self.model, originals, refuse=self.generates))
        self._watch_for_pairs(batches)
        if self.augmenter is not None and self.args.uses_partners:
            batches = [self._with_online_partners(batch, number) for number, batch in enumerate(batches)]
        counted = [self.pair_loss.layout(batch).counts(self.args.uses_partners) for batch in batches]
        local = np.sum(counted, axis=0)
        counts = Counts(*self.accelerator.reduce(on_device(local, device), "sum"))
        # The sum over ranks stays on the device; where this rank has a target it need not be looked at.
        if local[2] == 0 and counts.tokens == 0:
            raise DataError(
                f"no row of step {self.state.global_step + 1} has a target: all labels are {IGNORE_INDEX} (rows such "
                f"as {batches[0].get(ROW_ID, ['(no row_id)'])[:8]}); were the targets truncated away? Cut the inputs, "
                "not the targets"
            )
        return batches, counts

    def _watch_for_pairs(self, batches: list[Any]) -> None:
        """Refuse data whose first steps hold no pair, where that could not be told before.

        A run that ends sooner, before its data does, is warned. A resumed run is not watched: its pairs may have come
        before.
        """
        watched = self._steps_watched
        if self._saw_pair or watched >= STEPS_WATCHED or self.state.global_step != watched:
            return
        self._steps_watched = watched = watched + 1
        # Each rank sees its own batches; they decide together, after as many steps.
        self._saw_here |= any(view_mask(batch).shape[1] > 1 for batch in batches)
        self._read_to_end |= self.accelerator.gradient_state.end_of_dataloader
        if watched < STEPS_WATCHED and watched < self.state.max_steps:
            return
        seen = torch.tensor(float(self._saw_here), device=self.args.device)
        self._saw_pair = bool(self.accelerator.reduce(seen, "sum"))
        if self._saw_pair:
            return
        data = self.train_dataset
        name = f"the first {watched} steps of train_dataset"
        message = no_pairs(name, columns_of(data), self._known_columns(data), self.args.method)
        if watched == STEPS_WATCHED or self._read_to_end:
            raise DataError(message)
        logger.warning(message)

    def _with_online_partners(self, batch: dict[str, Any], number: int) -> dict[str, Any]:
        """The batch with the partners that the augmenter makes for it; the same ones after a resume."""
        assert self.augmenter is not None
        device, state = self.args.device, self.state
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        what = (seed, "augmenter", state.global_step, self.accelerator.process_index, number)
        with self.compute_loss_context_manager():
            # The model without its wrappers: what one rank does here the others need not know.
            made = self.augmenter(self.model, self._prepare_inputs(batch), generator_for(device, *what))
        if not isinstance(made, Mapping) or VIEW_MASK not in made:
            raise DataError(
                f"augmenter: returned {type(made).__name__} without {VIEW_MASK!r}; return the batch with its partners, "
                "as `collator.add_partners` makes it"
            )
        return {name: values for name, values in made.items() if name != LAYOUT}

    def _mask_repeated_rows(self, batch: dict[str, Any]) -> None:
        """Drop the rows with which `accelerate` fills up the last batches of an epoch so that ranks stay even.

        They are rows of the first batch once more; counted, they would make the update depend on the number of ranks.
        """
        state = self.accelerator.gradient_state
        if self.accelerator.num_processes == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return
        mask = view_mask(batch)
        before_me = self.accelerator.process_index * len(mask)
        own = max(0, state.remainder - before_me)
        mask[own:] = False
        batch[LAYOUT] = self.pair_loss.layout(batch).first(own)
