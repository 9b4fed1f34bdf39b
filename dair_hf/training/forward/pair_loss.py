"""Forward over a batch of pairs: run the existing views, compute the terms of the objective, count targets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import is_compiled_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import BatchLayout, TargetRule, trained_partners, view_mask
from dair_hf.data.collator import LABELS, LAYOUT, VIEW_MASK, count_positions, flatten_views, on_device
from dair_hf.errors import DataError
from dair_hf.losses.divergence import feature_consistency, mart_terms
from dair_hf.losses.model_state import fork_rng
from dair_hf.losses.objective import (
    TOKEN_METHODS,
    Counts,
    PairSlopes,
    PairTerms,
    mean_over_partners,
    normalized_objective,
    pair_slopes,
)
from dair_hf.losses.per_sample import SampleLoss, full_precision
from dair_hf.losses.target_logits import TargetLogits
from dair_hf.training.forward.plan import plan_forwards

TEXT_INPUTS = {"input_ids", "attention_mask"}


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
    """Views that were run; `trees.tree_loss.TreeLosses` has the same fields."""

    losses: Tensor  # [N], in the order in which views were run
    logits: Tensor | None  # [N, ...] if R compares features
    positions: np.ndarray  # [N], in the flattened [B, V]
    outputs: Any
    losses_at_scale: Callable[[Tensor], Tensor]  # scale of the logits -> losses, [N]
    logits_of: np.ndarray | None = None  # row of target logits that predicts label t + 1 of a view, [B * V, T]


class PairLoss:
    """Losses and counts of batches in the `[B, V, ...]` layout of `PairCollator`.

    Batches of the trainer's data loaders carry a `BatchLayout` on the host (which views exist, how many targets they
    have), so that the host does not wait for the device. The layout of other batches is read from their tensors.

    `decoder_inputs` shifts labels into decoder inputs. `chunked` (`losses.chunked.ChunkedLoss`) replaces `sample_loss`,
    `trees` (`trees.tree_loss.TreeForward`) runs batches with prefix trees, and `projection` computes logits at targets
    alone. `drops_masks` runs rows that are padded on the right without an attention mask.
    """

    def __init__(
        self,
        args: DAIRConfig,
        sample_loss: SampleLoss,
        decoder_inputs: Callable[..., Tensor] | None = None,
        chunked: Any = None,
        trees: Any = None,
        projection: nn.Module | None = None,
        drops_masks: bool = False,
    ) -> None:
        self.args = args
        self.sample_loss = sample_loss
        self.decoder_inputs = decoder_inputs
        self.chunked = chunked
        self.trees = trees
        self.projection = projection
        self.drops_masks = drops_masks
        self.shifts_labels = bool(getattr(sample_loss, "shifts_labels", False))
        self.soft_labels = bool(getattr(sample_loss, "soft_labels", False))
        self._labels = TargetRule(self.shifts_labels).labels

    @property
    def target_rule(self) -> TargetRule:
        """Rule by which labels are targets, for the layout of batches."""
        return TargetRule(self.shifts_labels, self.soft_labels, aligns=self.args.uses_features)

    def layout(self, batch: Mapping[str, Any]) -> BatchLayout:
        """Return the layout in a batch, or compute it if there is none that fits."""
        layout: BatchLayout | None = batch.get(LAYOUT)
        if layout is not None and layout.exists.shape == tuple(batch[VIEW_MASK].shape):
            return layout
        return self.target_rule.layout(batch)

    def count(self, batch: Mapping[str, Any]) -> Counts:
        """Count rows, pairs and target tokens of one micro-batch, on its device (`BatchLayout.counts`)."""
        return Counts(*on_device(self.layout(batch).counts(self.args.uses_partners), view_mask(batch).device))

    def positions(self, batch: Mapping[str, Any], was_run: Tensor) -> Tensor | None:
        """Count input tokens, and positions that the model computes, `[2]`; None without an attention mask."""
        of_trees = None if self.trees is None else self.trees.positions(batch)
        return count_positions(batch, was_run) if of_trees is None else on_device(of_trees, was_run.device)

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
        """Run the existing views in one forward, or in several (`plan_forwards`), and compute the terms of pairs."""
        layout = self.layout(batch)
        if not with_partners:
            layout = layout.originals()
            batch = {name: v[:, :1] if isinstance(v, Tensor) else v for name, v in batch.items()}
        if self.shifts_labels and LABELS in batch:
            batch = {**batch, LABELS: self._labels(batch)}
        is_pgd = self.args.method == "augmented" and model.training
        views = self.trained_views(layout) if is_pgd else layout.exists
        compares_features = self.args.uses_features
        run = None if self.trees is None else self.trees(model, batch)
        if run is None:
            run = self._run(model, batch, layout, views, compares_features)

        mask = batch[VIEW_MASK]  # in which rows may have been masked after their layout was computed
        targets, was_run = on_device(np.stack([layout.targets, views]), mask.device) * mask
        was_run, partners = was_run.bool(), (targets[:, 1:] > 0) & (targets[:, :1] > 0)
        unused = (targets == 0) | ~was_run
        unused[:, 1:] |= ~partners

        def by_view(losses: Tensor) -> Tensor:
            return _scatter(losses, run.positions, unused.numel()).view(unused.shape).masked_fill(unused, 0.0)

        losses = by_view(run.losses)
        terms = self.terms_of_losses(losses, partners)
        if compares_features and partners.shape[1]:
            terms = self._with_feature_terms(terms, partners, layout, run, batch)

        def losses_at_scale(scale: Tensor) -> Tensor:
            return by_view(run.losses_at_scale(scale))

        return PairOutputs(terms, targets, was_run, run.outputs, losses_at_scale, layout, losses)

    def terms_of_losses(self, losses: Tensor, partners: Tensor) -> PairTerms:
        """Return the terms of pairs as functions of their losses `[B, V]` and trained `partners` `[B, V - 1]`.

        R of output distributions is 0 here.
        """
        original, count = losses[:, 0], partners.sum(1)
        augmented = mean_over_partners(losses[:, 1:], partners)
        regularizer = self.args.loss_regularizer
        if regularizer is None or losses.shape[1] == 1:
            return PairTerms(original, augmented, torch.zeros_like(original), count)
        consistency = []
        # ERM and DA-ERM log R without training it.
        with torch.set_grad_enabled(self.args.uses_regularizer and torch.is_grad_enabled()):
            for of_partner, exists in zip(losses[:, 1:].unbind(1), partners.unbind(1), strict=True):
                # Without a partner both are 0, so that R is 0 even if the root of the loss is undefined.
                pair = original.masked_fill(~exists, 0.0), of_partner.masked_fill(~exists, 0.0)
                consistency.append(regularizer.value(*pair, self.args.loss_epsilon))
        return PairTerms(original, augmented, mean_over_partners(torch.stack(consistency, dim=1), partners), count)

    def slopes(self, outputs: PairOutputs) -> PairSlopes | None:
        """Return the slopes of R; None if R compares distributions."""
        if self.args.loss_regularizer is None:
            return None
        losses, partners = outputs.losses.detach(), trained_partners(outputs.targets)
        return pair_slopes(losses, partners, self.args.loss_regularizer, self.args.loss_epsilon)

    # ---- forwards ----

    def _run(
        self, model: nn.Module, batch: Mapping[str, Any], layout: BatchLayout, views: np.ndarray, needs_logits: bool
    ) -> _RunViews:
        if not views.any():
            # A rank without rows of its own takes part in the step with masked rows: all the originals that it has,
            # since batch norm cannot train on a single row.
            views = np.zeros_like(views)
            views[:, 0] = True
        device = batch[VIEW_MASK].device
        positions: list[np.ndarray] = []
        losses: list[Tensor] = []
        forwards: list[tuple[SampleLoss, Any, Any]] = []
        # A compiled model calls no hooks that come later.
        selects = self.projection is not None and layout.predicted is not None and not is_compiled_module(model)
        logits_of = np.full((views.size, batch[LABELS].shape[-1]), -1) if selects else None
        for forward in plan_forwards(views, self.args, model.training):
            inputs, labels = self.model_inputs(flatten_views(batch, forward.views))
            run: Callable[..., Any] = model
            loss = self.sample_loss
            if logits_of is not None:
                targets = self._targets(layout, forward.views, logits_of, device)
                run, loss = partial(targets.run, model), targets.losses
                if self.drops_masks and layout.ends_in_padding and set(inputs) == TEXT_INPUTS:
                    del inputs["attention_mask"]
            with fork_rng(device) if forward.replays_rng else contextlib.nullcontext():
                if self.chunked is not None and labels is not None:
                    outputs, row_losses = self.chunked(model, inputs, labels)
                elif self.args.gradient_cache is not None and model.training:
                    outputs, row_losses = self._recomputed(run, loss, inputs, labels)
                else:
                    outputs = run(**inputs)
                    row_losses = loss(outputs, labels)
            positions.append(np.flatnonzero(forward.views))
            if not isinstance(row_losses, Tensor) or row_losses.shape != (len(positions[-1]),):
                shape = list(row_losses.shape) if isinstance(row_losses, Tensor) else type(row_losses).__name__
                raise DataError(f"sample_loss: expected one loss per row, [{len(positions[-1])}], got {shape}")
            forwards.append((loss, outputs, labels))
            losses.append(full_precision(row_losses))

        def losses_at_scale(scale: Tensor) -> Tensor:
            scaled = [
                loss(SimpleNamespace(logits=outputs.logits * scale), labels) for loss, outputs, labels in forwards
            ]
            return full_precision(torch.cat(scaled))

        all_losses = losses[0] if len(losses) == 1 else torch.cat(losses)
        logits = torch.cat([outputs.logits for _, outputs, _ in forwards]) if needs_logits else None
        return _RunViews(all_losses, logits, np.concatenate(positions), outputs, losses_at_scale, logits_of)

    def _targets(
        self, layout: BatchLayout, views: np.ndarray, logits_of: np.ndarray, device: torch.device
    ) -> TargetLogits:
        """Return the targets of a forward over some views; number them in `logits_of` after those of other forwards."""
        assert layout.predicted is not None and self.projection is not None
        row, view, column = layout.predicted
        flat = views.shape[1] * row + view
        of_forward = views.flatten()[flat]
        flat, column = flat[of_forward], column[of_forward]
        logits_of[flat, column] = logits_of.max() + 1 + np.arange(len(flat))
        numbers = (views.cumsum() - 1)[flat]  # of the rows of the forward
        places = on_device(np.stack([numbers, numbers * logits_of.shape[1] + column]), device)
        return TargetLogits(self.projection, *places)

    @staticmethod
    def _recomputed(
        run: Callable[..., Any], loss: SampleLoss, inputs: dict[str, Tensor], labels: Any
    ) -> tuple[Any, Any]:
        """Run one forward without its activations, which the backward pass computes again with the same dropout."""

        def logits_and_losses() -> tuple[Any, Any]:
            outputs = run(**inputs)
            return outputs.logits, loss(outputs, labels)

        logits, losses = checkpoint(logits_and_losses, use_reentrant=False)
        return SimpleNamespace(logits=logits), losses

    def model_inputs(self, views: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
        """Split views `{column: [N, ...]}` into inputs of the model and labels, or None.

        The inputs are without labels, from which the model would compute an unused mean loss, but with decoder inputs
        for an encoder-decoder.
        """
        inputs = dict(views)
        labels = inputs.pop(LABELS, None)
        if self.decoder_inputs is not None and labels is not None and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = self.decoder_inputs(labels=labels)
        return inputs, labels

    # ---- R of output distributions ----

    def _with_feature_terms(
        self, terms: PairTerms, partners: Tensor, layout: BatchLayout, run: _RunViews, batch: Mapping[str, Any]
    ) -> PairTerms:
        if self.args.method == "mart":
            boosted, consistency = self._mart(layout, run, batch[LABELS])
            terms = terms._replace(augmented=mean_over_partners(boosted, partners))
        else:
            consistency = self._divergences(layout, run, batch).to(terms.original.dtype)
        return terms._replace(consistency=mean_over_partners(consistency, partners))

    def _mart(self, layout: BatchLayout, run: _RunViews, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both terms of MART for every partner, `[B, V - 1]` each."""
        if labels.ndim != 2 or labels.is_floating_point():
            raise DataError(f"method='mart': expected one class per view, labels [B, V], got {list(labels.shape)}")
        assert run.logits is not None
        rows, numbers = np.nonzero(layout.partners)
        originals, partners = on_device(_numbers_of_pairs(layout, run), labels.device)
        log_p = full_precision(run.logits).log_softmax(-1)
        views = on_device(rows * labels.shape[1] + numbers + 1, labels.device)
        classes = labels.flatten().index_select(0, views)
        boosted, consistency = mart_terms(log_p.index_select(0, originals), log_p.index_select(0, partners), classes)
        return _of_partners(boosted, layout), _of_partners(consistency, layout)

    def _divergences(self, layout: BatchLayout, run: _RunViews, batch: Mapping[str, Any]) -> Tensor:
        """Return the divergence of every partner from its original, `[B, V - 1]`."""
        assert run.logits is not None
        logits, regularizer = run.logits, str(self.args.regularizer)
        if logits.ndim < 3 and run.logits_of is None:
            numbers = on_device(_numbers_of_pairs(layout, run), logits.device)
            first, second = (logits.index_select(0, views) for views in numbers)
            return _of_partners(feature_consistency(first, second, regularizer), layout)
        if layout.aligned is None:  # the layout was computed for another regularizer
            layout = self.target_rule.layout(batch)
        if layout.aligned is None:
            shape = list(batch[LABELS].shape)
            raise DataError(f"regularizer={regularizer!r}: expected labels of sequences, [B, V, T] int64, got {shape}")
        rows, views, *aligned = layout.aligned
        logits_of = run.logits_of
        if logits_of is None:
            length = logits.shape[1]
            logits_of = _run_order(run.positions, layout).reshape(-1, 1) * length + np.arange(length)
        first = layout.exists.shape[1] * rows
        # Of every aligned pair of targets: the rows of the logits that predict them.
        indices = [logits_of[first + view, at] for view, at in zip((0, views), aligned, strict=True)]
        size, width = layout.partners.shape
        pair, originals, partners = on_device(np.stack([width * rows + views - 1, *indices]), logits.device)
        flat = logits.flatten(0, -2)
        divergences = feature_consistency(flat.index_select(0, originals), flat.index_select(0, partners), regularizer)
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
