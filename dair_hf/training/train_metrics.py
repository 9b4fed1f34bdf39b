"""Training metrics: sums and counts, accumulated over steps and ranks and divided once when they are logged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers.utils import logging

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.losses.objective import Counts, PairSlopes, PairTerms

# With dair_lambda="auto", evaluations use lambda 0, for which both would be 0 for any model.
SHARES_OF_LAMBDA = ("gradient_share", "unlearned_share")
SMALL_IS_BETTER = {
    "loss", "loss_original", "loss_augmented", "consistency", "inconsistency", "unlearned_share", "rows_without_target",
    "pos_to_neg", "neg_to_pos", "neg_to_neg", "flipped", "neg_to_neg_flipped", "original_mae", "augmented_mae",
    "runtime",
}  # fmt: skip
# Logged value -> its words in the line that the console shows. The norm of the gradient is left out: one that is not
# finite stops the run anyway.
LOG_LINE = {
    "loss": "loss", "loss_original": ", views", "loss_augmented": " and", "consistency": ", R",
    "dair_lambda": ", lambda", "learning_rate": ", rate", "epoch": ", epoch",
}  # fmt: skip
# Metrics of evaluations that the console does not show.
DETAILS = re.compile(
    r"_(reverse_cm|cm_all_rows|cm_same_answer|cm_partner|both_views|pos_to|neg_to|flipped|loss_original|loss_augmented)|"
    r"_(numerator|low|high|rows|pairs|partners|target|\w*share|\w*consistency|\w+_second|partner_\d+)$|(?<!train)_runtime$"
)


class _TermSums(NamedTuple):
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
    regularizer_gradient: Tensor
    loss_gradient: Tensor
    paired_losses: Tensor


class EvaluatedRows(NamedTuple):
    """Columns that an evaluation gathers from all ranks, one value per row each."""

    original: Tensor
    augmented: Tensor
    consistency: Tensor
    partners: Tensor
    targets: Tensor
    partner_targets: Tensor
    exists: Tensor
    slope: Tensor
    lowest_slope: Tensor
    regularizer_gradient: Tensor
    loss_gradient: Tensor

    @classmethod
    def of_table(cls, table: Tensor) -> EvaluatedRows:
        """Return the columns of the rows that exist, from a table whose first columns they are."""
        columns = cls(*table[:, : len(cls._fields)].unbind(1))
        return cls(*(column[columns.exists > 0] for column in columns))

    @property
    def terms(self) -> PairTerms:
        """Unreduced terms."""
        return PairTerms(self.original, self.augmented, self.consistency, self.partners.long())


def sum_terms(
    terms: PairTerms,
    targets: Tensor,
    exists: Tensor,
    counts: Counts,
    args: DAIRConfig,
    dair_lambda: float | Tensor,
    slopes: Sequence[Tensor],
    gradients: Tensor,
    was_run: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Return the sums of one batch, `[13]`: the fields of `_TermSums`; `exists` is False for rows of padding."""
    unlearned = terms.has_partner.new_zeros(())
    per_pair = dair_lambda
    if args.normalization == "token":
        per_pair = dair_lambda * counts.tokens / (2 * torch.as_tensor(counts.pairs).clamp(min=1))
    if args.method == "dair" and args.loss_regularizer is not None:
        weight, augmented_weight = args.pair_weights
        # Token normalization has the sum of the losses of several partners, not their mean.
        count = terms.partners if args.normalization == "token" else 1
        # Unlearned: c = w + lambda dR/dl < 0, or c~ = w~ + lambda dR/dl~ < 0 of any partner, with lambda in pair units.
        weights = weight + per_pair * slopes[0], augmented_weight * count + per_pair * slopes[1]
        unlearned = ((torch.minimum(*weights) < 0) & terms.has_partner).sum()
    regularizer_gradient, loss_gradient = gradients.sum(0)
    originals = torch.where(terms.has_partner, terms.original, 0.0)
    sums = _TermSums(
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
        regularizer_gradient=per_pair * (per_pair * regularizer_gradient),
        loss_gradient=loss_gradient,
        paired_losses=(originals.sum() + terms.augmented.sum()) / 2,
    )
    return torch.stack([value.to(_sums_dtype(value.device)) for value in sums])


def lowest_slopes(slopes: PairSlopes | None, terms: PairTerms) -> tuple[Tensor, Tensor]:
    """Return the slope of R by the original's loss, and the lowest by a partner's, each `[B]`; 0 without one."""
    if slopes is None or slopes.partners.shape[1] == 0:
        return torch.zeros_like(terms.original), torch.zeros_like(terms.original)
    return slopes.original, slopes.partners.amin(1)


def _sums_dtype(device: torch.device) -> torch.dtype:
    """Return the type in which sums are kept on a device: float64, or float32 on MPS, which lacks float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def mean_terms(sums: Tensor, args: DAIRConfig) -> dict[str, float]:
    """Return the logged means per row and per pair, shares, and counts; undefined metrics are left out."""
    total: dict[str, float] = dict(zip(_TermSums._fields, sums.tolist(), strict=True))
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
        # PGD training does not run the originals of pairs.
        both_run = total["originals_run"] == total["rows"]
        # R is NaN if it takes the root of a negative loss. A run that trains it has stopped before.
        if both_run and (args.uses_features or args.compares_losses) and not math.isnan(total["consistency"]):
            means["consistency"] = total["consistency"] / total["pairs"]
            if total["paired_losses"] > 0:
                means["inconsistency"] = total["consistency"] / total["paired_losses"]
            if args.uses_regularizer and total["loss_gradient"] > 0:
                means["gradient_share"] = math.sqrt(total["regularizer_gradient"] / total["loss_gradient"])
        if args.method == "dair" and args.compares_losses:
            means["unlearned_share"] = total["unlearned"] / total["pairs"]
    return means


def evaluated_terms(args: DAIRConfig) -> set[str]:
    """Return the names of the metrics that an evaluation of pairs has without an evaluator."""
    sums = _TermSums(*torch.ones(len(_TermSums._fields)))._replace(positions=torch.zeros(()))
    names = {"loss", "runtime", "samples_per_second", "steps_per_second", *mean_terms(torch.stack(sums), args)}
    return names.difference(SHARES_OF_LAMBDA) if args.dair_lambda == AUTO else names


def print_log(print_all: Callable[..., None], args: Any, state: Any, *others: Any, logs: Any, **kwargs: Any) -> None:
    """Print a log in place of the method `on_log` of a callback: its main values, and all with `log_level="info"`."""
    if logging.get_verbosity() <= logging.INFO:
        print_all(args, state, *others, logs=logs, **kwargs)
    elif "loss" in logs:
        # Rows without a target are a fault: they are shown where there are any.
        words = {**LOG_LINE, **({"rows_without_target": ", without target"} if logs.get("rows_without_target") else {})}
        if state.is_world_process_zero:
            tqdm.write("".join(f"{text} {logs[name]:.3g}" for name, text in words.items() if name in logs))
    elif "train_runtime" not in logs or args.disable_tqdm:  # else the bar shows the time
        best = args.metric_for_best_model or "loss"
        shown = {name: value for name, value in logs.items() if name.endswith(best) or not DETAILS.search(name)}
        print_all(args, state, *others, logs=shown, **kwargs)
