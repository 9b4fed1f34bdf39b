"""Settings of dialogue state tracking: which dialogues, which names, how they are renamed and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from datasets import Dataset

from dair_hf.dialog.demo.dialogs import (
    MIN_NAMES,
    MIN_NAMES_WITH_AREAS,
    require_domains,
    require_error_rate,
)
from dair_hf.dialog.demo.names import MAX_NAMES_PER_SLOT, NAMES_PER_SLOT
from dair_hf.dialog.demo.texts import DOMAINS
from dair_hf.dialog.linking.foods import FOOD
from dair_hf.dialog.linking.spelling import ATTRACTION, HOTEL, PLACE, RESTAURANT
from dair_hf.dialog.readers.multiwoz import read_multiwoz
from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.readers.splits import SPLITS
from dair_hf.dialog.readers.woz2 import FOOD_SLOT, UNSEEN_FOODS, read_woz2
from dair_hf.dialog.renaming.new_names import METHODS
from dair_hf.dialog.text.rows import PLACE_SLOTS
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import resolve_convention


class Reader(NamedTuple):
    """Data set that `source` offers.

    Its key in `READERS` is also the kind of its prepared folders (`io.prepared`), so that a command in `data_scripts/`
    saves them with `save_splits(folder, key, ...)`.

    Attributes:
        title: Its name, for tables and model cards.
        read: `(path, split) -> (rows, report)`, from raw files.
        rename_slots: Slot whose entities are renamed -> kind of their unseen names: "hotel", "restaurant",
            "attraction", "place" or "food". Those of kind "place" are renamed only with `places`.
        unseen_names: "test" and "validation" -> kind -> names that no row of the data has. None: those of SGD.
        validation_split: Split of `evaluate_on=validation`. None: the last tenth of the training dialogues.
    """

    title: str
    read: Callable[[str | os.PathLike[str], str], tuple[Dataset, ReadReport]]
    rename_slots: Mapping[str, str]
    unseen_names: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    validation_split: str | None = None


MULTIWOZ_NAMES = {
    "hotel-name": HOTEL,
    "restaurant-name": RESTAURANT,
    "attraction-name": ATTRACTION,
    **dict.fromkeys(PLACE_SLOTS, PLACE),
}
# Value of `source` -> how it is read.
READERS = {
    "multiwoz": Reader("MultiWOZ", read_multiwoz, MULTIWOZ_NAMES),
    "woz2": Reader(
        "WOZ 2.0",
        read_woz2,
        {FOOD_SLOT: FOOD},
        {split: {FOOD: foods} for split, foods in UNSEEN_FOODS.items()},
        validation_split="dev",
    ),
}
SOURCES = ("demo", *READERS)
EVALUATED = ("test", "validation")
# Without the method that takes names from a bank: test rows have those.
AUGMENTATIONS = tuple(method for method in METHODS if method != "swap")
MIN_TOKENS = 8


@dataclass
class DialogConfig:
    """Data, augmentation and metric of a dialog state tracking experiment.

    Raises:
        DataError: A setting is unknown or out of range, or a folder that the source needs is missing.

    Example:
        >>> DialogConfig().source
        'demo'
    """

    source: str = field(
        default="demo", metadata={"help": f"demo (generated) or {' or '.join(READERS)}.", "choices": SOURCES}
    )
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "Data of the source (MultiWOZ 2.1 or 2.2, WOZ 2.0): folder or archive of the raw files, or the "
            "folder written by data_scripts/prepare_multiwoz.py."
        },
    )
    sgd_dir: str | None = field(
        default=None,
        metadata={
            "help": "Schema-Guided Dialogue (SGD), the source of unseen names for MultiWOZ: folder or archive of the "
            "raw files, or the JSON file written by data_scripts/prepare_sgd_entities.py, which is enough unless "
            "pretrain is set. WOZ 2.0 has unseen food types of its own."
        },
    )
    demo_domains: list[str] = field(
        default_factory=lambda: list(DOMAINS),
        metadata={"help": f"What generated dialogues are about: some of {', '.join(DOMAINS)}, each once."},
    )
    demo_names: int = field(
        default=NAMES_PER_SLOT,
        metadata={
            "help": f"Known names of each kind of place in generated dialogues, from {MIN_NAMES} (with demo_areas "
            f"{MIN_NAMES_WITH_AREAS}) to {MAX_NAMES_PER_SLOT}."
        },
    )
    demo_areas: bool = field(
        default=False,
        metadata={
            "help": "Known places of generated dialogues have an area, which their names give away. Test turns get "
            "second partners: known names that lie elsewhere."
        },
    )
    demo_annotation_errors: float = field(
        default=0.0,
        metadata={
            "help": "With demo_areas: share, in [0, 1], of the requests for an area in training whose annotation is "
            "another area than the user names. The place lies in the annotated area, so that its name tells the "
            "annotation better than the text does. Test dialogues have no errors."
        },
    )
    train_split: str = field(
        default="train", metadata={"help": "Split to train on: train or val; test only with evaluate_on=validation."}
    )
    test_split: str = field(default="test", metadata={"help": "Split to test on."})
    train_dialogs: int | None = field(default=None, metadata={"help": "Training dialogues, >= 1. Default: all."})
    test_dialogs: int | None = field(default=None, metadata={"help": "Test dialogues, >= 1. Default: all."})
    evaluate_on: str = field(
        default="test",
        metadata={
            "help": "test, or validation (for choosing lambda): other dialogues and other unseen names. Of MultiWOZ, "
            "validation holds out the last tenth of the training dialogues, with names of the SGD dev split; of WOZ "
            "2.0, it is the validation split.",
            "choices": EVALUATED,
        },
    )
    augmentation: str = field(
        default="scramble",
        metadata={"help": "Method for new names in training: scramble (as in the paper), anagram or gibberish."},
    )
    places: bool = field(default=False, metadata={"help": "Also rename departures and destinations of taxi and train."})
    covariant_only: bool = field(
        default=True,
        metadata={
            "help": "Pair training rows only if their state changes; false also pairs rows in which only the history "
            "does. Test rows are always paired."
        },
    )
    previous_state: bool = field(
        default=False,
        metadata={
            "help": "Input of a turn: the previous state and the utterances since then, not the whole history. The "
            "previous state is gold in training, and predicted in evaluation."
        },
    )
    redraw_partners: bool = field(default=True, metadata={"help": "Draw new names in each epoch."})
    pair_share: float = field(
        default=1.0,
        metadata={
            "help": "Share of the training dialogues whose turns have partners, in (0, 1]; the others are trained on "
            "without. The choice depends on the seed only."
        },
    )
    preset: str = field(default="any_of", metadata={"help": "Preset of the joint goal accuracy."})
    strict_audit: bool = field(default=False, metadata={"help": "Refuse to train on pairs that fail the audit."})
    allow_low_ceiling: bool = field(
        default=False,
        metadata={
            "help": "Train even if gold targets, scored like predictions, are wrong: truncated, or with characters "
            "that the tokenizer or the preset loses."
        },
    )
    lower_case: bool = field(
        default=False,
        metadata={"help": "Lower-case histories and targets, as in the paper, so that a name has one spelling."},
    )
    max_source_tokens: int = field(
        default=512, metadata={"help": "Maximum tokens of a history, >= 8; the newest are kept."}
    )
    max_target_tokens: int = field(default=256, metadata={"help": "Maximum tokens of a belief state, >= 8."})
    vocabulary: int = field(
        default=2000, metadata={"help": "Whole-word tokens of a tokenizer built from the data, >= 1."}
    )
    pretrain: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Pretrain a base for all methods on the SGD training dialogues: fields of DAIRConfig that differ "
            "from the run, such as {max_steps: 2000}; with {method: da}, all names also occur scrambled, and with "
            "{seed: 0} one base serves all seeds. Needed for a model from scratch on real data."
        },
    )

    def __post_init__(self) -> None:
        if self.augmentation == "swap":
            raise DataError(
                "augmentation='swap' takes its names from a bank, which training rows do not have; use one of "
                f"{', '.join(AUGMENTATIONS)}. Test rows always get names of a bank, that of sgd_dir"
            )
        reader = READERS.get(self.source)
        # Prepared data without splits have the split "all".
        splits = (*SPLITS, "all")
        for name, choices in (
            ("source", SOURCES),
            ("evaluate_on", EVALUATED),
            ("augmentation", AUGMENTATIONS),
            ("train_split", splits),
            ("test_split", splits),
        ):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        evaluated = self.evaluated_split
        if evaluated is not None and SPLITS.get(evaluated, "all") == SPLITS.get(self.train_split, "all"):
            is_test = self.evaluate_on == "test"
            name = f"test_split={evaluated!r}" if is_test else f"{evaluated!r}, the split of evaluate_on=validation,"
            raise DataError(
                f"train_split={self.train_split!r} and {name} are the same dialogues; choose another split to train on"
                + (", or evaluate_on=validation, which holds dialogues out" if is_test else "")
            )
        check_limits(self)
        if not 0.0 < self.pair_share <= 1.0:
            raise DataError(f"pair_share={self.pair_share}: expected a number in (0, 1]")
        if self.vocabulary < 1:
            raise DataError(f"vocabulary={self.vocabulary}; it must be at least 1")
        resolve_convention(self.preset)
        needed = {} if reader is None else {"data_dir": self.data_dir}
        if reader is not None and (reader.unseen_names is None or self.pretrain is not None):
            needed["sgd_dir"] = self.sgd_dir
        if missing := [name for name, value in needed.items() if value is None]:
            raise DataError(
                f"source={self.source} needs {' and '.join(f'--{name}' for name in missing)}: a folder or archive"
            )
        given = [name for name in ("data_dir", "sgd_dir") if getattr(self, name) is not None]
        if reader is None and given:
            raise DataError(
                f"source={self.source} generates its dialogues, so {' and '.join(given)} would not be read; leave it "
                f"out, or set source={' or '.join(READERS)} to read data"
            )
        _check_generated(self)
        if reader is not None and "sgd_dir" not in needed and self.sgd_dir is not None:
            raise DataError(
                f"source={self.source} has unseen names of its own, so sgd_dir would not be read; leave it out, or set "
                "pretrain"
            )
        if reader is None and self.pretrain is not None:
            raise DataError(
                f"pretrain needs the SGD dialogues of source={' or '.join(READERS)}; source={self.source} has none, "
                "leave it out"
            )
        for name in ("train_dialogs", "test_dialogs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name}={value}; it must be at least 1, or left out for all")

    @property
    def evaluated_split(self) -> str | None:
        """Split of the evaluated rows; None if they are generated or held out of the training split."""
        reader = READERS.get(self.source)
        if reader is None:
            return None
        return self.test_split if self.evaluate_on == "test" else reader.validation_split

    @property
    def rename_slots(self) -> dict[str, str]:
        """Slots whose entities are renamed, and the kind of their unseen names."""
        reader = READERS.get(self.source)
        slots = MULTIWOZ_NAMES if reader is None else reader.rename_slots
        return {slot: kind for slot, kind in slots.items() if kind != PLACE or self.places}


def _check_generated(config: DialogConfig) -> None:
    """Refuse settings of generated dialogues that are out of range, or given for other data."""
    defaults: dict[str, Any] = {
        "demo_names": NAMES_PER_SLOT,
        "demo_areas": False,
        "demo_annotation_errors": 0.0,
        "demo_domains": list(DOMAINS),
    }
    given = [name for name, default in defaults.items() if getattr(config, name) != default]
    if config.source != "demo":
        if given:
            raise DataError(
                f"source={config.source} generates nothing, so {' and '.join(given)} would have no effect; leave it out"
            )
        return
    if config.places:
        raise DataError(
            "places=true needs names of towns, of which generated dialogues have none; leave it out, or set "
            f"source={' or '.join(READERS)}"
        )
    require_domains("demo_domains", config.demo_domains)
    fewest = MIN_NAMES_WITH_AREAS if config.demo_areas else MIN_NAMES
    if not fewest <= config.demo_names <= MAX_NAMES_PER_SLOT:
        raise DataError(
            f"demo_names={config.demo_names}; with demo_areas={str(config.demo_areas).lower()} it must be from "
            f"{fewest} to {MAX_NAMES_PER_SLOT}"
        )
    require_error_rate("demo_annotation_errors", config.demo_annotation_errors)
    if config.demo_annotation_errors and not config.demo_areas:
        raise DataError(
            f"demo_annotation_errors={config.demo_annotation_errors} needs demo_areas=true; set that, or leave it out"
        )


def check_limits(settings: Any) -> None:
    """Refuse `max_source_tokens` and `max_target_tokens` that are too small."""
    for name in ("max_source_tokens", "max_target_tokens"):
        if getattr(settings, name) < MIN_TOKENS:
            raise DataError(
                f"{name}={getattr(settings, name)} leaves no room for a dialogue; use at least {MIN_TOKENS}"
            )
