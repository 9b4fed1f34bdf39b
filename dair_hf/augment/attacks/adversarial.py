"""Adversarial partners: the worst input near an original that an attack on the current model finds.

    x~ = argmax over ||x~ - x|| <= epsilon, lower <= x~ <= upper  of  l(F(x~), y)

approximately, by projected gradient ascent (Madry et al., 2018); with one step FGSM (Goodfellow et al., 2015), with
`momentum` MI-FGSM (Dong et al., 2018), with `loss="kl"` the inner maximisation of TRADES (Zhang et al., 2019), whose
published code starts from normal noise of deviation 0.001 where this starts anywhere in the ball.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.ascent import ascend, require_usable
from dair_hf.augment.attacks.attack import Attack
from dair_hf.augment.attacks.ball import Ball, rounded_inwards
from dair_hf.augment.attacks.input_loss import InputLoss, undisturbed
from dair_hf.data.collator import LABELS, ROW_ID, VIEW_MASK, add_partners
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX, full_precision

# Room for the rounding of images that were normalised in their own precision, in units of it.
NORMALIZATION_ROUNDING = 4


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
    """The worst image that the attack finds near each image.

    The model runs in evaluation mode, under the caller's autocast, and is left as it was: modes, `requires_grad`,
    `.grad`, buffers and torch's global random numbers. It may be called under `torch.no_grad()`. The perturbation is
    held in float32 (float64 for float64 images) whatever the model runs in.

    Bounds hold to the last bit: the edges of the box `max(x - epsilon, lower) .. min(x + epsilon, upper)` are rounded
    inwards once, and every iterate is clamped to them. So with "linf" `|x~ - x| <= epsilon` is true of the result as
    float32 compares it and as float64 does. With "l2" the length, in float64, is at most epsilon; 7.6e-6 of the radius
    is left unused, so that a length taken in float32 does not come out above it. With `mean` and `std` this is so in
    the model's units, `epsilon / std` of each channel; back in pixels it is up to rounding. Images in half precision
    are rounded towards the original at the end.

    Args:
        model: Images `[N, C, H, W]` -> logits, as a tensor or as `logits` of its outputs.
        pixel_values: `[N, C, H, W]` (or any `[N, ...]`), floating, within `lower .. upper`, or with `mean` and `std`
            the same normalised.
        labels: `[N]` int64 classes, or whatever the attack's loss compares with; rows whose label is -100 are only
            moved at random. None with `loss="kl"`, which needs none.
        attack: The settings.
        generator: On the device of the images; draws the random starts. The same state, the same result.
        inputs: Further inputs of the model, by name, `[N, ...]` each.
        column: Name under which the model takes the images; None: as its first argument.
        row_ids: Names of the rows, for errors; None: their numbers.

    Returns:
        `[N, C, H, W]`, detached, of the type of `pixel_values`; with `epsilon=0` a copy, bit for bit.

    Raises:
        DataError: Values outside the range, not floating or of other channels than `mean`; no generator for a random
            start, or one of another device; a model whose output does not depend on the images; a loss that is not one
            number a row; or inside `torch.inference_mode`.
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
    require_usable(pixel_values, attack, generator, name)
    center = full_precision(pixel_values.detach())
    scale, lower, upper = _in_model_units(center, attack, name)
    # Not normalised, a value is inside or not; normalised, it was rounded on its way here.
    rounding = 0.0 if attack.mean is None else NORMALIZATION_ROUNDING * torch.finfo(pixel_values.dtype).eps
    outside = ~center.isfinite()
    for bound, sign in ((lower, -1), (upper, 1)):
        if bound is not None:
            outside |= sign * (center - bound) > rounding * (bound.abs() + scale)
    if bool(outside.any()):
        raise _out_of_range(center, outside, attack, name, ids)
    if attack.epsilon == 0 or len(pixel_values) == 0:
        return pixel_values.detach().clone()
    others = dict(inputs or {})

    def forward(point: Tensor) -> Any:
        point = point.to(pixel_values.dtype)
        return model(point, **others) if column is None else model(**{column: point}, **others)

    dims = tuple(range(1, center.ndim))
    with undisturbed(model, center.device):
        ball = Ball.around(center, attack.norm, attack.epsilon, dims, scale=scale, lower=lower, upper=upper)
        loss = InputLoss(forward, labels, attack.loss, center, name)
        found = ascend(loss, ball, attack, generator, ids)
    return rounded_inwards(found.to(pixel_values.dtype), pixel_values.detach(), found - center)


@dataclass(frozen=True)
class AttackAugmenter:
    """Makes the partner of each row an attacked copy of its original: an `augmenter` of `DAIRTrainer`.

    Labels and the other columns are those of the original. Rows without target (all labels -100) and rows that do not
    exist are not attacked and get no partner.

    Args:
        attack: The settings.
        column: The column that is attacked; the model takes it and the others by name.

    Raises:
        DataError: A batch without that column or without labels; and as `perturb`, naming rows by their `row_id`.

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
        """The batch with attacked partners; see the class.

        Args:
            model: The model as it stands.
            batch: `{column: [B, V, ...]}` with `view_mask` and labels; partners that it holds are replaced.
            generator: Draws the random starts.

        Returns:
            The batch with V = 2.
        """
        for name in (VIEW_MASK, LABELS, self.column):
            if not isinstance(batch.get(name), Tensor):
                raise DataError(
                    f"AttackAugmenter: the batch has no {name!r}, only {sorted(batch)}; give a batch of PairCollator "
                    "or TensorPairs with labels, and say which column is attacked: AttackAugmenter(attack, column=...)"
                )
        rows = batch[VIEW_MASK][:, 0] & _has_target(batch[LABELS][:, 0])
        chosen = rows.nonzero()[:, 0]
        if len(chosen) == 0:
            return add_partners(batch, {}, rows)
        whole = len(chosen) == len(rows)
        originals = {
            name: values[:, 0] if whole else values[chosen, 0]
            for name, values in batch.items()
            if isinstance(values, Tensor) and name != VIEW_MASK
        }
        ids = batch.get(ROW_ID)
        found = perturb(
            model,
            originals.pop(self.column),
            originals.pop(LABELS),
            self.attack,
            generator,
            inputs=originals,
            column=self.column,
            row_ids=None if ids is None else [str(ids[row]) for row in chosen.tolist()],
        )
        if not whole:
            found = batch[self.column][:, 0].index_copy(0, chosen, found)
        return add_partners(batch, {self.column: found}, rows)


def _has_target(labels: Tensor) -> Tensor:
    """`[B]` bool of labels `[B, ...]`: real targets always are ones, class and token ids unless they are -100."""
    if labels.is_floating_point():
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    return (labels.flatten(1) if labels.ndim > 1 else labels[:, None]).ne(IGNORE_INDEX).any(1)


def _in_model_units(center: Tensor, attack: Attack, name: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """How many units of the values are one of the pixels, and the bounds of the pixels in units of the values."""
    if attack.mean is not None and center.shape[1] != len(attack.mean):
        raise DataError(
            f"attack: mean and std have {len(attack.mean)} channels, {name} has the shape {list(center.shape)}; give a "
            "number for each entry of dimension 1"
        )
    shape = [-1] + [1] * (center.ndim - 2)
    mean, std = (center.new_tensor(numbers).view(shape) for numbers in (attack.mean or [0.0], attack.std or [1.0]))
    lower = None if attack.lower is None else (attack.lower - mean) / std
    upper = None if attack.upper is None else (attack.upper - mean) / std
    return 1 / std, lower, upper


def _out_of_range(values: Tensor, outside: Tensor, attack: Attack, name: str, ids: Sequence[str]) -> DataError:
    row = int(outside.flatten(1).any(1).nonzero()[0])
    normalised = " as mean and std make it" if attack.mean is not None else ""
    return DataError(
        f"attack: row {ids[row]!r}: {name} holds {values[row][outside[row]][0].item():g}, outside the range "
        f"{attack.lower} .. {attack.upper}{normalised}; divide bytes by 255, clamp what rounding has carried out, give "
        "mean and std of normalised images, or set lower and upper"
    )
