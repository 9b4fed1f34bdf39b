"""Settings of an attack: the paper's are the defaults, and what makes no sense is refused."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from dair_hf.augment.attacks.attack import Attack
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import SAMPLE_LOSSES


def test_the_defaults_are_the_papers_training_attack() -> None:
    found = Attack()
    assert (found.norm, found.epsilon, found.step_size, found.steps) == ("linf", 8 / 255, 2 / 255, 11)
    assert (found.random_start, found.restarts, found.momentum, found.loss) == (True, 1, 0.0, "cross_entropy")
    assert (found.lower, found.upper, found.mean, found.std) == (0.0, 1.0, None, None)


def test_fgsm_is_one_step_of_the_radius_from_the_original() -> None:
    found = Attack.fgsm(0.3, norm="l2", mean=(0.5,), std=(0.25,))
    assert (found.norm, found.epsilon, found.step_size, found.steps, found.random_start) == ("l2", 0.3, 0.3, 1, False)
    assert (found.mean, found.std) == ((0.5,), (0.25,))
    assert Attack.fgsm(0.0).epsilon == 0.0
    assert Attack.fgsm(0.1, random_start=True).random_start


def test_settings_cannot_be_changed_and_can_be_sent_to_another_process() -> None:
    attack = Attack(steps=20, restarts=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack.steps = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(attack)) == attack
    assert dataclasses.replace(attack, steps=11, restarts=1) == Attack()


def test_every_field_has_help() -> None:
    assert [item.name for item in dataclasses.fields(Attack) if not item.metadata.get("help")] == []


@pytest.mark.parametrize("loss", ["cross_entropy", "kl", *SAMPLE_LOSSES, lambda logits, labels: logits.sum(1)])
def test_losses_that_exist(loss: Any) -> None:
    assert Attack(loss=loss).loss == loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "l1"}, "norm='l1' is unknown; use one of linf, l2"),
        ({"loss": "mse"}, "loss='mse' is unknown; use one of cross_entropy, kl, seq2seq"),
        ({"epsilon": -0.1}, "epsilon=-0.1 must be a finite number >= 0"),
        ({"epsilon": float("nan")}, "epsilon=nan must be a finite number"),
        ({"epsilon": float("inf")}, "epsilon=inf must be a finite number"),
        ({"epsilon": "8/255"}, "epsilon='8/255' must be a finite number >= 0; 8/255 is 0.0314"),
        ({"step_size": 0}, "step_size=0 must be a finite number > 0"),
        ({"step_size": -1.0}, "step_size=-1.0 must be a finite number > 0"),
        ({"momentum": -0.5}, "momentum=-0.5 must be a finite number >= 0"),
        ({"steps": 0}, "steps=0 must be a whole number of at least 1"),
        ({"steps": 2.0}, "steps=2.0 must be a whole number"),
        ({"steps": True}, "steps=True must be a whole number"),
        ({"restarts": 0}, "restarts=0 must be a whole number of at least 1"),
        ({"restarts": 2, "random_start": False}, "restarts=2 and random_start=False cannot hold together"),
        ({"loss": "kl", "random_start": False}, "loss='kl' and random_start=False cannot hold together"),
        ({"lower": 1.0}, "lower=1.0 must be below upper=1.0"),
        ({"upper": float("nan")}, "upper=nan must be a finite number, or None"),
        ({"mean": (0.5,)}, r"mean=\(0.5,\) and std=None must be given together"),
        ({"std": (0.5,)}, r"mean=None and std=\(0.5,\) must be given together"),
        ({"mean": (0.5,), "std": (0.5, 0.5)}, "with a number for each channel"),
        ({"mean": (), "std": ()}, "with a number for each channel"),
        ({"mean": (0.5,), "std": (0.0,)}, r"std=\(0.0,\) finite ones > 0"),
        ({"mean": (float("inf"),), "std": (1.0,)}, "must be finite numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Attack(**settings)
