"""Forward plans: the same gradients, shared dropout masks, and less memory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import nn

from dair_hf import DAIRTrainer, PairCollator
from dair_hf.training.environments import IRM, GroupDRO, VREx
from tests.fixtures import points, tiny

SGD = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "num_train_epochs": 1}
ONE_STEP = {**SGD, "per_device_train_batch_size": 13}


# ---- gradient_cache ----


@pytest.mark.parametrize(
    ("objective", "dropout"),
    [(IRM(penalty_weight=10.0), False), (VREx(penalty_weight=10.0), True), (GroupDRO(0.1), False)],
)
def test_an_objective_of_the_batch_gets_all_losses_before_any_gradient(
    tmp_path: Path, objective: Any, dropout: bool
) -> None:
    def weights(size: int | None) -> torch.Tensor:
        made = points.model()
        if dropout:
            made.linear = nn.Sequential(nn.Dropout(0.5), made.linear)
        trainer = DAIRTrainer(
            made,
            tiny.config(tmp_path, method="da", gradient_cache=size, **{**ONE_STEP, "max_steps": 1}),
            points.stack,
            points.pairs(8),
            sample_loss="binary",
            objective=copy.deepcopy(objective),  # it has a state
        )
        trainer.train()
        return torch.cat([value.detach().flatten() for value in made.parameters()])

    start = torch.cat([value.detach().flatten() for value in points.model().parameters()])
    joint = weights(None)
    assert (joint - start).abs().max() > 1e-3
    # There is one dropout layer, so the masks of the parts are those of the joint step in sequence.
    for size in (1, 3):
        torch.testing.assert_close(weights(size), joint, rtol=0, atol=1e-12)


def test_gradient_cache_holds_fewer_activations(tmp_path: Path) -> None:
    """The largest memory that autograd holds for the backward pass is that of a part of the batch."""

    def most_held(size: int | None) -> int:
        objective = VREx(penalty_weight=1.0)
        data = tiny.pairs("gpt2", 12)
        settings = {**ONE_STEP, "method": "da", "objective": objective}
        made = tiny.trainer(tmp_path, "gpt2", data, gradient_cache=size, **settings)
        batch = made.data_collator([dict(row) for row in made.train_dataset])
        made.create_optimizer()
        held, most = 0, 0

        class Held:
            def __init__(self, value: torch.Tensor) -> None:
                nonlocal held, most
                self.value = value
                held += value.numel()
                most = max(most, held)

            def __del__(self) -> None:
                nonlocal held
                held -= self.value.numel()

        with torch.autograd.graph.saved_tensors_hooks(Held, lambda kept: kept.value):
            made.training_step(made.model, batch, made.pair_loss.count(batch))
        return most

    assert most_held(2) < 0.35 * most_held(None)


# ---- pair_dropout ----


def test_shared_masks_differ_between_batches_and_pairs(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([tiny.pairs("gpt2", 1)[0]] * 2)  # the same pair twice
    made = tiny.trainer(tmp_path, "gpt2", rows, built=tiny.model("gpt2", dropout=0.3), pair_dropout="shared")
    batch = made.data_collator([dict(row) for row in rows])
    made.model.train()
    found = [made.pair_loss(made.model, batch, True).terms.original for _ in range(2)]
    assert len({value.item() for terms in found for value in terms}) == 4


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_without_dropout_shared_masks_change_nothing(tmp_path: Path, kind: str) -> None:
    data = tiny.pairs(kind, 13)
    independent = tiny.trained(tmp_path, kind, data, **ONE_STEP)
    assert tiny.distance(independent, tiny.trained(tmp_path, kind, data, pair_dropout="shared", **ONE_STEP)) < 1e-12


def test_evaluation_runs_one_forward_without_random_numbers(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "bart", tiny.pairs("bart", 5), built=tiny.model("bart", dropout=0.3))
    batch = PairCollator(made.data_collator.base_collator)([dict(row) for row in made.train_dataset])
    made.args.pair_dropout = "shared"
    made.model.eval()
    calls = []
    made.model.register_forward_hook(lambda *_: calls.append(1))
    made.pair_loss(made.model, batch, True)
    assert len(calls) == 1
    made.model.train()
    made.pair_loss(made.model, batch, True)
    assert len(calls) == 4  # originals of pairs, partners, and the rows without
