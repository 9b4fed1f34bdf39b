"""Trackers of `report_to`: every scalar of the log arrives under its name, at its step, with its value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dair_hf import DAIRTrainer
from tests.fixtures import tiny

# Values that a user's `compute_metrics` may add, and that are no scalars.
NO_SCALARS = {"eval_preset": "strict", "eval_undefined": None}

Scalars = dict[str, list[tuple[int, float]]]


def every_second(predictions: list[Any], references: list[Any]) -> list[bool]:
    return [number % 2 == 0 for number in range(len(predictions))]


def train(folder: Path, tracker: str, **settings: Any) -> DAIRTrainer:
    """Train three steps, each logged, and evaluate the pairs after the last one."""
    defaults: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1, "eval_strategy": "steps"}
    trainer = tiny.trainer(
        folder,
        "bart",
        tiny.pairs("bart"),
        eval_dataset=tiny.pairs("bart", 5, seed=1),
        evaluator=every_second,
        compute_metrics=lambda prediction: {"preset": "strict", "undefined": None, "ratio": float("nan")},
        **{**defaults, "eval_steps": 3, "max_steps": 3, "report_to": tracker, "dair_lambda": 1.0, **settings},
    )
    trainer.train()
    return trainer


def expected(history: list[dict[str, Any]]) -> Scalars:
    """The log as a tracker shows it: "eval/cm" and "train/loss_original"."""
    scalars: Scalars = {}
    for log in history:
        for name, value in log.items():
            if name in {"step", *NO_SCALARS}:
                continue
            assert type(value) in (int, float), f"{name} is a {type(value).__name__}, which trackers drop"
            tag = f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}"
            scalars.setdefault(tag, []).append((log["step"], value))
    return scalars


def assert_equal(found: Scalars, log: Scalars) -> None:
    assert found.keys() == log.keys()
    for tag, points in log.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        values = [[value for _, value in series] for series in (found[tag], points)]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-6, equal_nan=True, err_msg=tag)


def read_events(folder: Path) -> Scalars:
    (file,) = folder.rglob("events.out.tfevents.*")
    reader = EventAccumulator(str(file), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


TRAINING = {
    "loss", "loss_original", "loss_augmented", "consistency", "partner_share", "unlearned_share", "padding_share",
    "rows", "pairs", "rows_without_target", "dair_lambda", "gradient_share", "inconsistency",
}  # fmt: skip
EVALUATION = {"loss", "consistency", "cm", "cm_numerator", "cm_denominator", "both_correct", "original_accuracy"}


def test_tensorboard_gets_every_scalar(tmp_path: Path) -> None:
    trainer = train(tmp_path, "tensorboard")
    found = read_events(tmp_path)
    assert_equal(found, expected(trainer.state.log_history))
    assert {f"train/{name}" for name in TRAINING} | {f"eval/{name}" for name in EVALUATION} <= found.keys()
    # Thirteen rows in batches of four, of which every third has no partner; counts are whole numbers.
    assert [step for step, _ in found["train/loss_original"]] == [1, 2, 3]
    assert found["train/rows"] == [(1, 4.0), (2, 4.0), (3, 4.0)]
    assert found["eval/rows"] == [(3, 5.0)] and found["eval/pairs"] == [(3, 3.0)]
    assert not {"eval/preset", "eval/undefined"} & found.keys() and np.isnan(found["eval/ratio"][0][1])
