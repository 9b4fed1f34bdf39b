"""Common complaints of users of Trainer subclasses, one test each.

In other modules: scaling under accumulation in test_invariants; several processes, metrics of all ranks and
checkpointing under DDP in test_invariants_distributed; means of means, `eval_loss` and the best model's metric in
test_trainer; left-padded generation in test_generation.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from dair_hf import PairCollator
from dair_hf.training.environments import VREx
from tests.fixtures import points, tiny


def batches_of(trainer: Any) -> list[dict[str, Any]]:
    return list(trainer.get_train_dataloader())


def test_remove_unused_columns_keeps_partners_and_drops_other_columns(tmp_path: Path) -> None:
    data = tiny.pairs("bart", 4).add_column("dialogue_id", ["a"] * 4)
    data = data.add_column("state", ["s"] * 4).add_column("augmented_state", ["s"] * 4)
    made = tiny.trainer(tmp_path, "bart", data)
    assert made.args.remove_unused_columns
    (batch,) = batches_of(made)
    assert set(batch) == {"input_ids", "attention_mask", "labels", "view_mask", "row_id", "layout"}
    assert batch["labels"].shape[:2] == (4, 2)
    assert int(batch["view_mask"].sum()) == 7


def truncated(data: datasets.Dataset, lost: set[int]) -> datasets.Dataset:
    """Remove all targets of some rows."""

    def cut(row: dict[str, Any], index: int) -> dict[str, Any]:
        return {"labels": [-100] * len(row["labels"])} if index in lost else {}

    return data.map(cut, with_indices=True)


def test_rows_with_truncated_labels_are_counted_and_others_trained(tmp_path: Path) -> None:
    data = truncated(tiny.pairs("gpt2", 8, partner=lambda row: False), {1, 6})
    settings = {"method": "erm", "logging_strategy": "steps", "logging_steps": 2}
    made = tiny.trainer(tmp_path, "gpt2", data, num_train_epochs=1, **settings)
    made.train()
    (log,) = [log for log in made.state.log_history if "loss" in log]
    assert (log["rows"], log["rows_without_target"]) == (8, 2)
    assert made.evaluate(data)["eval_rows_without_target"] == 2
    assert log["loss"] > 0


@pytest.mark.parametrize("objective", [None, VREx()])
def test_a_step_without_targets_trains_nothing(tmp_path: Path, objective: VREx | None) -> None:
    data = truncated(tiny.pairs("gpt2", 4, partner=lambda row: True), {0, 1})
    settings = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 2, "num_train_epochs": 1}
    settings |= {"logging_strategy": "steps", "logging_steps": 1, "optim": "sgd"}
    settings["lr_scheduler_type"] = "constant"
    found = tiny.trainer(tmp_path, "gpt2", data, objective=objective, **settings)
    found.train()
    logs = [(log["loss"], log["rows_without_target"]) for log in found.state.log_history if "loss" in log]
    assert logs[0] == (0.0, 2)
    alone = tiny.trained(tmp_path, "gpt2", data.select([2, 3]), objective=objective, **settings)
    assert tiny.distance(tiny.weights(found.model), alone) < 1e-7


def test_sharded_streams_with_workers_train_every_row_once(tmp_path: Path) -> None:
    rows = list(tiny.pairs("gpt2", 11))
    shards = [rows[:3], rows[3:6], rows[6:9], rows[9:]]
    stream = datasets.IterableDataset.from_generator(from_shards, gen_kwargs={"shards": shards})
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "dataloader_num_workers": 2}
    settings |= {"logging_strategy": "steps", "logging_steps": 1, "train_sampling_strategy": "random"}
    made = tiny.trainer(tmp_path, "gpt2", stream, max_steps=6, **settings)
    made.train()
    counts = [int(log["rows"]) for log in made.state.log_history if "loss" in log]
    assert (sum(counts[:3]), sum(counts[3:])) == (11, 11)


def from_shards(shards: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        yield from shard


def test_the_logits_of_an_evaluation_are_not_kept(tmp_path: Path) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watching(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        nonlocal most
        kept.append(weakref.ref(outputs.logits))
        most = max(most, sum(one() is not None for one in kept))
        return outputs.logits.flatten(1).abs().sum(1)

    data = tiny.pairs("bart", 24)
    metrics = tiny.trainer(
        tmp_path, "bart", None, eval_dataset=data, sample_loss=watching, per_device_eval_batch_size=2
    ).evaluate()
    assert len(kept) == 12
    assert most <= 2  # the current batch, and the one before until it is overwritten
    assert metrics["eval_rows"] == 24


def test_a_stream_has_batches_of_whole_pairs(tmp_path: Path) -> None:
    batches = batches_of(tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 9).to_iterable_dataset(), max_steps=6))
    assert [batch["view_mask"].tolist() for batch in batches] == [
        [[True, True], [True, False], [True, True], [True, True]],
        [[True, False], [True, True], [True, True], [True, False]],
        [[True, True]],
    ]


def test_a_custom_collator_is_used_with_and_without_a_wrapper(tmp_path: Path) -> None:
    class Marked(DataCollatorForSeq2Seq):
        calls = 0

        def __call__(self, features: Any, return_tensors: Any = None) -> Any:
            type(self).calls += 1
            return super().__call__(features, return_tensors)

    data = tiny.pairs("bart", 4)
    given = Marked(tiny.tokenizer(), model=None, pad_to_multiple_of=16)
    for collator in (given, PairCollator(given)):
        made = tiny.trainer(tmp_path, "bart", data, data_collator=collator)
        (batch,) = batches_of(made)
        assert batch["input_ids"].shape[-1] == 16
        assert made.data_collator.base_collator is given
    made.evaluate_pairs(data, evaluator=lambda p, r: [True] * len(p), intervals=False, max_new_tokens=2)
    assert Marked.calls == 2 + 2  # two for training, and batches of 4 and 3 views at generation


def test_a_custom_tokenizer_decodes_predictions_and_references(tmp_path: Path) -> None:
    class Shouting(type(tiny.tokenizer())):  # type: ignore[misc]
        def batch_decode(self, *args: Any, **kwargs: Any) -> list[str]:
            return [text.upper() + "!" for text in super().batch_decode(*args, **kwargs)]

    known = tiny.tokenizer()
    shouting = Shouting(
        tokenizer_object=known.backend_tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
    )
    made = tiny.trainer(tmp_path, "bart", None, processing_class=shouting)
    seen: list[str] = []

    def look(predictions: list[str], references: list[str]) -> list[bool]:
        seen.extend([*predictions, *references])
        return [True] * len(predictions)

    made.evaluate_pairs(tiny.pairs("bart", 3), evaluator=look, intervals=False, max_new_tokens=2)
    assert all(text == text.upper() and text.endswith("!") for text in seen)
    assert any("W" in text for text in seen)


# ---- dropout: R > 0 for identical views, and a warning ----


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the messages of the loggers of a training."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keep()
    for name in ("trainer", "checks", "loading", "lambda_control"):
        logger = logging.getLogger(f"dair_hf.training.{name}")
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
    return found


def twins(kind: str) -> datasets.Dataset:
    """Return pairs of equal views."""
    rows = tiny.pairs(kind, 7)
    for name in ("input_ids", "attention_mask", "labels"):
        rows = rows.remove_columns(f"augmented_{name}").add_column(f"augmented_{name}", rows[name][:])
    return rows


@pytest.mark.parametrize(("kind", "name"), [("t5", "dropout=0.1"), ("gpt2", "drop=0.1")])
def test_dropout_makes_identical_views_differ_and_is_warned_of_once(
    tmp_path: Path, said: list[str], kind: str, name: str
) -> None:
    settings = {"num_train_epochs": 1, "logging_strategy": "steps", "logging_steps": 1}
    made = tiny.trainer(tmp_path, kind, twins(kind), built=tiny.model(kind, dropout=0.1), **settings)
    made.train()
    made.train()
    assert [log["consistency"] > 0 for log in made.state.log_history if "loss" in log] == [True, True]
    (message,) = [message for message in said if "Dropout is on" in message]
    assert name in message
    assert "R is above 0 even for identical views" in message
    assert "Set pair_dropout='shared'" in message


@pytest.mark.parametrize(("is_noisy", "warnings"), [(False, 0), (True, 1)])
def test_auto_that_lowers_its_target_is_warned_of_once(
    tmp_path: Path, said: list[str], is_noisy: bool, warnings: int
) -> None:
    settings = {**points.STANDSTILL, "lambda_warmup_steps": 0 if is_noisy else 12, "logging_steps": 6}
    trainer = points.trainer(tmp_path, points.noisy(256) if is_noisy else points.pairs(256), **settings)
    for _ in range(2):  # once in each run
        said.clear()
        points.from_zero(trainer)
        trainer.train()
        found = [message for message in said if "from learning" in message]
        assert len(found) == warnings
        assert all("each step lowers lambda_target (from 2 to " in text for text in found)
