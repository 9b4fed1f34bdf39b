"""Check that losses are finite, without making the host wait for the device.

A flag per loss is copied to the host while the backward pass runs. Before an optimizer step, the flags of its losses
are checked if their copies have arrived, as they always have on a CPU. Otherwise they are checked at the next step, and
at the latest before logging, evaluation and saving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import ASYNCHRONOUS
from dair_hf.errors import NonFiniteLossError
from dair_hf.losses.objective import LOSS_REGULARIZERS, PairTerms, pair_objective

MAX_NAMED_ROWS = 8  # in an error


@dataclass
class _Batch:
    """Losses of a batch, and a flag on the host that is valid after the event `copied`."""

    step: int
    row_ids: Sequence[Any]
    terms: PairTerms
    losses: Tensor | None
    loss: Tensor
    dair_lambda: float | Tensor
    is_finite: Tensor
    copied: Any

    def is_ready(self) -> bool:
        return self.copied is None or bool(self.copied.query())


class FinitenessCheck(TrainerCallback):
    """Callback that holds the losses of batches until they are known to be finite.

    Args:
        args: Configuration of the run.
        objective: Objective that replaces the DAIR objective, for errors.
    """

    def __init__(self, args: DAIRConfig, objective: Any = None) -> None:
        self.args = args
        self.objective = objective
        self.batches: deque[_Batch] = deque()

    def add(
        self,
        loss: Tensor,
        terms: PairTerms,
        row_ids: Sequence[Any] | None,
        step: int,
        dair_lambda: float | Tensor,
        losses: Tensor | None = None,
    ) -> None:
        """Hold a batch and start to copy the flag whether its loss is finite.

        Args:
            loss: Objective of the batch, a scalar.
            terms: Terms of the batch, each `[B]`.
            row_ids: Names of its rows; None: their numbers.
            step: Number of optimizer steps taken before.
            dair_lambda: Lambda of the step.
            losses: Losses of all views, `[B, V]`; None: no row has several partners.
        """
        terms = PairTerms(*(term.detach() for term in terms))
        ids = [f"row {row} of the batch" for row in range(len(terms.original))] if row_ids is None else row_ids
        loss = loss.detach()
        is_asynchronous = loss.device.type in ASYNCHRONOUS
        is_finite = torch.isfinite(loss).to("cpu", non_blocking=is_asynchronous)
        copied = torch.accelerator.current_stream(loss.device).record_event() if is_asynchronous else None
        losses = None if losses is None else losses.detach()
        self.batches.append(_Batch(step, ids, terms, losses, loss, dair_lambda, is_finite, copied))

    def clear(self) -> None:
        """Forget all batches."""
        self.batches.clear()

    def check(self, until_step: int | None = None) -> None:
        """Check the held batches.

        Args:
            until_step: Step whose batches are checked only if no waiting is needed; None: wait for all batches.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite; the message names the rows.
        """
        while self.batches:
            batch = self.batches[0]
            if until_step is not None and batch.step >= until_step and not batch.is_ready():
                return
            if batch.copied is not None:
                batch.copied.synchronize()
            if not batch.is_finite.numpy():
                self.clear()
                raise self._error(batch)
            self.batches.popleft()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the batches of earlier steps, and those of this step whose flags have arrived."""
        self.check(until_step=state.global_step)

    def _error(self, batch: _Batch) -> NonFiniteLossError:
        args = self.args
        terms = PairTerms(*(term.cpu() for term in batch.terms))
        rows, where = len(terms.original), f"at step {batch.step}"
        losses = None if batch.losses is None else batch.losses.cpu()
        if self.objective is None and (negative := undefined_roots(terms, args, losses)).any():
            return negative_losses(terms, negative, batch.row_ids, where, args, losses)
        broken = ~(terms.original.isfinite() & terms.augmented.isfinite() & terms.consistency.isfinite())
        if broken.any():
            return NonFiniteLossError(
                f"the loss of {int(broken.sum())} of {rows} rows is not finite {where}: "
                f"{_named(broken, batch.row_ids)}; check these rows, lower the learning rate (now "
                f"{args.learning_rate}) or clip the gradient (max_grad_norm, now {args.max_grad_norm})"
            )
        problem = f"is {batch.loss.item()} {where} though the losses of all {rows} rows are finite"
        if self.objective is not None:
            return NonFiniteLossError(
                f"objective={type(self.objective).__name__} {problem}, from {terms.original.min():.4g} to "
                f"{torch.maximum(terms.original, terms.augmented).max():.4g}; check how it is computed from them"
            )
        dair_lambda = float(batch.dair_lambda)
        objectives = pair_objective(terms, args.method, dair_lambda, args.view_weights)
        overflows, dtype = ~objectives.isfinite(), str(terms.original.dtype).removeprefix("torch.")
        if overflows.any():
            count = int(overflows.sum())
            reason = f"the objective of {count} rows overflows {dtype}: {_named(overflows, batch.row_ids)}"
        else:
            row = int(objectives.argmax())
            largest = f"{objectives[row]:.4g}, of {batch.row_ids[row]!r}"
            reason = f"the sum over rows overflows {dtype}; the largest is {largest}"
        return NonFiniteLossError(
            f"the objective {problem}: {reason}. The largest R is {terms.consistency.max():.4g}, times "
            f"dair_lambda={dair_lambda}; check these rows, lower dair_lambda or scale the sample loss"
        )


def undefined_roots(terms: PairTerms, args: DAIRConfig, losses: Tensor | None = None) -> Tensor:
    """Return the pairs whose R takes the root of a negative loss, `[B]` bool; none if no such R is trained.

    Args:
        terms: Terms of a batch, each `[B]`.
        args: Configuration of the run.
        losses: Losses of all views, `[B, V]`; None: no row has several partners.
    """
    regularizer = args.loss_regularizer if args.uses_regularizer else None
    if regularizer is None or not regularizer.takes_root:
        return torch.zeros_like(terms.has_partner)
    return terms.has_partner & (_lowest(terms, losses) < -args.loss_epsilon)


def _lowest(terms: PairTerms, losses: Tensor | None) -> Tensor:
    """Return the lowest loss of the views of every pair, `[B]`."""
    return torch.minimum(terms.original, terms.augmented) if losses is None else losses.amin(1)


def negative_losses(
    terms: PairTerms,
    negative: Tensor,
    row_ids: Sequence[Any] | None,
    where: str,
    args: DAIRConfig,
    losses: Tensor | None = None,
) -> NonFiniteLossError:
    """Return the error for pairs with a negative loss whose R takes its root.

    Args:
        terms: Terms of a batch, each `[B]`.
        negative: Rows with a negative loss, `[B]` bool.
        row_ids: Names of the rows; None: their numbers.
        where: Step or phase, in words.
        args: Configuration of the run.
        losses: Losses of all views, as in `undefined_roots`.
    """
    rootless = next(name for name, regularizer in LOSS_REGULARIZERS.items() if not regularizer.takes_root)
    lowest = _lowest(terms, losses)[negative].min()
    ids = range(len(negative)) if row_ids is None else row_ids
    return NonFiniteLossError(
        f"sample_loss is negative in {int(negative.sum())} of {len(negative)} rows {where}: {_named(negative, ids)}, "
        f"down to {lowest:.4g}; regularizer={args.regularizer!r} takes the root of a loss. Add a constant that makes "
        f"it >= 0, or use regularizer={rootless!r}"
    )


def _named(mask: Tensor, row_ids: Sequence[Any]) -> list[Any]:
    return [row_ids[row] for row in mask.nonzero().flatten().tolist()[:MAX_NAMED_ROWS]]
