"""Score of a pair, by which a pair report ranks, and its figures by group."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dair_hf.errors import UndefinedMetricWarning
from dair_hf.evaluation.statistics import correctness_metrics
from dair_hf.pair_report.groups import Grouping, group_order

CM_AND_FLIPS = ("cm", "cm_numerator", "cm_denominator", "both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")
WORST_SHARE = 0.05


def root_consistency(original: np.ndarray, augmented: np.ndarray) -> np.ndarray:
    """Return `R_sq = (sqrt(l) - sqrt(l~))^2`, `[N]`; negative losses count as 0."""
    return np.asarray(_root_difference(original, augmented) ** 2)


def _root_difference(original: np.ndarray, augmented: np.ndarray) -> np.ndarray:
    """Return `sqrt(l) - sqrt(l~)`, `[N]`; negative losses count as 0."""
    return np.asarray(np.sqrt(np.maximum(original, 0.0)) - np.sqrt(np.maximum(augmented, 0.0)))


def disagreement(
    original: np.ndarray, augmented: np.ndarray, sums: np.ndarray | float = 0.0, steps: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the score that ranks pairs, `(mean of sqrt(l) - sqrt(l~))^2`, over training and the final model.

    Without training steps it is `R_sq` of the final model. In a hard pair sometimes one view is harder and sometimes
    the other: its score is small although R may be large. In a pair with a wrong label the same view is harder
    in every step, until the model has memorized it. For single samples it is known that statistics of training reveal
    wrong labels better than the final losses do (Pleiss et al., "Identifying Mislabeled Data using the Area
    Under the Margin Ranking", NeurIPS 2020).

    Args:
        original: Losses of the originals by the final model, `[N]`, nats per row.
        augmented: Losses of the partners by the final model, `[N]`.
        sums: Sums of `sqrt(l) - sqrt(l~)` over training steps, `[N]`.
        steps: Numbers of these steps, `[N]`.

    Example:
        >>> disagreement(np.array([4.0, 4.0]), np.array([1.0, 1.0]), np.array([1.0, -1.0]), np.array([1.0, 1.0]))
        array([1., 0.])
    """
    return np.asarray(((_root_difference(original, augmented) + sums) / (1.0 + steps)) ** 2)


def inconsistency(original: np.ndarray, augmented: np.ndarray) -> float:
    """Return `rho = E[R_sq] / E[(l + l~) / 2]`, in [0, 2]; NaN without pairs or losses.

    Example:
        >>> inconsistency(np.array([4.0]), np.array([1.0]))
        0.4
    """
    total = float((original + augmented).sum()) / 2
    return float(root_consistency(original, augmented).sum()) / total if total > 0 else float("nan")


def share_of_worst(scores: np.ndarray, share: float = WORST_SHARE) -> float:
    """Return the part of the sum of scores that the largest `share` of them hold.

    Example:
        >>> share_of_worst(np.array([3.0, 1.0, 0.0, 0.0]), 0.25)
        0.75
    """
    ordered, total = np.sort(scores)[::-1], float(scores.sum())
    return float(ordered[: max(1, round(share * len(scores)))].sum()) / total if total > 0 else float("nan")


def losses_by_group(name: str, grouping: Grouping, original: np.ndarray, augmented: np.ndarray) -> dict[str, Any]:
    """Return the mean losses of the pairs of each group."""
    groups = []
    for group, chosen in _members(grouping).items():
        left, right = original[chosen], augmented[chosen]
        groups.append(
            {
                "name": group,
                "pairs": len(chosen),
                "loss_original": float(left.mean()),
                "loss_augmented": float(right.mean()),
                "inconsistency": inconsistency(left, right),
            }
        )
    return {"name": name, "groups": groups}


def correctness_by_group(
    name: str, grouping: Grouping, correct: np.ndarray, same_answer: np.ndarray | None = None
) -> dict[str, Any]:
    """Return CM and flips of the pairs of each group."""
    groups = []
    for group, chosen in _members(grouping).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)  # an undefined CM is shown as such
            metrics = correctness_metrics(
                *correct[chosen].T,
                same_answer=None if same_answer is None else same_answer[chosen],
                intervals=False,
            )
        groups.append({"name": group, "pairs": len(chosen), **{key: metrics[key] for key in CM_AND_FLIPS}})
    return {"name": name, "groups": groups}


def _members(grouping: Grouping) -> dict[str, np.ndarray]:
    """Return the positions of the pairs of each group, in the order in which groups are shown."""
    members: dict[str, list[int]] = {}
    for at, groups in enumerate(grouping):
        for group in groups:
            members.setdefault(group, []).append(at)
    return {group: np.array(members[group]) for group in sorted(members, key=group_order)}
