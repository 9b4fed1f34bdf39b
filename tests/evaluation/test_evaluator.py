"""PairEvaluator: metrics by hand, subsets, flips, scores, refused values, rules that compare answers, and defaults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
    default_data_collator,
    set_seed,
)

from dair_hf import DAIRConfig, DAIRTrainer, PairEvaluator
from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.evaluation.answers import MATCHES, absolute_errors, matches, same_classes, same_numbers
from dair_hf.evaluation.views import PairIndex, PairViews
from dair_hf.training.checks import check_best_metric
from tests.fixtures import tiny

# Three rows; rows 0 and 2 have partners, so views 3 and 4 are theirs.
ROWS: dict[str, list[Any]] = {"row_id": ["a/0", "a/1", "b/0"], "x": [1, 2, 3], "augmented_x": [4, None, 6]}
DIALOGUES = ["a", "a", "b"]


def views() -> PairViews:
    return PairViews(datasets.Dataset.from_dict(ROWS))


def evaluated(
    correct: Any,
    index: PairIndex | None = None,
    *,
    answers: Sequence[Any] | None = None,
    scores: dict[str, Any] | None = None,
    accuracy_name: str = "accuracy",
    references: list[Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Return metrics of views with given correctness, answers and scores."""
    evaluator = PairEvaluator(
        lambda predictions, references: correct,
        None if answers is None else lambda predictions: answers,
        {name: lambda predictions, references, values=values: values for name, values in (scores or {}).items()},
        accuracy_name=accuracy_name,
    )
    index = views() if index is None else index
    settings["masks"] = evaluator._masks(settings.pop("subsets", {}), index.n_rows)
    return evaluator.evaluate_views(index, [], references or [None] * len(index), **settings).metrics


def test_lists_of_predictions_are_evaluated_like_views_of_a_data_set() -> None:
    evaluator = PairEvaluator(
        lambda predictions, references: [p == r for p, r in zip(predictions, references, strict=True)]
    )
    found = evaluator(["a", "x", "c"], ["q", None, "C"], ["a", "b", "c"], ["A", None, "C"], clusters=DIALOGUES)
    expected = evaluated([True, False, True, False, True], clusters=DIALOGUES, references=["a", "b", "c", "A", "C"])
    assert found == pytest.approx(expected, nan_ok=True)
    same = evaluator(["a", "x"], ["a", "b"], ["a", "b"], intervals=False)  # the same references for both views
    assert (same["original_accuracy"], same["augmented_accuracy"], same["cm"]) == (0.5, 1.0, 1.0)
    named = {"row_ids": ["r0", "r1"], "intervals": False}
    with pytest.raises(DataError, match=r"correct: row 'r1' \(augmented view\)"):
        PairEvaluator(lambda predictions, references: [1, 0, 1, 0.5])(["a", "b"], ["c", "d"], ["a", "b"], **named)


@pytest.mark.parametrize(
    ("correct", "settings", "named"),
    [
        ([1, 0, 1, 0.1, 1], {}, r"correct: row 'a/0' \(augmented view\)"),
        (["no"] * 5, {}, r"correct: row 'a/0' \(original view\)"),
        ([1, 1, 1, 1, 1, 7], {}, "correct: value 5"),
        ([True] * 4, {}, "correct: "),
        (np.ones((5, 1)), {}, "correct: "),
        ([True] * 5, {"scores": {"soft": [0.1, 0.2]}}, "scores.'soft'"),
        ([True] * 5, {"subsets": {"odd": [1, 0]}}, "subsets: .*'odd': 2"),
        ([True] * 5, {"subsets": {"odd": [1, 0, 2]}}, "subsets.'odd'.: row 2"),
        ([True] * 5, {"scores": {"accuracy": [0.5] * 5}}, "scores: 'accuracy': .*'augmented_accuracy'"),
        ([True] * 5, {"scores": {"accuracy_low": [0.5] * 5}}, "scores: 'accuracy_low'"),
        ([True] * 5, {"scores": {"soft": [0.5] * 5, "soft_low": [0.5] * 5}}, "scores: 'soft_low'"),
        ([True] * 5, {"subsets": {"long": [1, 1, 1], "cm_all": [1, 1, 1]}}, "subsets: 'cm_all': .*'cm_all_rows'"),
        ([True] * 5, {"subsets": {"neg_to_neg": [1, 1, 1]}, "answers": ["a"] * 5}, "'neg_to_neg_flipped'"),
        ([True] * 5, {"subsets": {"reverse": [1, 1, 1]}}, "'reverse_cm'"),
        ([True] * 5, {"subsets": {"a": [1, 1, 1], "a_cm_all": [1, 1, 1]}}, "'a_cm_all_rows'"),
    ],
)
def test_values_and_names_that_would_be_lost_are_refused(correct: Any, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        evaluated(correct, **settings)


def test_names_are_those_of_an_evaluator() -> None:
    settings: dict[str, Any] = {"accuracy_name": "joint_goal_accuracy", "intervals": False}
    renamed = evaluated([True] * 5, scores={"accuracy": [0.5] * 5}, **settings)
    assert (renamed["original_joint_goal_accuracy"], renamed["original_accuracy"]) == (1.0, 0.5)
    assert evaluated([True] * 5, subsets={"neg_to_neg": [1, 1, 1]}, intervals=False)["neg_to_neg_cm"] == 1.0
    with pytest.raises(DataError, match="evaluator: "):
        PairEvaluator("accuracy")  # type: ignore[arg-type]


def test_flips_of_answers_and_graded_scores_by_hand() -> None:
    # Answers: originals a, b, c; partners of row 0: b (changed), of row 2: c (the same, both correct).
    correct = [False, True, True, False, True]
    scores = {"soft": [0.3, 1.0, 0.9, 0.0, 0.6]}
    found = evaluated(correct, answers=["a", "b", "c", "b", "c"], scores=scores, intervals=False)
    assert (found["flipped"], found["neg_to_neg_flipped"], found["neg_to_neg"]) == (1 / 2, 1 / 2, 1 / 2)
    # Row 1 has no partner and repeats its original.
    assert found["original_soft"] == pytest.approx((0.3 + 1.0 + 0.9) / 3)
    assert found["augmented_soft"] == pytest.approx((0.0 + 1.0 + 0.6) / 3)
    same = evaluated(correct, answers=["a", "b", "c", "a", "c"], intervals=False)
    assert (same["flipped"], same["neg_to_neg_flipped"], same["neg_to_neg"]) == (0.0, 0.0, 1 / 2)
    assert "flipped" not in evaluated(correct, intervals=False)


def test_intervals_of_all_ratios_or_of_none() -> None:
    settings: dict[str, Any] = {"scores": {"soft": [0.3, 1.0, 0.9, 0.0, 0.6]}, "subsets": {"long": [True, False, True]}}
    without, found = (evaluated([True, True, False, True, False], **settings, intervals=i) for i in (False, True))
    limits = {key for key in found if key.endswith(("_low", "_high"))}
    assert {"original_soft_low", "long_augmented_soft_high", "cm_low"} <= limits
    assert without.keys() == found.keys() - limits


def test_subsets_have_the_same_metrics() -> None:
    correct, answers = [True, True, False, True, False], ["a", "b", "c", "d", "c"]
    soft = [1.0, 0.5, 0.0, 0.5, 0.0]
    settings: dict[str, Any] = {"answers": answers, "scores": {"soft": soft}, "clusters": DIALOGUES}
    masks = {"all": [1, 1, 1], "first": [True, False, True], "none": np.zeros(3, dtype=bool)}
    with pytest.warns(UndefinedMetricWarning, match="none of 0 rows"):
        found = evaluated(correct, subsets=masks, **settings)
    whole = evaluated(correct, **settings)
    assert {key: found[key] for key in whole} == pytest.approx(whole, nan_ok=True)
    assert {key: found[f"all_{key}"] for key in whole} == pytest.approx(whole, nan_ok=True)
    first = [0, 2, 3, 4]  # the views of its rows
    kept = evaluated(
        [correct[view] for view in first],
        PairViews(views().dataset.select([0, 2])),
        answers=[answers[view] for view in first],
        scores={"soft": [soft[view] for view in first]},
        clusters=["a", "b"],
    )
    assert {key: found[f"first_{key}"] for key in kept} == pytest.approx(kept, nan_ok=True)
    assert (found["none_rows"], found["none_pairs"]) == (0, 0)
    assert math.isnan(found["none_cm"])


EMPTY: dict[str, list[str]] = {}
STATES = [{"hotel-name": ["a", "the a"]}, {"hotel-area": ["east"]}, {}]
OF_PARTNERS = [{"hotel-name": ["x", "the x"]}, {"hotel-area": ["east"]}, {}]


@pytest.mark.parametrize("answer", ["nothing", "alike", "original"])
@pytest.mark.parametrize(
    ("references", "augmented"),
    [
        ([EMPTY, *STATES] * 20, [EMPTY, *OF_PARTNERS] * 20),
        ([["4", "four"], ["5"]] * 40, [["3", "three"], ["5"]] * 40),
        ([1.5, 2.0, 3] * 30, [1.5, 2.5, 3.0] * 30),
        ([np.array([1, 2]), np.array([1, 2])] * 20, [np.array([1, 2]), np.array([2, 1])] * 20),
        ([torch.tensor(1), torch.tensor(0)] * 20, [torch.tensor(1), torch.tensor(1)] * 20),
    ],
)
def test_cm_is_over_the_pairs_whose_answer_changes(references: list[Any], augmented: list[Any], answer: str) -> None:
    """Against counts in plain Python; clusters, so that the intervals of the two kinds are compared as well."""
    given = {"nothing": {}, "alike": references[-1]}

    def text(value: Any) -> str:
        return str(value.tolist() if hasattr(value, "tolist") else float(value) if isinstance(value, int) else value)

    def correct(predictions: list[Any], wanted: list[Any]) -> list[bool]:
        return [text(one) == text(other) for one, other in zip(predictions, wanted, strict=True)]

    evaluator = PairEvaluator(correct)
    before = references if answer == "original" else [given[answer]] * len(references)
    after = before
    clusters = [str(row // 5) for row in range(len(references))]
    found = evaluator(before, after, references, augmented, clusters=clusters)
    counts = {True: [0, 0], False: [0, 0]}
    rows: dict[bool, list[int]] = {True: [], False: []}
    for row, (prediction, one, other) in enumerate(zip(before, references, augmented, strict=True)):
        changes = text(one) != text(other)
        rows[changes].append(row)
        right = text(prediction) == text(one)
        counts[changes][0] += right and text(prediction) == text(other)
        counts[changes][1] += right
    for key, changes in (("cm", True), ("cm_same_answer", False)):
        top, bottom = counts[changes]
        assert (found[f"{key}_numerator"], found[f"{key}_denominator"]) == (top, bottom)
        assert found[key] == pytest.approx(top / bottom if bottom else math.nan, nan_ok=True)
        alone = evaluator(
            *([values[row] for row in rows[changes]] for values in (before, after, references, augmented)),
            clusters=[clusters[row] for row in rows[changes]],
        )
        for limit in ("low", "high"):  # of one kind alone the headline is over all pairs
            assert found[f"{key}_{limit}"] == pytest.approx(alone[f"cm_{limit}"], nan_ok=True)
    assert counts[True][0] == 0  # whoever answers both views alike is never right on both
    assert found["cm_all_rows_numerator"] == sum(top for top, _ in counts.values())


def test_a_subset_without_changed_answers_has_no_cm() -> None:
    """Whether answers change is a matter of the whole data: otherwise a subset would have another CM."""
    evaluator = PairEvaluator(same_classes)
    found = evaluator([1, 1], [1, 0], [1, 1], [1, 0], subsets={"same": [True, False]}, intervals=False)
    assert (found["cm"], found["cm_same_answer"], found["same_cm_same_answer"]) == (1.0, 1.0, 1.0)
    assert math.isnan(found["same_cm"]) and found["same_cm_denominator"] == 0
    invariant = evaluator([1, 1], [1, 0], [1, 1], subsets={"first": [True, False]}, intervals=False)
    assert (invariant["cm"], invariant["first_cm"]) == (0.5, 1.0) and "cm_same_answer" not in invariant


@pytest.mark.parametrize("name", ["references", "augmented_predictions", "augmented_references", "clusters", "row_ids"])
@pytest.mark.parametrize("values", [["u"], list("uuvwxyz")], ids=len)
def test_lists_of_other_than_all_rows_are_refused(name: str, values: list[str]) -> None:
    """Also surplus ones, which may be those of other rows in between."""

    def refuse_to_compare(predictions: list[Any], references: list[Any]) -> list[bool]:
        raise AssertionError("compared before the lengths were checked")

    lists: dict[str, Any] = {"predictions": list("abcd"), "augmented_predictions": list("abxd"), "references": "abcd"}
    with pytest.raises(DataError, match=f"{name}.*: {len(values)}"):
        PairEvaluator(refuse_to_compare)(**{**lists, name: values})
    equal = PairEvaluator(lambda predictions, references: list(map(str.__eq__, predictions, references)))
    metrics = equal(**lists, clusters=np.array(list("uuvw")))
    assert metrics["original_accuracy"] == 1.0 and metrics["both_correct"] == 0.75


@pytest.mark.parametrize(
    ("rule", "answer", "reference", "right"),
    [
        ("exact", " Paris\n is ", "Paris is", True),
        ("exact", "paris", "Paris", False),
        ("exact", "Paris.", "Paris", False),
        ("exact", "", "", True),
        ("ignore-case", "PARIS ", "Paris", True),
        ("ignore-case", "Paris!", "Paris", False),
        ("first-line", "\n\n Paris \nQuestion: Rome?", "Paris", True),
        ("first-line", "It is Paris\nParis", "Paris", False),
        ("last-number", "3 + 4 = 7.", "#### 7", True),
        ("last-number", "so 1,000.00", "1000", True),
        ("last-number", "7-3", "3", True),
        ("last-number", "x = -3", "3", False),
        ("last-number", "(-3)", "-3", True),
        ("last-number", "so \u22123", "-3", True),
        ("last-number", "-$1,000", "-1000", True),
        ("last-number", ".5", "0.5", True),
        ("last-number", "2e5", "1e5", False),
        ("last-number", ".5e4", "5000", True),
        ("last-number", f"1e{'9' * 30}", "5", False),
        ("last-number", "1,2", "2", True),
        ("last-number", "no idea", "2", False),
    ],
)
def test_rules(rule: str, answer: str, reference: str, right: bool) -> None:
    assert matches(rule, [answer], [reference]) == [right]


def test_numbers_are_exact() -> None:
    assert MATCHES["last-number"].key("12345678901234567890.1") == Decimal("12345678901234567890.1")
    assert MATCHES["last-number"].key("") is None


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match=r"match last-number: .*'none'"):
        matches("last-number", ["1", "2"], ["1", "none"])
    with pytest.raises(DataError, match="NaN"):
        same_classes([[float("nan"), 1.0]], [1])


def test_a_class_is_right_for_every_kind_of_classifier() -> None:
    tokens = [np.array([3, 4, 9]), np.array([3, 5])]
    assert same_classes(tokens, [[3, 4], [3, -100]]).tolist() == [True, True]
    assert same_classes(tokens, [[3, 5], [-100, 4]]).tolist() == [False, False]
    assert same_classes(tokens, [[-100, -100], [-100, 5]]).tolist() == [False, True]
    several = [np.array([2.0, -1.0, 0.1]), np.array([2.0, -1.0, -0.1])]
    assert same_classes(several, [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]).tolist() == [True, False]
    scores = [[0.0, 0.3, 1.0], [0.0, 0.0, 0.0]]
    assert same_classes([2, 0], scores).tolist() == [True, False]
    assert same_classes([1, 1], scores).tolist() == [False, False]


def test_a_number_is_right_within_the_tolerance() -> None:
    predictions = [[1.0], [1.5], [1.75], [-9.0]]
    assert same_numbers(predictions, [1.0] * 4, 0.5).tolist() == [True, True, False, False]
    assert absolute_errors(predictions, [1.0] * 4).tolist() == [0.0, 0.5, 0.75, 10.0]
    # A tenth of the standard deviation of -1 and 1 is 0.1.
    assert same_numbers([-1.09, 1.11], [-1.0, 1.0]).tolist() == [True, False]
    assert absolute_errors([[1.0, 2.0]], [[2.0, 4.0]]).tolist() == [1.5]
    assert not same_numbers([float("nan")], [1.0], 9.0).any()


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
COUNT = 12


def bert(kind: type, **settings: Any) -> Any:
    return kind(BertConfig(vocab_size=tiny.VOCAB, **SIZES, **settings))


def audio() -> Any:
    layers = {"conv_dim": (4,), "conv_stride": (4,), "conv_kernel": (4,), "num_feat_extract_layers": 1}
    other = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 4}
    return Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(num_labels=3, mask_time_prob=0.0, **SIZES, **layers, **other)
    )


def made(kind: str) -> tuple[Any, list[Any], Any]:
    """The model, the labels of the rows, and what one row's logits and label make right."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 3, COUNT).tolist()
    if kind == "audio":
        return audio(), classes, lambda logits, label: logits.argmax() == label
    if kind == "text":
        return bert(BertForSequenceClassification, num_labels=3), classes, lambda z, y: z.argmax() == y
    if kind == "several":
        labels = random.integers(0, 2, (COUNT, 2)).astype(float).tolist()
        model = bert(BertForSequenceClassification, num_labels=2, problem_type="multi_label_classification")
        return model, labels, lambda z, y: [float(value > 0) for value in z] == y
    if kind == "number":
        labels = random.normal(size=COUNT).tolist()
        return bert(BertForSequenceClassification, num_labels=1), labels, lambda z, y: abs(float(z[0]) - y) <= 0.1
    labels = [[-100, *random.integers(0, 2, 2).tolist()] for _ in range(COUNT)]
    model = bert(BertForTokenClassification, num_labels=2)
    return model, labels, lambda z, y: z.argmax(-1)[1:].tolist() == y[1:]


@pytest.mark.parametrize("kind", ["audio", "text", "several", "number", "tokens"])
def test_no_evaluator_is_needed(tmp_path: Path, kind: str) -> None:
    set_seed(0)
    model, labels, is_right = made(kind)
    random = np.random.default_rng(1)
    if kind == "audio":
        name, views = "input_values", random.normal(size=(2, COUNT, 64)).astype(np.float32)
    else:
        name, views = "input_ids", random.integers(4, tiny.VOCAB, (2, COUNT, 3))
    if kind == "number":  # the standard deviation of the references of both views is 1
        labels = ((np.array(labels) - np.mean(labels)) / np.std(labels)).tolist()
    table = {name: views[0].tolist(), f"augmented_{name}": views[1].tolist(), "labels": labels}
    tokenizer = tiny.tokenizer()
    collator = DataCollatorForTokenClassification(tokenizer) if kind == "tokens" else default_data_collator
    args = DAIRConfig(str(tmp_path), use_cpu=True, report_to="none", per_device_eval_batch_size=5, disable_tqdm=True)
    if kind == "tokens":
        table["augmented_labels"] = labels
    trainer = DAIRTrainer(model, args, data_collator=collator, eval_dataset=datasets.Dataset.from_dict(table))
    model.eval()
    with torch.no_grad():
        logits = [model(**{name: torch.from_numpy(view)}).logits for view in views]
    right = [[bool(is_right(z, y)) for z, y in zip(of_view, labels, strict=True)] for of_view in logits]
    found = trainer.evaluate_pairs(intervals=False)
    assert (found["original_accuracy"], found["augmented_accuracy"]) == (np.mean(right[0]), np.mean(right[1]))
    assert found["cm_numerator"] == np.logical_and(*right).sum()
    if kind == "number":
        errors = [np.abs(z[:, 0].numpy() - labels).mean() for z in logits]
        assert [found["original_mae"], found["augmented_mae"]] == pytest.approx(errors, rel=1e-6)
    metrics = trainer.evaluate()
    assert metrics["eval_both_correct"] == found["both_correct"] == np.logical_and(*right).mean()


@pytest.mark.parametrize("metric", ["original_mae", "eval_augmented_mae", "a_original_mae"])
def test_a_small_error_of_a_regression_is_the_best(tmp_path: Path, metric: str) -> None:
    args = DAIRConfig(str(tmp_path), report_to="none", use_cpu=True, metric_for_best_model=metric)
    evaluator = PairEvaluator(same_numbers, scores={"mae": absolute_errors})
    check_best_metric(args, evaluator, {"a": None} if metric.startswith("a_") else None, makes_metrics=False)
    assert args.greater_is_better is False


def test_the_direction_of_a_score_must_be_given(tmp_path: Path) -> None:
    args = DAIRConfig(str(tmp_path), report_to="none", use_cpu=True, metric_for_best_model="original_error")
    evaluator = PairEvaluator(same_numbers, scores={"error": absolute_errors})
    with pytest.raises(DataError, match="greater_is_better"):
        check_best_metric(args, evaluator, None, makes_metrics=False)
    args.greater_is_better = False
    check_best_metric(args, evaluator, None, makes_metrics=False)
