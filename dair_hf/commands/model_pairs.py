"""A trained model, as the commands get it by name, and the report on its pairs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, DataCollatorForSeq2Seq, DataCollatorWithPadding, TrainerState
from transformers.utils import cached_file

from dair_hf.commands.pair_encoder import SOURCE, TARGET, TEXT, encode_pairs
from dair_hf.commands.pair_files import read_pairs
from dair_hf.config import DAIRConfig
from dair_hf.data.collator import LABELS, PairCollator
from dair_hf.errors import DataError, explained
from dair_hf.modeling import LOADING_ERRORS
from dair_hf.pair_report.build import ReportOptions, build_report
from dair_hf.pair_report.report import PairReport
from dair_hf.training.sample_loss import derived_sample_loss
from dair_hf.training.trainer import DAIRTrainer

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
STATE_FILE = "trainer_state.json"


def load_trained(name: str) -> tuple[Any, Any]:
    """Load a model of the class that its configuration names, and its tokenizer.

    Args:
        name: Model id on the Hub or local folder.

    Returns:
        The model; its tokenizer, or None if it has no files of one.

    Raises:
        DataError: There is no such model, or its class is unknown.
    """
    with explained(name if Path(name).exists() else f"{name}: is no folder here; from the Hub", *LOADING_ERRORS):
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
        if not has_tokenizer_files(name, tokenizer):
            return model, None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def has_tokenizer_files(name: str, tokenizer: Any) -> bool:
    """Return whether a model has a file with the vocabulary of its tokenizer.

    Without one, transformers build a tokenizer of the special tokens, to which every word is unknown.

    Args:
        name: Model id on the Hub or local folder, from which the tokenizer was loaded.
        tokenizer: The tokenizer.
    """
    files = set(tokenizer.vocab_files_names.values())
    files |= set(VOCABULARY_FILES) if files else {"tokenizer_config.json"}  # some read bytes and need no vocabulary
    for file in sorted(files):
        with contextlib.suppress(OSError):
            if cached_file(name, file, local_files_only=True) is not None:
                return True
    return False


def report_on_model(
    name: str,
    path: Path,
    groups: Sequence[str],
    title: str,
    worst: int,
    dair_lambda: float | None,
    max_tokens: int | None,
    batch_size: int,
) -> PairReport:
    """Return the report on the pairs of a file with the losses of a model, see `dair_hf.commands.report`.

    Raises:
        DataError: Model or pairs cannot be read, or do not fit each other.
    """
    rows = read_pairs(path)
    model, tokenizer = load_trained(name)
    pairs = encoded_for(rows, name, model, tokenizer, path, max_tokens)
    texts = [column for column in (SOURCE, TARGET, TEXT) if column in pairs.column_names]
    classifies = derived_sample_loss(model) == "classification"
    with tempfile.TemporaryDirectory() as folder:
        trainer = pair_trainer(name, model, tokenizer, folder, batch_size, dair_lambda)
        report = build_report(
            trainer,
            pairs,
            _equal_classes if classifies else None,
            ReportOptions(title, groups, texts or None, worst),
        )
    report.settings = {"model": name, **{k: v for k, v in report.settings.items() if k not in ("model", "method")}}
    return report


def encoded_for(rows: Dataset, name: str, model: Any, tokenizer: Any, path: Path, max_tokens: int | None) -> Dataset:
    """Return the pairs of a file as columns of a model.

    Raises:
        DataError: The model has no tokenizer that the pairs need, or the pairs do not fit it.
    """
    if tokenizer is None and LABELS not in rows.column_names and {TEXT, SOURCE} & set(rows.column_names):
        raise DataError(
            f"{name}: has no tokenizer files; save the tokenizer of its training there (tokenizer.save_pretrained), or "
            "give pairs of token ids"
        )
    try:
        return encode_pairs(rows, model, tokenizer, max_tokens)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def pair_trainer(
    name: str,
    model: Any,
    tokenizer: Any,
    folder: str,
    batch_size: int,
    dair_lambda: float | None = None,
    show_progress: bool = False,
    use_cpu: bool = False,
) -> DAIRTrainer:
    """Return a trainer that evaluates a model, with the logs of its training if they are beside it.

    Args:
        name: Model id on the Hub or local folder.
        model: The model.
        tokenizer: Its tokenizer, or None.
        folder: Folder for what a trainer may write.
        batch_size: Pairs run at once.
        dair_lambda: Lambda of the training in pair units; None: unknown.
        show_progress: Whether to show progress bars.
        use_cpu: Whether to leave GPUs aside.
    """
    args = DAIRConfig(
        folder,
        method="da" if dair_lambda is None else "dair",
        dair_lambda=dair_lambda or 0.0,
        per_device_eval_batch_size=batch_size,
        report_to="none",
        disable_tqdm=not show_progress,
        use_cpu=use_cpu,
    )
    collator = None
    if tokenizer is not None:
        classifies = derived_sample_loss(model) == "classification"
        collator = DataCollatorWithPadding(tokenizer) if classifies else DataCollatorForSeq2Seq(tokenizer)
    pairs_collator = None if collator is None else PairCollator(collator)
    trainer = DAIRTrainer(model, args, pairs_collator, processing_class=tokenizer)
    if (Path(name) / STATE_FILE).is_file():
        trainer.state = TrainerState.load_from_json(str(Path(name) / STATE_FILE))
    return trainer


def _equal_classes(predictions: Sequence[Any], references: Sequence[Any]) -> list[bool]:
    return [int(prediction) == int(reference) for prediction, reference in zip(predictions, references, strict=True)]
