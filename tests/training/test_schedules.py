"""Learning rates that drop at given epochs, and learning rates with a half-life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures import points


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Twelve rows in batches of four: three steps an epoch.
        ({"lr_drop_epochs": [1, 3], "num_train_epochs": 4}, [0.5] * 3 + [0.05] * 6 + [0.005] * 3),
        ({"lr_drop_epochs": [1, 20], "max_steps": 5, "gradient_accumulation_steps": 2}, [0.5] * 2 + [0.05] * 3),
        ({"lr_drop_epochs": [20], "num_train_epochs": 1}, [0.5] * 3),
    ],
)
def test_the_rate_drops_at_the_first_step_after_the_epoch(
    tmp_path: Path, settings: dict[str, Any], expected: list[float]
) -> None:
    given = {"lr_scheduler_type": "constant", "learning_rate": 0.5, "per_device_train_batch_size": 4, **settings}
    trainer = points.trainer(tmp_path, points.pairs(12), **given)
    trainer.train()
    used = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert used == pytest.approx(expected)


def test_the_rate_has_a_half_life_in_steps(tmp_path: Path) -> None:
    settings = {"lr_half_life_steps": 4, "lr_scheduler_type": "constant", "learning_rate": 0.5, "max_steps": 9}
    trainer = points.trainer(tmp_path, points.pairs(12), **settings)
    trainer.train()
    used = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert used == pytest.approx([0.5 * 0.5 ** (step / 4) for step in range(9)], rel=1e-12)
    assert used[4] == pytest.approx(0.25)


def test_a_resumed_run_continues_with_its_rate(tmp_path: Path) -> None:
    settings = {"lr_half_life_steps": 2, "lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 3}
    whole, resumed = (points.trainer(tmp_path, points.pairs(12), **settings) for _ in range(2))
    assert torch.equal(points.trained(whole), points.trained(resumed, tmp_path / "checkpoint-3"))
