"""Check that losses are finite, without making the host wait for the device.

A flag per loss is copied to the host while the backward pass runs. Before an optimizer step, the flags of its losses
are checked if their copies have arrived, as they always have on a CPU. Otherwise they are checked at the next step, and
at the latest before logging, evaluation and saving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

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


class _Batch(NamedTuple):
    row_ids: Sequence[Any]
    terms: PairTerms
    losses: Tensor  # [B, V]
    dair_lambda: float | Tensor


class FinitenessCheck(TrainerCallback):
    """Callback that holds the losses of batches until they are known to be finite."""

    def __init__(self, args: DAIRConfig, objective: Any = None) -> None:
        self.args = args
        self.objective = objective
        self.held: deque[tuple[_Flag, _Batch | None]] = deque()  # losses of batches, and norms of gradients (None)

    def add(
        self,
        loss: Tensor,
        terms: PairTerms,
        losses: Tensor,
        row_ids: Sequence[Any] | None,
        step: int,
        dair_lambda: float | Tensor,
    ) -> None:
        """Hold a batch, and start to copy the flag whether its objective `loss` is finite."""
        terms = PairTerms(*(term.detach() for term in terms))
        ids = _row_names(row_ids, len(terms.original))
        self.held.append((_Flag(loss, step), _Batch(ids, terms, losses.detach(), dair_lambda)))

    def add_norm(self, norm: Tensor, step: int) -> None:
        """Hold the norm of the gradient of a step, and start to copy the flag whether it is finite."""
        self.held.append((_Flag(norm, step), None))

    def check(self, until_step: int | None = None) -> None:
        """Raise an error for the first held batch or gradient that is not finite.

        Batches of `until_step` are checked only if no waiting is needed.
        """
        while self.held:
            flag, batch = self.held[0]
            if until_step is not None and flag.step >= until_step and not flag.is_ready():
                return
            if flag.copied is not None:
                flag.copied.synchronize()
            if not flag.is_finite.numpy():
                self.held.clear()
                raise NonFiniteLossError(
                    f"{self._problem(flag, batch)}, at step {flag.step}; check the data, or lower the learning rate "
                    f"(now {self.args.learning_rate}) or dair_lambda (now {self.args.dair_lambda})"
                )
            self.held.popleft()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the batches of earlier steps, and those of this step whose flags have arrived."""
        self.check(until_step=state.global_step)

    def require_roots(self, terms: PairTerms, losses: Tensor, row_ids: Sequence[Any] | None) -> None:
        """Refuse pairs of an evaluation whose R takes the root of a negative loss."""
        if self._undefined_roots(terms, losses).any():
            raise NonFiniteLossError(self._negative(terms, losses, _row_names(row_ids, len(losses))))

    def _undefined_roots(self, terms: PairTerms, losses: Tensor) -> Tensor:
        """Return the pairs whose R takes the root of a negative loss, `[B]` bool; none if no such R is trained."""
        regularizer = self.args.loss_regularizer if self.args.uses_regularizer else None
        if regularizer is None or not regularizer.takes_root:
            return torch.zeros_like(terms.has_partner)
        return terms.has_partner & (losses.amin(1) < -self.args.loss_epsilon)

    def _negative(self, terms: PairTerms, losses: Tensor, row_ids: Sequence[Any]) -> str:
        negative = self._undefined_roots(terms, losses)
        rootless = next(name for name, regularizer in LOSS_REGULARIZERS.items() if not regularizer.takes_root)
        return (
            f"sample_loss is negative in {_named(negative, row_ids)}, down to {losses.amin(1)[negative].min():.4g}, of "
            f"which regularizer={self.args.regularizer!r} takes the root; add a constant, or use {rootless!r}"
        )

    def _problem(self, flag: _Flag, batch: _Batch | None) -> str:
        """Describe what is not finite: a loss, R, the objective, or the gradient."""
        if batch is None:
            return f"the norm of the gradient is {flag.value.item()} though all losses are finite"
        terms, losses = PairTerms(*(term.cpu() for term in batch.terms)), batch.losses.cpu()
        if self.objective is None and self._undefined_roots(terms, losses).any():
            return self._negative(terms, losses, batch.row_ids)
        finite_losses = terms.original.isfinite() & terms.augmented.isfinite()
        if not finite_losses.all():
            return f"the loss is not finite in {_named(~finite_losses, batch.row_ids)}"
        if not terms.consistency.isfinite().all():
            broken = _named(~terms.consistency.isfinite(), batch.row_ids)
            return f"R is not finite in {broken} though their losses are: check regularizer={self.args.regularizer!r}"
        if self.objective is not None:
            return f"objective={type(self.objective).__name__} is {flag.value.item()} though all losses are finite"
        objectives = pair_objective(terms, self.args.method, float(batch.dair_lambda), self.args.view_weights)
        largest = batch.row_ids[int(objectives.nan_to_num(torch.inf).argmax())]
        return (
            f"the objective is {flag.value.item()} though all losses are finite, with the largest R "
            f"{terms.consistency.max():.4g} times dair_lambda={float(batch.dair_lambda)}, largest in {largest!r}"
        )


def _row_names(row_ids: Sequence[Any] | None, count: int) -> Sequence[Any]:
    return [f"row {row} of the batch" for row in range(count)] if row_ids is None else row_ids


def _named(mask: Tensor, row_ids: Sequence[Any]) -> str:
    rows = mask.nonzero().flatten().tolist()
    return f"{len(rows)} of {len(mask)} rows, {[row_ids[row] for row in rows[:MAX_NAMED_ROWS]]}"
