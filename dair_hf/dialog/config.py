"""Settings of dialogue state tracking: which dialogues, which names, how they are renamed and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple

from datasets import Dataset

from dair_hf.dialog.demo.dialogs import MIN_NAMES
from dair_hf.dialog.demo.names import DOMAINS, MAX_NAMES_PER_SLOT, NAMES_PER_SLOT
from dair_hf.dialog.linking.catalogs import FOOD
from dair_hf.dialog.readers.dialogues import ReadReport
from dair_hf.dialog.readers.files import SPLITS
from dair_hf.dialog.readers.multiwoz import read_multiwoz
from dair_hf.dialog.readers.sgd import read_sgd
from dair_hf.dialog.readers.woz2 import FOOD_SLOT, UNSEEN_FOODS, read_woz2
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS, resolve_convention
from dair_hf.settings import Count, Range, Settings, Share


class _Reader(NamedTuple):
    """Data set that `source` offers.

    Its key in `READERS` is also the kind of its prepared folders (`io.prepared`), so that a command in `data_scripts/`
    saves them with `save_splits(folder, key, ...)`.
    """

    title: str
    read: Callable[[str | os.PathLike[str], str], tuple[Dataset, ReadReport]]
    rename_slots: Sequence[str] = NAME_SLOTS  # none: all slots of names that the rows have
    unseen_names: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    validation_split: str | None = None


# Value of `source` -> how it is read; "demo" is generated.
READERS = {
    "multiwoz": _Reader("MultiWOZ", read_multiwoz),
    "sgd": _Reader("SGD", read_sgd, (), validation_split="dev"),
    "woz2": _Reader(
        "WOZ 2.0",
        read_woz2,
        (FOOD_SLOT,),
        {split: {FOOD: foods} for split, foods in UNSEEN_FOODS.items()},
        validation_split="dev",
    ),
}
Tokens = Annotated[int, Range(low=8)]


@dataclass
class DialogConfig(Settings):
    """Data, augmentation and metric of a dialog state tracking experiment.

    Raises:
        DataError: A setting is out of range, would have no effect, or a folder that the source needs is missing.
    """

    source: Literal["demo", "multiwoz", "sgd", "woz2"] = field(
        default="demo", metadata={"help": f"demo (generated) or {' or '.join(READERS)}."}
    )
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "Data of the source (MultiWOZ 2.1 to 2.4, SGD or SGD-X, WOZ 2.0): folder or archive of the raw "
            "files, or the folder written by data_scripts/prepare_multiwoz.py."
        },
    )
    sgd_dir: str | None = field(
        default=None,
        metadata={
            "help": "Schema-Guided Dialogue (SGD), the source of unseen names for MultiWOZ: folder or archive of the "
            "raw files, or the JSON file written by data_scripts/prepare_sgd_entities.py, which is enough unless "
            "pretrain is set. Default for source=sgd: data_dir. WOZ 2.0 has unseen food types of its own."
        },
    )
    demo_domains: list[str] = field(
        default_factory=lambda: list(DOMAINS),
        metadata={"help": f"What generated dialogues are about: some of {', '.join(DOMAINS)}, each once."},
    )
    demo_names: Annotated[int, Range(low=MIN_NAMES, high=MAX_NAMES_PER_SLOT)] = field(
        default=NAMES_PER_SLOT,
        metadata={"help": "Known names of each kind of place in generated dialogues, from 4 (with demo_areas 15)."},
    )
    demo_areas: bool = field(
        default=False,
        metadata={
            "help": "Known places of generated dialogues have an area, which their names give away. Test turns get "
            "second partners: known names that lie elsewhere."
        },
    )
    demo_annotation_errors: Share = field(
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
    train_dialogs: Count | None = field(default=None, metadata={"help": "Training dialogues, >= 1. Default: all."})
    test_dialogs: Count | None = field(default=None, metadata={"help": "Test dialogues, >= 1. Default: all."})
    evaluate_on: Literal["test", "validation"] = field(
        default="test",
        metadata={
            "help": "test, or validation (for choosing lambda): other dialogues and other unseen names. Of MultiWOZ, "
            "validation holds out the last tenth of the training dialogues, with names of the SGD dev split; of SGD "
            "and WOZ 2.0, it is the validation split."
        },
    )
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
    gold_states: bool = field(default=False, metadata={"help": "With `previous_state`: evaluate with gold ones too."})
    redraw_partners: bool = field(default=True, metadata={"help": "Draw new names in each epoch."})
    pair_share: Annotated[float, Range(above=0, high=1)] = field(
        default=1.0,
        metadata={
            "help": "Share of the training dialogues whose turns have partners, in (0, 1]; the others are trained on "
            "without. The choice depends on the seed only."
        },
    )
    preset: str = field(default="any_of", metadata={"help": "Preset of the joint goal accuracy."})
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
    max_source_tokens: Tokens = field(
        default=512, metadata={"help": "Maximum tokens of a history, >= 8; the newest are kept."}
    )
    max_target_tokens: Tokens = field(default=256, metadata={"help": "Maximum tokens of a belief state, >= 8."})
    pretrain: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Pretrain a base for all methods on the SGD training dialogues: fields of DAIRConfig that differ "
            "from the run, such as {max_steps: 2000}; with {method: da}, all names also occur scrambled, and with "
            "{seed: 0} one base serves all seeds. Needed for a model from scratch on real data."
        },
    )

    def check(self) -> None:
        """Refuse to train on the evaluated dialogues, settings without effect, and missing folders."""
        resolve_convention(self.preset)
        evaluated = self.evaluated_split
        if evaluated is not None and SPLITS.get(evaluated, "all") == SPLITS.get(self.train_split, "all"):
            raise DataError(
                f"train_split={self.train_split!r} and {evaluated!r}, the split of evaluate_on={self.evaluate_on}, are "
                "the same dialogues; expected two splits"
            )
        reader = READERS.get(self.source)
        if reader is None:
            needed, unread = list[str](), ["data_dir", "sgd_dir", "pretrain"]
        else:
            needs_sgd = self.source != "sgd" and (reader.unseen_names is None or self.pretrain is not None)
            needed = ["data_dir", "sgd_dir"] if needs_sgd else ["data_dir"]
            unread = ["demo_domains", "demo_names", "demo_areas", "demo_annotation_errors"]
        if missing := [f"--{name}" for name in needed if getattr(self, name) is None]:
            raise DataError(f"source={self.source}: expected {' and '.join(missing)}, a folder or archive")
        defaults = {setting.name: setting.default for setting in fields(self)} | {"demo_domains": list(DOMAINS)}
        if given := [name for name in unread if getattr(self, name) != defaults[name]]:
            raise DataError(f"source={self.source} does not read {' and '.join(given)}; set another source")

    @property
    def evaluated_split(self) -> str | None:
        """Split of the evaluated rows; None if they are generated or held out of the training split."""
        reader = READERS.get(self.source)
        if reader is None:
            return None
        return self.test_split if self.evaluate_on == "test" else reader.validation_split
