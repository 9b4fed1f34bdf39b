"""Objectives of a whole batch: baselines with the views as environments, and DAIR on aggregated losses.

`DAIRTrainer(objective=...)` takes any callable `(outputs, step) -> scalar`: `outputs` are the `PairOutputs` of a batch
and `step` is the number of optimizer steps taken so far. The classes of this module derive from `nn.Module`, so that
their state (the weights of Group DRO) is saved in checkpoints and restored on a resume.

The original view is the first environment, the augmented view the second; a row without a partner is in the first only.
If rows have several partners, each partner number is an environment of its own (DAIR on aggregated losses takes one).
The penalties of IRM and V-REx have weight 1 during the first `anneal_steps` steps. If the weight is above 1, the sum is
divided by it, so that the gradient keeps its scale. Both are taken from the authors' code of IRM. After the jump of the
weight the moments of Adam no longer fit the gradient, so the state of the optimizer is cleared at that step.

Unlike a sum over rows, such an objective depends on how the data is batched: a batch is one step of one process. The
trainer refuses gradient accumulation and several processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from dair_hf.data.batch_layout import trained_partners
from dair_hf.data.collator import on_device
from dair_hf.errors import DataError
from dair_hf.losses.objective import LOSS_EPSILON, squared_root_consistency
from dair_hf.settings import Positive, Range, Settings
from dair_hf.training.forward.pair_loss import PairOutputs

BatchObjective = Callable[[PairOutputs, int], Tensor]


@dataclass
class EnvironmentConfig(Settings):
    """Settings of the baselines with the views as environments.

    Example:
        >>> EnvironmentConfig().objective("dro")
        GroupDRO(step_size=0.01)
        >>> EnvironmentConfig().objective("dair") is None
        True
    """

    provided_methods = ("irm", "rex", "dro")  # of `experiments.comparison`; no field

    irm_penalty: Positive = field(default=1e4, metadata={"help": "Weight of the penalty of irm, > 0, after annealing."})
    rex_penalty: Positive = field(
        default=1e4, metadata={"help": "Weight of the variance in rex, > 0, in 1/nats, after annealing."}
    )
    penalty_anneal_steps: Annotated[int, Range(low=0)] = field(
        default=1000, metadata={"help": "Optimizer steps with weight 1 at the start of irm and rex, >= 0."}
    )
    dro_step_size: Positive = field(default=0.01, metadata={"help": "Step size of the group weights of dro, > 0."})

    def objective(self, method: str) -> BatchObjective | None:
        """Return the objective of a baseline; None for methods of `DAIRConfig`."""
        if method == "irm":
            return IRM(self.irm_penalty, self.penalty_anneal_steps)
        if method == "rex":
            return VREx(self.rex_penalty, self.penalty_anneal_steps)
        return GroupDRO(self.dro_step_size) if method == "dro" else None


def _environment_risks(losses: Tensor, exists: np.ndarray) -> Tensor:
    """Return `R_e`, the mean loss of every environment that has a row."""
    counts = exists.sum(0)
    return torch.stack([losses[:, e].sum() / int(counts[e]) for e in np.flatnonzero(counts)])


class _PenalizedRisk(nn.Module, TrainerCallback):
    """Base class of `mean_e R_e + w * penalty`, with `w = 1` during the first `anneal_steps` steps."""

    def __init__(self, penalty_weight: float = 1e4, anneal_steps: int = 0) -> None:
        super().__init__()
        self.penalty_weight = penalty_weight
        self.anneal_steps = anneal_steps

    def penalized(self, risks: Tensor, penalty: Tensor, step: int) -> Tensor:
        """Return the objective from the risks `[E]` and the penalty, a scalar."""
        weight = self.penalty_weight if step >= self.anneal_steps else 1.0
        return (risks.mean() + weight * penalty) / max(weight, 1.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Clear the state of the optimizer when the weight jumps, also in a run that is resumed there."""
        if state.global_step == self.anneal_steps:
            optimizer.state.clear()

    def extra_repr(self) -> str:
        """Return the settings, for the model card."""
        return f"penalty_weight={self.penalty_weight:g}, anneal_steps={self.anneal_steps}"


class IRM(_PenalizedRisk):
    """Invariant risk minimization: IRMv1 with an unbiased penalty, `mean_e R_e + w * mean_e g_e g'_e`.

    `g_e` and `g'_e` are the derivatives `d R_e(s * logits) / d s` at `s = 1` over two halves of the environment's rows.
    Since the halves are independent, their product is an unbiased estimate of the squared derivative of the expected
    risk. The square of a derivative over the whole batch is too large by the variance of that derivative, which at 64
    rows exceeds the quantity itself. The penalty of a batch can be negative. Environments of fewer than two rows have
    none. Large batches (2,000 rows) and small learning rates (at most 1e-3) keep its variance low.

    Source: Arjovsky, Bottou, Gulrajani, Lopez-Paz, "Invariant Risk Minimization", arXiv:1907.02893, equation (IRMv1)
    and, for the unbiased estimate, appendix D.

    Args:
        penalty_weight: `w` after annealing, > 0.
        anneal_steps: Number of optimizer steps with `w = 1`.

    Example:
        >>> IRM(penalty_weight=1e4, anneal_steps=190)
        IRM(penalty_weight=10000, anneal_steps=190)
    """

    def forward(self, outputs: PairOutputs, step: int) -> Tensor:
        """Return the objective of a batch, a scalar in nats."""
        scale = outputs.terms.original.new_ones(()).requires_grad_()
        losses, targets = outputs.losses_at_scale(scale), outputs.targets
        exists = torch.cat([targets[:, :1] > 0, trained_partners(targets)], dim=1)
        number = exists.cumsum(0)  # of each row within its environment, from 1

        def slopes(half: Tensor) -> Tensor:
            risks = (losses * half).sum(0) / half.sum(0).clamp(min=1)  # 0 for an environment without rows
            return torch.stack([torch.autograd.grad(risk, scale, create_graph=True)[0] for risk in risks])

        first, second = slopes(exists & (number % 2 == 1)), slopes(exists & (number % 2 == 0))
        penalty = (first * second).sum() / (number[-1] >= 2).sum().clamp(min=1)
        return self.penalized(_environment_risks(losses, _environments(outputs)), penalty, step)


class VREx(_PenalizedRisk):
    """Variance risk extrapolation: `mean_e R_e + w * Var_e(R_e)`, with the variance of risks between environments.

    Source: Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation (REx)", ICML 2021, equation (8),
    which has the sum of the risks instead of their mean.

    Args:
        penalty_weight: `w` after annealing, > 0, in 1/nats.
        anneal_steps: Number of optimizer steps with `w = 1`.

    Example:
        >>> VREx(penalty_weight=10.0)
        VREx(penalty_weight=10, anneal_steps=0)
    """

    def forward(self, outputs: PairOutputs, step: int) -> Tensor:
        """Return the objective of a batch, a scalar in nats."""
        risks = _risks(outputs)
        return self.penalized(risks, risks.var(unbiased=False), step)


class GroupDRO(nn.Module):
    """Distributionally robust optimization over groups: `sum_e q_e R_e`, where weight moves to the worse group.

    Each step first updates `q_e <- q_e exp(eta R_e) / Z` and then computes the loss with the new `q`. The initial `q`
    is uniform. A group without a row in a batch has the risk 0. A batch of one group has its risk, and leaves `q`.

    Source: Sagawa, Koh, Hashimoto, Liang, "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020,
    algorithm 1.

    Args:
        step_size: `eta`, > 0, in 1/nats.
        groups: Number of groups: one more than the largest number of a partner.

    Example:
        >>> GroupDRO(step_size=0.01).weights
        tensor([0.5000, 0.5000])
    """

    weights: Tensor

    def __init__(self, step_size: float = 0.01, groups: int = 2) -> None:
        super().__init__()
        self.step_size = step_size
        self.register_buffer("weights", torch.full((groups,), 1 / groups))

    def extra_repr(self) -> str:
        """Return the settings, for the model card."""
        return f"step_size={self.step_size:g}"

    def forward(self, outputs: PairOutputs, step: int) -> Tensor:
        """Update the weights and return the objective of a batch, a scalar in nats."""
        risks, present = _risks(outputs), np.flatnonzero(_environments(outputs).any(0))
        if len(risks) < 2:
            return risks.sum()  # with one group there is nothing to compare
        if present[-1] >= len(self.weights):
            raise DataError(f"GroupDRO: expected groups={present[-1] + 1}, got {len(self.weights)}")
        if len(risks) < len(self.weights):
            risks = risks.new_zeros(len(self.weights)).index_copy(0, on_device(present, risks.device), risks)
        self.weights = torch.softmax(self.weights.to(risks.device).log() + self.step_size * risks.detach().float(), 0)
        return (self.weights * risks).sum()


class AggregatedDAIR(nn.Module):
    """DAIR with aggregated losses: `1/2 A(l) + 1/2 A(l~) + lambda * R`.

    `A` maps the losses `[B]` of a view to a scalar, such as their mean or the tilted loss of TERM. `R` is one of

    - `consistency="sample"`: the mean of `R_sq(l_i, l~_i)` over pairs, the regularizer of the paper, for any aggregate;
    - `consistency="batch"`: `R_sq(A(l), A(l~))`, as in the authors' code for Huber and TERM. It is 0 if the aggregates
      agree, even if single pairs differ.

    `R_sq` of negative aggregates is undefined. Tilted losses with a negative tilt are >= 0 if the losses are.

    Args:
        aggregate: `[B] -> scalar`.
        method: "erm", "da" or "dair".
        dair_lambda: Weight of `R`, >= 0, in pair units.
        consistency: "sample" or "batch".
        epsilon: Added inside both roots of `R`.

    Example:
        >>> AggregatedDAIR(torch.mean, "dair", dair_lambda=10.0, consistency="batch")
        AggregatedDAIR(method=dair, dair_lambda=10, consistency=batch)
    """

    def __init__(
        self,
        aggregate: Callable[[Tensor], Tensor],
        method: str,
        dair_lambda: float = 0.0,
        consistency: str = "sample",
        epsilon: float = LOSS_EPSILON,
    ) -> None:
        super().__init__()
        if method not in ("erm", "da", "dair") or consistency not in ("sample", "batch"):
            raise DataError(
                f"method={method!r}, consistency={consistency!r}: expected erm, da or dair, and sample or batch"
            )
        self.aggregate = aggregate
        self.method = method
        self.dair_lambda = dair_lambda
        self.consistency = consistency
        self.epsilon = epsilon

    def extra_repr(self) -> str:
        """Return the settings, for the model card."""
        return f"method={self.method}, dair_lambda={self.dair_lambda:g}, consistency={self.consistency}"

    def forward(self, outputs: PairOutputs, step: int) -> Tensor:
        """Return the objective of a batch, a scalar.

        Raises:
            DataError: Only some rows have a partner, so that the two aggregates would cover different rows; or a row
                has several.
        """
        original, augmented, paired = outputs.terms.original, outputs.terms.augmented, outputs.layout.paired
        if self.method == "erm" or not paired.any():
            return self.aggregate(original)
        if not (outputs.layout.partners.sum(1) == 1).all():
            counts = outputs.layout.partners.sum(1).tolist()
            raise DataError(f"AggregatedDAIR: expected one partner of every row or none, got {counts!r:.80}")
        aggregate, augmented_aggregate = self.aggregate(original), self.aggregate(augmented)
        loss = 0.5 * aggregate + 0.5 * augmented_aggregate
        if self.method == "da":
            return loss
        if self.consistency == "batch":
            return loss + self.dair_lambda * squared_root_consistency(aggregate, augmented_aggregate, self.epsilon)
        return loss + self.dair_lambda * squared_root_consistency(original, augmented, self.epsilon).mean()


def _environments(outputs: PairOutputs) -> np.ndarray:
    """Return which views are rows of their environments, `[B, V]` bool."""
    layout = outputs.layout
    return np.concatenate([layout.targets[:, :1] > 0, layout.partners], axis=1)


def _risks(outputs: PairOutputs) -> Tensor:
    return _environment_risks(outputs.losses, _environments(outputs))
