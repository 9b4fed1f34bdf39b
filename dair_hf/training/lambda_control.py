"""Weight of R at every step: a number with warmup and schedule, or set from the sizes of two gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import logging

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.losses.objective import Counts, PairSlopes, PairTerms

SMOOTHING = 0.95  # of the exponential means of both squared norms, per optimizer step
LAMBDA_MAX = 1e4  # per pair, also with token normalization
# A model whose losses all lie within this relative deviation of each other answers every input alike. At each step that
# ends with such a model, auto multiplies its target by `BACKOFF`.
SAME_LOSSES, BACKOFF = 0.02, 0.98

logger = logging.get_logger(__name__)


class LambdaControl(TrainerCallback):
    """Callback that gives lambda at every step.

    With a number, lambda is `dair_lambda` times the factor of the warmup. With `dair_lambda="auto"`, lambda keeps the
    *gradient share*, the size of the gradient of lambda R relative to that of the losses, at `lambda_target` times that
    factor. Both gradients are taken with respect to the roots `r = sqrt(l)`, `r~ = sqrt(l~)` of the losses of pairs:

        |grad (w l + w~ l~)|^2 = 4 sum_pairs (w^2 l + w~^2 l~)
        |grad R|^2             = 4 sum_pairs (l (dR/dl)^2 + l~ (dR/dl~)^2), for R_sq 8 sum_pairs R_sq
        share                  = lambda |grad R| / |grad (w l + w~ l~)|

    The sums of a step are reduced over all micro-batches and ranks, and enter exponential means (`SMOOTHING`). Lambda
    follows from the means of earlier steps; in the first step it is 0. With token normalization
    `lambda_token = lambda_pair * 2 pairs / tokens`. While, after the warmup, the standard deviation of the losses of
    all pairs is below `SAME_LOSSES` times their mean, every step multiplies the target by `BACKOFF`.

    The host never waits for the device.
    """

    def __init__(self, args: DAIRConfig, accelerator: Accelerator) -> None:
        self.args = args
        self.accelerator = accelerator
        self._warmup = 0  # optimizer steps over which lambda, or its target, rises from 0
        self.reset()

    def reset(self) -> None:
        """Forget all sums, before a new run."""
        # [5]: `root_gradients`, then number, sum and sum of squares of the losses of both views of pairs.
        self._sums: Tensor | None = None  # of this step and rank
        self._means: Tensor | None = None  # of earlier steps and all ranks
        self._backoff: Tensor | None = None  # factor of the target
        self._latest: float | Tensor | None = None  # lambda of the last training step
        self._latest_per_pair: Tensor | None = None
        self._latest_target: float | Tensor = 0.0
        self._has_warned = False

    def state_dict(self) -> dict[str, Tensor]:
        """Return means and factor of the target for a checkpoint; empty for a lambda that is a number."""
        state = {"means": self._means, "backoff": self._backoff}
        return {name: value for name, value in state.items() if value is not None and self.args.dair_lambda == AUTO}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""
        for name, value in state.items():
            setattr(self, f"_{name}", value.to(self.accelerator.device))

    # ---- during training ----

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the length of the warmup."""
        self._warmup = self.args.lambda_warmup(state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the sums of the step, over all ranks, into the means, and lower the target if all losses agree."""
        if self._sums is None:
            return
        sums, self._sums = self.accelerator.reduce(self._sums, "sum"), None
        means = torch.zeros_like(sums) if self._means is None else self._means
        # Only ratios of the means matter, so they may start at 0. Gradients of a step may overflow.
        moved = SMOOTHING * means + (1 - SMOOTHING) * sums
        self._means = torch.where(sums.isfinite().all(), moved, means)
        self._back_off(state.global_step)

    def add(self, gradients: Tensor, terms: PairTerms) -> None:
        """Add the `root_gradients` `[B, 2]` and the terms of a micro-batch of a training step."""
        if self.args.dair_lambda != AUTO or not self.args.uses_regularizer:
            return
        losses = torch.stack([terms.original, terms.augmented]).detach()
        losses = torch.where(terms.has_partner, losses, 0.0)
        of_losses = torch.stack([2 * terms.has_partner.sum(), losses.sum(), losses.square().sum()])
        sums = torch.cat([gradients.sum(0), of_losses.to(gradients.dtype)])
        self._sums = sums if self._sums is None else self._sums + sums

    def _back_off(self, step: int) -> None:
        """Lower the target if, after `step` steps, all losses are nearly the same."""
        assert self._means is not None
        if step <= self._warmup:
            return
        _, _, count, total, squares = self._means
        # Var(l) < (SAME_LOSSES E[l])^2
        is_same = count * squares - total**2 < (SAME_LOSSES * total) ** 2
        factor = torch.ones_like(total) if self._backoff is None else self._backoff
        self._backoff = torch.where(is_same, BACKOFF * factor, factor)

    # ---- lambda ----

    def _factor(self, step: int) -> float:
        """Return the factor of lambda, or of its target, after `step` steps: it rises from 0 to 1 over the warmup."""
        return min(1.0, step / self._warmup) if self._warmup else 1.0

    def at_step(self, step: int, counts: Counts) -> float | Tensor:
        """Return lambda of the training step after `step` optimizer steps, in the unit of `normalization`.

        `counts` are the denominators of the step.
        """
        given = self.args.dair_lambda
        if not isinstance(given, str):
            self._latest = given * self._factor(step)
            return self._latest
        target: float | Tensor = self.args.lambda_target * self._factor(step)
        self._latest_target = target if self._backoff is None else target * self._backoff
        self._latest_per_pair = self._per_pair(self._latest_target)
        self._latest = self._in_unit(self._latest_per_pair, counts)
        return self._latest

    @property
    def in_evaluation(self) -> float:
        """Lambda in the loss of an evaluation: the number, without its schedule; 0 with auto.

        Evaluations can then be compared: a lambda that changes would hide whether the model became better.
        """
        given = self.args.dair_lambda
        return 0.0 if isinstance(given, str) else given

    @property
    def latest(self) -> float | None:
        """Lambda of the last training step, in the unit of `normalization`.

        Before training it is the number, without its schedule; None with auto.
        """
        if self._latest is None:
            return None if isinstance(self.args.dair_lambda, str) else self.args.dair_lambda
        return float(self._latest)

    def logs(self) -> dict[str, float]:
        """Return the scalars to log, and warn once of a target that was lowered.

        These are `dair_lambda` of the last step, in the unit of `normalization`; with auto also `lambda_target`, the
        gradient share that was aimed at, and `gradient_share_mean`, the share by the exponential means of both norms.
        """
        if self._latest is None or not self.args.uses_regularizer:
            return {}
        logs = {"dair_lambda": float(self._latest)}
        if self._latest_per_pair is not None and self._means is not None:
            logs["lambda_target"] = float(self._latest_target)
            consistency, losses, *_ = self._means.tolist()
            if losses > 0:
                logs["gradient_share_mean"] = float(self._latest_per_pair) * math.sqrt(consistency / losses)
            lowered = 1.0 if self._backoff is None else float(self._backoff)
            if lowered < 1 and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "dair_lambda='auto': all pairs have nearly the same loss, so R may keep the model from learning. "
                    f"While this lasts, each step lowers lambda_target (from {self.args.lambda_target:g} to "
                    f"{lowered * self.args.lambda_target:.3g} by now); try a lambda_target below 1."
                )
        return logs

    def _per_pair(self, target: float | Tensor) -> Tensor:
        if self._means is None:
            return torch.zeros((), device=self.accelerator.device)
        consistency, losses, *_ = self._means
        weight = (target * torch.sqrt(losses / consistency)).clamp(max=LAMBDA_MAX)
        # Before the views differ, or without losses, there is nothing to compare.
        return torch.where((losses > 0) & (consistency > 0), weight, 0.0)

    def _in_unit(self, per_pair: Tensor, counts: Counts) -> Tensor:
        if self.args.normalization == "pair":
            return per_pair
        pairs, tokens = torch.as_tensor(counts.pairs), torch.as_tensor(counts.tokens)
        return per_pair * 2 * pairs / tokens.clamp(min=1)


def root_gradients(losses: Tensor, terms: PairTerms, slopes: PairSlopes | None, args: DAIRConfig) -> Tensor:
    """Return the squared norms of the gradients of R and of the losses at the roots of the losses, for every pair.

    `[B, 2]`: of R, and of `w l + w~ l~`; 0 for a row without a partner. A function g of the losses has
    `|grad g|^2 = sum_views 4 l (dg/dl)^2`. If R compares output distributions, `8 R` takes its place.
    """
    weight, augmented_weight = args.pair_weights
    with torch.no_grad():
        several = terms.partners.long().clamp(min=1).unsqueeze(1)
        original, partners = torch.where(terms.has_partner, losses[:, 0], 0.0), losses[:, 1:]
        # Token normalization has the sum of the losses of several partners, not their mean.
        divisor = 1 if args.normalization == "token" else several
        of_losses = 4 * (weight**2 * original + (augmented_weight**2 * partners / divisor**2).sum(1))
        if slopes is None:
            of_r = 8 * terms.consistency
        else:
            of_r = 4 * (original * slopes.original**2 + (partners * (slopes.partners / several) ** 2).sum(1))
        return torch.stack([of_r, of_losses], dim=1).clamp(min=0.0)
