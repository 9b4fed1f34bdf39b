"""Forward over a batch of pairs: run the existing views, compute the terms of the objective, count targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import BatchLayout, TargetRule, trained_partners, view_mask
from dair_hf.data.collator import LABELS, LAYOUT, ROW_ID, flatten_views, on_device
from dair_hf.errors import DataError
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.divergence import feature_consistency, mart_terms
from dair_hf.losses.objective import (
    LOSS_REGULARIZERS,
    TOKEN_METHODS,
    Counts,
    PairSlopes,
    PairTerms,
    mean_over_partners,
    normalized_objective,
    pair_slopes,
)
from dair_hf.losses.per_sample import SAMPLE_LOSSES, SampleLoss, full_precision
from dair_hf.training.forward.class_labels import NUMBERED_LOSSES, require_class_labels
from dair_hf.training.forward.model_call import call_model, require_inputs
from dair_hf.training.forward.plan import (
    Forward,
    checkpointed,
    joint_plan,
    replay_rng,
    separate_plan,
    shared_dropout_plan,
    split_mask,
)
from dair_hf.trees.forest import FOREST, Forest
from dair_hf.trees.tree_loss import tree_losses
from dair_hf.trees.verification import require_exact_training


class PairOutputs(NamedTuple):
    """Results of a forward over a batch of pairs.

    Attributes:
        terms: Unreduced terms, each `[B]`.
        targets: Number of valid targets of every view, `[B, V]` int64.
        was_run: Whether each view was run, `[B, V]` bool: those that exist, except originals that the method ignores.
        outputs: Outputs of the model for the views that were run, in `[B, V]` order; of the last forward if there were
            several. With prefix trees: `logits` of the targets, `[M, vocabulary]`.
        losses_at_scale: Scale (a scalar tensor) -> losses `[B, V]` with the logits multiplied by it, for IRM; 0 for
            views that were not run.
        layout: Existing views and their numbers of targets on the host, which need not wait for the device.
        losses: Loss of every view, `[B, V]`, nats per row; 0 for views that were not run or have no target, and for
            partners whose original has none.
    """

    terms: PairTerms
    targets: Tensor
    was_run: Tensor
    outputs: Any
    losses_at_scale: Callable[[Tensor], Tensor]
    layout: BatchLayout
    losses: Tensor


class _RunViews(NamedTuple):
    losses: Tensor  # [N], in the order in which views were run
    logits: Tensor | None  # [N, ...] if R compares features; [M, C] of the targets of a forest
    positions: np.ndarray  # [N], in the flattened [B, V]
    outputs: Any
    losses_at_scale: Callable[[Tensor], Tensor]  # scale of the logits -> losses, [N]
    logits_of: np.ndarray | None = None  # row of `logits` that predicts label t + 1 of a view, [B * V, T] of a forest


class PairLoss:
    """Losses and counts of batches in the `[B, V, ...]` layout of `PairCollator`.

    Batches of the trainer's data loaders carry a `BatchLayout` on the host (which views exist, how many targets they
    have), so that the host does not wait for the device. The layout of other batches is read from their tensors.

    Args:
        args: Method, regularizer, lambda, normalization and forward mode.
        sample_loss: `(outputs, labels) -> [rows]`.
        decoder_inputs: Function that shifts labels into decoder inputs
            (`model.prepare_decoder_input_ids_from_labels`); None if the model does not need them.
        chunked: Replacement of `sample_loss` that does not compute all logits, or None.
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
        self.longest_row = 0  # tokens of the longest row of the data, if known, for the verification of prefix trees
        self._verified_length: int | None = None  # longest row at that time

    @property
    def target_rule(self) -> TargetRule:
        """Rule by which labels are targets, for the layout of batches."""
        return TargetRule(self.shifts_labels, self.soft_labels, aligns=self.args.uses_features)

    def layout(self, batch: Mapping[str, Any]) -> BatchLayout:
        """Return the layout in a batch, or compute it if there is none that fits."""
        layout = batch.get(LAYOUT)
        if layout is not None and layout.exists.shape == tuple(view_mask(batch).shape):
            return layout
        return self.target_rule.layout(batch)

    def count(self, batch: Mapping[str, Any]) -> Counts:
        """Count rows, pairs and target tokens of one micro-batch, on its device (`BatchLayout.counts`)."""
        return Counts(*on_device(self.layout(batch).counts(self.args.uses_partners), view_mask(batch).device))

    def trained_views(self, layout: BatchLayout) -> np.ndarray:
        """Return the views of a batch that a training step runs, `[B, V]` bool."""
        views = layout.exists.copy()
        if not self.args.uses_partners:
            views[:, 1:] = False
        elif self.args.method == "augmented":
            # PGD training does not run originals of pairs, which would change batch norm statistics.
            views[:, 0] &= ~layout.paired
        return views

    def objective(self, terms: PairTerms, counts: Counts, dair_lambda: float | Tensor) -> Tensor:
        """Return the contribution of terms to the objective of the optimizer step, a scalar."""
        args = self.args
        weights = args.view_weights if args.method in TOKEN_METHODS else None
        return normalized_objective(terms, counts, args.method, dair_lambda, args.normalization, weights)

    def __call__(self, model: nn.Module, batch: Mapping[str, Any], with_partners: bool) -> PairOutputs:
        """Run the existing views in one forward, or in one per number of view with `forward_mode="separate"`."""
        batch = {**batch, LABELS: self.target_rule.labels(batch)} if LABELS in batch else batch
        mask, targets, layout = view_mask(batch), self.target_rule.counts(batch), self.layout(batch)
        if not with_partners or mask.shape[1] == 1:
            batch = {name: v[:, :1] if isinstance(v, Tensor) else v for name, v in batch.items()}
            mask, targets, layout = mask[:, :1], targets[:, :1], layout.originals()
        partners = trained_partners(targets)
        was_run, views = mask, layout.exists
        if self.args.method == "augmented" and model.training and mask.shape[1] > 1:
            was_run = torch.cat([mask[:, :1] & ~partners.any(1, keepdim=True), mask[:, 1:]], dim=1)
            views = self.trained_views(layout)
        forest = batch.get(FOREST)
        run = self._run(model, batch, views, layout) if forest is None else self._run_forest(model, forest, batch)
        unused = (targets == 0) | ~was_run

        def by_view(losses: Tensor) -> Tensor:
            return _scatter(losses, run.positions, mask.numel()).view(mask.shape).masked_fill(unused, 0.0)

        def losses_at_scale(scale: Tensor) -> Tensor:
            return by_view(run.losses_at_scale(scale))

        losses = by_view(run.losses)
        losses = torch.cat([losses[:, :1], losses[:, 1:].masked_fill(~partners, 0.0)], dim=1)
        terms = self.terms_of_losses(losses, partners)
        if mask.shape[1] > 1 and self.args.uses_features:
            if self.args.method == "mart":
                boosted, consistency = self._mart(layout, run, batch[LABELS])
                terms = terms._replace(augmented=mean_over_partners(boosted, partners))
            else:
                consistency = self._feature_consistency(layout, run, batch, terms.original.dtype)
            # Rows may have been masked after their layout was computed.
            terms = terms._replace(consistency=mean_over_partners(consistency, partners))
        return PairOutputs(terms, targets, was_run, run.outputs, losses_at_scale, layout, losses)

    def slopes(self, outputs: PairOutputs) -> PairSlopes | None:
        """Return the slopes of R in a batch, 0 for a view through which R has no gradient (`stop_gradient`).

        Returns:
            The slopes, or None if R is no function of the losses.
        """
        if self.args.loss_regularizer is None:
            return None
        losses, partners = outputs.losses.detach(), trained_partners(outputs.targets)
        slopes = pair_slopes(losses, partners, self.args.loss_regularizer, self.args.loss_epsilon)
        if self.args.stop_gradient is None:
            return slopes
        view = {"original": "original", "augmented": "partners"}[self.args.stop_gradient]
        return slopes._replace(**{view: torch.zeros_like(getattr(slopes, view))})

    def terms_of_losses(self, losses: Tensor, partners: Tensor) -> PairTerms:
        """Return the terms of pairs as functions of their losses.

        Args:
            losses: `[B, V]`; 0 for a view without a target.
            partners: Partners that are trained, `[B, V - 1]` bool.

        Returns:
            Terms, each `[B]`; the consistency is 0 if the regularizer compares output distributions.
        """
        original, count = losses[:, 0], partners.sum(1)
        if losses.shape[1] == 1:
            return PairTerms(original, torch.zeros_like(original), torch.zeros_like(original), count)
        # Without a partner both are 0, so that R is 0 even if the root of the loss is undefined.
        consistency = [
            self._loss_consistency(original.masked_fill(~exists, 0.0), augmented.masked_fill(~exists, 0.0))
            for augmented, exists in zip(losses[:, 1:].unbind(1), partners.unbind(1), strict=True)
        ]
        augmented = mean_over_partners(losses[:, 1:], partners)
        return PairTerms(original, augmented, mean_over_partners(torch.stack(consistency, dim=1), partners), count)

    def _run(self, model: nn.Module, batch: Mapping[str, Any], views: np.ndarray, layout: BatchLayout) -> _RunViews:
        if not views.any():
            # A rank without rows of its own takes part in the step with masked rows: all the originals that it has,
            # since batch norm cannot train on a single row.
            views = views.copy()
            views[:, 0] = True
        device = view_mask(batch).device
        positions: list[np.ndarray] = []
        losses: list[Tensor] = []
        logits: list[Tensor] = []
        forwards: list[tuple[Any, Any]] = []
        outputs = None
        for forward in self._forwards(views, model.training):
            inputs, labels = self.model_inputs(flatten_views(batch, forward.views))
            require_inputs(model, inputs)
            count = len(next(iter(inputs.values())))
            check = partial(require_class_labels, layout, forward.views, batch.get(ROW_ID))
            with replay_rng(device, forward.replays_rng):
                outputs, row_losses = self._outputs_and_losses(model, inputs, labels, check)
            forwards.append((outputs, labels))
            losses.append(_require_row_losses(row_losses, count))
            positions.append(np.flatnonzero(forward.views))
            if self.args.uses_features:
                logits.append(outputs.logits)
        all_losses = losses[0] if len(losses) == 1 else torch.cat(losses)

        def losses_at_scale(scale: Tensor) -> Tensor:
            scaled = [(SimpleNamespace(logits=outputs.logits * scale), labels) for outputs, labels in forwards]
            return torch.cat([self.sample_loss(outputs, labels) for outputs, labels in scaled])

        all_logits = torch.cat(logits) if logits else None
        return _RunViews(all_losses, all_logits, np.concatenate(positions), outputs, losses_at_scale)

    def _run_forest(self, model: nn.Module, forest: Forest, batch: Mapping[str, Any]) -> _RunViews:
        mask = view_mask(batch)
        if self._verified_length is None or self._verified_length < self.longest_row:
            require_exact_training(model, batch, self.longest_row)
            if self.chunked is not None:
                inputs, labels = self.model_inputs(flatten_views(batch, mask.cpu().numpy()))
                assert labels is not None
                self.chunked.verify(inputs, labels)
            self._verified_length = self.longest_row
        run = tree_losses(model, forest.to(mask.device), self.chunked)

        def of_views(losses: Tensor) -> Tensor:
            return losses.view(forest.shape)[:, : mask.shape[1]].flatten()

        def losses_at_scale(scale: Tensor) -> Tensor:
            return of_views(run.losses_at_scale(scale))

        logits_of = forest.target_numbers(batch[LABELS].shape[-1]) if self.args.uses_features else None
        outputs = SimpleNamespace(logits=run.logits)
        return _RunViews(of_views(run.losses), run.logits, np.arange(mask.numel()), outputs, losses_at_scale, logits_of)

    def model_inputs(self, views: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """Split views `{column: [N, ...]}` into inputs of the model and labels.

        Returns:
            Inputs without labels, with decoder inputs for an encoder-decoder; labels, or None.
        """
        inputs = dict(views)
        labels = inputs.pop(LABELS, None)
        if self.decoder_inputs is not None and labels is not None and "decoder_input_ids" not in inputs:
            # Decoder inputs instead of labels, from which the model would compute an unused mean loss.
            inputs["decoder_input_ids"] = self.decoder_inputs(labels=labels)
        return inputs, labels

    def _outputs_and_losses(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        labels: Tensor | None,
        check: Callable[[Tensor, Tensor], None],
    ) -> tuple[Any, Any]:
        """Run one forward; `check` refuses logits and labels from which no loss of classes can be computed."""
        if labels is None and self.sample_loss in SAMPLE_LOSSES.values():
            raise DataError(
                f"sample_loss {self.sample_loss.__name__} needs labels, but the batch has only {sorted(inputs)}; name "
                f"the column of the targets {LABELS!r}, or pass a callable (outputs, None) -> [rows]"
            )
        if self.chunked is not None and labels is not None:
            return self.chunked(model, inputs, labels)

        def run() -> tuple[Any, Tensor]:
            outputs = call_model(model, inputs, self.args.uses_features or self.sample_loss in SAMPLE_LOSSES.values())
            if labels is not None and self.sample_loss in NUMBERED_LOSSES:
                check(outputs.logits, labels)
            return outputs, self.sample_loss(outputs, labels)  # type: ignore[arg-type]

        if self.args.gradient_cache is None or not model.training:
            return run()

        def logits_and_losses() -> tuple[Tensor, ...]:
            outputs, losses = run()
            return outputs.logits, losses

        logits, losses = checkpointed(logits_and_losses)
        return SimpleNamespace(logits=logits), losses

    def _forwards(self, views: np.ndarray, training: bool) -> list[Forward]:
        plan = separate_plan if self.args.forward_mode == "separate" else joint_plan
        if training and self.args.pair_dropout == "shared":
            plan = shared_dropout_plan
        parts = split_mask(views, self.args.gradient_cache if training else None)
        return [forward for part in parts for forward in plan(part)]

    def _loss_consistency(self, original: Tensor, augmented: Tensor) -> Tensor:
        args, regularizer = self.args, self.args.loss_regularizer
        if regularizer is None:
            return torch.zeros_like(original)  # a divergence needs output distributions
        # ERM and DA-ERM log R without training it.
        with torch.set_grad_enabled(args.uses_regularizer and torch.is_grad_enabled()):
            return regularizer.value(*self._stop_gradient(original, augmented), args.loss_epsilon)

    def _stop_gradient(self, original: Tensor, augmented: Tensor) -> tuple[Tensor, Tensor]:
        """Detach the view through which R has no gradient."""
        stopped = self.args.stop_gradient
        return (
            original.detach() if stopped == "original" else original,
            augmented.detach() if stopped == "augmented" else augmented,
        )

    def _mart(self, layout: BatchLayout, run: _RunViews, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both terms of MART for every partner, `[B, V - 1]` each."""
        if labels.ndim != 2 or labels.is_floating_point():
            raise DataError(
                "method='mart' needs one class per view, labels [B, V] int64; found "
                f"{str(labels.dtype).removeprefix('torch.')} {list(labels.shape)}; use method='trades'"
            )
        assert run.logits is not None
        rows, numbers = np.nonzero(layout.partners)
        originals, partners = on_device(_numbers_of_pairs(layout, run), labels.device)
        log_p = full_precision(run.logits).log_softmax(-1)
        views = on_device(rows * labels.shape[1] + numbers + 1, labels.device)
        classes = labels.flatten().index_select(0, views)
        boosted, consistency = mart_terms(log_p.index_select(0, originals), log_p.index_select(0, partners), classes)
        return _of_partners(boosted, layout), _of_partners(consistency, layout)

    def _feature_consistency(
        self, layout: BatchLayout, run: _RunViews, batch: Mapping[str, Any], dtype: torch.dtype
    ) -> Tensor:
        """Return the divergence of every partner from its original, `[B, V - 1]`."""
        assert run.logits is not None
        logits, regularizer = run.logits, self.args.regularizer
        if logits.ndim < 3 and run.logits_of is None:
            originals, partners = on_device(_numbers_of_pairs(layout, run), logits.device)
            divergences = feature_consistency(
                *self._stop_gradient(logits.index_select(0, originals), logits.index_select(0, partners)),
                str(regularizer),
            )
            return _of_partners(divergences.to(dtype), layout)
        if layout.aligned is None:  # the layout was computed for another regularizer
            layout = self.target_rule.layout(batch)
        if layout.aligned is None:
            raise DataError(
                f"regularizer={regularizer!r} compares logits {list(logits.shape)} at the targets of sequences, labels "
                f"[B, V, T] int64; found {list(batch[LABELS].shape)}; use a regularizer of the losses, "
                f"{' or '.join(LOSS_REGULARIZERS)}"
            )
        # Of every aligned pair of targets: the indices of the logits that predict them.
        rows, views, *aligned = layout.aligned
        if run.logits_of is None:
            # Numbers of the positions `[N, T]` of all views that were run.
            numbers, length = _run_order(run.positions, layout), logits.shape[1]
            indices = [numbers[rows, view] * length + at for view, at in zip((0, views), aligned, strict=True)]
        else:
            first = layout.exists.shape[1] * rows
            indices = [run.logits_of[first + view, at] for view, at in zip((0, views), aligned, strict=True)]
        size, width = layout.partners.shape
        pair, originals, partners = on_device(np.stack([width * rows + views - 1, *indices]), logits.device)
        flat = logits.flatten(0, -2)
        features = self._stop_gradient(flat.index_select(0, originals), flat.index_select(0, partners))
        divergences = feature_consistency(*features, str(regularizer)).to(dtype)
        return divergences.new_zeros(size * width).index_add(0, pair, divergences).view(size, width)


def _numbers_of_pairs(layout: BatchLayout, run: _RunViews) -> np.ndarray:
    """Return the numbers of originals and of their partners in the order in which views were run, `[2, K]`."""
    rows, partners = np.nonzero(layout.partners)
    numbers = _run_order(run.positions, layout)
    return np.stack([numbers[rows, 0], numbers[rows, partners + 1]])


def _of_partners(values: Tensor, layout: BatchLayout) -> Tensor:
    """Return values of the trained partners, `[K]`, at their places, `[B, V - 1]`, else 0."""
    return _scatter(values, np.flatnonzero(layout.partners), layout.partners.size).view(layout.partners.shape)


def _scatter(values: Tensor, positions: np.ndarray, size: int) -> Tensor:
    """Return `[size]` with `values` `[N]` at distinct positions, else 0."""
    if len(positions) == size and (positions == np.arange(size)).all():
        return values  # nothing to move
    return values.new_zeros(size).index_copy(0, on_device(positions, values.device), values)


def _run_order(positions: np.ndarray, layout: BatchLayout) -> np.ndarray:
    """Return the number of every view in the order in which views were run, `[B, V]` int64; -1 if it was not run."""
    numbers = np.full(layout.exists.size, -1)
    numbers[positions] = np.arange(len(positions))
    return numbers.reshape(layout.exists.shape)


def _require_row_losses(losses: Any, rows: int) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        kind = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise DataError(
            f"sample_loss returned {kind} for {rows} rows; it must return one loss per row, a tensor [{rows}], "
            "without reducing over the batch"
        )
    return losses
