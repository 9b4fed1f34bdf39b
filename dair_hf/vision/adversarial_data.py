"""The pictures of an experiment on adversarial robustness: CIFAR-10, or MNIST where a CPU has to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dair_hf.vision.cifar10.images import load_cifar10
from dair_hf.vision.cifar10.pairs import Cifar10Config
from dair_hf.vision.labelled_images import LabelledImages
from dair_hf.vision.mnist.digits import load_mnist
from dair_hf.vision.settings import SPLITS, require_choice


@dataclass
class AdversarialDataConfig(Cifar10Config):
    """Which pictures, and which of them.

    Raises:
        DataError: As `Cifar10Config`, or an unknown split.

    Example:
        >>> AdversarialDataConfig(mnist="ylecun/mnist", crop_padding=0, flip=False).name
        'MNIST'
    """

    PLACES: ClassVar = ("mnist", "cifar10")  # the pictures have a fingerprint, so where they lie is no setting

    mnist: str | None = field(
        default=None, metadata={"help": "Digits in place of CIFAR-10: a folder of MNIST, or its name on the Hub."}
    )
    evaluate_on: str = field(
        default="test", metadata={"help": "test, or validation to choose settings with.", "choices": SPLITS}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("evaluate_on", self.evaluate_on, SPLITS)

    @property
    def name(self) -> str:
        """Name of the data set."""
        return "CIFAR-10" if self.mnist is None else "MNIST"


def load_pictures(config: AdversarialDataConfig) -> dict[str, LabelledImages]:
    """Read both files of the data set, for `cifar10_pairs.train_pairs` and `evaluation_pairs`.

    Args:
        config: Where they are.

    Returns:
        "train" and "test": images `[N, C, H, W]` uint8 and labels from 0 to 9.

    Raises:
        DataError: As `load_cifar10` and `load_mnist`.

    Example:
        >>> load_pictures(AdversarialDataConfig(mnist="mnist"))["test"].images.shape  # doctest: +SKIP
        torch.Size([10000, 1, 28, 28])
    """
    if config.mnist is None:
        return {split: load_cifar10(config.cifar10, split) for split in ("train", "test")}
    files = {split: load_mnist(config.mnist, split) for split in ("train", "test")}
    # Grey images have no axis of channels.
    return {split: LabelledImages(images[:, None], labels) for split, (images, labels) in files.items()}
