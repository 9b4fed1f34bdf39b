"""Few pairs: which rows keep their partners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from dair_hf.data.few_pairs import keep_partners
from tests.fixtures import tiny


def test_some_rows_lose_their_partner() -> None:
    count = 50
    rows = Dataset.from_dict(
        {"x": list(range(count)), "augmented_x": list(range(count)), "augmented_y": [[row] for row in range(count)]}
    )
    kept = {
        share: {row["x"] for row in keep_partners(rows, share, 0) if row["augmented_x"] is not None}
        for share in (0.1, 0.5)
    }
    assert [len(kept[share]) for share in (0.1, 0.5)] == [5, 25] and kept[0.1] < kept[0.5]
    half = keep_partners(rows, 0.5, 0)
    assert half["x"][:] == list(range(count)) and half.features == rows.features
    for row in half:
        has_partner = row["x"] in kept[0.5]
        assert (row["augmented_x"], row["augmented_y"]) == ((row["x"], [row["x"]]) if has_partner else (None, None))
    assert keep_partners(rows, 0.5, 1)["augmented_x"][:] != half["augmented_x"][:]
    assert keep_partners(rows, 1.0, 0) is rows


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_columns_keep_their_type_where_a_whole_batch_loses_its_partners(seed: int) -> None:
    rows = Dataset.from_dict({"augmented_x": list(range(3000))})
    one = keep_partners(rows, 1 / 3000, seed)
    assert one.features == rows.features
    assert sum(value is not None for value in one["augmented_x"]) == 1


def test_groups_keep_or_lose_their_partners_together() -> None:
    names = [f"d{number % 20}" for number in range(100)]
    rows = Dataset.from_dict({"dialogue_id": names, "augmented_x": [1] * 100, "augmented_2_x": [2] * 100})
    half = keep_partners(rows, 0.5, 3, groups="dialogue_id")
    kept = {row["dialogue_id"] for row in half if row["augmented_x"] is not None}
    assert len(kept) == 10
    for row in half:
        expected = (1, 2) if row["dialogue_id"] in kept else (None, None)
        assert (row["augmented_x"], row["augmented_2_x"]) == expected


def test_a_format_of_the_rows_changes_nothing() -> None:
    rows = Dataset.from_dict(
        {
            "group": [row % 5 for row in range(20)],
            "input_ids": [[row, row] for row in range(20)],
            "augmented_input_ids": [[row] * (row % 3) if row % 4 else None for row in range(20)],
        }
    )
    expected = keep_partners(rows, 0.4, 0, groups="group")
    assert len({row["group"] for row in expected if row["augmented_input_ids"] is not None}) == 2
    for columns in (["group", "input_ids"], ["input_ids"]):
        found = keep_partners(rows.with_format("torch", columns=columns), 0.4, 0, groups="group")
        assert found.with_format(None)[:] == expected[:]
        assert (found.format["type"], found.format["columns"]) == ("torch", columns)


@pytest.mark.parametrize("normalization", ["pair", "token"])
def test_rows_without_their_partner_are_trained_as_by_erm(normalization: str, tmp_path: Path) -> None:
    """One step on all rows, by hand: rows that lost their partner add their own loss, as in ERM, and nothing else."""
    rows, strength, rate = keep_partners(tiny.pairs("bart", 12, partner=lambda row: True), 0.4, 7), 0.7, 0.05
    model = tiny.model("bart").train()

    def loss(row: dict[str, Any], prefix: str) -> torch.Tensor:
        ids, labels = (torch.tensor([row[f"{prefix}{name}"]]) for name in ("input_ids", "labels"))
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).logits
        return torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum")

    kept = [row for row in rows if row["augmented_labels"] is not None]
    alone = sum((loss(row, "") for row in rows if row["augmented_labels"] is None), torch.zeros(()))
    losses = [(loss(row, ""), loss(row, "augmented_")) for row in kept]
    consistency = strength * sum(((a.sqrt() - b.sqrt()) ** 2 for a, b in losses), torch.zeros(()))
    both = sum((a + b for a, b in losses), torch.zeros(()))
    if normalization == "pair":
        objective = (alone + both / 2 + consistency) / len(rows)
    else:
        tokens = sum(len(row["labels"]) for row in rows) + sum(len(row["augmented_labels"]) for row in kept)
        objective = (alone + both) / tokens + consistency / len(kept)
    objective.backward()
    expected = {
        name: (weight if weight.grad is None else weight - rate * weight.grad).detach()
        for name, weight in model.named_parameters()
    }
    settings: dict[str, Any] = {"optim": "sgd", "learning_rate": rate, "max_grad_norm": 0.0, "max_steps": 1}
    settings |= {"lr_scheduler_type": "constant", "per_device_train_batch_size": len(rows)}
    settings |= {"method": "dair", "dair_lambda": strength, "normalization": normalization}
    assert tiny.distance(tiny.trained(tmp_path, "bart", rows, **settings), expected) < 1e-9
