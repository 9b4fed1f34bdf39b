"""Dialog state tracking as a task: pairs to train and test on, right answers, and what is checked before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from numpy.typing import NDArray

from dair_hf.config import DAIRConfig
from dair_hf.data.sampling import EpochPairs
from dair_hf.dialog.audit import audit, names_of
from dair_hf.dialog.ceiling import Ceiling
from dair_hf.dialog.data import DialogConfig, DialogData
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.dialog.text.state import parse, state_from_row
from dair_hf.io.files import write_json
from dair_hf.io.processes import gather_results, rank_and_size
from dair_hf.metrics.state.joint_goal import joint_goal_correct


def is_correct(predictions: Sequence[str], references: Sequence[Any], preset: str = "any_of") -> NDArray[Any]:
    """Tell which generated belief texts hold the whole state.

    Args:
        predictions: [N] generated texts.
        references: [N] values of the column `state`.
        preset: Preset of the joint goal accuracy.

    Returns:
        [N] bool.

    Example:
        >>> is_correct(["hotel-area = east"], [[{"slot": "hotel-area", "values": ["east"]}]])
        array([ True])
    """
    return joint_goal_correct(map(parse, predictions), map(state_from_row, references), preset=preset)


def training_augmenter(config: DialogConfig, seed: int) -> EntityAugmenter:
    """Rename the entities of training rows as an experiment says."""
    return EntityAugmenter(config.augmentation, seed=seed, places=config.places, covariant_only=config.covariant_only)


def training_pairs(
    rows: Dataset, encoder: DialogEncoder, config: DialogConfig, args: DAIRConfig
) -> Dataset | EpochPairs:
    """Encode training rows; with partners, drawn anew each epoch, where the method uses them.

    Args:
        rows: Training rows.
        encoder: Encodes them for the model.
        config: How names are drawn.
        args: Method and seed.

    Returns:
        What the trainer is given.
    """
    encoded = rows.map(encoder, batched=True, desc="Tokenising")
    if not args.uses_partners:
        return encoded

    def draw(epoch: int) -> Dataset:
        pairs = redraw(encoded, training_augmenter(config, args.seed), epoch if config.redraw_partners else 0)
        return pairs.map(encoder, batched=True, desc="Tokenising partners")

    return EpochPairs(draw)


def evaluation_pairs(dialogs: DialogData, config: DialogConfig) -> Dataset:
    """Pair the test rows with the same rows under names that no training row holds."""
    return redraw(dialogs.test, EntityAugmenter("swap", places=config.places, bank=dialogs.unseen_names))


def check_pairs(dialogs: DialogData, config: DialogConfig, encoder: DialogEncoder, folder: Path) -> Ceiling:
    """Audit training and test pairs before anything is trained, print and write what was found.

    On several processes the first does it and tells the others: each must call it.

    Args:
        dialogs: Rows and names.
        config: The experiment; `strict_audit` and `allow_low_ceiling` say what is refused.
        encoder: Encodes the rows for the model.
        folder: Where `audit_train.json` and `audit_test.json` go.

    Returns:
        The ceiling of the test pairs.

    Raises:
        DataError: Gold targets score wrong, or with `strict_audit` the pairs are unsound.
    """
    is_first = rank_and_size()[0] == 0
    found = gather_results(lambda: _checked(dialogs, config, encoder, folder) if is_first else None)[0]
    assert found is not None
    return found


def _checked(dialogs: DialogData, config: DialogConfig, encoder: DialogEncoder, folder: Path) -> Ceiling:
    import rich

    train, test = redraw(dialogs.train, training_augmenter(config, 0)), evaluation_pairs(dialogs, config)
    reports = {"train": audit(train, encoder=encoder), "test": audit(test, train=names_of(train), encoder=encoder)}
    for name, report in reports.items():
        rich.print(report.to_table(f"Audit of the {name} pairs"))
        write_json(folder / f"audit_{name}.json", report.to_dict())
    for report in reports.values():
        if config.strict_audit:
            report.raise_if_unsound()
        assert report.ceiling is not None
        if not config.allow_low_ceiling:
            report.ceiling.raise_if_low()
        ceiling = report.ceiling
    return ceiling
