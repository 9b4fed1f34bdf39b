"""AutoAttack, a judge of robustness without settings to tune, as the Adversarial Robustness Toolbox runs it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.attack import NORMS
from dair_hf.augment.attacks.input_loss import logits_of
from dair_hf.errors import DataError

MIN_CLASSES = 3  # the difference-of-logits ratio looks at the three largest logits


class _Logits(nn.Module):
    """A model that gives its logits as a tensor, as the toolbox wants them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return logits_of(self.model(pixel_values))


def auto_attack(
    model: nn.Module,
    pixel_values: Tensor,
    labels: Tensor,
    epsilon: float,
    norm: str = "linf",
    *,
    batch_size: int = 128,
    seed: int = 0,
) -> Tensor:
    """The worst image that any of four attacks finds near each image (Croce and Hein, 2020).

    Two projected gradient ascents that choose their steps (on the cross-entropy and on the difference-of-logits ratio,
    100 steps and 5 starts each), DeepFool, and Square, which asks for no gradient; each tries what the ones before left
    standing. DeepFool and an untargeted ratio stand where Croce and Hein have FAB and a targeted one: the toolbox's
    choice, so figures lie slightly above those of the original.

    Args:
        model: Images `[N, C, H, W]` -> logits, as a tensor or as `logits` of its outputs; a copy is attacked.
        pixel_values: `[N, C, H, W]`, floating, in 0..1.
        labels: `[N]` int64 classes.
        epsilon: Radius of the ball, > 0, in units of the pixels.
        norm: "linf" or "l2".
        batch_size: Images that are attacked at once.
        seed: Seed of the starts.

    Returns:
        `[N, C, H, W]`, of the type and on the device of `pixel_values`; an image that is classified wrongly, or that
        withstands all attacks, is returned as it is.

    Raises:
        DataError: The toolbox is not installed, images are outside 0..1, epsilon is not positive, the norm is unknown,
            or there are fewer than three classes.

    Example:
        >>> auto_attack(model, images, labels, 8 / 255).shape  # doctest: +SKIP
        torch.Size([1000, 3, 32, 32])
    """
    if norm not in NORMS:
        raise DataError(f"auto_attack: norm={norm!r} is unknown; use one of {', '.join(NORMS)}")
    if not epsilon > 0:
        raise DataError(f"auto_attack: epsilon={epsilon} must be > 0; 8/255 is 0.0314")
    if not bool(((pixel_values >= 0) & (pixel_values <= 1)).all()):
        raise DataError("auto_attack: pixel_values are outside 0..1; divide bytes by 255")
    if not len(pixel_values):
        return pixel_values.clone()
    toolbox, estimator = _toolbox()
    device = pixel_values.device
    attacked = _Logits(copy.deepcopy(model)).eval()
    with torch.no_grad():
        classes = attacked(pixel_values[:1]).shape[-1]
    if classes < MIN_CLASSES:
        raise DataError(f"auto_attack: the model has {classes} classes; it needs {MIN_CLASSES} at least")
    before = np.random.get_state()
    try:
        np.random.seed(seed)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            classifier = estimator(
                model=attacked,
                loss=nn.CrossEntropyLoss(),
                input_shape=tuple(pixel_values.shape[1:]),
                nb_classes=classes,
                clip_values=(0.0, 1.0),
                device_type="gpu" if device.type == "cuda" else "cpu",
            )
            attack = toolbox(
                classifier,
                norm=np.inf if norm == "linf" else 2,
                eps=float(epsilon),
                eps_step=float(epsilon) / 4,
                batch_size=batch_size,
            )
            for part in attack.attacks:
                part.verbose = False
            images = pixel_values.float().cpu().numpy()
            with np.errstate(all="ignore"):  # its Square divides by the norm of windows that hold no perturbation yet
                found = attack.generate(images, labels.cpu().numpy())
    finally:
        np.random.set_state(before)
    broken = ~np.isfinite(found).reshape(len(found), -1).all(1)
    found[broken] = images[broken]
    return torch.from_numpy(found).to(pixel_values)


def _toolbox() -> tuple[Any, Any]:
    try:
        from art.attacks.evasion import AutoAttack
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:
        raise DataError(
            "AutoAttack needs the Adversarial Robustness Toolbox: pip install 'dair-hf[attacks]'"
        ) from error
    return AutoAttack, PyTorchClassifier
