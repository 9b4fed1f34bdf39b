"""A trained model and a file of pairs, as the commands get them by name."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import transformers
from transformers import AutoConfig, AutoTokenizer, DataCollatorForSeq2Seq, DataCollatorWithPadding, TrainerState

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import LABELS, ROW_ID, PairCollator
from dair_hf.data.view_columns import AUGMENTED_PREFIX, is_augmented, parse_column, partner_numbers, view_prefix
from dair_hf.errors import DataError, explained
from dair_hf.evaluation.target_tokens import added_tokens, target_affixes
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.modeling import LOADING_ERRORS
from dair_hf.pair_report.build import ReportOptions, build_report
from dair_hf.pair_report.report import PairReport
from dair_hf.training.sample_loss import derived_sample_loss
from dair_hf.training.trainer import DAIRTrainer

READERS = {
    ".jsonl": datasets.Dataset.from_json,
    ".json": datasets.Dataset.from_json,
    ".csv": datasets.Dataset.from_csv,
    ".parquet": datasets.Dataset.from_parquet,
}
TEXT, LABEL, SOURCE, TARGET = "text", "label", "source", "target"
STATE_FILE = "trainer_state.json"


def load_trained(name: str) -> tuple[Any, Any]:
    """Load a model of the class that its configuration names, and its tokenizer.

    Args:
        name: Model id on the Hub or local folder.

    Returns:
        The model; its tokenizer, or None if it has none.

    Raises:
        DataError: There is no such model, or its class is unknown.
    """
    with explained(name, *LOADING_ERRORS):
        config = AutoConfig.from_pretrained(name)
        names = config.architectures or []
        kind = getattr(transformers, names[0], None) if names else None
        if kind is None:
            raise DataError(
                f"{name}: config.json names the class {names}, which transformers does not have; write the report in "
                "Python, by DAIRTrainer.pair_report"
            )
        model = kind.from_pretrained(name, config=config)
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError):
            return model, None  # a model of images or tables
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def read_pairs(path: Path) -> datasets.Dataset:
    """Read paired rows; rows without a `row_id` get their number.

    Args:
        path: JSON lines, CSV or Parquet file, or a folder written by `Dataset.save_to_disk`.

    Raises:
        DataError: The file is missing, of another kind, empty, or has no columns of partners.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_dir() and path.suffix not in READERS:
        raise DataError(f"{path}: is of an unknown kind; give {', '.join(READERS)}, or a folder of datasets")
    with explained(str(path), Exception), tempfile.TemporaryDirectory() as cache:
        if path.is_dir():
            rows = datasets.load_from_disk(path)
        else:
            rows = READERS[path.suffix](str(path), cache_dir=cache, keep_in_memory=True)
    if isinstance(rows, datasets.DatasetDict):
        splits = list(rows)
        raise DataError(f"{path}: holds the splits {splits}; name the folder of one of them")
    if not len(rows) or not any(map(is_augmented, rows.column_names)):
        raise DataError(
            f"{path}: found {len(rows)} rows with the columns {rows.column_names}; partners have the columns of their "
            f"originals with the prefix {AUGMENTED_PREFIX!r}"
        )
    if ROW_ID not in rows.column_names:
        rows = rows.add_column(ROW_ID, [str(number) for number in range(len(rows))])
    return rows


class PairEncoder:
    """Function for `Dataset.map` that tokenizes text and label, or source and target, of all views of a row.

    Args:
        model: The model; its configuration names classes and end tokens.
        tokenizer: Its tokenizer.
        max_tokens: Number of tokens after which a text is cut.

    Raises:
        DataError: A target needs an end token, and there is none.
    """

    def __init__(self, model: Any, tokenizer: Any, max_tokens: int) -> None:
        self.model, self.tokenizer, self.max_tokens = model, tokenizer, max_tokens
        self.is_decoder_only = derived_sample_loss(model) == "causal"

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the model for all views; None for an absent partner."""
        columns: dict[str, Any] = {}
        for prefix in map(view_prefix, (0, *partner_numbers(row))):
            if SOURCE in row:
                source, target = row[prefix + SOURCE], row[prefix + TARGET]
                encoded = None if source is None or target is None else self._generated(source, target)
                names = ["input_ids", "attention_mask", LABELS]
            else:
                text = row[prefix + TEXT]
                encoded = None if text is None else self._input(text)
                names = ["input_ids", "attention_mask"]
                if prefix + LABEL in row:
                    names.append(LABELS)
                    if encoded is not None:
                        encoded[LABELS] = self._class(row[prefix + LABEL], row)
            columns |= {prefix + name: None if encoded is None else encoded[name] for name in names}
        return columns

    def _input(self, text: str) -> dict[str, Any]:
        ids = self.tokenizer(text, truncation=True, max_length=self.max_tokens).input_ids
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def _generated(self, source: str, target: str) -> dict[str, Any]:
        affixes = target_affixes(self.model, self.tokenizer)
        room = self.max_tokens - len(affixes.start) - len(affixes.end)
        ids = self.tokenizer(target, add_special_tokens=False).input_ids[:room]
        labels = [*affixes.start, *ids, *affixes.end]
        if not self.is_decoder_only:
            return {**self._input(source), LABELS: labels}
        left, _ = added_tokens(self.tokenizer)
        prompt = [*left, *self.tokenizer(source, add_special_tokens=False).input_ids[-self.max_tokens :]]
        return {
            "input_ids": prompt + labels,
            "attention_mask": [1] * len(prompt + labels),
            LABELS: [IGNORE_INDEX] * len(prompt) + labels,
        }

    def _class(self, label: Any, row: Mapping[str, Any]) -> Any:
        if not isinstance(label, str):
            return label
        known = self.model.config.label2id or {}
        if label not in known:
            raise DataError(f"row {row[ROW_ID]!r}: label {label!r} is no class of the model: {', '.join(known)}")
        return known[label]


def encode_pairs(rows: datasets.Dataset, model: Any, tokenizer: Any, max_tokens: int) -> datasets.Dataset:
    """Tokenize paired rows of text; rows with the model's own columns are returned as they are.

    Raises:
        DataError: There are neither columns of text nor of the model, or the model has no tokenizer.
    """
    names = set(rows.column_names)
    kinds = [kind for kind in ((SOURCE, TARGET), (TEXT, LABEL)) if set(kind) <= names]
    if LABELS in names or not kinds:
        if LABELS not in names:
            raise DataError(
                f"the pairs have the columns {rows.column_names}; give {TEXT} and {LABEL}, {SOURCE} and {TARGET}, or "
                f"columns of the model with {LABELS}"
            )
        return rows
    if tokenizer is None:
        raise DataError(f"the pairs hold {' and '.join(kinds[0])}, but the model has no tokenizer; add its files")
    numbers = partner_numbers(names)
    # Partners have the labels of their originals if there is no column of their own.
    has_labels = any(view_prefix(number) + LABEL in names for number in numbers)
    needed = kinds[0] if kinds[0][0] == SOURCE or has_labels else kinds[0][:1]
    of_partners = [view_prefix(number) + name for number in numbers for name in needed]
    if missing := [name for name in of_partners if name not in names]:
        raise DataError(f"the pairs lack the column {missing[0]}; they have {rows.column_names}")
    encoded = rows.map(PairEncoder(model, tokenizer, max_tokens), keep_in_memory=True, load_from_cache_file=False)
    return encoded.remove_columns([name for name in rows.column_names if parse_column(name)[1] == LABEL])


def report_on_model(
    name: str,
    path: Path,
    groups: Sequence[str],
    title: str,
    worst: int,
    dair_lambda: float | None,
    max_tokens: int,
    batch_size: int,
) -> PairReport:
    """Return the report on the pairs of a file with the losses of a model, see `dair_hf.commands.report`.

    Raises:
        DataError: Model or pairs cannot be read, or do not fit each other.
    """
    rows = read_pairs(path)
    model, tokenizer = load_trained(name)
    pairs = encode_pairs(rows, model, tokenizer, max_tokens)
    texts = [column for column in (SOURCE, TARGET, TEXT) if column in rows.column_names]
    classifies = derived_sample_loss(model) == "classification"
    with tempfile.TemporaryDirectory() as folder:
        args = DAIRConfig(
            folder,
            method="da" if dair_lambda is None else "dair",
            dair_lambda=dair_lambda or 0.0,
            per_device_eval_batch_size=batch_size,
            report_to="none",
            disable_tqdm=True,
        )
        collator = None
        if tokenizer is not None:
            collator = DataCollatorWithPadding(tokenizer) if classifies else DataCollatorForSeq2Seq(tokenizer)
        trainer = DAIRTrainer(
            model, args, None if collator is None else PairCollator(collator), processing_class=tokenizer
        )
        if (Path(name) / STATE_FILE).is_file():
            trainer.state = TrainerState.load_from_json(str(Path(name) / STATE_FILE))
        report = build_report(
            trainer,
            pairs,
            _equal_classes if classifies else None,
            ReportOptions(title, groups, texts or None, worst),
        )
    report.settings = {"model": name, **{k: v for k, v in report.settings.items() if k not in ("model", "method")}}
    return report


def _equal_classes(predictions: Sequence[Any], references: Sequence[Any]) -> list[bool]:
    return [int(prediction) == int(reference) for prediction, reference in zip(predictions, references, strict=True)]
