"""Learning rates that drop at given epochs, and learning rates with a half-life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.errors import DataError
from dair_hf.training.schedules import epoch_drops
from tests.fixtures import points


def rates(drops: list[float], epochs: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = epoch_drops(optimizer, drops, epochs, steps)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_the_rate_drops_at_the_first_step_after_the_epoch() -> None:
    assert rates([2], epochs=4, steps=12) == pytest.approx([0.5] * 6 + [0.05] * 6)
    assert rates([1, 3], epochs=4, steps=8) == pytest.approx([0.5] * 2 + [0.05] * 4 + [0.005] * 2)


def test_a_drop_after_the_end_is_refused() -> None:
    with pytest.raises(DataError, match="the run ends at epoch 4, before 4"):
        rates([4], epochs=4, steps=8)


def test_the_rate_has_a_half_life_in_steps(tmp_path: Path) -> None:
    settings = {"lr_half_life_steps": 4, "lr_scheduler_type": "constant", "learning_rate": 0.5, "max_steps": 9}
    trainer = points.trainer(tmp_path, points.pairs(12), **settings)
    trainer.train()
    used = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert used == pytest.approx([0.5 * 0.5 ** (step / 4) for step in range(9)], rel=1e-12)
    assert used[4] == pytest.approx(0.25)


def test_a_resumed_run_continues_with_its_rate(tmp_path: Path) -> None:
    settings = {"lr_half_life_steps": 2, "lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 3}
    whole = points.trainer(tmp_path, points.pairs(12), **settings)
    whole.train()
    resumed = points.trainer(tmp_path, points.pairs(12), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(points.weights(whole), points.weights(resumed))


@pytest.mark.parametrize("settings", [{"lr_half_life_steps": 2}, {"lr_drop_epochs": [1.0]}])
def test_a_scheduler_of_the_caller_is_refused_besides_a_schedule(tmp_path: Path, settings: dict[str, Any]) -> None:
    built = points.model()
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def made(scheduler: Any, **settings: Any) -> DAIRTrainer:
        args = points.trainer(tmp_path, None, lr_scheduler_type="constant", **settings).args
        return DAIRTrainer(
            built, args, points.stack, points.pairs(8), sample_loss="binary", optimizers=(optimizer, scheduler)
        )

    message = f"{next(iter(settings))}=.* and the scheduler LambdaLR in optimizers=.* cannot be combined"
    with pytest.raises(DataError, match=message):
        made(scheduler, **settings)
    later = made(scheduler)
    for name, value in settings.items():
        setattr(later.args, name, value)
    with pytest.raises(DataError, match=message):
        later.train()
    alone = made(None, **settings)
    alone.train()
    alone.train()  # the schedule of the first run is no scheduler of the caller
    assert alone.optimizer.param_groups[0]["lr"] < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_scheduler_type": "linear"}, "lr_scheduler_type"),
        ({"max_steps": 5}, "max_steps=5"),
        ({"warmup_steps": 3}, "warmup_steps=3"),
        ({"lr_drop_epochs": []}, "must list finite numbers"),
        ({"lr_drop_epochs": [-1.0]}, "must list finite numbers"),
        ({"lr_half_life_steps": 5}, "lr_drop_epochs=.* and lr_half_life_steps=5 cannot be combined"),
        ({"lr_drop_epochs": None, "lr_half_life_steps": 0}, "lr_half_life_steps=0 is out of range"),
        ({"lr_drop_epochs": None, "lr_half_life_steps": 2.5}, "lr_half_life_steps=2.5 is out of range"),
        (
            {"lr_drop_epochs": None, "lr_half_life_steps": 5, "lr_scheduler_type": "cosine"},
            "lr_half_life_steps=5 and lr_scheduler_type=SchedulerType.COSINE cannot be combined",
        ),
        (
            {"lr_drop_epochs": None, "lr_half_life_steps": 5, "warmup_steps": 3},
            "lr_half_life_steps=5 and warmup_steps=3 cannot be combined",
        ),
    ],
)
def test_settings_that_contradict_a_schedule_are_refused(tmp_path: Path, settings: dict, message: str) -> None:
    whole = {"lr_drop_epochs": [1.0], "lr_scheduler_type": "constant", **settings}
    with pytest.raises(ValueError, match=message):
        DAIRConfig(str(tmp_path), use_cpu=True, **whole)
