"""Pairs in trainers of other libraries: `class PairSFTTrainer(PairMixin, SFTTrainer)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import TargetRule, trained_partners, view_mask
from dair_hf.data.checks import columns_of, require_pairs
from dair_hf.data.collator import LABELS, ROW_ID, VIEW_MASK, PairCollator, flatten_views
from dair_hf.data.view_columns import partner_numbers, view_prefix
from dair_hf.errors import DataError
from dair_hf.losses.objective import dair_loss
from dair_hf.losses.per_sample import SampleLoss, full_precision
from dair_hf.training.checks import refuse_unsupported_launch
from dair_hf.training.sample_loss import MODEL_LOSSES, decoder_inputs_of, resolve_sample_loss, row_rules

PLAIN_LOSSES = ("transformers.trainer", "trl.trainer.sft_trainer")  # modules whose `compute_loss` is the model's


class PairMixin:
    """Trains on pairs with the DAIR objective in any subclass of `Trainer`, such as TRL's `SFTTrainer`.

    Rows are as for `DAIRTrainer`, with the columns that the trainer's collator reads. A `PairCollator` wraps it: both
    views of a row stay together. A step runs the views that exist as one batch, whose losses `dair_loss`
    combines, and divides by the rows of the whole optimizer step, over all micro-batches and ranks. With several
    ranks, `accelerate` repeats rows in the last batch of an epoch, as in any trainer. Evaluation is the trainer's own,
    on the originals.

    Args:
        *args: As in the trainer.
        dair_lambda: Weight of the consistency, >= 0, in pair units.
        sample_loss: As in `DAIRTrainer`.
        **kwargs: As in the trainer.

    Raises:
        DataError: The loss of a row cannot be derived from the model, or the trainer has another; the data have no
            partner with columns that the trainer reads; or a setting would be ignored, or change originals only.

    Example:
        >>> from transformers import Trainer
        >>> class PairTrainer(PairMixin, Trainer): ...
    """

    def __init__(
        self, *args: Any, dair_lambda: float = 0.5, sample_loss: str | SampleLoss | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        if isinstance(trainer.args, DAIRConfig):
            raise DataError("args: expected arguments of the trainer; DAIRConfig belongs to DAIRTrainer")
        prepared = getattr(trainer.args, "dataset_kwargs", {"skip_prepare_dataset": True}) or {}  # of TRL
        if not prepared.get("skip_prepare_dataset") and trainer.args.max_length is not None:
            raise DataError("max_length: expected None and rows that are short enough; TRL cuts originals only")
        refuse_unsupported_launch(trainer.args, trainer.train_dataset, trainer.compute_loss_func, trainer.model)
        if not dair_lambda >= 0:
            raise DataError(f"dair_lambda={dair_lambda}: expected a number >= 0")
        if type(self).compute_loss is not PairMixin.compute_loss:  # it would train without R
            raise DataError(f"{type(self).__name__}: expected compute_loss of PairMixin; pass a loss as sample_loss")
        own, kind = super().compute_loss.__module__, getattr(trainer.args, "loss_type", "nll")  # type: ignore[misc]
        if sample_loss is None and (own not in PLAIN_LOSSES or kind != "nll"):
            raise DataError(f"{type(self).__name__}: expected sample_loss, since training does not call its own loss")
        if trainer.args.remove_unused_columns:  # a trainer may have tokenized the originals only
            trainer._set_signature_columns_if_needed()
            require_pairs(trainer.train_dataset, trainer._signature_columns, "dair", "train_dataset")
        self.dair_lambda = dair_lambda
        self.sample_loss, name = resolve_sample_loss(sample_loss, trainer.model)
        rules = row_rules(trainer.model, name, name in MODEL_LOSSES)
        self.data_collator = PairCollator(trainer.data_collator, rules)
        self.loss_is_scaled_for_ga = True  # `compute_loss` divides by the rows of the step
        shifts, is_soft = (getattr(self.sample_loss, name, False) for name in ("shifts_labels", "soft_labels"))
        self._rule = TargetRule(shifts, is_soft)
        self._views = self._partners = torch.empty(0)  # of the batch that is trained

    def _set_signature_columns_if_needed(self: Any) -> None:
        is_new = self._signature_columns is None
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        if is_new:
            partners = partner_numbers(columns_of(self.train_dataset) or ()) or [1]
            names = [view_prefix(view) + name for view in (0, *partners) for name in self._signature_columns]
            self._signature_columns = [*names, ROW_ID]

    def _get_num_items_in_batch(self: Any, batches: list[Any], device: torch.device) -> Any:
        """Return the rows of a step; in an evaluation, what the trainer counts."""
        if not batches or VIEW_MASK not in batches[0]:
            return super()._get_num_items_in_batch(batches, device)  # type: ignore[misc]
        rows = torch.stack([view_mask(batch)[:, 0].sum() for batch in batches]).sum().to(device)
        return self.accelerator.reduce(rows, "sum")

    def _prepare_inputs(self: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Return the views of a batch as rows; in an evaluation, the originals."""
        batch = super()._prepare_inputs(inputs)  # type: ignore[misc]
        if VIEW_MASK not in batch:
            return batch
        self._views = view_mask(batch).clone()
        self._views[:, 1:] &= self.model.training
        self._partners = trained_partners(self._rule.counts(batch))
        if self.model.training:
            batch = {**batch, LABELS: self._rule.labels(batch)}  # padding cannot predict a row's first token
        views = flatten_views(batch, self._views.cpu().numpy())
        if not self.model.training:  # the evaluation reads some of its inputs again
            inputs.clear()
            inputs.update(views)
        return views

    def compute_loss(
        self: Any, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the contribution of a micro-batch to the objective; in an evaluation, the trainer's loss."""
        if not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[misc]
        labels = inputs.pop(LABELS)
        if (shifted := decoder_inputs_of(self.model)) is not None and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = shifted(labels=labels)
        outputs = model(**inputs)
        rows = full_precision(self.sample_loss(outputs, labels))
        losses = rows.new_zeros(self._views.shape).masked_scatter(self._views, rows)
        loss = dair_loss(losses[:, 0], losses[:, 1:], self.dair_lambda, self._partners).sum() / num_items_in_batch
        loss = loss * self.accelerator.num_processes  # engines average the gradients of ranks
        return (loss, outputs) if return_outputs else loss
