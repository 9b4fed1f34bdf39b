"""Dialog state tracking as a task: training and test pairs, checks before training, and correctness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from numpy.typing import NDArray

from dair_hf.config import DAIRConfig
from dair_hf.data.sampling import EpochPairs
from dair_hf.dialog.audit.audit import audit, names_of
from dair_hf.dialog.audit.ceiling import Ceiling
from dair_hf.dialog.data import DialogConfig, DialogData
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.dialog.text.state import state_from_row
from dair_hf.io.files import write_json
from dair_hf.io.processes import gather_results, rank_and_size
from dair_hf.metrics.state.belief_text import parse
from dair_hf.metrics.state.joint_goal import joint_goal_correct


def is_correct(predictions: Sequence[str], references: Sequence[Any], preset: str = "any_of") -> NDArray[Any]:
    """Return which generated belief texts have the correct state.

    Args:
        predictions: [N] generated texts.
        references: [N] states, as in the column `state`.
        preset: Preset of the joint goal accuracy.

    Returns:
        [N] bool.

    Example:
        >>> is_correct(["hotel-area = east"], [[{"slot": "hotel-area", "values": ["east"]}]])
        array([ True])
    """
    return joint_goal_correct(map(parse, predictions), map(state_from_row, references), preset=preset)


def training_augmenter(config: DialogConfig, seed: int) -> EntityAugmenter:
    """Return the augmenter of the training rows."""
    return EntityAugmenter(config.augmentation, seed=seed, places=config.places, covariant_only=config.covariant_only)


def training_pairs(
    rows: Dataset, encoder: DialogEncoder, config: DialogConfig, args: DAIRConfig
) -> Dataset | EpochPairs:
    """Encode training rows, with new partners in each epoch if the method uses partners.

    Args:
        rows: Training rows.
        encoder: Encoder of the rows for the model.
        config: Augmentation settings.
        args: Method and seed.

    Returns:
        The training set for the trainer.
    """
    encoded = rows.map(encoder, batched=True, desc="Tokenizing")
    if not args.uses_partners:
        return encoded

    def draw(epoch: int) -> Dataset:
        pairs = redraw(encoded, training_augmenter(config, args.seed), epoch if config.redraw_partners else 0)
        return pairs.map(encoder, batched=True, desc="Tokenizing partners")

    return EpochPairs(draw)


def evaluation_pairs(dialogs: DialogData, config: DialogConfig) -> Dataset:
    """Pair the test rows with the same rows under names that are in no training row."""
    return redraw(dialogs.test, EntityAugmenter("swap", places=config.places, bank=dialogs.unseen_names))


def check_pairs(dialogs: DialogData, config: DialogConfig, encoder: DialogEncoder, folder: Path) -> Ceiling:
    """Audit training and test pairs before training; print the reports and write them to `folder`.

    Every process must call it; the first one does the work.

    Args:
        dialogs: Rows and names.
        config: Settings; `strict_audit` and `allow_low_ceiling` determine what is refused.
        encoder: Encoder of the rows for the model.
        folder: Folder of `audit_train.json` and `audit_test.json`.

    Returns:
        The ceiling of the test pairs.

    Raises:
        DataError: Gold targets score as wrong, or the pairs fail the audit with `strict_audit`.
    """
    is_first = rank_and_size()[0] == 0
    ceiling = gather_results(lambda: _audit_pairs(dialogs, config, encoder, folder) if is_first else None)[0]
    assert ceiling is not None
    return ceiling


def _audit_pairs(dialogs: DialogData, config: DialogConfig, encoder: DialogEncoder, folder: Path) -> Ceiling:
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
