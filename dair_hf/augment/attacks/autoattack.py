"""AutoAttack (Croce and Hein, 2020) through the Adversarial Robustness Toolbox."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.attack_loss import logits_of
from dair_hf.errors import DataError

MIN_CLASSES = 3  # the difference-of-logits ratio uses the three largest logits


class _Logits(nn.Module):
    """Wrapper that returns logits as a tensor, as the toolbox expects."""

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
    """Return an adversarial example for each image from an ensemble of four attacks.

    The attacks are two of APGD (on the cross-entropy and on the difference-of-logits ratio, 100 steps and 5 restarts
    each), DeepFool, and Square, which is gradient-free. Each attacks the images that resisted the previous ones. The
    toolbox uses DeepFool and an untargeted ratio where Croce and Hein use FAB and a targeted one, so accuracies are
    slightly higher than with the original.
    """
    if not bool(((pixel_values >= 0) & (pixel_values <= 1)).all()):
        raise DataError("auto_attack: expected pixel_values in 0..1")
    if not len(pixel_values):
        return pixel_values.clone()
    try:
        from art.attacks.evasion import AutoAttack
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:  # its message names the module, which has another name in pip
        raise DataError("AutoAttack: expected `pip install adversarial-robustness-toolbox`") from error
    device = pixel_values.device
    attacked = _Logits(copy.deepcopy(model)).eval()
    with torch.no_grad():
        classes = attacked(pixel_values[:1]).shape[-1]
    if classes < MIN_CLASSES:
        raise DataError(f"auto_attack: expected a model with at least {MIN_CLASSES} classes, got {classes}")
    numpy_state = np.random.get_state()
    try:
        np.random.seed(seed)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            classifier = PyTorchClassifier(
                model=attacked,
                loss=nn.CrossEntropyLoss(),
                input_shape=tuple(pixel_values.shape[1:]),
                nb_classes=classes,
                clip_values=(0.0, 1.0),
                device_type="gpu" if device.type == "cuda" else "cpu",
            )
            attack = AutoAttack(
                classifier,
                norm={"linf": np.inf, "l2": 2}[norm],
                eps=float(epsilon),
                eps_step=float(epsilon) / 4,
                batch_size=batch_size,
            )
            for part in attack.attacks:
                part.verbose = False
            images = pixel_values.float().cpu().numpy()
            with np.errstate(all="ignore"):  # Square divides by the norm of windows without perturbation
                adversarial = attack.generate(images, labels.cpu().numpy())
    finally:
        np.random.set_state(numpy_state)
    broken = ~np.isfinite(adversarial).reshape(len(adversarial), -1).all(1)
    adversarial[broken] = images[broken]
    return torch.from_numpy(adversarial).to(pixel_values)
