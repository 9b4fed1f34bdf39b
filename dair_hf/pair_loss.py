"""From a batch of pairs to the terms of the objective: runs the views that exist and counts what they target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dair_hf.chunked_loss import ChunkedLoss
from dair_hf.collator import LABELS, VIEW_MASK, flatten_views
from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.features import feature_consistency
from dair_hf.forwards import (
    Forward,
    forward_a_view,
    forwards_with_the_same_masks,
    joint_forward,
    lent_masks,
    split_mask,
    without_activations,
)
from dair_hf.objective import (
    LOSS_REGULARIZERS,
    Counts,
    PairTerms,
    absolute_consistency,
    mart_terms,
    normalized_objective,
    squared_root_consistency,
)
from dair_hf.packing import pack, unpack
from dair_hf.sample_losses import IGNORE_INDEX, SampleLoss, full_precision


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
    place: Tensor  # [B, V], index into N; -1 where the view was not run
    outputs: Any
    losses_at: Callable[[Tensor], Tensor]  # scale of the logits -> losses, [N]


class PairLoss:
    """Losses and counts of batches in the `[B, V, ...]` layout of `PairCollator`.

    Args:
        args: Method, regularizer, lambda, normalization and forward mode.
        sample_loss: `(outputs, labels) -> [rows]`.
        decoder_inputs: What an encoder-decoder derives its decoder inputs from the labels with
            (`model.prepare_decoder_input_ids_from_labels`); None: the model needs none.
        chunked: What runs and judges the model in place of `sample_loss`, without its logits; None: nothing does.
        pairs_at_once: Pairs whose activations are held at once while the model trains, those of the others being
            computed once more going backward; None: all.
    """

    def __init__(
        self,
        args: DAIRConfig,
        sample_loss: SampleLoss,
        decoder_inputs: Callable[..., Tensor] | None = None,
        chunked: ChunkedLoss | None = None,
        pairs_at_once: int | None = None,
    ) -> None:
        self.args = args
        self.pairs_at_once = pairs_at_once
        self.chunked = chunked
        self.sample_loss = sample_loss
        self.decoder_inputs = decoder_inputs
        self.shifts_labels = bool(getattr(sample_loss, "shifts_labels", False))
        self.targets_are_scores = bool(getattr(sample_loss, "targets_are_scores", False))

    def target_counts(self, batch: Mapping[str, Any]) -> Tensor:
        """Number of targets of every view: tokens of a sequence, 1 for a class, a real target or scores of classes.

        Args:
            batch: A batch of `PairCollator`.

        Returns:
            `[B, V]` int64; 0 where the view does not exist or has no target.
        """
        mask, labels = view_mask(batch), batch.get(LABELS)
        if labels is not None and self.targets_are_scores:
            return (labels != 0).any(-1).long() * mask
        if labels is None or labels.is_floating_point():
            return mask.long()
        if labels.ndim == 3 and self.shifts_labels:
            labels = labels[..., 1:]
        valid = labels != IGNORE_INDEX
        return (valid.flatten(2).sum(-1) if labels.ndim > 2 else valid.long()) * mask

    def count(self, batch: Mapping[str, Any]) -> Counts:
        """Rows, pairs and target tokens of one micro-batch, as the objective counts them.

        A view without valid target makes no pair: its row is trained on as if it had no partner.
        """
        targets, rows = self.target_counts(batch), view_mask(batch)[:, 0].sum()
        if not self.args.uses_partners or targets.shape[1] == 1:
            return Counts(rows, torch.zeros_like(rows), targets[:, 0].sum())
        paired = (targets > 0).all(1)
        return Counts(rows, paired.sum(), targets[:, 0].sum() + (targets[:, 1] * paired).sum())

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
        mask, targets = view_mask(batch), self.target_counts(batch)
        if not with_partners or mask.shape[1] == 1:
            batch = {name: v[:, :1] if isinstance(v, Tensor) else v for name, v in batch.items()}
            mask, targets = mask[:, :1], targets[:, :1]
        has_partner = (targets > 0).all(1) if mask.shape[1] == 2 else torch.zeros_like(mask[:, 0])
        run = mask
        if self.args.method == "augmented" and model.training:
            # PGD training never shows the model the original: batch norm would notice.
            run = torch.stack([mask[:, 0] & ~has_partner, mask[:, 1]], dim=1) if mask.shape[1] == 2 else mask
        rows = self._run(model, batch, run)

        def laid_out(losses: Tensor) -> Tensor:
            return losses[rows.place.clamp(min=0)].masked_fill((targets == 0) | ~run, 0.0)

        def losses_at(scale: Tensor) -> Tensor:
            return laid_out(rows.losses_at(scale))

        losses = laid_out(rows.losses)
        original = losses[:, 0]
        if mask.shape[1] == 1:
            absent = torch.zeros_like(original)
            terms = PairTerms(original, absent, absent, has_partner)
            return PairOutputs(terms, targets, run, rows.outputs, losses_at)
        augmented = losses[:, 1].masked_fill(~has_partner, 0.0)
        if self.args.method == "mart":
            augmented, consistency = self._mart(augmented, has_partner, rows, batch[LABELS])
        elif self.args.uses_features:
            consistency = self._feature_consistency(original, has_partner, rows, batch[LABELS])
        else:
            consistency = self._loss_consistency(original, augmented, has_partner)
        terms = PairTerms(original, augmented, consistency, has_partner)
        return PairOutputs(terms, targets, run, rows.outputs, losses_at)

    def _run(self, model: nn.Module, batch: Mapping[str, Any], mask: Tensor) -> _Rows:
        if not mask.any():
            # A rank without a row of its own still takes part in the step, with rows that then count nothing: all the
            # originals it holds, since batch norm cannot train on a single row.
            mask = mask.clone()
            mask[:, 0] = True
        place = torch.full(mask.shape, -1, device=mask.device)
        losses: list[Tensor] = []
        logits: list[Tensor] = []
        forwards: list[tuple[Any, Any]] = []
        outputs, start = None, 0
        for forward in self._forwards(mask, model.training):
            inputs, labels = self.model_inputs(flatten_views(batch, forward.views))
            count = len(next(iter(inputs.values())))
            with lent_masks(mask.device, forward.lends_masks):
                outputs, found = self._judge(model, inputs, labels)
            forwards.append((outputs, labels))
            losses.append(_checked(found, count))
            place[forward.views] = torch.arange(start, start + count, device=mask.device)
            start += count
            if self.args.uses_features:
                logits.append(outputs.logits)
        joined = losses[0] if len(losses) == 1 else torch.cat(losses)

        def losses_at(scale: Tensor) -> Tensor:
            scaled = [(SimpleNamespace(logits=outputs.logits * scale), labels) for outputs, labels in forwards]
            return torch.cat([self.sample_loss(outputs, labels) for outputs, labels in scaled])

        return _Rows(joined, torch.cat(logits) if logits else None, place, outputs, losses_at)

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
        if self.chunked is not None and labels is not None:
            return self.chunked(model, inputs, labels, self.args.pair_packing)
        mask = None
        if self.args.pair_packing:
            inputs, mask = pack(inputs)

        def run() -> tuple[Any, Tensor]:
            outputs = model(**inputs)
            if mask is not None:
                outputs = SimpleNamespace(logits=unpack(outputs.logits, mask))
            return outputs, self.sample_loss(outputs, labels)  # type: ignore[arg-type]

        if self.pairs_at_once is None or not model.training:
            return run()

        def logits_and_losses() -> tuple[Tensor, ...]:
            outputs, losses = run()
            return outputs.logits, losses

        logits, losses = without_activations(logits_and_losses)
        return SimpleNamespace(logits=logits), losses

    def _forwards(self, mask: Tensor, training: bool) -> list[Forward]:
        plan = forward_a_view if self.args.forward_mode == "separate" else joint_forward
        if training and self.args.pair_dropout == "shared":
            plan = forwards_with_the_same_masks
        parts = split_mask(mask, self.pairs_at_once if training else None)
        return [forward for part in parts for forward in plan(part)]

    def _loss_consistency(self, original: Tensor, augmented: Tensor, has_partner: Tensor) -> Tensor:
        args = self.args
        if args.regularizer not in LOSS_REGULARIZERS:
            return torch.zeros_like(original)  # a divergence that this method neither trains nor measures
        # Under ERM and DA-ERM R is only measured.
        with torch.set_grad_enabled(args.uses_regularizer and torch.is_grad_enabled()):
            if args.regularizer == "sq":
                consistency = squared_root_consistency(original, augmented, args.loss_epsilon)
            else:
                consistency = absolute_consistency(original, augmented)
            return consistency.masked_fill(~has_partner, 0.0)

    def _mart(self, augmented: Tensor, has_partner: Tensor, rows: _Rows, labels: Tensor) -> tuple[Tensor, Tensor]:
        if labels.ndim != 2 or labels.is_floating_point():
            raise ValueError(f"method='mart' needs one class a view, labels [B, V] int64; found {list(labels.shape)}")
        place, classes = rows.place[has_partner], labels[has_partner]
        assert rows.logits is not None
        log_probabilities = full_precision(rows.logits).log_softmax(-1)
        boosted, consistency = mart_terms(log_probabilities[place[:, 0]], log_probabilities[place[:, 1]], classes[:, 1])
        empty = torch.zeros_like(augmented)
        return empty.masked_scatter(has_partner, boosted), empty.masked_scatter(has_partner, consistency)

    def _feature_consistency(self, original: Tensor, has_partner: Tensor, rows: _Rows, labels: Tensor) -> Tensor:
        if not has_partner.any():
            return torch.zeros_like(original)
        assert rows.logits is not None
        logits, pairs = rows.logits, labels[has_partner]
        if self.shifts_labels:
            logits, pairs = logits[:, :-1], pairs[..., 1:]
        place = rows.place[has_partner]
        divergence = feature_consistency(
            logits[place[:, 0]], logits[place[:, 1]], pairs[:, 0], pairs[:, 1], self.args.regularizer
        )
        return torch.zeros_like(original).masked_scatter(has_partner, divergence.to(original.dtype))


def view_mask(batch: Mapping[str, Any]) -> Tensor:
    """The `view_mask` `[B, V]` of a batch.

    Raises:
        DataError: The batch was not made by a `PairCollator`.
    """
    mask = batch.get(VIEW_MASK)
    if mask is None:
        raise DataError(
            f"the batch has no {VIEW_MASK!r}, only {sorted(batch)}; wrap the collator: PairCollator(your_collator)"
        )
    return mask


def _checked(losses: Any, rows: int) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        found = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"sample_loss returned {found} for {rows} rows; it must return one loss a row, a tensor [{rows}], "
            "without reducing over the batch"
        )
    return losses
