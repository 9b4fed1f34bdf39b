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


class _Flag:
    """Flag on the host whether a scalar on a device is finite, valid after the event `copied`."""

    def __init__(self, value: Tensor, step: int) -> None:
        self.value = value.detach()
        self.step = step
        is_asynchronous = value.device.type in ASYNCHRONOUS
        self.is_finite = torch.isfinite(self.value).to("cpu", non_blocking=is_asynchronous)
        self.copied = torch.accelerator.current_stream(value.device).record_event() if is_asynchronous else None

    def is_ready(self) -> bool:
        return self.copied is None or bool(self.copied.query())


@dataclass
class _Batch:
    """Losses of a batch."""

    row_ids: Sequence[Any]
    terms: PairTerms
    losses: Tensor | None
    dair_lambda: float | Tensor


class FinitenessCheck(TrainerCallback):
    """Callback that holds the losses of batches until they are known to be finite.

    Args:
        args: Configuration of the run.
        objective: Objective that replaces the DAIR objective, for errors.
    """

    def __init__(self, args: DAIRConfig, objective: Any = None) -> None:
        self.args = args
        self.objective = objective
        self.held: deque[tuple[_Flag, _Batch | None]] = deque()  # losses of batches, and norms of gradients (None)

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
        losses = None if losses is None else losses.detach()
        self.held.append((_Flag(loss, step), _Batch(ids, terms, losses, dair_lambda)))

    def add_norm(self, norm: Tensor, step: int) -> None:
        """Hold the norm of the gradient of a step, and start to copy the flag whether it is finite.

        Args:
            norm: The norm, a scalar.
            step: Number of optimizer steps taken before.
        """
        self.held.append((_Flag(norm, step), None))

    def clear(self) -> None:
        """Forget all batches."""
        self.held.clear()

    def check(self, until_step: int | None = None) -> None:
        """Check the held batches.

        Args:
            until_step: Step whose batches are checked only if no waiting is needed; None: wait for all batches.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite; the message names the rows. Or the gradient is, though the
                losses are finite.
        """
        while self.held:
            flag, batch = self.held[0]
            if until_step is not None and flag.step >= until_step and not flag.is_ready():
                return
            if flag.copied is not None:
                flag.copied.synchronize()
            if not flag.is_finite.numpy():
                self.clear()
                raise self._norm_error(flag) if batch is None else self._error(flag, batch)
            self.held.popleft()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the batches of earlier steps, and those of this step whose flags have arrived."""
        self.check(until_step=state.global_step)

    def _norm_error(self, flag: _Flag) -> NonFiniteLossError:
        args, remedy = self.args, "scale the sample loss"
        if args.uses_regularizer and self.objective is None:
            remedy = f"lower dair_lambda (now {args.dair_lambda}) or {remedy}"
        return NonFiniteLossError(
            f"the norm of the gradient is {flag.value.item()} at step {flag.step} though all losses are finite: it "
            f"overflows {str(flag.value.dtype).removeprefix('torch.')}, or a function in a loss or in R has no finite "
            f"slope, such as sqrt at 0; {remedy}, or check these functions"
        )

    def _error(self, flag: _Flag, batch: _Batch) -> NonFiniteLossError:
        args = self.args
        terms = PairTerms(*(term.cpu() for term in batch.terms))
        rows, where = len(terms.original), f"at step {flag.step}"
        losses = None if batch.losses is None else batch.losses.cpu()
        if self.objective is None and (negative := undefined_roots(terms, args, losses)).any():
            return negative_losses(terms, negative, batch.row_ids, where, args, losses)
        finite_losses = terms.original.isfinite() & terms.augmented.isfinite()
        broken = ~(finite_losses & terms.consistency.isfinite())
        if broken.any() and finite_losses.all():
            return NonFiniteLossError(
                f"R of {int(broken.sum())} of {rows} rows is not finite {where} though their losses are: "
                f"{_named(broken, batch.row_ids)}; check regularizer={args.regularizer!r}, which makes R of them"
            )
        if broken.any():
            return NonFiniteLossError(
                f"the loss of {int(broken.sum())} of {rows} rows is not finite {where}: "
                f"{_named(broken, batch.row_ids)}; check these rows, lower the learning rate (now "
                f"{args.learning_rate}) or clip the gradient (max_grad_norm, now {args.max_grad_norm})"
            )
        problem = f"is {flag.value.item()} {where} though the losses of all {rows} rows are finite"
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
    """Return the pairs whose R takes the root of a negative loss, `[B]` bool; none if no such R is trained."""
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
    """Return the error for pairs with a negative loss whose R takes its root."""
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
