"""`DAIRTrainer.pair_report`: losses, ranking, groups and files, for all kinds of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from dair_hf import DataError, EpochPairs, PairEvaluator
from dair_hf.pair_report.build import _curves_of
from dair_hf.pair_report.page import _subtitle_of
from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE, PairReport
from tests.fixtures import points, tiny

pytestmark = pytest.mark.usefixtures("plain_page")


def equal(predictions: list[Any], references: list[Any]) -> list[bool]:
    return [str(p) == str(r) for p, r in zip(predictions, references, strict=True)]


def nll(model: Any, view: dict[str, list[int]]) -> float:
    """Loss of one view of an encoder-decoder, by the model itself: its mean times its tokens."""
    model.eval()
    batch = {name: torch.tensor([values]) for name, values in view.items()}
    with torch.no_grad():
        return float(model(**batch).loss) * len(view["labels"])


def test_losses_are_those_of_the_views_and_the_worst_come_first(tmp_path: Path) -> None:
    data = tiny.pairs("bart", 13)
    trainer = tiny.trainer(tmp_path / "run", "bart", None, method="dair", dair_lambda=3.0)
    report = trainer.pair_report(data, folder=tmp_path, worst=4)
    rows = {row["row_id"]: row for row in data}
    known = {}
    for name, row in rows.items():
        if row["augmented_labels"] is not None:
            views = [
                {c: row[prefix + c] for c in ("input_ids", "attention_mask", "labels")} for prefix in ("", "augmented_")
            ]
            known[name] = [nll(trainer.model, view) for view in views]
    pairs = report.pairs
    assert set(pairs["row_id"]) == set(known) and len(pairs["row_id"]) == len(known) == 9
    losses = np.array([known[name] for name in pairs["row_id"]])
    np.testing.assert_allclose(pairs["loss_original"], losses[:, 0], rtol=1e-9)
    np.testing.assert_allclose(pairs["loss_augmented"], losses[:, 1], rtol=1e-9)
    expected = (losses[:, 0] ** 0.5 - losses[:, 1] ** 0.5) ** 2
    np.testing.assert_allclose(pairs["score"], expected, rtol=1e-7)
    assert pairs["score"] == sorted(pairs["score"], reverse=True)
    np.testing.assert_allclose(report.summary["inconsistency"], expected.sum() / losses.sum() * 2, rtol=1e-9)
    ratio = np.sqrt(losses[:, 1] / losses[:, 0])
    np.testing.assert_allclose(pairs["weight_original"], 0.5 + 3 * (1 - ratio), rtol=1e-5)
    np.testing.assert_allclose(pairs["weight_augmented"], 0.5 + 3 * (1 - 1 / ratio), rtol=1e-5)
    assert [shown["number"] for shown in report.worst] == [0, 1, 2, 3]
    worst = rows[pairs["row_id"][0]]
    decode = trainer.processing_class.decode
    assert report.worst[0]["fields"][0]["original"] == decode(worst["input_ids"], skip_special_tokens=True)
    assert report.worst[0]["fields"][1]["augmented"] == decode(worst["augmented_labels"], skip_special_tokens=True)
    assert PairReport.read(tmp_path / JSON_FILE) == PairReport.from_dict(report.to_dict())


def test_weights_are_those_of_the_trained_objective_in_token_units(tmp_path: Path) -> None:
    """With lambda per token the weight of a pair is lambda times the target tokens of all rows / (2 pairs)."""
    paired = 2
    data = tiny.pairs("bart", 6, partner=lambda row: row < paired)
    settings = {"method": "dair", "dair_lambda": 0.5, "normalization": "token"}
    report = tiny.trainer(tmp_path / "run", "bart", None, **settings).pair_report(data, folder=tmp_path)
    all_labels = [*data["labels"][:], *data["augmented_labels"][:paired]]
    tokens = sum(len(labels) for labels in all_labels) / (2 * paired)
    left, right = np.array(report.pairs["loss_original"]), np.array(report.pairs["loss_augmented"])
    np.testing.assert_allclose(
        report.pairs["weight_original"], 0.5 + 0.5 * tokens * (1 - np.sqrt(right / left)), rtol=1e-5
    )
    assert (report.settings["dair_lambda"], report.settings["normalization"]) == (0.5, "token")


def test_the_history_of_the_training_data_ranks_and_that_of_other_data_does_not(tmp_path: Path) -> None:
    trainer = points.trainer(tmp_path / "run", points.pairs(6), method="da", num_train_epochs=3)
    trainer.train()
    report = trainer.pair_report(folder=tmp_path)
    sums, steps = trainer.pair_history.sums(report.pairs["row_id"])
    final = np.sqrt(report.pairs["loss_original"]) - np.sqrt(report.pairs["loss_augmented"])
    np.testing.assert_allclose(report.pairs["score"], ((sums + final) / 4) ** 2, rtol=1e-6)
    assert report.summary["steps_per_pair"] == 3.0
    other = trainer.pair_report(points.noisy(6), folder=tmp_path)
    assert other.summary["steps_per_pair"] == 0.0
    np.testing.assert_allclose(other.pairs["score"], other.pairs["consistency"])
    assert "weight_original" not in report.pairs, "DA-ERM weighs both views alike"


def test_correctness_answers_and_groups(tmp_path: Path) -> None:
    data = tiny.pairs("bart", 12, partner=lambda row: row != 5)
    trainer = tiny.trainer(tmp_path / "run", "bart", data, method="da", num_train_epochs=12)
    trainer.train()
    kinds = ["a", "b"] * 6
    lines = tmp_path / "lines.jsonl"
    trainer.evaluate_pairs(data, equal, predictions_file=lines, data_name=None)
    assert trainer.pair_results == {}, "a report on the training data is no result for the model card"
    report = trainer.pair_report(None, equal, folder=tmp_path, groups={"kind": kinds})
    assert trainer.pair_results == {}
    views = {(v["row_id"], v["variant"]): v for v in map(json.loads, lines.read_text().splitlines())}
    right = {
        name: [views[name, variant]["correct"] for variant in ("original", "augmented")]
        for name in report.pairs["row_id"]
    }
    assert len({tuple(both) for both in right.values()}) > 1, "the test needs right and wrong answers"
    whole, by_kind = report.correctness[0]["groups"][0], report.correctness[1]
    assert whole["cm_denominator"] == sum(original for original, _ in right.values())
    assert whole["cm_numerator"] == sum(all(both) for both in right.values())
    of_a = [both for name, both in right.items() if kinds[data["row_id"].index(name)] == "a"]
    assert by_kind["name"] == "kind" and by_kind["groups"][0]["pos_to_neg"] == np.mean(
        [b == [True, False] for b in of_a]
    )
    for shown in report.worst:
        name = report.pairs["row_id"][shown["number"]]
        assert shown["correct"] == right[name]
        assert shown["answer"]["augmented"] == views[name, "augmented"]["prediction"]
    assert [entry["name"] for entry in report.losses] == ["kind", "target tokens"]


def test_classes_are_shown_by_name(tmp_path: Path) -> None:
    data = tiny.classified_pairs()
    model = tiny.NormedClassifier(tiny.NormedConfig(id2label={0: "no", 1: "yes"}))
    made = tiny.trainer(
        tmp_path, "none", data, built=model, sample_loss="classification", data_collator=None, processing_class=None
    )
    report = made.pair_report(None, PairEvaluator(equal), folder=tmp_path)
    assert [group["name"] for group in report.losses[0]["groups"]] == ["no", "yes"]
    field = next(f for f in report.worst[0]["fields"] if f["name"] == "label")
    assert {field["original"], field["augmented"]} == {"no", "yes"}
    assert {field["kind"] for field in report.worst[0]["fields"]} == {"text", "values"}
    assert report.worst[0]["answer"]["original"] in ("no", "yes")


def test_pairs_drawn_anew(tmp_path: Path) -> None:
    drawn = EpochPairs(lambda epoch: tiny.pairs("bart", 7, seed=epoch))
    made = tiny.trainer(tmp_path / "b", "bart", drawn, method="da", num_train_epochs=2)
    made.train()
    last = made.pair_report(folder=tmp_path / "drawn")
    assert last.summary["steps_per_pair"] == 2.0
    row = tiny.pairs("bart", 7, seed=1)[int(last.pairs["row_id"][0][-1]) + 4 * int(last.pairs["row_id"][0][1:4])]
    decoded = made.processing_class.decode(row["augmented_input_ids"], skip_special_tokens=True)
    assert last.worst[0]["fields"][0]["augmented"] == decoded


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (tiny.pairs("bart", 3, partner=lambda row: False), {}, "none of 3 rows has a partner"),
        (tiny.pairs("bart", 3), {"groups": "nope"}, "groups.*nope"),
        (tiny.pairs("bart", 3), {"texts": "nope"}, "texts.*nope"),
        (tiny.pairs("bart", 3), {"worst": 0}, "worst"),
        (tiny.pairs("bart", 3), {"evaluator": "accuracy"}, "evaluator.*'accuracy'"),
        (tiny.pairs("bart", 3), {"evaluator": equal, "tittle": "x"}, "tittle"),
    ],
)
def test_what_makes_no_report_is_refused(tmp_path: Path, data: Any, options: dict[str, Any], message: str) -> None:
    trainer = tiny.trainer(tmp_path / "run", "bart", None)
    with pytest.raises(ValueError, match=message):
        trainer.pair_report(data, folder=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("{own}/notes.txt", "folder="),
        ("{own}/notes.txt/report", "folder="),
        ("{own}/page", "pair_report.html: was not written by this command"),
        ("{own}/json", "pair_report.json: was not written by this command"),
    ],
)
def test_a_folder_that_cannot_take_the_report_is_refused_before_the_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Any, message: str
) -> None:
    for name, file in (("page", PAGE_FILE), ("json", JSON_FILE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("[]")
    (tmp_path / "notes.txt").write_text("mine")
    trainer = tiny.trainer(tmp_path / "run", "bart", None)
    monkeypatch.setattr(trainer, "pair_losses", lambda data: pytest.fail("the model was run"))
    with pytest.raises(DataError, match=message):
        trainer.pair_report(tiny.pairs("bart", 3), folder=folder.format(own=tmp_path))
    assert (tmp_path / "page" / PAGE_FILE).read_text() == (tmp_path / "json" / JSON_FILE).read_text() == "[]"


def test_losses_that_are_not_finite_are_refused_with_the_rows(tmp_path: Path) -> None:
    rows = list(points.rows_of(points.pairs(4)))
    rows[1]["x"], rows[2]["augmented_x"] = [float("nan"), 0.0], [float("inf"), 0.0]
    trainer = points.trainer(tmp_path / "run", None, method="da")
    with pytest.raises(DataError, match=r"4 pairs, 2 of them not finite: \['1', '2'\]"):
        trainer.pair_report(datasets.Dataset.from_list(rows), folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="^num_beams"):  # the model does not generate
        trainer.pair_report(points.pairs(4), points.correct, folder=tmp_path / "out", num_beams=2)


def test_rows_that_are_left_out_are_refused(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path / "run", "bart", None, dataloader_drop_last=True)
    with pytest.raises(DataError, match="dataloader_drop_last"):
        trainer.pair_report(tiny.pairs("bart", 6), folder=tmp_path)


def test_curves_follow_the_log() -> None:
    logs = [
        {"step": 1, "loss_original": 1.0, "loss_augmented": 3.0, "consistency": 0.5, "partner_share": 1.0, "loss": 2.0},
        {"step": 2, "loss_original": 1.0, "loss_augmented": 3.0, "consistency": 0.5, "partner_share": 0.5},
        {"step": 2, "eval_loss": 1.0, "eval_consistency": 0.1},
        {"step": 3, "inconsistency": 0.75, "dair_lambda": 2.0},
    ]
    curves = _curves_of(logs)
    assert curves["inconsistency"] == {"step": [3], "value": [0.75]}
    assert curves["dair_lambda"] == {"step": [3], "value": [2.0]}
    assert curves["consistency"]["step"] == [1, 2]


def test_named_columns_of_text_are_shown(tmp_path: Path) -> None:
    rows = [{**row, "source": f"text {n}", "augmented_source": None} for n, row in enumerate(tiny.pairs("bart", 4))]
    trainer = tiny.trainer(tmp_path / "run", "bart", None)
    report = trainer.pair_report(datasets.Dataset.from_list(rows), folder=tmp_path, texts="source")
    number = report.pairs["row_id"][0][-1]
    assert [field["name"] for field in report.worst[0]["fields"]] == ["source"]
    assert report.worst[0]["fields"][0]["original"] == f"text {number}"


def test_a_lambda_that_sets_itself_is_unknown_before_training(tmp_path: Path) -> None:
    trainer = points.trainer(tmp_path / "run", points.pairs(8), method="dair", dair_lambda="auto")
    report = trainer.pair_report(folder=tmp_path)
    assert report.settings["dair_lambda"] is None
    assert "weight_original" not in report.pairs and "unlearned_share" not in report.summary
    assert "DAIR with R_sq, lambda not set yet" in _subtitle_of(report)
    trainer.train()
    trained = trainer.pair_report(folder=tmp_path)
    found = trained.settings["dair_lambda"]
    assert found > 0
    ratio = np.sqrt(np.array(trained.pairs["loss_augmented"]) / trained.pairs["loss_original"])
    np.testing.assert_allclose(trained.pairs["weight_original"], 0.5 + found * (1 - ratio), rtol=1e-4)


def test_divergences_have_no_weights(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path / "run", "bart", None, method="dair", dair_lambda=1.0, regularizer="kl")
    report = made.pair_report(tiny.pairs("bart", 3), folder=tmp_path)
    assert report.settings["regularizer"] == "kl" and "weight_original" not in report.pairs
    assert "unlearned_share" not in report.summary


def test_two_rows_with_the_same_name_are_refused(tmp_path: Path) -> None:
    data = points.rows_of(points.pairs(4)).remove_columns("row_id").add_column("row_id", ["a", "same", "b", "same"])
    trainer = points.trainer(tmp_path / "run", data, max_steps=1)
    trainer.train()
    with pytest.raises(DataError, match="^row_id 'same'"):
        trainer.pair_report(folder=tmp_path / "report")
    with pytest.raises(DataError, match="^row_id 'same'"):
        trainer.pair_report(data.select(range(4)), folder=tmp_path / "report")
