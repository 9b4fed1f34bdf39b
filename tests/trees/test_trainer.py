"""share_prefixes in the trainer: updates, evaluation, resume, processes and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from dair_hf import DataError
from dair_hf.data.sampling import EpochPairs
from dair_hf.trees import tree_loss
from tests.fixtures import tiny
from tests.fixtures.dialog_rows import dialog_rows
from tests.training.test_invariants import trained

TREES = {"share_prefixes": "dialogue_id", "sample_loss": "causal"}


def trainer(folder: Path, data: Any, kind: str = "gpt2", **settings: Any) -> Any:
    return tiny.trainer(folder, kind, data, **{**TREES, **settings})


@pytest.mark.parametrize(
    "settings",
    [{}, {"regularizer": "kl"}, {"normalization": "token", "chunked_loss": True}, {"method": "da"}, {"method": "erm"}],
)
def test_steps_equal_those_of_rows(settings: dict[str, Any], tmp_path: Path) -> None:
    data = dialog_rows(dialogs=3)
    whole = {"per_device_train_batch_size": 9, "num_train_epochs": 3, **settings}
    rows = tiny.trained(tmp_path, "gpt2", data, **whole, sample_loss="causal")
    trees = tiny.trained(tmp_path, "gpt2", data, **whole, **TREES)
    assert tiny.distance(rows, trees) < 1e-10
    assert tiny.distance(rows, tiny.weights(tiny.model("gpt2"))) > 1e-3


def test_accumulation_gives_the_update_of_one_batch(tmp_path: Path) -> None:
    data = dialog_rows(dialogs=4, turns=2)
    one, split = (trained(tmp_path, "gpt2", data, cut, **TREES) for cut in ((8, 1), (2, 4)))
    assert tiny.distance(one, split) < 1e-10


def test_several_partners_are_trained_and_answered_as_rows_are(tmp_path: Path) -> None:
    data = dialog_rows(dialogs=3, second_every=3)
    settings = {"normalization": "token", "per_device_train_batch_size": 9, "max_steps": 3, "eval_dataset": data}
    rows = tiny.trainer(tmp_path, "gpt2", data, **settings, sample_loss="causal")
    trees = trainer(tmp_path, data, **settings)
    metrics = []
    for made in (rows, trees):
        made.train()
        found = made.evaluate_pairs(data, lambda predictions, references: [len(p) % 2 == 0 for p in predictions])
        metrics.append({**made.evaluate(), **found})
    assert tiny.distance(tiny.weights(rows.model), tiny.weights(trees.model)) < 1e-10
    names = {name for name in metrics[0] if not name.endswith(("runtime", "per_second", "preparation_time"))}
    assert {"eval_loss", "eval_consistency"} < names
    for name in names:
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-9, nan_ok=True), name
    assert metrics[0]["partners"] == 5 + 3
    unlabeled = datasets.Dataset.from_dict({"input_ids": data["input_ids"][:]})
    answers = [made.predict(unlabeled, max_new_tokens=3).predictions.tolist() for made in (rows, trees)]
    assert answers[0] == answers[1]


def test_resume_in_mid_epoch(tmp_path: Path) -> None:
    def pairs() -> EpochPairs:
        return EpochPairs(lambda epoch: dialog_rows(dialogs=6, seed=epoch))

    settings = {"num_train_epochs": 2, "max_tokens_per_batch": 70}
    whole = tiny.trained(tmp_path / "whole", "gpt2", pairs(), **TREES, **settings)
    made = trainer(tmp_path / "cut", pairs(), **settings, save_strategy="steps", save_steps=2)
    made.train()
    resumed = trainer(tmp_path / "cut", pairs(), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-2"))
    assert tiny.distance(whole, tiny.weights(resumed.model)) == 0


def test_lists_of_rows_and_workers(tmp_path: Path) -> None:
    data = dialog_rows(dialogs=2)
    made = trainer(tmp_path, data, dataloader_num_workers=1, per_device_train_batch_size=6, num_train_epochs=1)
    made.train()
    assert made.state.global_step == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pair_dropout": "shared"}, "pair_dropout=shared"),
        ({"forward_mode": "separate"}, "forward_mode=separate"),
        ({"pair_group_by_length": True}, "pair_group_by_length=True"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last"),
        ({"share_prefixes": "dialog"}, "share_prefixes"),
        ({"train_dataset": list(dialog_rows())}, "share_prefixes"),
        ({"augmenter": lambda model, batch, generator: batch}, "augmenter"),
    ],
)
def test_settings_that_cannot_be_combined(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        trainer(tmp_path, dialog_rows(), **settings).train()


@pytest.mark.parametrize(("as_list", "compute_metrics"), [(False, None), (True, lambda prediction: {})])
def test_evaluation_rows_without_a_group_are_refused(as_list: bool, compute_metrics: Any, tmp_path: Path) -> None:
    data = dialog_rows(dialogs=1).remove_columns("dialogue_id")
    rows = data.to_list() if as_list else data
    settings = {"eval_dataset": {"test": rows}, "compute_metrics": compute_metrics, "predict_with_generate": False}
    made = trainer(tmp_path, dialog_rows(), **settings, eval_strategy="epoch")
    with pytest.raises(DataError, match="share_prefixes='dialogue_id': .* eval_dataset test"):
        made.train()
    assert made.state.global_step == 0


def test_inputs_for_metrics_are_those_of_rows(tmp_path: Path) -> None:
    data = dialog_rows(dialogs=2)
    inputs: list[Any] = []
    settings = {"eval_dataset": data, "include_for_metrics": ["inputs"], "predict_with_generate": False}
    for shared in ({}, {"share_prefixes": "dialogue_id"}):
        made = tiny.trainer(
            tmp_path, "gpt2", data, sample_loss="causal", **settings, **shared,
            compute_metrics=lambda prediction: inputs.append(prediction.inputs) or {},
        )  # fmt: skip
        made.evaluate()
    rows, trees = ([row[row != -100].tolist() for row in values] for values in inputs)
    assert trees == rows


def test_the_probe_has_the_length_of_the_longest_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(tree_loss, "_require_exact_training", lambda model, batch, length: lengths.append(length))
    data = dialog_rows(dialogs=3)
    made = trainer(tmp_path, data, max_steps=3, eval_dataset=data, eval_strategy="steps", eval_steps=1)
    made.evaluate()
    made.train()
    longest = max(len(ids) for name in ("", "augmented_") for ids in data[f"{name}input_ids"] if ids)
    assert lengths == [0, longest]  # once for the training


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="share_prefixes and sample_loss=seq2seq_nll"):
        tiny.trainer(tmp_path, "bart", tiny.pairs("bart"), share_prefixes="row_id")


def test_views_share_their_prefix_with_dropout(tmp_path: Path) -> None:
    data = dialog_rows(dialogs=1, turns=1, partner_every=1).map(
        lambda row: {f"augmented_{name}": row[name] for name in ("input_ids", "attention_mask", "labels")}
    )
    made = trainer(tmp_path, data, built=tiny.model("gpt2", dropout=0.5), logging_strategy="steps", logging_steps=1)
    made.train()
    consistency = [entry["consistency"] for entry in made.state.log_history if "consistency" in entry]
    assert consistency == [0.0] * len(consistency)
    assert consistency


def test_mixed_precision_is_not_taken_for_another_model(tmp_path: Path) -> None:
    model = tiny.model("llama", dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    made = trainer(tmp_path, dialog_rows(), "llama", built=model, bf16=True, max_steps=1)
    made.train()
    assert made.state.global_step == 1
