"""DAIRTrainer: evaluation, prediction, several runs, adapters, batches and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import default_data_collator

from dair_hf import DAIRTrainer, DataError, PairCollator, PairEvaluator
from dair_hf.data.sampling import PaddedStream
from dair_hf.errors import UndefinedMetricWarning
from dair_hf.losses.per_sample import causal_nll
from dair_hf.training.checks import check_best_metric
from dair_hf.training.environments import GroupDRO
from tests.fixtures import points, tiny
from tests.training.test_invariants import objective_by_hand


def same(predictions: list[Any], references: list[Any]) -> list[bool]:
    """Return the correctness of whole answers."""
    return [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]


EVERY_STEP: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 3}

# ---- evaluation ----


@pytest.mark.parametrize(
    ("kind", "method", "regularizer", "normalization"),
    [
        ("bart", "dair", "sq", "pair"),
        ("gpt2", "dair", "l1", "token"),
        ("bart", "da", "sq", "token"),
        ("gpt2", "erm", "sq", "pair"),
    ],
)
def test_eval_loss_is_the_objective_over_all_rows(
    tmp_path: Path, kind: str, method: str, regularizer: str, normalization: str
) -> None:
    data = tiny.pairs(kind, 11)  # batches of 4, so a mean of batch means would differ
    settings = {"method": method, "regularizer": regularizer, "normalization": normalization, "dair_lambda": 0.7}
    expected = objective_by_hand(tiny.model(kind), kind, data, **settings).item()
    found = tiny.trainer(tmp_path, kind, None, eval_dataset=data, **settings).evaluate()
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-9)
    assert (found["eval_rows"], found["eval_pairs"]) == (11, sum(row % 3 != 1 for row in range(11)))


def test_training_logs_sums_over_the_steps_since_the_last_log(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 9)
    made = tiny.trainer(tmp_path, "gpt2", data, learning_rate=0.0, num_train_epochs=1, **EVERY_STEP)
    made.train()
    (log,) = [log for log in made.state.log_history if "loss" in log]
    settings: dict[str, Any] = {"regularizer": "sq", "normalization": "pair", "dair_lambda": 0}
    originals = objective_by_hand(tiny.model("gpt2"), "gpt2", data, method="erm", **settings).item()
    assert log["loss_original"] == pytest.approx(originals, rel=1e-9)  # 4 + 4 + 1 rows, not a mean of three means
    assert (log["rows"], log["pairs"], log["partner_share"]) == (9, 6, pytest.approx(6 / 9))
    evaluated = made.evaluate(data)
    assert evaluated["eval_consistency"] == pytest.approx(log["consistency"], rel=1e-9)


@pytest.mark.parametrize(("method", "counted"), [("dair", "all"), ("erm", "non_padding"), ("augmented", "non_padding")])
def test_the_input_tokens_seen_are_those_of_the_views_that_were_run(tmp_path: Path, method: str, counted: str) -> None:
    settings = {"method": method, "include_num_input_tokens_seen": counted, "num_train_epochs": 1}
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 8), **settings)
    seen: list[torch.Tensor] = []

    def note(module: nn.Module, args: Any, kwargs: dict[str, torch.Tensor]) -> None:
        if module.training:
            mask = kwargs["attention_mask"]
            seen.append(torch.ones_like(mask).sum() if counted == "all" else mask.sum())

    made.model.register_forward_pre_hook(note, with_kwargs=True)
    made.train()
    assert made.state.num_input_tokens_seen == sum(seen) > 0


def test_evaluate_pairs_by_hand_and_the_predictions_file(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 7)
    made = tiny.trainer(tmp_path, "gpt2", None, eval_dataset=data)
    asked: dict[str, list[str]] = {}

    def first_and_last(predictions: list[str], references: list[str]) -> list[bool]:
        asked.update(predictions=predictions, references=references)
        return [index in (0, 1, 7) for index in range(len(references))]

    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(DataError, match="mine"):
        made.evaluate_pairs(evaluator=first_and_last, predictions_file=tmp_path / "mine.py")
    assert asked == {} and (tmp_path / "mine.py").read_text() == "x = 1\n"
    path = tmp_path / "predictions.jsonl"
    path.touch()
    found = made.evaluate_pairs(evaluator=first_and_last, intervals=False, predictions_file=path, max_new_tokens=3)
    # Rows 0, 2, 3, 5, 6 have partners: views 7 to 11. Right: originals 0 and 1, and the partner of row 0.
    assert (found["rows"], found["pairs"], found["cm_numerator"], found["cm_denominator"]) == (7, 5, 1, 1)
    assert (found["cm_all_rows_numerator"], found["cm_all_rows_denominator"]) == (2, 2)
    assert found["original_accuracy"] == pytest.approx(2 / 7)
    words = [" ".join(f"w{t}" for t in labels if t > tiny.BOS) for labels in data["labels"]]
    assert asked["references"][:7] == words
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["prediction"] for line in lines] == asked["predictions"]
    assert [line["correct"] for line in lines] == [index in (0, 1, 7) for index in range(12)]


@pytest.mark.parametrize(
    ("kind", "batch", "asked", "encoded", "written"),
    [
        ("t5", 2, None, 2, 16),  # eight times
        ("t5", 20, None, 20, 24),  # up to 128: all of them
        ("t5", 2, 7, 2, 7),
        ("gpt2", 2, 7, None, 2),
    ],
)
@pytest.mark.filterwarnings("ignore::dair_hf.errors.UndefinedMetricWarning")  # correctness is not tested
def test_answers_are_generated_in_wider_batches_than_inputs_are_encoded(
    tmp_path: Path,
    kind: str,
    batch: int,
    asked: int | None,
    encoded: int | None,
    written: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dair_hf.evaluation.prediction.MORE_ROWS", 1)
    data = tiny.pairs(kind, 24, partner=lambda row: False)
    sizes = {"per_device_eval_batch_size": batch, "generation_batch_size": asked}
    made = tiny.trainer(tmp_path, kind, None, eval_dataset=data, evaluator=same, **sizes)
    encoders, answers = [], []
    if encoded is not None:
        made.model.get_encoder().register_forward_pre_hook(
            lambda module, args, kwargs: encoders.append(len(kwargs["input_ids"])), with_kwargs=True
        )
    generate = made.model.generate

    def counted(**inputs: Any) -> Any:
        answers.append(len(inputs["attention_mask"]))
        return generate(**inputs)

    monkeypatch.setattr(made.model, "generate", counted)
    made.evaluate_pairs(intervals=False, max_new_tokens=3)
    assert max(answers) == written
    assert max(encoders, default=None) == encoded
    assert encoded is None or sum(encoders) >= 24


def test_evaluation_losses_run_in_batches_of_similar_length(tmp_path: Path) -> None:
    data = tiny.pairs("bart", 30)
    made = tiny.trainer(tmp_path, "bart", None, eval_dataset=data, per_device_eval_batch_size=4)
    widths: list[int] = []
    made.model.get_encoder().register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    made.evaluate()
    longer = [
        max(map(len, filter(None, pair))) for pair in zip(data["input_ids"], data["augmented_input_ids"], strict=True)
    ]
    assert widths == sorted(longer, reverse=True)[::4]
    assert list(made.get_eval_dataloader().sampler) == list(range(30))  # of predictions
    made.args.dataloader_drop_last = True  # dropped rows must not be the shortest
    widths.clear()
    made.evaluate()
    assert widths == [max(longer[start : start + 4]) for start in range(0, 28, 4)]


def test_predictions_and_labels_are_in_the_order_of_the_data(tmp_path: Path) -> None:
    data = tiny.pairs("t5", 7)
    seen: list[Any] = []
    made = tiny.trainer(tmp_path, "t5", None, eval_dataset=data, train_sampling_strategy="group_by_length")
    made._gen_kwargs = {"max_new_tokens": 3}
    made.evaluate(max_new_tokens=3)  # in the order of lengths
    seen.append(made.evaluation_loop(made.get_eval_dataloader(), "Evaluation"))
    made.compute_metrics = lambda prediction: (seen.append(prediction), {"answer": 42.0})[1]
    assert made.evaluate(max_new_tokens=3)["eval_answer"] == 42.0
    output = made.predict(data, max_new_tokens=3)
    assert {"test_loss", "test_answer", "test_loss_augmented"} <= set(output.metrics)
    for found in seen:
        assert [[token for token in row if token != -100] for row in found.label_ids.tolist()] == data["labels"][:]
        np.testing.assert_array_equal(found.predictions, output.predictions)


@pytest.mark.parametrize(("clusters", "is_one_unit"), [(None, True), ("dialogue_id", True), ("row_id", False)])
def test_dialogues_are_the_units_by_default(tmp_path: Path, clusters: str | None, is_one_unit: bool) -> None:
    data = tiny.classified_pairs(4)
    data = data.add_column("dialogue_id", ["d"] * 4)
    model = tiny.NormedClassifier(tiny.NormedConfig())
    made = DAIRTrainer(model, tiny.config(tmp_path), eval_dataset=data, sample_loss="classification")
    evaluator = PairEvaluator(lambda p, r: [row % 2 for row in range(len(p))], clusters=clusters)
    found = made.evaluate_pairs(evaluator=evaluator)
    assert np.isnan(found["original_accuracy_low"]) == is_one_unit


def test_the_predictions_file_contains_answers_instead_of_logits(tmp_path: Path) -> None:
    data = tiny.classified_pairs(4, partner=lambda row: row != 1)
    args, model = tiny.config(tmp_path), tiny.NormedClassifier(tiny.NormedConfig())
    made = DAIRTrainer(model, args, eval_dataset=data, sample_loss="classification")
    kept: list[Any] = []

    def sides(predictions: list[Any]) -> list[str]:
        kept.extend(predictions)
        return ["left", "left", "right", "left", "left", "left", "right"]

    def judge(predictions: list[Any], references: list[Any]) -> list[bool]:
        return [True, True, False, False, False, False, False]

    scores = {"half": lambda predictions, references: [0.5 * right for right in judge(predictions, references)]}
    path = tmp_path / "predictions.jsonl"
    found = made.evaluate_pairs(evaluator=PairEvaluator(judge, sides, scores), intervals=False, predictions_file=path)
    # Views 4 to 6 are the partners of rows 0, 2 and 3. The answers of rows 2 and 3 change, wrong before and after.
    assert (found["flipped"], found["neg_to_neg_flipped"]) == (2 / 3, 2 / 3)
    assert (found["original_half"], found["augmented_half"]) == (1.0 / 4, 0.5 / 4)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["prediction"] for line in lines] == sides([])
    made.evaluate_pairs(evaluator=judge, intervals=False, predictions_file=path)
    assert [json.loads(line)["prediction"] for line in path.read_text().splitlines()] == kept
    with torch.no_grad():
        views = [row["features"] for row in data] + [row["augmented_features"] for row in data if row["row_id"] != "C1"]
        logits = model.eval()(torch.tensor(views)).logits
    assert kept == logits.argmax(1).tolist()  # the class, not the logits
    assert all(isinstance(prediction, np.integer) for prediction in kept)
    with pytest.raises(DataError, match="argmax"):
        made.evaluate_pairs(evaluator=lambda p, r: [np.argmax(one) == label for one, label in zip(p, r, strict=True)])
    made.preprocess_logits_for_metrics = lambda logits, labels: logits
    given: list[Any] = []
    made.evaluate_pairs(evaluator=lambda p, r: given.extend(p) or [True] * 7, intervals=False)  # type: ignore[func-returns-value]
    np.testing.assert_allclose(np.stack(given), logits, rtol=1e-6)
    made.preprocess_logits_for_metrics = lambda logits, labels: (logits.max(1).values, labels)
    found = made.evaluate_pairs(evaluator=lambda p, r: kept.extend(p) or [True] * 7, intervals=False)  # type: ignore[func-returns-value]
    np.testing.assert_allclose([p[0] for p in kept[7:]], logits.max(1).values, rtol=1e-6)
    assert [p[1] for p in kept[7:]] == [0, 1, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("kind", ["classifier", "t5"])
def test_an_original_with_several_edits_is_run_once(tmp_path: Path, kind: str) -> None:
    single = tiny.classified_pairs(3) if kind == "classifier" else tiny.pairs(kind, 3, partner=lambda row: True)
    edits = [0, 1, 0, 2, 0, 1]
    data = datasets.Dataset.from_list([{**single[row], "row_id": f"{row}/{edit}"} for edit, row in enumerate(edits)])
    model = tiny.NormedClassifier(tiny.NormedConfig()) if kind == "classifier" else tiny.model(kind)
    settings = {"sample_loss": "classification", "data_collator": default_data_collator} if kind == "classifier" else {}
    made = tiny.trainer(tmp_path, "t5", None, built=model, eval_dataset=data, **settings)
    runs: list[int] = []
    watched = model if kind == "classifier" else model.get_encoder()
    watched.register_forward_pre_hook(
        lambda module, args, kwargs: runs.append(len(next(iter(kwargs.values())))), with_kwargs=True
    )
    seen: dict[str, list[Any]] = {}

    def judge(predictions: list[Any], references: list[Any]) -> list[bool]:
        seen.update(predictions=predictions, references=references)
        return [True] * len(predictions)

    asked = {} if kind == "classifier" else {"max_new_tokens": 3}
    found = made.evaluate_pairs(evaluator=judge, intervals=False, **asked)
    assert sum(runs) == 3 + 6  # the three originals, and the partner of every row
    assert (found["rows"], found["pairs"]) == (6, 6)
    together = seen["predictions"]
    made.evaluate_pairs(single, evaluator=judge, intervals=False, **asked)
    alone = seen["predictions"]
    assert together == [alone[row] for row in edits] + [alone[3 + row] for row in edits]


def test_the_evaluation_of_views_is_what_pairs_are_measured_by(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path / "out", "t5", None, eval_dataset=tiny.pairs("t5", 5))
    judge = PairEvaluator(
        lambda predictions, references: [len(text) % 2 == 0 for text in predictions],
        answers=lambda predictions: [f"answer: {text}" for text in predictions],
    )
    found = made.evaluate_views(evaluator=judge, max_new_tokens=4)
    assert made.pair_results == {} and not list((tmp_path / "out").glob("*"))
    file = tmp_path / "predictions.jsonl"
    metrics = made.evaluate_pairs(evaluator=judge, predictions_file=file, max_new_tokens=4)
    assert found.metrics == pytest.approx(metrics, nan_ok=True) and set(made.pair_results) == {"evaluation data"}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["prediction"] for line in lines] == found.answers
    assert found.answers == [f"answer: {text}" for text in found.predictions]
    assert [line["correct"] for line in lines] == found.correct.tolist()
    assert len(lines) == len(found.views) == len(found.references) > 5


def evaluated_points(folder: Path, eval_dataset: Any, **settings: Any) -> DAIRTrainer:
    given = {"data_collator": points.stack, "processing_class": None, "sample_loss": "binary", **settings}
    strategies = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best"}
    data = points.pairs(8)
    settings = {**strategies, **given, "built": points.model(), "eval_dataset": eval_dataset}
    return tiny.trainer(folder, "none", data, **settings)


@pytest.mark.parametrize(
    ("prefix", "name", "greater_is_better"),
    [
        ("eval_", "loss_original", False),
        ("eval_a_", "consistency", False),
        ("a_", "inconsistency", False),
        ("eval_", "unlearned_share", False),
        ("", "pos_to_neg", False),
        ("eval_a_", "neg_to_neg", False),
        ("eval_a_", "loss", False),
        ("", "both_correct", True),
        ("eval_a_", "original_accuracy", True),
    ],
)
def test_the_direction_of_its_own_metrics_is_known(
    tmp_path: Path, prefix: str, name: str, greater_is_better: bool
) -> None:
    args = tiny.config(tmp_path, metric_for_best_model=prefix + name, eval_strategy="epoch")
    check_best_metric(args, PairEvaluator(points.correct), {"a": None} if "a_" in prefix else None, False)
    assert args.greater_is_better is greater_is_better


def test_the_smallest_value_of_such_a_metric_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.5, 0.75, 0.25])
    made = evaluated_points(tmp_path, points.pairs(8), metric_for_best_model="inconsistency", max_steps=3)
    evaluate = made._evaluate
    monkeypatch.setattr(made, "_evaluate", lambda *a, **k: evaluate(*a, **k) | {"eval_inconsistency": next(values)})
    made.train()
    assert made.state.best_metric == 0.25


def test_an_evaluation_whose_metric_is_nan_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = points.pairs(8, torch.zeros(8, dtype=torch.bool))
    settings = {"metric_for_best_model": "both_correct", "evaluator": PairEvaluator(points.correct)}
    with pytest.warns(UndefinedMetricWarning):
        evaluated_points(tmp_path, data, **settings).train()
    assert caplog.text.count("eval_both_correct is NaN") == 2


def test_several_evaluation_sets_get_the_arguments_of_generate(tmp_path: Path) -> None:
    sets = {"known": tiny.pairs("t5", 5), "unseen": tiny.pairs("t5", 3, seed=1)}
    lengths: list[int] = []

    def note_length(prediction: Any) -> dict[str, float]:
        lengths.append(prediction.predictions.shape[1])
        return {}

    made = tiny.trainer(tmp_path, "t5", None, eval_dataset=sets, compute_metrics=note_length)
    made.evaluate(max_new_tokens=1)
    made.evaluate(sets, max_new_tokens=1)
    made.evaluate("known", max_new_tokens=1)
    assert len(set(lengths)) == 1 and len(lengths) == 5
    made.evaluate(max_new_tokens=3)
    assert max(lengths[5:]) > lengths[0]


# ---- several runs of one trainer ----


def test_a_batch_size_found_automatically_is_used_by_sampler_and_log(tmp_path: Path) -> None:
    sizes: list[int] = []

    def too_large_at_the_second_batch(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(labels))
        if len(sizes) == 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
        return causal_nll(outputs, labels)

    too_large_at_the_second_batch.shifts_labels = True  # type: ignore[attr-defined]
    data = tiny.pairs("gpt2", 16, partner=lambda row: False)
    made = tiny.trainer(
        tmp_path, "gpt2", data, sample_loss=too_large_at_the_second_batch, method="erm", per_device_train_batch_size=8,
        pair_group_by_length=True, auto_find_batch_size=True, max_steps=3, **EVERY_STEP,
    )  # fmt: skip
    made.train()
    found = made._train_batch_size
    assert sizes[:2] == [8, 8] and sizes[2] == found < 8
    assert made.pair_sampler.batch_size == found
    assert [log["rows"] for log in made.state.log_history if "rows" in log] == [sum(sizes[2:])]


def test_a_trial_with_settings_out_of_range_is_refused(tmp_path: Path) -> None:
    data, given = tiny.pairs("gpt2", 4), {"model": None, "model_init": lambda: tiny.model("gpt2")}
    made = tiny.trainer(tmp_path, "gpt2", data, eval_dataset=data, max_steps=1, **given)
    with pytest.raises(ValueError, match="dair_lambda"):
        made.hyperparameter_search(lambda trial: {"dair_lambda": -3.48}, len, 1, backend="optuna")
    made.args.dair_lambda, made.args.regularizer = 1.0, "kl"
    made.args.chunked_loss = True
    with pytest.raises(ValueError, match="chunked_loss"):
        made.train()


def test_a_search_goes_from_numbers_to_auto_and_back(tmp_path: Path) -> None:
    data, held_out = tiny.pairs("gpt2", 8), tiny.pairs("gpt2", 4)

    def trainer(**settings: Any) -> DAIRTrainer:
        settings |= {"model": None, "model_init": lambda: tiny.model("gpt2")}
        return tiny.trainer(tmp_path, "gpt2", data, eval_dataset=held_out, num_train_epochs=1, **settings)

    found: list[dict[str, float]] = []
    values = [2.0, "auto", "1.5", None]
    trials: list[dict[str, Any]] = [{} if value is None else {"dair_lambda": value} for value in values]
    trials[1] |= {"lambda_target": 8.0}
    made = trainer()
    made.hyperparameter_search(
        hp_space=lambda trial: trials[trial.number],
        compute_objective=lambda metrics: (found.append(metrics), metrics["eval_loss"])[1],
        backend="optuna",
        n_trials=4,
    )
    expected = []
    for value, target in ((2.0, 4.0), ("auto", 8.0), (1.5, 4.0)):
        plain = trainer(dair_lambda=value, lambda_target=target)
        plain.train()
        expected.append(plain.evaluate())
    keys = ("eval_loss", "eval_loss_original", "eval_loss_augmented", "eval_consistency")
    expected.append(expected[-1])
    assert [[one[key] for key in keys] for one in found] == [[one[key] for key in keys] for one in expected]
    assert len({one["eval_loss_original"] for one in expected}) == 3
    assert made.args.dair_lambda == 1.5


def test_a_search_keeps_a_custom_objective(tmp_path: Path) -> None:
    steps: list[int] = []

    def originals(outputs: Any, step: int) -> torch.Tensor:
        steps.append(step)
        return outputs.terms.original.mean()

    made = DAIRTrainer(
        args=tiny.config(tmp_path, method="da", max_steps=2, eval_strategy="steps", eval_steps=1),
        model_init=lambda: points.model(),
        data_collator=points.stack,
        train_dataset=points.pairs(8),
        eval_dataset=points.pairs(8),
        sample_loss="binary",
        objective=originals,
    )
    made.hyperparameter_search(lambda trial: {"learning_rate": 0.1}, len, 2, backend="optuna")
    assert steps == [0, 1, 0, 1]


def test_model_init_resets_the_state_of_an_objective(tmp_path: Path) -> None:
    runs = []
    for times in (1, 2):
        objective, args = GroupDRO(step_size=1.0), tiny.config(tmp_path, method="da", max_steps=2)
        given: dict[str, Any] = {"data_collator": points.stack, "sample_loss": "binary", "objective": objective}
        made = DAIRTrainer(None, args, train_dataset=points.pairs(8), model_init=lambda: points.model(), **given)
        for _ in range(times):
            made.train()
        runs.append(objective.weights.clone())
    assert torch.equal(*runs)
    assert (runs[0] - 0.5).abs().max() > 1e-3


# ---- adapters, forward modes, batches, checkpoints ----


def test_lora_of_an_encoder_decoder_gets_decoder_inputs(tmp_path: Path) -> None:
    built = get_peft_model(
        tiny.model("t5"), LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=4, target_modules=["q", "v"])
    )
    data = tiny.pairs("t5", 5)
    found = tiny.trainer(tmp_path, "t5", data, built=built, eval_dataset=data).evaluate()["eval_loss"]
    plain = tiny.trainer(tmp_path, "t5", data, eval_dataset=data).evaluate()["eval_loss"]
    assert found == pytest.approx(plain, rel=1e-6)  # an untrained adapter adds nothing


def test_broadcasts_of_buffers_follow_the_forward_mode_of_the_run(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 4), max_steps=1)
    for mode, broadcasts in (("joint", True), ("separate", False), ("joint", True)):
        made.args.forward_mode = mode
        made.train()
        assert made.accelerator.ddp_handler.broadcast_buffers is broadcasts


def test_padded_streams_add_rows_that_are_not_counted() -> None:
    rows = list(PaddedStream([{"input_ids": [4], "labels": [5]}] * 3, multiple=2))
    assert [row.get("is_padding_row", False) for row in rows] == [False, False, False, True]
    batch = PairCollator(default_data_collator)(rows)
    assert batch["view_mask"].tolist() == [[True], [True], [True], [False]]
    assert set(batch) == {"input_ids", "labels", "view_mask"}
    assert list(PaddedStream([], multiple=4)) == []
    assert len(list(PaddedStream([{"x": 1}] * 4, multiple=2))) == 4


def test_token_batches_train_every_row_and_resume_bit_for_bit(tmp_path: Path) -> None:
    data = tiny.pairs("gpt2", 23)
    settings = {"max_tokens_per_batch": 40, "logging_strategy": "steps", "logging_steps": 1, "num_train_epochs": 2}
    whole = tiny.trainer(tmp_path / "whole", "gpt2", data, save_strategy="steps", save_steps=4, **settings)
    sizes: list[int] = []
    whole.model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    whole.train()
    logs = [log for log in whole.state.log_history if "rows" in log]
    assert sum(log["rows"] for log in logs) == 2 * 23
    assert max(sizes) <= 40
    assert all(0 <= log["padding_share"] < 1 for log in logs)
    assert len({log["rows"] for log in logs}) > 1
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    resumed = tiny.trainer(tmp_path / "resumed", "gpt2", data, **settings)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert whole.state.global_step == resumed.state.global_step > 5
    assert tiny.distance(tiny.weights(whole.model), tiny.weights(resumed.model)) == 0.0


@pytest.mark.parametrize("settings", [{}, {"share_prefixes": "row_id"}], ids=str)
def test_attention_of_cudnn_is_off_for_rows_of_many_lengths_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    seen: list[bool] = []
    trainer = tiny.trainer(tmp_path, "llama", tiny.pairs("llama", 4), max_steps=1, **settings)
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    trainer.model.register_forward_hook(lambda *forward: seen.append(enabled()))
    trainer.train()
    assert seen[-1] == bool(settings) and enabled()
    seen.clear()
    trainer.evaluate(tiny.pairs("llama", 4))
    assert set(seen) == {False} and enabled()
