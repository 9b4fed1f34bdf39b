"""The logged terms of a run: kept as sums and counts, added up over steps and ranks, divided once at the end."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dair_hf.config import DAIRConfig
from dair_hf.losses.objective import LOSS_REGULARIZERS, Counts, PairTerms, gradient_weights


class TermSums(NamedTuple):
    """Sums over rows, each a scalar tensor; the names say of what."""

    original: Tensor
    augmented: Tensor
    consistency: Tensor
    rows: Tensor
    originals_run: Tensor
    pairs: Tensor
    unlearned: Tensor
    rows_without_target: Tensor
    tokens: Tensor
    positions: Tensor


def sum_terms(
    terms: PairTerms,
    targets: Tensor,
    exists: Tensor,
    counts: Counts,
    args: DAIRConfig,
    was_run: Tensor | None = None,
    filled: Tensor | None = None,
) -> Tensor:
    """Sums of one batch.

    A pair counts as unlearned where one of its gradient weights c, c~ is negative (`objective.gradient_weights`, with
    lambda in pair units: under `normalization="token"` lambda * target tokens of a view).

    Args:
        terms: Unreduced terms, each `[B]`.
        targets: Number of targets of every original view, `[B]`.
        exists: Which rows are real, `[B]` bool (not repeated to even out ranks).
        counts: Denominators of the optimizer step the batch belongs to.
        args: The run's configuration.
        was_run: Which originals were run, `[B]` bool; None: all that exist.
        filled: Input tokens that were run, and the positions they were padded to, `[2]`; None: not known.

    Returns:
        `[10]` float64, the fields of `TermSums`.
    """
    unlearned = terms.has_partner.new_zeros(())
    if args.method == "dair" and args.regularizer in LOSS_REGULARIZERS:
        weight: float | Tensor = args.dair_lambda
        if args.normalization == "token":
            weight = weight * counts.tokens / (2 * torch.as_tensor(counts.pairs).clamp(min=1))
        weights = gradient_weights(terms.original, terms.augmented, weight, args.regularizer, args.loss_epsilon)
        unlearned = ((torch.minimum(*weights) < 0) & terms.has_partner).sum()
    sums = TermSums(
        original=terms.original.sum(),
        augmented=terms.augmented.sum(),
        consistency=terms.consistency.sum(),
        rows=exists.sum(),
        originals_run=(exists if was_run is None else exists & was_run).sum(),
        pairs=terms.has_partner.sum(),
        unlearned=unlearned,
        rows_without_target=(exists & (targets == 0)).sum(),
        tokens=unlearned.new_zeros(()) if filled is None else filled[0],
        positions=unlearned.new_zeros(()) if filled is None else filled[1],
    )
    return torch.stack([value.double() for value in sums])


def mean_terms(sums: Tensor, args: DAIRConfig) -> dict[str, float]:
    """What is logged: means a row and a pair, shares, and the counts they rest on.

    Args:
        sums: `[10]`, the fields of `TermSums`, over everything since the last log.
        args: The run's configuration.

    Returns:
        `loss_original` (nats a row), `loss_augmented` and `consistency` (nats a pair), `partner_share` of the rows,
        `unlearned_share` of the pairs, `padding_share` of the input positions, `rows`, `pairs`, `rows_without_target`.
        What has no pair, or is not defined for the method or the data, is left out.
    """
    total: dict[str, float] = dict(zip(TermSums._fields, sums.tolist(), strict=True))
    means: dict[str, float] = {
        "partner_share": total["pairs"] / max(total["rows"], 1.0),
        "rows": int(total["rows"]),
        "pairs": int(total["pairs"]),
        "rows_without_target": int(total["rows_without_target"]),
    }
    if total["positions"]:
        means["padding_share"] = 1 - total["tokens"] / total["positions"]
    if total["originals_run"]:
        means = {"loss_original": total["original"] / total["originals_run"], **means}
    if total["pairs"]:
        means["loss_augmented"] = total["augmented"] / total["pairs"]
        of_losses = args.regularizer in LOSS_REGULARIZERS
        # PGD training runs no original that has a partner: there is nothing to compare with.
        both_run = total["originals_run"] == total["rows"]
        # R_sq of a negative loss is undefined; where it is trained that has stopped the run.
        if both_run and (args.uses_features or of_losses) and not math.isnan(total["consistency"]):
            means["consistency"] = total["consistency"] / total["pairs"]
        if args.method == "dair" and of_losses:
            means["unlearned_share"] = total["unlearned"] / total["pairs"]
    return means
