"""Adversarial examples as augmented partners.

    x~ = argmax over ||x~ - x||_p <= epsilon, lower <= x~ <= upper  of  l(F(x~), y)

approximated by projected gradient descent on the current model. `loss="kl"` gives the inner maximization of TRADES
(Zhang et al., 2019), except for the start: the published code of TRADES adds normal noise of standard deviation 0.001,
while `perturb` starts anywhere in the ball.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.attack_loss import AttackLoss, LpBall, frozen, round_inwards
from dair_hf.augment.attacks.pgd import Attack, pgd
from dair_hf.data.collator import LABELS, ROW_ID, VIEW_MASK, add_partners
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX, full_precision


def perturb(
    model: nn.Module,
    pixel_values: Tensor,
    labels: Tensor | None,
    attack: Attack,
    generator: torch.Generator | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    column: str | None = None,
    row_ids: Sequence[str] | None = None,
) -> Tensor:
    """Return an adversarial example for each image.

    The model runs in evaluation mode under the caller's autocast. Its modes, `requires_grad`, `.grad`, buffers and
    torch's global random state are unchanged afterwards. The caller may be under `torch.no_grad()`. The perturbation is
    kept in float32 (float64 for float64 images) for a model of any dtype.

    Bounds hold exactly: the edges `max(x - epsilon, lower)` and `min(x + epsilon, upper)` are rounded inwards once, and
    every iterate is clamped to them. For "linf", `|x~ - x| <= epsilon` therefore holds in float32 and in float64. For
    "l2" the float64 norm is at most epsilon; 7.6e-6 of the radius is left unused, so that the float32 norm does not
    exceed it either. Images in half precision are rounded towards the original at the end.

    Args:
        model: Maps images `[N, C, H, W]` to logits, or to outputs with `logits`.
        pixel_values: `[N, C, H, W]` (or any `[N, ...]`), floating, within `lower .. upper`.
        labels: `[N]` int64 classes, or the targets that the attack's loss takes; rows labeled -100 only move at random.
            None for `loss="kl"`, which needs none.
        generator: Generator of the random starts, on the device of the images. The same state gives the same result.
        inputs: Further inputs of the model by name, `[N, ...]` each.
        column: Keyword under which the model takes the images; None: as its first argument.
        row_ids: Names of the rows, for errors; None: their numbers.

    Returns:
        `[N, C, H, W]`, detached, of the dtype of `pixel_values`; for `epsilon=0` a bit-exact copy.

    Raises:
        DataError: Values are outside the range, a random start has no generator, the gradient is 0 in every row, or the
            loss is not one number per row.
        NonFiniteLossError: A gradient is NaN or infinite.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
        >>> _ = nn.init.constant_(model[1].weight[0], 1.0), nn.init.constant_(model[1].weight[1], -1.0)
        >>> perturb(model, torch.full((1, 1, 2, 2), 0.5), torch.tensor([0]), Attack.fgsm(0.25))
        tensor([[[[0.2500, 0.2500],
                  [0.2500, 0.2500]]]])
    """
    name = "pixel_values" if column is None else column
    ids = list(row_ids) if row_ids is not None else [str(row) for row in range(len(pixel_values))]
    center = full_precision(pixel_values.detach())
    outside = ~center.isfinite()
    if attack.lower is not None:
        outside |= center < attack.lower
    if attack.upper is not None:
        outside |= center > attack.upper
    if bool(outside.any()):
        row = int(outside.flatten(1).any(1).nonzero()[0])
        raise DataError(
            f"attack: row {ids[row]!r}: {name} holds {center[row][outside[row]][0].item():g}; expected the range "
            f"{attack.lower} .. {attack.upper}"
        )
    if attack.epsilon == 0 or len(pixel_values) == 0:
        return pixel_values.detach().clone()
    others = dict(inputs or {})

    def forward(point: Tensor) -> Any:
        point = point.to(pixel_values.dtype)
        return model(point, **others) if column is None else model(**{column: point}, **others)

    with frozen(model, center.device):
        ball = LpBall.around(center, attack.norm, attack.epsilon, lower=attack.lower, upper=attack.upper)
        loss = AttackLoss(forward, labels, attack.loss, center)
        point = pgd(loss, ball, attack, generator, ids)
    return round_inwards(point.to(pixel_values.dtype), pixel_values.detach(), point - center)


@dataclass(frozen=True)
class AttackAugmenter:
    """Augmenter of `DAIRTrainer` that adds an adversarial example of each original as its partner.

    Labels and all other columns are copied from the original. Padding rows and rows without target (all labels -100)
    are not attacked and get no partner.

    Args:
        column: Column to attack; the model takes this column and the others by name.

    Raises:
        DataError: As `perturb`, naming rows by their `row_id`.

    Example:
        >>> class Scores(nn.Module):
        ...     def forward(self, pixel_values): return pixel_values.flatten(1) * 4
        >>> batch = {"pixel_values": torch.full((1, 1, 1, 1, 2), 0.5), "labels": torch.tensor([[0]]),
        ...          "view_mask": torch.tensor([[True]])}
        >>> augmenter = AttackAugmenter(Attack.fgsm(0.25))
        >>> augmenter(Scores(), batch, torch.Generator())["pixel_values"].flatten(1)
        tensor([[0.5000, 0.5000, 0.2500, 0.7500]])
    """

    attack: Attack
    column: str = "pixel_values"

    def __call__(self, model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
        """Return the batch with adversarial partners."""
        rows = batch[VIEW_MASK][:, 0] & _has_target(batch[LABELS][:, 0])
        chosen = rows.nonzero()[:, 0]
        if len(chosen) == 0:
            return add_partners(batch, {}, rows)
        all_rows = len(chosen) == len(rows)
        originals = {
            name: values[:, 0] if all_rows else values[chosen, 0]
            for name, values in batch.items()
            if isinstance(values, Tensor) and name != VIEW_MASK
        }
        ids = batch.get(ROW_ID)
        partners = perturb(
            model,
            originals.pop(self.column),
            originals.pop(LABELS),
            self.attack,
            generator,
            inputs=originals,
            column=self.column,
            row_ids=None if ids is None else [str(ids[row]) for row in chosen.tolist()],
        )
        if not all_rows:
            partners = batch[self.column][:, 0].index_copy(0, chosen, partners)
        return add_partners(batch, {self.column: partners}, rows)


def _has_target(labels: Tensor) -> Tensor:
    """Return `[B]` bool for labels `[B, ...]`: floating labels are always targets, integers unless -100."""
    if labels.is_floating_point():
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    return (labels.flatten(1) if labels.ndim > 1 else labels[:, None]).ne(IGNORE_INDEX).any(1)
