"""From a batch of pairs to the terms of the objective: runs the views that exist and counts what they target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import BatchLayout, TargetRule, view_mask
from dair_hf.data.collator import LABELS, LAYOUT, flatten_views, on_device
from dair_hf.errors import DataError
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.divergence import feature_consistency, mart_terms
from dair_hf.losses.objective import (
    LOSS_REGULARIZERS,
    Counts,
    PairTerms,
    normalized_objective,
)
from dair_hf.losses.per_sample import SAMPLE_LOSSES, SampleLoss, full_precision
from dair_hf.training.forward_plan import (
    Forward,
    checkpointed,
    joint_plan,
    replay_rng,
    separate_plan,
    shared_dropout_plan,
    split_mask,
)


class PairOutputs(NamedTuple):
    """What a forward over a batch of pairs gives.

    Attributes:
        terms: Unreduced terms, each `[B]`.
        targets: Number of valid targets of every view, `[B, V]` int64.
        was_run: Which views were run, `[B, V]` bool: those that exist, but for originals that the method does not use.
        outputs: The model's outputs, rows in `[B, V]` order, existing views only (of the last forward if separate).
        losses_at: Scale (a scalar tensor) -> losses `[B, V]` with the logits multiplied by it; 0 where a view was not
            run. What IRM differentiates.
    """

    terms: PairTerms
    targets: Tensor
    was_run: Tensor
    outputs: Any
    losses_at: Callable[[Tensor], Tensor]


class _Rows(NamedTuple):
    losses: Tensor  # [N], in running order
    logits: Tensor | None  # [N, ...], kept only where R compares features
    order: np.ndarray  # [N], place of each in the flattened [B, V]
    outputs: Any
    losses_at: Callable[[Tensor], Tensor]  # scale of the logits -> losses, [N]


class PairLoss:
    """Losses and counts of batches in the `[B, V, ...]` layout of `PairCollator`.

    A batch of the trainer's loaders carries its layout (`batch_layout`), and then nothing here makes the host wait for
    the device. The layout of any other batch is read off its tensors.

    Args:
        args: Method, regularizer, lambda, normalization and forward mode.
        sample_loss: `(outputs, labels) -> [rows]`.
        decoder_inputs: What an encoder-decoder derives its decoder inputs from the labels with
            (`model.prepare_decoder_input_ids_from_labels`); None: the model needs none.
        chunked: What runs and judges the model in place of `sample_loss`, without its logits; None: nothing does.
    """

    def __init__(
        self,
        args: DAIRConfig,
        sample_loss: SampleLoss,
        decoder_inputs: Callable[..., Tensor] | None = None,
        chunked: ChunkedLoss | None = None,
    ) -> None:
        self.args = args
        self.chunked = chunked
        self.sample_loss = sample_loss
        self.decoder_inputs = decoder_inputs
        self.shifts_labels = bool(getattr(sample_loss, "shifts_labels", False))
        self.soft_labels = bool(getattr(sample_loss, "soft_labels", False))

    @property
    def target_rule(self) -> TargetRule:
        """What counts as a target, for those who lay out batches."""
        return TargetRule(self.shifts_labels, self.soft_labels, aligns=self.args.uses_features)

    def target_counts(self, batch: Mapping[str, Any]) -> Tensor:
        """Number of targets of every view, `[B, V]` int64 (`TargetRule.counts`)."""
        return self.target_rule.counts(batch)

    def layout(self, batch: Mapping[str, Any]) -> BatchLayout:
        """The layout that a batch carries, or that of its tensors."""
        found = batch.get(LAYOUT)
        if found is not None and found.exists.shape == tuple(view_mask(batch).shape):
            return found
        return self.target_rule.layout(batch)

    def count(self, batch: Mapping[str, Any]) -> Counts:
        """Rows, pairs and target tokens of one micro-batch, on its device (`BatchLayout.counts`)."""
        return Counts(*on_device(self.layout(batch).counts(self.args.uses_partners), view_mask(batch).device))

    def objective(self, terms: PairTerms, counts: Counts) -> Tensor:
        """The scalar share of these terms in the step's objective."""
        args = self.args
        return normalized_objective(terms, counts, args.method, args.dair_lambda, args.normalization)

    def __call__(self, model: nn.Module, batch: Mapping[str, Any], with_partners: bool) -> PairOutputs:
        """Run the views that exist, in one forward (or one a view, `forward_mode="separate"`).

        Args:
            model: The model.
            batch: A batch of `PairCollator`, on the model's device.
            with_partners: Whether to run the augmented views.

        Returns:
            Terms, targets and outputs.

        Raises:
            ValueError: The sample loss does not return one loss a row.
        """
        mask, targets, layout = view_mask(batch), self.target_counts(batch), self.layout(batch)
        if not with_partners or mask.shape[1] == 1:
            batch = {name: v[:, :1] if isinstance(v, Tensor) else v for name, v in batch.items()}
            mask, targets, layout = mask[:, :1], targets[:, :1], layout.originals()
        has_partner = (targets > 0).all(1) if mask.shape[1] == 2 else torch.zeros_like(mask[:, 0])
        was_run, run = mask, layout.exists
        if self.args.method == "augmented" and model.training and mask.shape[1] == 2:
            # PGD training never shows the model the original: batch norm would notice.
            was_run = torch.stack([mask[:, 0] & ~has_partner, mask[:, 1]], dim=1)
            run = np.stack([layout.exists[:, 0] & ~layout.paired, layout.exists[:, 1]], axis=1)
        rows = self._run(model, batch, run)
        unused = (targets == 0) | ~was_run

        def laid_out(losses: Tensor) -> Tensor:
            return _scattered(losses, rows.order, mask.numel()).view(mask.shape).masked_fill(unused, 0.0)

        def losses_at(scale: Tensor) -> Tensor:
            return laid_out(rows.losses_at(scale))

        terms = self.terms_of_losses(laid_out(rows.losses), has_partner)
        if mask.shape[1] == 2 and self.args.uses_features:
            if self.args.method == "mart":
                terms = self._mart(terms, layout, rows, batch[LABELS])
            else:
                terms = self._with_feature_consistency(terms, layout, rows, batch)
            # Of rows that somebody has masked since they were laid out nothing is compared.
            terms = terms._replace(
                augmented=terms.augmented.masked_fill(~has_partner, 0.0),
                consistency=terms.consistency.masked_fill(~has_partner, 0.0),
            )
        return PairOutputs(terms, targets, was_run, rows.outputs, losses_at)

    def terms_of_losses(self, losses: Tensor, has_partner: Tensor) -> PairTerms:
        """Terms of pairs as functions of their losses.

        Args:
            losses: `[B, V]`; 0 where a view has no target.
            has_partner: `[B]` bool.

        Returns:
            Each `[B]`; the consistency is 0 where the regularizer compares output distributions.
        """
        original = losses[:, 0]
        if losses.shape[1] == 1:
            return PairTerms(original, torch.zeros_like(original), torch.zeros_like(original), has_partner)
        augmented = losses[:, 1].masked_fill(~has_partner, 0.0)
        # Without partner both are 0, so that no loss there is ever compared: not even one whose root is undefined.
        consistency = self._loss_consistency(original.masked_fill(~has_partner, 0.0), augmented)
        return PairTerms(original, augmented, consistency, has_partner)

    def _run(self, model: nn.Module, batch: Mapping[str, Any], mask: np.ndarray) -> _Rows:
        if not mask.any():
            # A rank without a row of its own still takes part in the step, with rows that then count nothing: all the
            # originals it holds, since batch norm cannot train on a single row.
            mask = mask.copy()
            mask[:, 0] = True
        device = view_mask(batch).device
        order: list[np.ndarray] = []
        losses: list[Tensor] = []
        logits: list[Tensor] = []
        forwards: list[tuple[Any, Any]] = []
        outputs = None
        for forward in self._forwards(mask, model.training):
            inputs, labels = self.model_inputs(flatten_views(batch, forward.views))
            count = len(next(iter(inputs.values())))
            with replay_rng(device, forward.replays_rng):
                outputs, found = self._judge(model, inputs, labels)
            forwards.append((outputs, labels))
            losses.append(_checked(found, count))
            order.append(np.flatnonzero(forward.views))
            if self.args.uses_features:
                logits.append(outputs.logits)
        joined = losses[0] if len(losses) == 1 else torch.cat(losses)

        def losses_at(scale: Tensor) -> Tensor:
            scaled = [(SimpleNamespace(logits=outputs.logits * scale), labels) for outputs, labels in forwards]
            return torch.cat([self.sample_loss(outputs, labels) for outputs, labels in scaled])

        return _Rows(joined, torch.cat(logits) if logits else None, np.concatenate(order), outputs, losses_at)

    def model_inputs(self, views: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """What the model is given of views, and their labels.

        Args:
            views: `{column: [N, ...]}`.

        Returns:
            The inputs without labels, for an encoder-decoder with the decoder inputs that follow from them; the labels.
        """
        inputs = dict(views)
        labels = inputs.pop(LABELS, None)
        if self.decoder_inputs is not None and labels is not None and "decoder_input_ids" not in inputs:
            # Shifted targets, not labels: the model would compute a mean loss from those that nobody wants.
            inputs["decoder_input_ids"] = self.decoder_inputs(labels=labels)
        return inputs, labels

    def _judge(self, model: nn.Module, inputs: dict[str, Tensor], labels: Tensor | None) -> tuple[Any, Any]:
        """Outputs and losses of the rows of one forward."""
        if labels is None and self.sample_loss in SAMPLE_LOSSES.values():
            raise DataError(
                f"sample_loss {self.sample_loss.__name__} needs labels, but the batch has only {sorted(inputs)}; name "
                f"the column of the targets {LABELS!r}, or pass a callable (outputs, None) -> [rows]"
            )
        if self.chunked is not None and labels is not None:
            return self.chunked(model, inputs, labels)

        def run() -> tuple[Any, Tensor]:
            outputs = model(**inputs)
            return outputs, self.sample_loss(outputs, labels)  # type: ignore[arg-type]

        if self.args.gradient_cache is None or not model.training:
            return run()

        def logits_and_losses() -> tuple[Tensor, ...]:
            outputs, losses = run()
            return outputs.logits, losses

        logits, losses = checkpointed(logits_and_losses)
        return SimpleNamespace(logits=logits), losses

    def _forwards(self, mask: np.ndarray, training: bool) -> list[Forward]:
        plan = separate_plan if self.args.forward_mode == "separate" else joint_plan
        if training and self.args.pair_dropout == "shared":
            plan = shared_dropout_plan
        parts = split_mask(mask, self.args.gradient_cache if training else None)
        return [forward for part in parts for forward in plan(part)]

    def _loss_consistency(self, original: Tensor, augmented: Tensor) -> Tensor:
        args = self.args
        if args.regularizer not in LOSS_REGULARIZERS:
            return torch.zeros_like(original)  # a divergence that this method neither trains nor measures
        # Under ERM and DA-ERM R is only measured.
        with torch.set_grad_enabled(args.uses_regularizer and torch.is_grad_enabled()):
            return LOSS_REGULARIZERS[args.regularizer].value(original, augmented, args.loss_epsilon)

    def _mart(self, terms: PairTerms, layout: BatchLayout, rows: _Rows, labels: Tensor) -> PairTerms:
        if labels.ndim != 2 or labels.is_floating_point():
            raise ValueError(f"method='mart' needs one class a view, labels [B, V] int64; found {list(labels.shape)}")
        assert rows.logits is not None
        pairs, size = np.flatnonzero(layout.paired), len(labels)
        first, second = on_device(_numbers_of_views(rows.order, layout)[pairs].T, labels.device)
        log_p = full_precision(rows.logits).log_softmax(-1)
        classes = labels[:, 1].index_select(0, on_device(pairs, labels.device))
        boosted, consistency = mart_terms(log_p.index_select(0, first), log_p.index_select(0, second), classes)
        return terms._replace(
            augmented=_scattered(boosted, pairs, size), consistency=_scattered(consistency, pairs, size)
        )

    def _with_feature_consistency(
        self, terms: PairTerms, layout: BatchLayout, rows: _Rows, batch: Mapping[str, Any]
    ) -> PairTerms:
        assert rows.logits is not None
        pairs, logits, original = np.flatnonzero(layout.paired), rows.logits, terms.original
        numbers, regularizer = _numbers_of_views(rows.order, layout), self.args.regularizer
        if logits.ndim < 3:
            first, second = on_device(numbers[pairs].T, logits.device)
            found = feature_consistency(logits.index_select(0, first), logits.index_select(0, second), regularizer)
            return terms._replace(consistency=_scattered(found.to(original.dtype), pairs, len(original)))
        if layout.aligned is None:  # laid out for a regularizer that did not need it
            layout = self.target_rule.layout(batch)
        if layout.aligned is None:
            raise DataError(
                f"regularizer={regularizer!r} compares logits {list(logits.shape)} at the targets of sequences, labels "
                f"[B, V, T] int64; found {list(batch[LABELS].shape)}; use a regularizer of the losses, sq or l1"
            )
        # Of every compared position: its row, and number of the view and position of the logits that predict it.
        row = np.repeat(np.arange(len(layout)), [places.shape[1] for places in layout.aligned])
        at, other_at = np.concatenate(layout.aligned, axis=1)
        places = np.stack([row, numbers[row, 0], at, numbers[row, 1], other_at])
        of_row, *indices = on_device(places, logits.device)
        found = feature_consistency(logits[indices[0], indices[1]], logits[indices[2], indices[3]], regularizer)
        return terms._replace(consistency=torch.zeros_like(original).index_add(0, of_row, found.to(original.dtype)))


def _scattered(values: Tensor, places: np.ndarray, size: int) -> Tensor:
    """`[size]` with `values` `[N]` at distinct places, else 0."""
    if len(places) == size and (places == np.arange(size)).all():
        return values  # nothing to move
    return values.new_zeros(size).index_copy(0, on_device(places, values.device), values)


def _numbers_of_views(order: np.ndarray, layout: BatchLayout) -> np.ndarray:
    """Number of every view in running order, `[B, V]` int64; -1 where it was not run."""
    numbers = np.full(layout.exists.size, -1)
    numbers[order] = np.arange(len(order))
    return numbers.reshape(layout.exists.shape)


def _checked(losses: Any, rows: int) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        found = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"sample_loss returned {found} for {rows} rows; it must return one loss a row, a tensor [{rows}], "
            "without reducing over the batch"
        )
    return losses
