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
from transformers import DataCollatorForSeq2Seq, ViTConfig, ViTForImageClassification

from dair_hf import DAIRConfig, DAIRTrainer, DataError, PairCollator, PairEvaluator, TensorPairs
from dair_hf.training.environments import VREx
from tests.fixtures import points, tiny


def batches_of(trainer: Any) -> list[dict[str, Any]]:
    return list(trainer.get_train_dataloader())


def test_remove_unused_columns_keeps_partners_and_drops_other_columns(tmp_path: Path) -> None:
    data = tiny.pairs("bart", 4)
    for name in ("dialogue_id", "state", "augmented_state"):
        data = data.add_column(name, ["a"] * 4)
    made = tiny.trainer(tmp_path, "bart", data)
    assert made.args.remove_unused_columns
    (batch,) = batches_of(made)
    assert set(batch) == {"input_ids", "attention_mask", "labels", "view_mask", "row_id", "layout"}
    assert batch["labels"].shape[:2] == (4, 2)
    assert int(batch["view_mask"].sum()) == 7


def test_erm_neither_reads_nor_collates_partners(tmp_path: Path) -> None:
    (batch,) = batches_of(tiny.trainer(tmp_path, "bart", tiny.pairs("bart", 4), method="erm"))
    assert batch["view_mask"].tolist() == [[True]] * 4


def test_the_nan_filter_is_off_and_cannot_be_set(tmp_path: Path) -> None:
    assert tiny.config(tmp_path).logging_nan_inf_filter is False
    with pytest.raises(ValueError, match="logging_nan_inf_filter=True would hide a non-finite loss"):
        tiny.config(tmp_path, logging_nan_inf_filter=True)


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


@pytest.mark.parametrize("as_stream", [False, True])
def test_a_run_without_targets_raises_an_error(tmp_path: Path, as_stream: bool) -> None:
    data = truncated(tiny.pairs("gpt2", 4, partner=lambda row: False), {0, 1, 2, 3})
    made = tiny.trainer(
        tmp_path, "gpt2", data.to_iterable_dataset() if as_stream else data, method="erm", max_steps=3, save_steps=1
    )
    with pytest.raises(DataError, match="train_dataset"):
        made.train()


@pytest.mark.parametrize("workers", [0, 2])
def test_sharded_streams_with_workers_train_every_row_once(tmp_path: Path, workers: int) -> None:
    rows = list(tiny.pairs("gpt2", 11))
    shards = [rows[:3], rows[3:6], rows[6:9], rows[9:]]
    stream = datasets.IterableDataset.from_generator(from_shards, gen_kwargs={"shards": shards})
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "dataloader_num_workers": workers}
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


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "bart"])
def test_accuracy_is_that_of_generated_answers(tmp_path: Path, kind: str) -> None:
    """Train until greedy answers are correct, then generate the answer to a new prompt."""
    data = tiny.pairs(kind, 6, target_lengths=(1, 2), partner=lambda row: row == 0)
    made = tiny.trainer(tmp_path, kind, data, num_train_epochs=60, learning_rate=2e-2, method="da")

    def same(predictions: list[str], references: list[str]) -> list[bool]:
        assert all(isinstance(prediction, str) for prediction in predictions)
        return [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]

    before = made.evaluate_pairs(data, evaluator=same, intervals=False)
    made.train()
    after = made.evaluate_pairs(data, evaluator=same, intervals=False)
    assert before["original_accuracy"] < 0.5
    assert after["original_accuracy"] == after["augmented_accuracy"] == 1.0
    assert (after["cm_numerator"], after["cm_denominator"]) == (1, 1)  # one row has a partner
    assert (after["cm_all_rows_numerator"], after["cm_all_rows_denominator"]) == (6, 6)


def test_several_gpus_in_one_process_are_refused_naming_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DAIRConfig, "n_gpu", 2)
    with pytest.raises(
        ValueError, match="2 GPUs are visible to one process.*DataParallel.*`accelerate launch`, or set CUDA_"
    ):
        tiny.trainer(tmp_path, "gpt2", None)


def test_a_stream_trains_on_whole_pairs_like_a_data_set(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 9)
    settings = {"max_steps": 6, "num_train_epochs": 1, "train_sampling_strategy": "sequential"}
    stored = tiny.trained(tmp_path, "gpt2", data, **settings)
    streamed = tiny.trained(tmp_path, "gpt2", data.to_iterable_dataset(), **settings)
    assert tiny.distance(stored, streamed) == 0.0
    batches = batches_of(tiny.trainer(tmp_path, "gpt2", data.to_iterable_dataset(), **settings))
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


def test_without_a_collator_sequences_are_padded_by_the_tokenizer(tmp_path: Path) -> None:
    (batch,) = batches_of(tiny.trainer(tmp_path, "bart", tiny.pairs("bart", 4), data_collator=None))
    assert batch["input_ids"].shape[:2] == (4, 2)


# ---- dropout: R > 0 for identical views, and a warning ----


def twins(kind: str) -> datasets.Dataset:
    """Return rows whose partner is the row itself."""
    data = tiny.pairs(kind, 8, partner=lambda row: False)
    names = [name for name in data.column_names if not name.startswith("augmented_") and name != "row_id"]
    data = data.select_columns(["row_id", *names])
    return datasets.Dataset.from_dict({**data[:], **{f"augmented_{name}": data[name][:] for name in names}})


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


@pytest.mark.parametrize(("kind", "name"), [("t5", "dropout=0.1"), ("bart", "dropout=0.1"), ("gpt2", "drop=0.1")])
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


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            {"lambda_target": 4.0},
            "lambda_target=4: no effect with dair_lambda=0.5; set dair_lambda='auto', or leave it",
        ),
        ({"lambda_target": 4.0, "lambda_max": 9.0}, "lambda_target=4, lambda_max=9: no effect with"),
        ({"lambda_target": 4.0, "method": "da"}, None),
        ({"lambda_target": 4.0, "dair_lambda": "auto"}, None),
        ({}, None),
    ],
)
def test_settings_of_auto_beside_a_number_are_warned_of(
    tmp_path: Path, said: list[str], settings: dict[str, Any], warning: str | None
) -> None:
    points.trainer(tmp_path, points.pairs(8), max_steps=1, **settings).train()
    found = [message for message in said if "lambda" in message]
    assert found == [] if warning is None else len(found) == 1 and found[0].startswith(warning)


@pytest.mark.parametrize(("is_noisy", "warnings"), [(False, 0), (True, 1)])
def test_auto_that_lowers_its_target_is_warned_of_once(
    tmp_path: Path, said: list[str], is_noisy: bool, warnings: int
) -> None:
    settings = {**points.STANDSTILL, "lambda_warmup_steps": 0 if is_noisy else None}
    trainer = points.trainer(tmp_path, points.noisy(256) if is_noisy else points.pairs(256), **settings)
    for _ in range(2):  # once in each run
        said.clear()
        points.from_zero(trainer)
        trainer.train()
        found = [message for message in said if "R may keep it from learning" in message]
        assert len(found) == warnings
        assert all("each step lowers lambda_target (from 2 to " in text for text in found)


@pytest.mark.parametrize("has_targets", [False, True])
def test_pairs_without_targets_in_both_views_are_warned_of_once(
    tmp_path: Path, said: list[str], has_targets: bool
) -> None:
    rows = [dict(row) for row in tiny.pairs("gpt2", 6)]
    for row in rows:
        if row["augmented_labels"] is not None and not has_targets:
            row["augmented_labels"] = [-100] * len(row["augmented_labels"])
    tiny.trainer(tmp_path, "gpt2", datasets.Dataset.from_list(rows), num_train_epochs=2).train()
    found = [message for message in said if "has a target in both views" in message]
    assert len(found) == (not has_targets)


@pytest.mark.parametrize("regularizer", ["sq", "kl"])
def test_dropout_is_warned_of_with_every_method_that_uses_r(tmp_path: Path, said: list[str], regularizer: str) -> None:
    settings = {"method": "trades", "regularizer": regularizer, "max_steps": 1}
    tiny.trainer(tmp_path, "gpt2", twins("gpt2"), built=tiny.model("gpt2", dropout=0.1), **settings).train()
    assert any("Dropout is on" in message for message in said)


@pytest.mark.parametrize(("dropout", "method"), [(0.0, "dair"), (0.1, "da")])
def test_no_warning_without_dropout_or_without_r(tmp_path: Path, said: list[str], dropout: float, method: str) -> None:
    settings = {"num_train_epochs": 1, "logging_strategy": "steps", "logging_steps": 1, "method": method}
    made = tiny.trainer(tmp_path, "gpt2", twins("gpt2"), built=tiny.model("gpt2", dropout=dropout), **settings)
    made.train()
    assert not [message for message in said if "ropout" in message]
    if dropout == 0.0:
        assert [log["consistency"] for log in made.state.log_history if "loss" in log] == pytest.approx(
            [0, 0], abs=1e-12
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"report_to": "tensorbord"}, "the trainer cannot be set up: tensorbord is not supported, only "),
        ({"fsdp": "full_shard"}, "the trainer cannot be set up: Using fsdp only works in distributed training"),
        (
            {"eval_strategy": "steps", "eval_steps": 1},
            "the trainer cannot be set up: You have set .*eval_strategy. to ",
        ),
    ],
)
def test_settings_that_transformers_refuses_are_data_errors(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 2), **settings)


def test_a_model_that_is_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="model is a str, 't5-small'; load it first, for example with AutoModel"):
        tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 2), model="t5-small")


def test_losses_without_a_gradient_are_refused(tmp_path: Path) -> None:
    def fixed(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return outputs.logits.detach().flatten(1).abs().sum(1)

    data = tiny.pairs("gpt2", 2)
    with pytest.raises(DataError, match="^sample_loss=fixed returned losses without a gradient.*leave out `detach`"):
        tiny.trainer(tmp_path, "gpt2", data, sample_loss=fixed).train()

    def constant(outputs: Any, step: int) -> torch.Tensor:
        return outputs.terms.original.mean().detach()

    with pytest.raises(DataError, match="^objective=constant returned a loss without a gradient.*leave out `detach`"):
        tiny.trainer(tmp_path, "gpt2", data, objective=constant).train()
    frozen = tiny.model("gpt2")
    frozen.requires_grad_(False)
    with pytest.raises(DataError, match="no weight of the model is trained; set requires_grad"):
        tiny.trainer(tmp_path, "gpt2", data, built=frozen).train()


def test_clusters_and_subsets_are_checked_before_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny.pairs("gpt2", 2)
    made = tiny.trainer(tmp_path, "gpt2", data)
    monkeypatch.setattr(made, "_predictor", lambda: pytest.fail("too late"))

    def same(predictions: list[str], references: list[str]) -> list[bool]:
        return [True] * len(predictions)

    with pytest.raises(DataError, match="clusters='nope': the data have no such column, only .*'input_ids'"):
        made.evaluate_pairs(data, PairEvaluator(same, clusters="nope"))
    with pytest.raises(DataError, match="subsets is a list"):
        made.evaluate_pairs(data, same, subsets=[[True, False]])


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="notes.txt: cannot write there"):
        tiny.trainer(tmp_path / "notes.txt", "gpt2", tiny.pairs("gpt2", 2))


@pytest.mark.parametrize("as_tensors", [False, True])
def test_data_without_an_input_of_the_model_are_refused(tmp_path: Path, as_tensors: bool) -> None:
    """The model would fail within, at None."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes))
    images, labels = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    views = [{name: images, "labels": labels} for name in ("pixels", "pixel_values")]
    columns = {"image": [[0]] * 4, "labels": [0] * 4, "augmented_image": [[1]] * 4, "augmented_labels": [0] * 4}
    wrong = TensorPairs(views[0], views[0]) if as_tensors else datasets.Dataset.from_dict(columns)
    made = DAIRTrainer(model, tiny.config(tmp_path, max_steps=1), train_dataset=wrong)
    with pytest.raises(DataError, match="none of them is an input of ViTForImageClassification, such as pixel_values"):
        made.train()
    with pytest.raises(DataError, match="^dataset: .* none of them is an input of ViTForImageClassification"):
        made.evaluate_pairs(wrong, lambda predictions, references: predictions == references)
    right = DAIRTrainer(model, tiny.config(tmp_path, max_steps=1), train_dataset=TensorPairs(views[1], views[1]))
    right.train()
    assert right.state.global_step == 1
