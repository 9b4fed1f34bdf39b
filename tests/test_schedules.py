"""Learning rates that drop at given epochs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dair_hf import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.schedules import epoch_drops


def rates(drops: list[float], epochs: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = epoch_drops(optimizer, drops, epochs, steps)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_rate_drops_with_the_first_step_after_the_epoch() -> None:
    assert rates([2], epochs=4, steps=12) == pytest.approx([0.5] * 6 + [0.05] * 6)
    assert rates([1, 3], epochs=4, steps=8) == pytest.approx([0.5] * 2 + [0.05] * 4 + [0.005] * 2)


def test_a_drop_after_the_end_is_refused() -> None:
    with pytest.raises(DataError, match="the run ends at epoch 4, before 4"):
        rates([4], epochs=4, steps=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_scheduler_type": "linear"}, "lr_scheduler_type"),
        ({"max_steps": 5}, "max_steps=5"),
        ({"warmup_steps": 3}, "warmup_steps=3"),
        ({"lr_drop_epochs": []}, "must list finite numbers"),
        ({"lr_drop_epochs": [-1.0]}, "must list finite numbers"),
    ],
)
def test_settings_that_clash_with_drops_are_refused(tmp_path: Path, settings: dict, message: str) -> None:
    whole = {"lr_drop_epochs": [1.0], "lr_scheduler_type": "constant", **settings}
    with pytest.raises(ValueError, match=message):
        DAIRConfig(str(tmp_path), use_cpu=True, **whole)
