"""AutoAttack (Croce and Hein, 2020) in the implementation of its authors."""

from __future__ import annotations

from torch import Tensor, nn

from dair_hf.augment.attacks.attack_loss import frozen, logits_of, round_inwards
from dair_hf.errors import DataError

TARGETS = 9  # classes that a targeted attack tries; the authors' number


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
    """Return an adversarial example for each image from the standard ensemble of four attacks.

    The attacks are APGD on the cross-entropy, targeted APGD on the difference-of-logits ratio (at least four classes),
    targeted FAB, and Square, which is gradient-free. Each attacks the images that resisted the previous ones; an image
    that is misclassified or resists all four is returned unchanged.
    """
    if len(pixel_values) == 0:
        return pixel_values.detach().clone()
    if not bool(((pixel_values >= 0) & (pixel_values <= 1)).all()):  # the attacks would clip them in silence
        raise DataError("auto_attack: expected pixel_values in 0..1")
    try:
        from pyautoattack import AutoAttack
    except ImportError as error:
        raise DataError("AutoAttack: expected `pip install pyautoattack`") from error
    images = pixel_values.detach().float()
    with frozen(model, images.device):

        def forward(batch: Tensor) -> Tensor:
            return logits_of(model(batch.to(pixel_values.dtype))).float()

        norms = {"linf": "Linf", "l2": "L2"}
        attack = AutoAttack(forward, eps=float(epsilon), norm=norms[norm], seed=seed, device=images.device)
        classes = forward(images[:1]).shape[-1]
        if classes < 4:  # the targeted attacks would fail after the first one
            raise DataError(f"auto_attack: expected a model of at least 4 classes, got {classes}")
        targets = min(TARGETS, classes - 1)
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = targets
        found, _ = attack.run_standard_evaluation(images, labels, batch_size=batch_size)
    return round_inwards(found.to(pixel_values), pixel_values.detach(), found - images)
