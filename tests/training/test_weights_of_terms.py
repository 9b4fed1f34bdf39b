"""Weights of both losses, and R with a stopped gradient, against a loop over single views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dair_hf.errors import DataError
from tests.fixtures import tiny
from tests.training.test_invariants import loss_of_view

STEP = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_train_epochs": 1, "optim": "sgd"}
STEP |= {"learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def views(model: Any, row: dict[str, Any]) -> tuple[Tensor, Tensor | None, int]:
    names = ("input_ids", "attention_mask", "labels")
    original = loss_of_view(model, "gpt2", {name: row[name] for name in names})
    tokens = sum(label != -100 for label in row["labels"])
    if row["augmented_labels"] is None:
        return original, None, tokens
    augmented = loss_of_view(model, "gpt2", {name: row["augmented_" + name] for name in names})
    return original, augmented, tokens + sum(label != -100 for label in row["augmented_labels"])


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize(
    "settings",
    [
        {"view_weights": [0.9, 0.3]},
        {"view_weights": [0.0, 1.0], "method": "da"},
        {"stop_gradient": "original"},
        {"stop_gradient": "augmented", "view_weights": [1.0, 1.0]},
    ],
)
def test_a_step_follows_the_gradient_of_the_weighted_objective(
    tmp_path: Path, settings: dict[str, Any], normalization: str
) -> None:
    data, reference = tiny.pairs("gpt2", 5), tiny.model("gpt2")
    weight, augmented_weight = settings.get("view_weights", [0.5, 0.5])
    dair_lambda = 0.7 if settings.get("method") != "da" else 0.0
    sum_f = sum_losses = sum_r = torch.zeros((), dtype=torch.float64)
    tokens = pairs = 0
    for row in data:
        original, augmented, count = views(reference, row)
        tokens += count
        if augmented is None:
            sum_f, sum_losses = sum_f + original, sum_losses + original
            continue
        pairs += 1
        left = original.detach() if settings.get("stop_gradient") == "original" else original
        right = augmented.detach() if settings.get("stop_gradient") == "augmented" else augmented
        consistency = ((left + 1e-7).sqrt() - (right + 1e-7).sqrt()) ** 2
        weighted = weight * original + augmented_weight * augmented
        sum_f, sum_losses = sum_f + weighted + dair_lambda * consistency, sum_losses + 2 * weighted
        sum_r = sum_r + consistency
    pair, token = sum_f / len(data), sum_losses / tokens + dair_lambda * sum_r / pairs
    (pair if normalization == "pair" else token).backward()
    stepped = tiny.trained(tmp_path, "gpt2", data, normalization=normalization, dair_lambda=0.7, **STEP, **settings)
    for name, value in reference.named_parameters():
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        torch.testing.assert_close(stepped[name], value.detach() - gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("regularizer", ["kl", "js"])
@pytest.mark.parametrize("stopped", ["original", "augmented"])
def test_a_divergence_moves_the_other_view_alone(tmp_path: Path, regularizer: str, stopped: str) -> None:
    """Gradients of R for rows of classes, by autograd of the printed formula."""
    data = tiny.classified_pairs(6)
    torch.manual_seed(0)
    built = tiny.NormedClassifier(tiny.NormedConfig()).double().eval()
    x, y = (torch.tensor(data[name]).double() for name in ("features", "augmented_features"))  # in float32 in batches
    labels, others = torch.tensor(data["labels"]), torch.tensor(data["augmented_labels"])
    log_p, log_q = (built(features=views).logits.log_softmax(-1) for views in (x, y))
    losses = [-(log[torch.arange(6), at]).mean() for log, at in ((log_p, labels), (log_q, others))]
    left, right = (log_p.detach(), log_q) if stopped == "original" else (log_p, log_q.detach())
    p, q = left.exp(), right.exp()
    if regularizer == "kl":
        consistency = (p * (left - right)).sum(-1).mean()
    else:
        middle = ((p + q) / 2).log()
        consistency = ((p * (left - middle)).sum(-1) / 2 + (q * (right - middle)).sum(-1) / 2).mean()
    (losses[0] / 2 + losses[1] / 2 + 3.0 * consistency).backward()
    expected = {name: value.grad.clone() for name, value in built.named_parameters() if value.grad is not None}
    built.zero_grad()
    trainer = tiny.DAIRTrainer(
        built,
        tiny.config(tmp_path, regularizer=regularizer, dair_lambda=3.0, stop_gradient=stopped),
        train_dataset=data,
        sample_loss="classification",
    )
    batch = trainer.data_collator([dict(row) for row in data])
    batch["features"] = batch["features"].double()
    outputs = trainer.pair_loss(built, batch, with_partners=True)
    trainer.pair_loss.objective(outputs.terms, trainer.pair_loss.count(batch), 3.0).backward()
    for name, gradient in expected.items():
        torch.testing.assert_close(dict(built.named_parameters())[name].grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"view_weights": [0.5]}, "view_weights"),
        ({"view_weights": [0.0, 0.0]}, "view_weights"),
        ({"view_weights": [-1.0, 2.0]}, "view_weights"),
        ({"view_weights": [0.5, 0.5], "method": "trades", "regularizer": "kl"}, "view_weights"),
        ({"stop_gradient": "both"}, "stop_gradient"),
        ({"stop_gradient": "original", "method": "mart", "regularizer": "kl"}, "stop_gradient"),
        ({"dair_lambda": "automatic"}, "dair_lambda"),
        ({"dair_lambda": "-1"}, "dair_lambda"),
        ({"dair_lambda": "auto", "method": "mart", "regularizer": "kl"}, "dair_lambda"),
        ({"dair_lambda": "auto", "lambda_target": 0.0}, "lambda_target"),
        ({"lambda_max": float("inf")}, "lambda_max"),
        ({"lambda_warmup_steps": -1}, "lambda_warmup_steps"),
    ],
)
def test_values_without_a_meaning_are_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        tiny.config(tmp_path, **settings)


def test_lambda_is_read_from_text(tmp_path: Path) -> None:
    assert tiny.config(tmp_path, dair_lambda="2.5").dair_lambda == 2.5
    assert tiny.config(tmp_path, dair_lambda="auto").dair_lambda == "auto"
