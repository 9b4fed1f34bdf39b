"""Partners made by an augmenter during training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dair_hf import DAIRTrainer
from dair_hf.augment.attacks.adversarial import AttackAugmenter
from dair_hf.augment.attacks.pgd import Attack
from dair_hf.data.collator import add_partners
from dair_hf.data.counter_rng import generator_for
from dair_hf.data.tensor_pairs import TensorPairs
from tests.fixtures import points

X, PARTNERS, LABELS = points.points(15)
ORIGINALS = TensorPairs({"x": X, "labels": LABELS})


def trainer(folder: Path, augmenter: Any, data: Any = ORIGINALS, **settings: Any) -> DAIRTrainer:
    made = points.trainer(folder, data, **{"method": "dair", "dair_lambda": 2.0, **settings})
    return DAIRTrainer(made.model, made.args, points.stack, data, sample_loss="binary", augmenter=augmenter)


def shifted(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Shift every partner by half a step."""
    return add_partners(batch, {"x": batch["x"][:, 0] + 0.5})


def noisy(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
    original = batch["x"][:, 0]
    return add_partners(batch, {"x": original + torch.randn(original.shape, generator=generator, dtype=original.dtype)})


@pytest.mark.parametrize("method", ["dair", "augmented"])
def test_online_partners_train_like_partners_in_the_data(tmp_path: Path, method: str) -> None:
    static = TensorPairs({"x": X, "labels": LABELS}, {"x": X + 0.5, "labels": LABELS})
    known = points.trainer(tmp_path / "a", static, method=method, dair_lambda=2.0)
    made = trainer(tmp_path / "b", shifted, method=method)
    assert torch.equal(points.trained(known), points.trained(made))
    alone = points.trained(points.trainer(tmp_path / "c", ORIGINALS, method="erm"))
    assert (points.weights(made) - alone).abs().max() > 1e-3


def test_online_partners_replace_those_in_the_data(tmp_path: Path) -> None:
    has_both = trainer(tmp_path / "a", shifted, points.pairs(15))
    has_none = trainer(tmp_path / "b", shifted)
    assert torch.equal(points.trained(has_both), points.trained(has_none))


def test_the_update_does_not_depend_on_micro_batches(tmp_path: Path) -> None:
    settings = {"num_train_epochs": 3, "train_sampling_strategy": "sequential"}
    whole = trainer(tmp_path / "a", shifted, per_device_train_batch_size=15, **settings)
    cut = trainer(tmp_path / "b", shifted, per_device_train_batch_size=4, gradient_accumulation_steps=4, **settings)
    torch.testing.assert_close(points.trained(whole), points.trained(cut), rtol=0, atol=1e-12)


def test_rows_that_the_augmenter_skips_count_as_rows_without_a_partner(tmp_path: Path) -> None:
    right = X[:, 0] > 0

    def some(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
        original = batch["x"][:, 0]
        return add_partners(batch, {"x": original + 0.5}, has_partner=original[:, 0] > 0)

    static = TensorPairs({"x": X, "labels": LABELS}, {"x": X + 0.5, "labels": LABELS}, has_partner=right)
    known = points.trainer(tmp_path / "a", static, method="dair", dair_lambda=2.0)
    made = trainer(tmp_path / "b", some)
    assert torch.equal(points.trained(known), points.trained(made))
    assert made.state.log_history[0]["partner_share"] == known.state.log_history[0]["partner_share"] < 1


def test_random_numbers_depend_on_step_and_seed(tmp_path: Path) -> None:
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    whole = points.trained(trainer(tmp_path, noisy, **settings))
    assert torch.equal(whole, points.trained(trainer(tmp_path, noisy, **settings), resume=tmp_path / "checkpoint-3"))
    assert not torch.equal(whole, points.trained(trainer(tmp_path / "other", noisy, **settings, seed=7)))


def test_micro_batches_of_a_step_get_different_random_numbers(tmp_path: Path) -> None:
    drawn: list[float] = []

    def remember(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
        drawn.append(torch.rand(1, generator=generator).item())
        return add_partners(batch, {})

    trainer(tmp_path, remember, gradient_accumulation_steps=2, num_train_epochs=1).train()
    assert len(set(drawn)) == len(drawn) == 4


def test_erm_does_not_call_the_augmenter(tmp_path: Path) -> None:
    def never(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
        raise AssertionError("a partner was made")

    trainer(tmp_path, never, method="erm").train()


def test_the_augmenter_gets_the_model_without_wrappers_and_a_batch_of_pairs(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
        seen.append((type(model), batch["x"].shape, batch["view_mask"].tolist(), batch["x"].device.type))
        return add_partners(batch, {})

    trainer(tmp_path, look, num_train_epochs=1).train()
    assert seen[0] == (points.PointsModel, (4, 1, 2), [[True]] * 4, "cpu")


def test_partners_of_another_shape_are_refused() -> None:
    batch = {"x": torch.zeros(3, 1, 2), "view_mask": torch.ones(3, 1, dtype=torch.bool)}
    with pytest.raises(RuntimeError, match="stack"):
        add_partners(batch, {"x": torch.zeros(2, 2)})


def test_generators_differ_by_every_part_of_their_key() -> None:
    keys = ((0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), (0, "a", 1))
    first = [torch.rand(1, generator=generator_for("cpu", *key)).item() for key in keys]
    assert len(set(first)) == 4 and first[0] == first[4]


def test_the_model_card_names_the_augmenter(tmp_path: Path) -> None:
    trainer(tmp_path, AttackAugmenter(Attack(epsilon=0.25))).create_model_card()
    told = "- partners made during training by: `AttackAugmenter(attack=Attack(norm='linf', epsilon=0.25"
    assert told in (tmp_path / "README.md").read_text()
