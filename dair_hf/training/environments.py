"""Objectives of a whole batch: baselines that see the two views as environments, and DAIR on aggregated losses.

`DAIRTrainer(objective=...)` takes any callable `(found, step) -> scalar`: `found` is the `PairOutputs` of one batch,
`step` the number of optimizer steps taken so far. The classes here are `nn.Module`s, so what they learn while training
(the weights of Group DRO) is saved in the checkpoints and survives a resume.

The original view is the first environment, the augmented view the second; a row without partner is in the first only.
Unlike a sum over rows, such an objective depends on how the data is cut into batches: one batch is one step of one
process, and the trainer refuses gradient accumulation and several processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from dair_hf.errors import DataError
from dair_hf.losses.objective import LOSS_EPSILON, squared_root_consistency
from dair_hf.training.forward import PairOutputs

BatchObjective = Callable[[PairOutputs, int], Tensor]


@dataclass
class EnvironmentConfig:
    """Settings of the baselines that see the views as environments.

    Example:
        >>> EnvironmentConfig().objective("dro")
        GroupDRO(step_size=0.01)
        >>> EnvironmentConfig().objective("dair") is None
        True
    """

    irm_penalty: float = field(
        default=1e4, metadata={"help": "Weight of the penalty of irm, > 0, once annealing is over."}
    )
    rex_penalty: float = field(
        default=1e4, metadata={"help": "Weight of the variance in rex, > 0, in 1/nats, once annealing is over."}
    )
    penalty_anneal_steps: int = field(
        default=1000, metadata={"help": "Optimizer steps with weight 1 at the start of irm and rex, >= 0."}
    )
    dro_step_size: float = field(default=0.01, metadata={"help": "Step size of the group weights of dro, > 0."})

    def objective(self, method: str) -> BatchObjective | None:
        """The objective of a baseline; None where the method is trained on the trainer's own.

        Raises:
            DataError: A setting is out of range.
        """
        if method == "irm":
            return IRM(self.irm_penalty, self.penalty_anneal_steps)
        if method == "rex":
            return VREx(self.rex_penalty, self.penalty_anneal_steps)
        return GroupDRO(self.dro_step_size) if method == "dro" else None


def environment_risks(losses: Tensor, exists: Tensor) -> Tensor:
    """`R_e`, the mean loss of every environment that has a row.

    Args:
        losses: `[B, V]`, nats per row.
        exists: `[B, V]` bool.

    Returns:
        `[E]` with `E <= V`.

    Example:
        >>> environment_risks(torch.tensor([[1.0, 4.0], [3.0, 0.0]]), torch.tensor([[True, True], [True, False]]))
        tensor([2., 4.])
    """
    counts = exists.sum(0)
    sums = (losses * exists).sum(0)
    return sums[counts > 0] / counts[counts > 0]


class PenalizedRisk(nn.Module):
    """`mean_e R_e + w * penalty`, with a weight `w` that is 1 before `anneal_steps`, so that a model forms first.

    Where `w > 1` the whole is divided by it, so that the gradient keeps its scale. Both as in the authors' code of IRM.
    The jump of `w` leaves moments in Adam that no longer fit the gradient, so `DAIRTrainer` clears the state of the
    optimizer there (`FreshOptimizer`).

    Args:
        penalty_weight: `w`, > 0, once annealing is over.
        anneal_steps: Optimizer steps before that.

    Raises:
        DataError: A value out of range.
    """

    def __init__(self, penalty_weight: float = 1e4, anneal_steps: int = 0) -> None:
        super().__init__()
        _require("penalty_weight", penalty_weight)
        _require("anneal_steps", anneal_steps, allow_zero=True)
        self.penalty_weight = penalty_weight
        self.anneal_steps = anneal_steps

    def penalized(self, risks: Tensor, penalty: Tensor, step: int) -> Tensor:
        """The objective from the risks `[E]` and the penalty, a scalar."""
        weight = self.penalty_weight if step >= self.anneal_steps else 1.0
        return (risks.mean() + weight * penalty) / max(weight, 1.0)

    def extra_repr(self) -> str:
        """Settings, for the model card."""
        return f"penalty_weight={self.penalty_weight:g}, anneal_steps={self.anneal_steps}"


class FreshOptimizer(TrainerCallback):
    """Clears what the optimizer has accumulated, such as the moments of Adam, before one optimizer step.

    Args:
        step: Number of optimizer steps taken before that.

    Example:
        >>> trainer.add_callback(FreshOptimizer(step=190))  # doctest: +SKIP
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Clear the state where the step has come, also in a run that is resumed there."""
        if state.global_step == self.step:
            optimizer.state.clear()


class IRM(PenalizedRisk):
    """Invariant risk minimisation, the practical IRMv1, with an unbiased penalty: `mean_e R_e + w * mean_e g_e g'_e`.

    `g_e` and `g'_e` are the derivatives `d R_e(s * logits) / d s` at `s = 1` over two halves of the environment's rows.
    Their product estimates the squared derivative of the expected risk without bias, since the halves are independent;
    the square of one derivative over the whole batch is too large by its variance, which at 64 rows outweighs what it
    estimates. The penalty of one batch can be negative; an environment of fewer than two rows has none. Large batches
    (2,000 rows) and small learning rates (at most 1e-3) keep its variance low.

    Annealing and scaling are those of `PenalizedRisk`.

    Source: Arjovsky, Bottou, Gulrajani, Lopez-Paz, "Invariant Risk Minimization", arXiv:1907.02893, equation (IRMv1);
    the unbiased estimate is that of its appendix D.

    Args:
        penalty_weight: `w`, > 0, once annealing is over.
        anneal_steps: Optimizer steps before that.

    Raises:
        DataError: A value out of range.

    Example:
        >>> IRM(penalty_weight=1e4, anneal_steps=190)
        IRM(penalty_weight=10000, anneal_steps=190)
    """

    def forward(self, found: PairOutputs, step: int) -> Tensor:
        """The objective of one batch, a scalar in nats."""
        scale = found.terms.original.new_ones(()).requires_grad_()
        losses, exists = found.losses_at(scale), found.targets > 0
        number = exists.cumsum(0)  # of each row within its environment, from 1
        first, second = (
            torch.stack([torch.autograd.grad(risk, scale, create_graph=True)[0] for risk in _half_risks(losses, half)])
            for half in (exists & (number % 2 == 1), exists & (number % 2 == 0))
        )
        penalty = (first * second).sum() / (number[-1] >= 2).sum().clamp(min=1)
        return self.penalized(environment_risks(losses, exists), penalty, step)


class VREx(PenalizedRisk):
    """Variance risk extrapolation: `mean_e R_e + w * Var_e(R_e)`, the variance of the environments' risks.

    Annealing and scaling are those of `PenalizedRisk`.

    Source: Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation (REx)", ICML 2021, equation (8),
    there with the sum of the risks.

    Args:
        penalty_weight: `w`, > 0, in 1/nats, once annealing is over.
        anneal_steps: Optimizer steps before that.

    Raises:
        DataError: A value out of range.

    Example:
        >>> VREx(penalty_weight=10.0)
        VREx(penalty_weight=10, anneal_steps=0)
    """

    def forward(self, found: PairOutputs, step: int) -> Tensor:
        """The objective of one batch, a scalar in nats."""
        risks = _risks(found)
        return self.penalized(risks, risks.var(unbiased=False), step)


class GroupDRO(nn.Module):
    """Distributionally robust optimisation over groups: `sum_e q_e R_e`, the weight moving to the group that is worse.

    Each step first `q_e <- q_e exp(eta R_e) / Z`, then the loss with the new `q`, which starts uniform.

    Source: Sagawa, Koh, Hashimoto, Liang, "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020,
    algorithm 1.

    Args:
        step_size: `eta`, > 0, in 1/nats.

    Raises:
        DataError: The step size is out of range.

    Example:
        >>> GroupDRO(step_size=0.01).weights
        tensor([0.5000, 0.5000])
    """

    weights: Tensor

    def __init__(self, step_size: float = 0.01) -> None:
        super().__init__()
        _require("step_size", step_size)
        self.step_size = step_size
        self.register_buffer("weights", torch.full((2,), 0.5))

    def extra_repr(self) -> str:
        """Settings, for the model card."""
        return f"step_size={self.step_size:g}"

    def forward(self, found: PairOutputs, step: int) -> Tensor:
        """The objective of one batch, a scalar in nats; moves the weights."""
        risks = _risks(found)
        if len(risks) < len(self.weights):
            return risks.sum()  # a batch of one group compares nothing
        self.weights = torch.softmax(self.weights.to(risks.device).log() + self.step_size * risks.detach().float(), 0)
        return (self.weights * risks).sum()


class AggregatedDAIR(nn.Module):
    """DAIR whose losses are aggregated by something other than a mean: `1/2 A(l) + 1/2 A(l~) + lambda * R`.

    `A` maps the losses `[B]` of a view to a scalar: their mean, or the tilted loss of TERM. Then `R` is one of

    - `consistency="sample"`: the mean over pairs of `R_sq(l_i, l~_i)`: the paper's regularizer, which stays per sample
      whatever aggregates the losses;
    - `consistency="batch"`: `R_sq(A(l), A(l~))`, of the two aggregates: the authors' released code for Huber and TERM.
      It cannot tell apart batches whose pairs differ but whose aggregates agree.

    Where an aggregate is negative (a tilted loss with negative tilt never is for losses >= 0) `R_sq` is undefined.

    Args:
        aggregate: `[B] -> scalar`.
        method: "erm", "da" or "dair".
        dair_lambda: Weight of `R`, >= 0, pair units.
        consistency: "sample" or "batch".
        epsilon: Inside both roots of `R`.

    Raises:
        DataError: An unknown method or consistency, or a negative lambda.

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
        if method not in ("erm", "da", "dair"):
            raise DataError(f"method={method!r} is unknown; use erm, da or dair")
        if consistency not in ("sample", "batch"):
            raise DataError(f"consistency={consistency!r} is unknown; use sample or batch")
        _require("dair_lambda", dair_lambda, allow_zero=True)
        self.aggregate = aggregate
        self.method = method
        self.dair_lambda = dair_lambda
        self.consistency = consistency
        self.epsilon = epsilon

    def extra_repr(self) -> str:
        """Settings, for the model card."""
        return f"method={self.method}, dair_lambda={self.dair_lambda:g}, consistency={self.consistency}"

    def forward(self, found: PairOutputs, step: int) -> Tensor:
        """The objective of one batch, a scalar.

        Raises:
            DataError: Only some of the rows have a partner: the two aggregates would be of different rows.
        """
        original, augmented, _, has_partner = found.terms
        if self.method == "erm" or not has_partner.any():
            return self.aggregate(original)
        if not has_partner.all():
            raise DataError(
                f"{int(has_partner.sum())} of {len(has_partner)} rows of a batch have a partner; aggregated losses "
                "compare all rows of one view with all of the other: give every row a partner or none"
            )
        whole, other = self.aggregate(original), self.aggregate(augmented)
        loss = 0.5 * whole + 0.5 * other
        if self.method == "da":
            return loss
        if self.consistency == "batch":
            return loss + self.dair_lambda * squared_root_consistency(whole, other, self.epsilon)
        return loss + self.dair_lambda * squared_root_consistency(original, augmented, self.epsilon).mean()


def _risks(found: PairOutputs) -> Tensor:
    return environment_risks(torch.stack([found.terms.original, found.terms.augmented], dim=1), _exists(found))


def _half_risks(losses: Tensor, half: Tensor) -> Tensor:
    """Mean loss of each environment over some of its rows, `[V]`; 0 where there are none."""
    return (losses * half).sum(0) / half.sum(0).clamp(min=1)


def _exists(found: PairOutputs) -> Tensor:
    original = found.targets[:, 0] > 0
    return torch.stack([original, found.terms.has_partner], dim=1)


def _require(name: str, value: float, allow_zero: bool = False) -> None:
    if not (value >= 0 if allow_zero else value > 0) or value == float("inf"):
        raise DataError(f"{name}={value!r} is out of range; it must be a finite number {'>=' if allow_zero else '>'} 0")
