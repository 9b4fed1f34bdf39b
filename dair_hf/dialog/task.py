"""Dialog state tracking as a task: training and test pairs, checks before training, and correctness."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from pathlib import Path
from typing import Any, Final

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from dair_hf.config import DAIRConfig
from dair_hf.data.sampling import EpochPairs, keep_partners
from dair_hf.data.view_columns import VIEWS
from dair_hf.dialog.audit.audit import audit
from dair_hf.dialog.audit.ceiling import Ceiling
from dair_hf.dialog.config import READERS, DialogConfig
from dair_hf.dialog.data import DialogData
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.linking.catalogs import VENUES
from dair_hf.dialog.previous_state import with_gold_states
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.dialog.rows import state_from_row
from dair_hf.evaluation.evaluator import NO_MASKS, Masks, PairEvaluation, PairEvaluator
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.evaluation.views import PairIndex
from dair_hf.io.files import write_json
from dair_hf.io.processes import on_first_rank
from dair_hf.metrics.state.belief_text import read_belief
from dair_hf.metrics.state.conventions import NAME_SLOTS, Convention, resolve_convention, resolve_pair_convention
from dair_hf.metrics.state.joint_goal import joint_goal_correct, joint_goal_scores

ACCURACY = "joint_goal_accuracy"
PRESET_ACCURACY = f"preset_{ACCURACY}"
SCRAMBLE: Final = "scramble"  # method for new names in training, as in the paper


def _is_correct(predictions: Sequence[str], references: Sequence[Any], preset: str = "any_of") -> NDArray[Any]:
    """Return which generated belief texts have the correct state, as in the column `state`: [N] bool.

    The preset of the joint goal accuracy is applied to single rows.
    """
    return joint_goal_correct(map(read_belief, predictions), map(state_from_row, references), preset=preset)


@dataclass(frozen=True)
class _StateEvaluator(PairEvaluator):
    """`PairEvaluator` that adds the joint goal accuracy of a convention that skips rows or has graded scores."""

    convention: Convention | None = None

    @property
    def accuracy_key(self) -> str:
        """Key, without view, of the accuracy by the preset's own rules."""
        return ACCURACY if self.convention is None else PRESET_ACCURACY

    def evaluate_views(
        self,
        index: PairIndex,
        predictions: list[Any],
        references: list[Any],
        clusters: Sequence[Any] | None = None,
        masks: Masks = NO_MASKS,
        intervals: bool = True,
    ) -> PairEvaluation:
        """Evaluate the views of paired data, see `PairEvaluator.evaluate_views`."""
        evaluation = super().evaluate_views(index, predictions, references, clusters, masks, intervals)
        if self.convention is None:
            return evaluation
        scores, scored = joint_goal_scores(
            map(read_belief, predictions), map(state_from_row, references), self.convention
        )
        sums = index.sums(*index.by_row("scores", scores), index.by_row("scored", scored))
        of_prefix = {"": np.ones_like(index.has_partner), **{f"{name}_": mask for name, mask in masks.items()}}
        for variant, (total, count) in zip(VIEWS, sums, strict=True):
            for prefix, mask in of_prefix.items():
                rows = mask & (count > 0)
                ratio = {f"{prefix}{variant}_{PRESET_ACCURACY}": (total[rows], count[rows])}
                units = None if clusters is None else list(compress(clusters, rows))
                evaluation.metrics.update(ratios_with_intervals(ratio, units, intervals=intervals))
        return evaluation


def state_evaluator(preset: str) -> _StateEvaluator:
    """Return the evaluator of belief texts against the column `state`.

    `original_joint_goal_accuracy`, CM and all other figures of pairs decide for each row, by the rules that the
    evaluator's `preset` names. If these are not the preset's own, the accuracy by the preset is added.

    Example:
        >>> row = [{"slot": "hotel-area", "values": ["east"]}]
        >>> metrics = state_evaluator("parlai_v22")(["hotel-area = east", ""], ["", None], [row, row], intervals=False)
        >>> metrics["original_joint_goal_accuracy"], metrics["original_preset_joint_goal_accuracy"]
        (0.5, 1.0)
    """
    rules = resolve_pair_convention(preset, consistency_slots=None)[0]
    return _StateEvaluator(
        functools.partial(_is_correct, preset=preset),
        references="state",
        accuracy_name=ACCURACY,
        preset=rules,
        convention=None if rules == preset else resolve_convention(preset)[1],
    )


def _renamed_slots(rows: Dataset, config: DialogConfig) -> Sequence[str]:
    """Return the slots whose names are replaced: those of the source, or all that hold names of the rows."""
    reader = READERS.get(config.source)
    of_source = NAME_SLOTS if reader is None else reader.rename_slots
    return of_source or _name_slots(rows)


def _name_slots(rows: Dataset) -> list[str]:
    return sorted({entry["slot"] for names in rows["names"] for entry in names})


def _training_augmenter(rows: Dataset, config: DialogConfig, seed: int) -> EntityAugmenter:
    """Return the augmenter of the training rows."""
    slots = _renamed_slots(rows, config)
    return EntityAugmenter(SCRAMBLE, seed=seed, slots=slots, covariant_only=config.covariant_only)


def _model_rows(rows: Dataset, config: DialogConfig) -> Dataset:
    """Return training rows with the histories that the model reads: whole ones, or short ones with gold states."""
    return with_gold_states(rows, config.preset) if config.previous_state else rows


def training_pairs(
    rows: Dataset, encoder: DialogEncoder, config: DialogConfig, args: DAIRConfig
) -> Dataset | EpochPairs:
    """Encode training rows, with new partners in each epoch if the method uses partners.

    Without `redraw_partners`, one draw serves all epochs.
    """
    encoded = _model_rows(rows, config).map(encoder, batched=True, desc="Tokenizing")
    if not args.uses_partners:
        return encoded
    partners = replace(encoder, views=("augmented_",))

    def draw(epoch: int) -> Dataset:
        pairs = redraw(encoded, _training_augmenter(rows, config, args.seed), epoch)
        pairs = keep_partners(pairs, config.pair_share, args.seed, groups="dialogue_id")
        return pairs.map(partners, batched=True, desc="Tokenizing partners")

    return EpochPairs(draw) if config.redraw_partners else draw(0)


def base_pairs(rows: Dataset, encoder: DialogEncoder, config: DialogConfig, args: DAIRConfig) -> Dataset:
    """Encode the rows that a base is trained on; if its method uses partners, these have new names, drawn once.

    The slots of the rows need not be those of the experiment: all their names are replaced.
    """
    encoded = _model_rows(rows, config).map(encoder, batched=True, desc="Tokenizing base")
    if not args.uses_partners:
        return encoded
    augmenter = EntityAugmenter(SCRAMBLE, seed=args.seed, slots=_name_slots(rows), covariant_only=config.covariant_only)
    partners = replace(encoder, views=("augmented_",))
    return redraw(encoded, augmenter).map(partners, batched=True, desc="Tokenizing partners of the base")


def base_settings(rows: Dataset, encoder: DialogEncoder, config: DialogConfig, args: DAIRConfig) -> dict[str, Any]:
    """Return what determines the columns of `base_pairs` that a model reads, besides the tokenizer."""
    settings = {entry.name: getattr(encoder, entry.name) for entry in fields(encoder) if entry.name != "tokenizer"}
    settings |= {"rows": rows._fingerprint, "previous_state": config.previous_state}
    if args.uses_partners:
        settings["renaming"] = [SCRAMBLE, config.covariant_only, args.seed, EntityAugmenter.revision]
    return settings


def evaluation_pairs(dialogs: DialogData, config: DialogConfig, gold_states: bool = False) -> Dataset:
    """Pair the test rows, with whole histories or gold previous states, with those under names of no training row."""
    rows = _model_rows(dialogs.test, config) if gold_states else dialogs.test
    return redraw(rows, EntityAugmenter("swap", slots=_renamed_slots(rows, config), bank=dialogs.unseen_names))


def check_pairs(dialogs: DialogData, config: DialogConfig, encoder: DialogEncoder, folder: Path) -> Ceiling:
    """Audit training and test pairs before training; print the reports and write them to `folder`.

    Every process must call it; the first one does the work. Returns the ceiling of the test pairs.
    """
    return on_first_rank(lambda: _audit_pairs(dialogs, config, encoder, folder))


def _audit_pairs(dialogs: DialogData, config: DialogConfig, encoder: DialogEncoder, folder: Path) -> Ceiling:
    import rich

    train = redraw(_model_rows(dialogs.train, config), _training_augmenter(dialogs.train, config, 0))
    # Previous states are predicted only after training; the audit takes the gold ones.
    test = evaluation_pairs(dialogs, config, gold_states=True)
    venues = VENUES if config.source == "multiwoz" else None
    reports = {
        "train": audit(train, names=venues, encoder=encoder),
        "test": audit(test, train=train, names=venues, encoder=encoder),
    }
    for name, report in reports.items():
        rich.print(report.to_table(f"Audit of the {name} pairs"))
        write_json(folder / f"audit_{name}.json", report.to_dict())
    for report in reports.values():
        assert report.ceiling is not None
        if not config.allow_low_ceiling:
            report.ceiling.raise_if_low()
        ceiling = report.ceiling
    return ceiling
