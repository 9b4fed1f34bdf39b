"""The search of an attack: from one or several starts up the gradient of a loss, step by step, within a ball."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dair_hf.augment.attacks.attack import Attack
from dair_hf.augment.attacks.ball import Ball, unit_of
from dair_hf.augment.attacks.input_loss import InputLoss
from dair_hf.errors import DataError, NonFiniteLossError


def ascend(
    loss: InputLoss, ball: Ball, attack: Attack, generator: torch.Generator | None, row_ids: Sequence[str]
) -> Tensor:
    """The worst inputs that an attack finds in a ball; of several starts the worst result, row by row.

    Args:
        loss: What is to grow, of a model that stands still.
        ball: Where to look.
        attack: Number and length of the steps, momentum, starts.
        generator: Draws the starts; may be None without them.
        row_ids: Names of the rows, for errors.

    Returns:
        As the center of the ball, detached.

    Raises:
        DataError: The outputs do not depend on the input.
        NonFiniteLossError: A gradient is NaN or infinite.
    """
    worst = _climb(loss, ball, attack, generator, row_ids)
    if attack.restarts == 1:
        return worst
    wrong, losses = loss.score(worst)
    for _ in range(1, attack.restarts):
        found = _climb(loss, ball, attack, generator, row_ids)
        now_wrong, now_losses = loss.score(found)
        # A wrong class is worse than a right one of a larger loss, so that no model looks better for one start more.
        worse = (now_wrong & ~wrong) | ((now_wrong == wrong) & (now_losses > losses))
        worst = torch.where(worse.view(-1, *[1] * (worst.ndim - 1)), found, worst)
        wrong, losses = wrong | now_wrong, torch.where(worse, now_losses, losses)
    return worst


def _climb(
    loss: InputLoss, ball: Ball, attack: Attack, generator: torch.Generator | None, row_ids: Sequence[str]
) -> Tensor:
    """The last point from one start."""
    if attack.random_start:
        assert generator is not None
        point = ball.draw(generator)
    else:
        point = ball.center
    velocity = torch.zeros_like(point)
    entries = tuple(range(1, point.ndim))
    broken = torch.zeros(len(point), dtype=torch.bool, device=point.device)
    for number in range(attack.steps):
        gradient = loss.gradient(point)
        if number == 0 and not bool(gradient.any()):
            raise loss.unmoved("it is 0 everywhere, in every row")
        broken |= ~gradient.sum(entries).isfinite()  # asked for once, after the last step: the device need not wait
        if attack.momentum:
            gradient = unit_of(gradient, ball.dims)
            # The largest entry is 1 now, so that a sum below 1 is one of zeros.
            total = gradient.abs().sum(ball.dims, keepdim=True).clamp_min(1)
            velocity = gradient = attack.momentum * velocity + gradient / total
        point = ball.step(point, gradient, attack.step_size)
    if bool(broken.any()):
        rows = [row_ids[row] for row in broken.nonzero()[:, 0].tolist()]
        raise NonFiniteLossError(
            f"attack: the gradient with respect to {loss.name} is NaN or infinite in {len(rows)} rows, such as "
            f"{rows[:8]}; look at these rows, and lower the learning rate if the weights have grown out of bounds"
        )
    return point


def require_usable(values: Tensor, attack: Attack, generator: torch.Generator | None, name: str) -> None:
    """Refuse what an attack cannot start from.

    Args:
        values: What is attacked.
        attack: The settings.
        generator: What would draw the random starts.
        name: Name of the values, for errors.

    Raises:
        DataError: Values that are not floating `[N, ...]` or were made in inference mode; no generator for a random
            start, or one of another device.
    """
    if not values.is_floating_point() or values.ndim < 2:
        raise DataError(
            f"attack: {name} is {values.dtype} {list(values.shape)}; floating [N, ...] can be attacked: bytes as "
            "`images.float() / 255`"
        )
    if values.is_inference():
        raise DataError(
            f"attack: {name} was made under torch.inference_mode(), which forbids gradients; use torch.no_grad() "
            "instead"
        )
    if not attack.random_start:
        return
    if generator is None:
        raise DataError(
            "attack: random_start needs a generator: pass torch.Generator(device).manual_seed(seed), or set "
            "random_start=False"
        )
    if generator.device.type != values.device.type:
        raise DataError(
            f"attack: the generator is on {generator.device}, {name} on {values.device}; make one on the same device: "
            f"torch.Generator({str(values.device)!r})"
        )
