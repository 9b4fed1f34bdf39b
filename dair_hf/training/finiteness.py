"""Check that losses are finite, without making the host wait for the device.

Whether a loss is finite is copied to the host while the backward pass runs. Before the optimizer takes a step the
losses of that step are looked at if their copies have arrived, which on a CPU they always have; else at the next step,
and at the latest before anything is logged, evaluated or saved.
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
from dair_hf.losses.objective import PairTerms, pair_objective

SHOWN = 8  # rows that an error names


@dataclass
class _Batch:
    """The losses of one batch, and a flag on the host that is valid once `copied` has happened."""

    step: int
    row_ids: Sequence[Any]
    terms: PairTerms
    loss: Tensor
    is_finite: Tensor
    copied: Any

    def is_ready(self) -> bool:
        return self.copied is None or bool(self.copied.query())


class FinitenessCheck(TrainerCallback):
    """Remembers the losses of batches until it is known that they are finite; a callback of the trainer.

    Args:
        args: The run's configuration.
        objective: What is trained in place of the DAIR objective, for errors; None: nothing.
    """

    def __init__(self, args: DAIRConfig, objective: Any = None) -> None:
        self.args = args
        self.objective = objective
        self.batches: deque[_Batch] = deque()

    def add(self, loss: Tensor, terms: PairTerms, row_ids: Sequence[Any] | None, step: int) -> None:
        """Remember a batch and start to copy whether its loss is finite.

        Args:
            loss: Its objective, a scalar.
            terms: Its terms, each `[B]`.
            row_ids: Names of its rows; None: their numbers.
            step: Optimizer steps taken before.
        """
        kept = PairTerms(*(term.detach() for term in terms))
        ids = [f"row {row} of the batch" for row in range(len(terms.original))] if row_ids is None else row_ids
        loss = loss.detach()
        flag, device = torch.isfinite(loss), loss.device
        behind = device.type in ASYNCHRONOUS
        on_host = flag.to("cpu", non_blocking=behind)
        copied = torch.accelerator.current_stream(device).record_event() if behind else None
        self.batches.append(_Batch(step, ids, kept, loss, on_host, copied))

    def clear(self) -> None:
        """Forget all batches."""
        self.batches.clear()

    def check(self, until_step: int | None = None) -> None:
        """Look at the batches remembered.

        Args:
            until_step: Batches of this step are looked at only if that takes no waiting; None: all are waited for.

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
        """Look at the batches of the steps before, and at those of this step if they are known."""
        self.check(until_step=state.global_step)

    def _error(self, batch: _Batch) -> NonFiniteLossError:
        args = self.args
        terms = PairTerms(*(term.cpu() for term in batch.terms))
        rows, where = len(terms.original), f"at step {batch.step}"
        if self.objective is None and (negative := undefined_roots(terms, args)).any():
            return negative_losses(terms, negative, batch.row_ids, where)
        broken = ~(terms.original.isfinite() & terms.augmented.isfinite() & terms.consistency.isfinite())
        if broken.any():
            return NonFiniteLossError(
                f"the loss of {int(broken.sum())} of {rows} rows is not finite {where}: "
                f"{_named(broken, batch.row_ids)}; look at these rows, lower the learning rate (now "
                f"{args.learning_rate}) or clip the gradient (max_grad_norm, now {args.max_grad_norm})"
            )
        found = f"is {batch.loss.item()} {where} though the losses of all {rows} rows are finite"
        if self.objective is not None:
            return NonFiniteLossError(
                f"objective={type(self.objective).__name__} {found}, from {terms.original.min():.4g} to "
                f"{torch.maximum(terms.original, terms.augmented).max():.4g}; look at what it computes from them"
            )
        objectives = pair_objective(terms, args.method, args.dair_lambda)
        over, kind = ~objectives.isfinite(), str(terms.original.dtype).removeprefix("torch.")
        if over.any():
            what = f"that of {int(over.sum())} rows alone overflows {kind}: {_named(over, batch.row_ids)}"
        else:
            largest = int(objectives.argmax())
            what = (
                f"their sum overflows {kind}; the largest is {objectives[largest]:.4g}, of {batch.row_ids[largest]!r}"
            )
        return NonFiniteLossError(
            f"the objective {found}: {what}. R goes up to {terms.consistency.max():.4g}, times "
            f"dair_lambda={args.dair_lambda}; look at these rows, lower dair_lambda or scale the sample loss"
        )


def undefined_roots(terms: PairTerms, args: DAIRConfig) -> Tensor:
    """Pairs whose R_sq is undefined because a loss is negative, `[B]` bool; none where R_sq is not trained."""
    if not (args.uses_regularizer and args.regularizer == "sq"):
        return torch.zeros_like(terms.has_partner)
    return terms.has_partner & (torch.minimum(terms.original, terms.augmented) < -args.loss_epsilon)


def negative_losses(
    terms: PairTerms, negative: Tensor, row_ids: Sequence[Any] | None, where: str
) -> NonFiniteLossError:
    """The error of pairs whose loss has no root.

    Args:
        terms: Terms of a batch, each `[B]`.
        negative: Which rows, `[B]` bool.
        row_ids: Names of the rows; None: their numbers.
        where: When it happened, in words.
    """
    lowest = torch.minimum(terms.original, terms.augmented)[negative].min()
    ids = range(len(negative)) if row_ids is None else row_ids
    return NonFiniteLossError(
        f"sample_loss is negative in {int(negative.sum())} of {len(negative)} rows {where}: {_named(negative, ids)}, "
        f"down to {lowest:.4g}; regularizer='sq' takes the root of a loss. Add a constant that makes it >= 0, or use "
        "regularizer='l1'"
    )


def _named(chosen: Tensor, row_ids: Sequence[Any]) -> list[Any]:
    return [row_ids[row] for row in chosen.nonzero().flatten().tolist()[:SHOWN]]
