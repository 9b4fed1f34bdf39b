"""Training metrics: sums and counts, accumulated over steps and ranks and divided once when they are logged."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dair_hf.config import DAIRConfig
from dair_hf.losses.objective import LOSS_REGULARIZERS, Counts, PairTerms, gradient_weights


class TermSums(NamedTuple):
    """Sums over rows, each a scalar tensor."""

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
    positions: Tensor | None = None,
) -> Tensor:
    """Return the sums of one batch.

    A pair counts as unlearned if one of its gradient weights c, c~ is negative (`objective.gradient_weights`, which
    takes lambda in pair units: `lambda * tokens / (2 * pairs)` with `normalization="token"`).

    Args:
        terms: Unreduced terms, each `[B]`.
        targets: Number of targets of every original view, `[B]`.
        exists: Whether each row exists, `[B]` bool; False for rows repeated to give all ranks equally many.
        counts: Denominators of the optimizer step.
        args: Configuration of the run.
        was_run: Whether each original was run, `[B]` bool; None: all that exist.
        positions: Number of input tokens, and of positions including padding, `[2]`; None: unknown.

    Returns:
        `[10]`, the fields of `TermSums`, in `sums_dtype`.
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
        tokens=unlearned.new_zeros(()) if positions is None else positions[0],
        positions=unlearned.new_zeros(()) if positions is None else positions[1],
    )
    return torch.stack([value.to(sums_dtype(value.device)) for value in sums])


def sums_dtype(device: torch.device) -> torch.dtype:
    """Return the type in which sums are kept on a device: float64, or float32 on MPS, which lacks float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def mean_terms(sums: Tensor, args: DAIRConfig) -> dict[str, float]:
    """Return the logged metrics: means per row and per pair, shares, and counts.

    Args:
        sums: `[10]`, the fields of `TermSums`, summed since the last log.
        args: Configuration of the run.

    Returns:
        `loss_original` (nats per row), `loss_augmented` and `consistency` (nats per pair), `partner_share` of the rows,
        `unlearned_share` of the pairs, `padding_share` of the input positions (with prefix trees `shared_share` of the
        tokens, which are not computed again), `rows`, `pairs`, `rows_without_target`.
        Metrics that are undefined for the method or the data are left out.
    """
    total: dict[str, float] = dict(zip(TermSums._fields, sums.tolist(), strict=True))
    means: dict[str, float] = {
        "partner_share": total["pairs"] / max(total["rows"], 1.0),
        "rows": int(total["rows"]),
        "pairs": int(total["pairs"]),
        "rows_without_target": int(total["rows_without_target"]),
    }
    if total["positions"]:
        if args.share_prefixes is None:
            means["padding_share"] = 1 - total["tokens"] / total["positions"]
        else:
            means["shared_share"] = 1 - total["positions"] / total["tokens"]
    if total["originals_run"]:
        means = {"loss_original": total["original"] / total["originals_run"], **means}
    if total["pairs"]:
        means["loss_augmented"] = total["augmented"] / total["pairs"]
        compares_losses = args.regularizer in LOSS_REGULARIZERS
        # PGD training does not run the originals of pairs.
        both_run = total["originals_run"] == total["rows"]
        # R is NaN if it takes the root of a negative loss. A run that trains it has stopped before.
        if both_run and (args.uses_features or compares_losses) and not math.isnan(total["consistency"]):
            means["consistency"] = total["consistency"] / total["pairs"]
        if args.method == "dair" and compares_losses:
            means["unlearned_share"] = total["unlearned"] / total["pairs"]
    return means
