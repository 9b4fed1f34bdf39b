"""Evaluation on the pairs of a file: answers of a model, or of another program, to all views, and their metrics."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from datasets.utils import logging as datasets_logging
from transformers.utils import logging as transformers_logging

from dair_hf.commands.model_pairs import load_trained, pair_trainer, text_columns, tokenized
from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.texts.files import JSON_LINES, read_pairs, with_row_ids
from dair_hf.data.texts.forms import GENERATED, INPUT_IDS
from dair_hf.data.view_columns import columns_of_views
from dair_hf.errors import DataError, explained
from dair_hf.evaluation.answers import MATCHES, matches, reference_keys, same_classes
from dair_hf.evaluation.evaluator import PairEvaluation, PairEvaluator
from dair_hf.evaluation.statistics import has_few_pairs, is_cm
from dair_hf.evaluation.text_views import TextViews
from dair_hf.experiments.run_records import provenance
from dair_hf.io.archives import sha256_of
from dair_hf.io.files import atomic_folder, write_json
from dair_hf.io.records import PREDICTIONS_FILE
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.pair_report.build import ReportOptions, build_report, label_names
from dair_hf.pair_report.page import require_report_libraries, write_report
from dair_hf.pair_report.report import PairReport
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, base_model_of, derived_sample_loss

RECORD_FILE = "evaluation.json"
LABEL = "label"  # the rule of classifiers


class EvaluationSettings(NamedTuple):
    """Settings of an evaluation, as the options of the command; None: the default in the command's help."""

    match: str | None
    batch_size: int
    max_tokens: int | None
    max_new_tokens: int | None
    limit: int | None
    clusters: str | None
    device: str | None
    source: dict[str, Any]  # options of `datasets.load_dataset`


# Evaluation, what answered, the settings that were used, and the report.
_Evaluated = tuple[PairEvaluation, dict[str, Any], dict[str, Any], PairReport | None]


def evaluate_model(
    name: str,
    path: Path,
    folder: Path,
    settings: EvaluationSettings,
    report_groups: Sequence[str] | None,
    show_progress: bool,
    overwrite: bool,
    started: float,
) -> dict[str, Any]:
    """Evaluate a model, or answers in a .jsonl, on pairs; write record, predictions, and a report for any groups."""
    answers = [Path(name)] if name.endswith(JSON_LINES) else []
    use_cpu = not answers and _choose_device(settings.device)
    if report_groups is not None:
        require_report_libraries()
        if answers:
            raise DataError(f"--report: expected a model, whose losses it shows, got the answers {name}")
    is_first = int(os.environ.get("RANK", "0")) == 0
    output = atomic_folder(folder, [path, *answers], overwrite) if is_first else contextlib.nullcontext(folder)
    if not show_progress:  # of loading and tokenizing
        transformers_logging.disable_progress_bar()
        datasets_logging.disable_progress_bar()
    with output as written, tempfile.TemporaryDirectory() as scratch:
        all_rows = with_row_ids(read_pairs(path, **settings.source))
        rows = all_rows.select(range(min(settings.limit or len(all_rows), len(all_rows))))
        model: Any = None
        if answers:
            found, answered_by, used, report = _evaluated_answers(
                name, rows, settings, ignored=all_rows[ROW_ID][len(rows) :]
            )
        else:
            model, tokenizer = load_trained(name)
            trainer = pair_trainer(name, model, tokenizer, scratch, settings, show_progress, use_cpu)
            found, answered_by, used, report = _evaluated_model(name, trainer, path, rows, settings, report_groups)
        rule = str(found.evaluator.preset)
        words = "the class with the largest logit is the label" if rule == LABEL else MATCHES[rule].description
        record = {
            **answered_by,
            "pairs": {"path": str(path), "fingerprint": _fingerprint(path, rows), "rows": len(rows)},
            "settings": {**settings._asdict(), **used, "match": rule, "rule": words},
            # A ratio over nothing is NaN.
            "metrics": {key: None if value != value else value for key, value in found.metrics.items()},
            **provenance(),
        }
        if is_first:
            _write_predictions(found, model, rule, written)
            if report is not None:
                report.settings = {"model": name, "steps": report.settings["steps"]}
                write_report(report, written)
            record["files"] = [RECORD_FILE, *sorted(file.name for file in written.iterdir())]
            record["seconds"] = {"total": round(time.perf_counter() - started, 2)}
            write_json(written / RECORD_FILE, record)
    return record


def _evaluated_answers(name: str, rows: Dataset, settings: EvaluationSettings, ignored: Sequence[str]) -> _Evaluated:
    """Evaluate the answers of a file, which may also answer the ignored rows."""
    evaluator, views = _evaluator_for(name, None, rows, settings), TextViews(rows)
    units, _ = evaluator.units_and_masks(views, None)
    given = views.read_answers(name, ignored=ignored)
    answers = [views.form.text_of(answer, rows.features.get(LABEL)) for answer in given]
    rule = str(evaluator.preset)
    if views.form.target == LABEL and not {MATCHES[rule].key(answer) for answer in answers}.intersection(
        reference_keys(rule, views.references)
    ):
        first = f"{answers[0]!r:.60} and {views.references[0]!r:.60}"
        print(f"warning: no answer of {name} equals a label of the pairs; the first are {first}", file=sys.stderr)
    found = evaluator.evaluate_views(views, answers, views.references, units)
    unused: dict[str, Any] = dict.fromkeys(("batch_size", "max_tokens", "max_new_tokens", "device"))
    return found, {"answers": {"path": name, "fingerprint": _fingerprint(Path(name), rows)}}, unused, None


def _evaluated_model(
    name: str,
    trainer: Any,
    path: Path,
    rows: Dataset,
    settings: EvaluationSettings,
    report_groups: Sequence[str] | None,
) -> _Evaluated:
    """Evaluate the model of a trainer, with a report for any groups."""
    model = trainer.model
    evaluator = _evaluator_for(name, model, rows, settings)
    evaluator.cluster_column(rows.column_names)  # refuses a column that is missing
    if missing := set(report_groups or ()).difference(rows.column_names):
        raise DataError(f"--group: expected columns of {path}, {rows.column_names}, got {sorted(missing)}")
    pairs = tokenized(rows, trainer, path)
    if trainer.generates:
        _warn_of_lost_targets(pairs, trainer.processing_class, evaluator.references, str(evaluator.preset))
    else:
        _require_known_classes(pairs, model, path)
    found = trainer.evaluate_views(pairs, evaluator, **_generation(trainer, settings))
    report = None
    if report_groups is not None:
        groups = {name: rows[name] for name in report_groups}  # tokenized rows lack texts and labels
        options = ReportOptions(path.stem, groups, text_columns(pairs) or None)
        report = build_report(trainer, pairs, found, options)
    # The default depends on the model; token ids are not cut.
    used = {"max_tokens": settings.max_tokens if INPUT_IDS in rows.column_names else trainer.args.max_length}
    return found, {"model": _described(name, model, str(trainer.args.device))}, used, report


def _write_predictions(found: PairEvaluation, model: Any, rule: str, folder: Path) -> None:
    predictions, references = found.predictions, found.references
    if rule == LABEL:
        names = label_names(model)
        predictions, references = ([names(int(value)) for value in values] for values in (predictions, references))
    found.views.write(folder / PREDICTIONS_FILE, predictions, references, found.correct, found.clusters)


def _evaluator_for(name: str, model: Any, rows: Dataset, settings: EvaluationSettings) -> PairEvaluator:
    """Return the evaluator of a model, or of a file of answers; refuse a rule that does not apply to it."""
    loss = "causal" if model is None else derived_sample_loss(model)
    rules = (LABEL,) if loss == "classification" else tuple(MATCHES) if loss in LANGUAGE_LOSSES else ()
    rule = settings.match or next(iter(rules), None)
    if rule is None or rule not in rules:
        kind = "file of texts" if model is None else type(base_model_of(model)).__name__
        expected = f"one of {', '.join(rules)}" if rules else "a classifier or a model that generates"
        raise DataError(f"--match {rule}: {name} is a {kind}; expected {expected}")
    if rule == LABEL:
        return PairEvaluator(
            same_classes, answers=lambda classes: list(map(int, classes)), clusters=settings.clusters, preset=LABEL
        )
    return PairEvaluator(
        lambda answers, references: matches(rule, answers, references),
        answers=lambda answers: [MATCHES[rule].key(answer) for answer in answers],
        # The texts of the file, not what is left of them after tokenization.
        references=_target_of(rows),
        clusters=settings.clusters,
        preset=rule,
    )


def _target_of(rows: Dataset) -> str | None:
    """Return the column of texts that answers are compared with; None: the labels."""
    is_tokenized = INPUT_IDS in rows.column_names
    for form in GENERATED:
        # A column named like the target of another form does not count, such as one next to a chat.
        has_inputs = is_tokenized or set(form.inputs) <= set(rows.column_names)
        # A completion may also be a list of messages, whose feature has no dtype.
        dtype = getattr(rows.features.get(form.target), "dtype", None)
        if has_inputs and dtype in ("string", "large_string"):
            return form.target
    return None


def _generation(trainer: Any, settings: EvaluationSettings) -> dict[str, Any]:
    """Return arguments of `generate` with which the same command always gives the same answers."""
    if not trainer.generates:
        return {}
    length = {} if settings.max_new_tokens is None else {"max_new_tokens": settings.max_new_tokens}
    return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, **length}


def _warn_of_lost_targets(pairs: Dataset, tokenizer: Any, column: str | None, rule: str) -> None:
    """Warn about references that no answer can equal, since their tokens stand for another text."""
    if tokenizer is None or column is None:
        return
    lost, total = [], 0
    labels = columns_of_views(LABELS, pairs.column_names)
    texts = columns_of_views(column, pairs.column_names)
    for view, label in labels.items():
        text_column = texts.get(view, column)  # a partner without one has the target of its original
        columns = pairs.select_columns([label, text_column])
        rows = [(number, row[label], row[text_column]) for number, row in enumerate(columns) if row[label] is not None]
        total += len(rows)
        wanted = reference_keys(rule, [text for _, _, text in rows])
        for (number, ids, text), key in zip(rows, wanted, strict=True):
            read = tokenizer.decode([token for token in ids if token != IGNORE_INDEX], skip_special_tokens=True)
            if MATCHES[rule].key(read) != key:
                lost.append((number, text, read))
    if lost and int(os.environ.get("RANK", "0")) == 0:
        number, text, read = lost[0]
        print(
            f"warning: {len(lost)} of {total} references cannot be answered, since the tokenizer loses part of them or "
            f"--max-tokens cuts them: row {number}: {text!r:.60} becomes {read!r:.60}",
            file=sys.stderr,
        )


def _require_known_classes(pairs: Dataset, model: Any, path: Path) -> None:
    """Refuse labels that are not classes of the model: every answer to them would count as wrong."""
    size = model.config.num_labels
    for name in columns_of_views(LABELS, pairs.column_names).values():
        for number, label in enumerate(pairs[name]):
            if label is not None and not 0 <= int(label) < size:
                raise DataError(f"{path}: row {number}, column {name!r}: expected a label below {size}, got {label}")


def _choose_device(device: str | None) -> bool:
    """Make one GPU visible, unless a launcher has chosen; return whether to use the CPU."""
    with explained(f"--device {device}", RuntimeError):
        wanted = torch.device(device or "cuda")
    found, count = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
    number = wanted.index or 0
    if device and wanted.type != "cpu" and (found is None or found.type != wanted.type or number >= count):
        raise DataError(f"--device {device}: expected cpu, or one of {count} devices of type {found and found.type}")
    if wanted.type == "cuda" and count > 1 and "WORLD_SIZE" not in os.environ:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number]
    return wanted.type == "cpu"


def _described(name: str, model: Any, device: str) -> dict[str, Any]:
    return {
        "name": name,
        "class": type(base_model_of(model)).__name__,
        "revision": getattr(model.config, "_commit_hash", None),
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": device,
    }


def _fingerprint(path: Path, rows: Dataset) -> str:
    """Return the SHA-256 of a file, or the fingerprint of a folder of `datasets`."""
    return f"sha256:{sha256_of(path)}" if path.is_file() else f"datasets:{rows._fingerprint}"


def table_of(metrics: dict[str, Any]) -> Sequence[Sequence[str]]:
    """Return the rows of the printed table: name, value, interval, and numerator and denominator."""
    pairs = metrics.get("partners", metrics["pairs"])  # a row with several partners counts as that many pairs
    lines = {
        "original_accuracy_pairs": "accuracy, originals",
        "augmented_accuracy_pairs": "accuracy, partners",
        "cm": "CM: of right originals, partners right",
        "reverse_cm": "reverse CM: of right partners, originals right",
        "cm_same_answer": "CM of pairs with the same label",
        "cm_all_rows": "CM, all rows",
        "both_correct": "both right",
        "pos_to_neg": "right, partner wrong",
        "neg_to_pos": "wrong, partner right",
        "flipped": "answer changes",
    }
    table = [("", "share", "95 % interval", "count")]
    for key in filter(metrics.__contains__, lines):
        count = f"{metrics[f'{key}_numerator']}/{metrics[f'{key}_denominator']}" if is_cm(key) else ""
        if not is_cm(key) and metrics[key] is not None:
            count = f"{round(metrics[key] * pairs)}/{pairs}"
        table.append((lines[key], *_cells(metrics, key), count))
    if metrics["rows"] != metrics["pairs"]:
        table.append(("accuracy, all originals", *_cells(metrics, "original_accuracy"), f"of {metrics['rows']}"))
    if "all_correct" in metrics:
        table.append(("right with all partners", *_cells(metrics, "all_correct"), ""))
    return table


def _cells(metrics: dict[str, Any], key: str) -> tuple[str, str]:
    if has_few_pairs(metrics, key):
        return "-", ""
    value, low, high = (metrics.get(name) for name in (key, f"{key}_low", f"{key}_high"))
    interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
    return ("undefined" if value is None else f"{value:.3f}"), interval
