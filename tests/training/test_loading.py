"""Loading of pairs: tensors and rows, epochs, and the columns that a collator lists."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, skip_first_batches
from accelerate.state import PartialState
from torch import Tensor
from torch.utils.data import BatchSampler, SequentialSampler

from dair_hf import DAIRConfig, DAIRTrainer, DataError, PairEvaluator
from dair_hf.data.sampling import EpochPairs, TokenBatchSampler
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.training.loading import _rows_in_last_batch
from tests.fixtures import points, tiny

PAIRED = torch.tensor([True, False, True] * 5)


@pytest.mark.parametrize(("method", "has_partner"), [("erm", PAIRED), ("da", None), ("dair", PAIRED)])
def test_tensors_and_rows_train_the_same_parameters(tmp_path: Path, method: str, has_partner: Tensor | None) -> None:
    data = points.pairs(15, has_partner)
    settings = {"method": method, "dair_lambda": 2.0}
    tensors = points.trainer(tmp_path / "a", data, **settings)
    rows = points.trainer(tmp_path / "b", points.rows_of(data), **settings)
    assert torch.equal(points.trained(tensors), points.trained(rows))
    assert (points.weights(tensors) - points.weights(points.trainer(tmp_path, data))).abs().max() > 1e-3


def test_originals_alone_are_computed_for_erm_and_get_the_epoch(tmp_path: Path) -> None:
    x, _, labels = points.points(8)
    epochs: list[int] = []

    def drawn(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        epochs.append(epoch)
        return {"x": x[rows] + epoch, "labels": labels[rows]}

    def never(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        raise AssertionError("a partner was made")

    points.trainer(tmp_path, TensorPairs(drawn, never, rows=8), method="erm", num_train_epochs=2).train()
    assert epochs == [0, 0, 1, 1]


def test_a_method_assigned_later_gets_partners(tmp_path: Path) -> None:
    data = points.pairs(8)
    known, assigned = points.trainer(tmp_path, data, method="da"), points.trainer(tmp_path, data, method="erm")
    assigned.args.method = "da"
    assert torch.equal(points.trained(known), points.trained(assigned))


def test_views_get_the_epoch_also_after_a_resume(tmp_path: Path) -> None:
    x, partners, labels = points.points(8)
    epochs: list[int] = []

    def drawn(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        epochs.append(epoch)
        return {"x": partners[rows] + epoch, "labels": labels[rows]}

    data = TensorPairs({"x": x, "labels": labels}, drawn)
    settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 3}
    whole = points.trained(points.trainer(tmp_path, data, **settings))
    assert epochs == [0, 0, 1, 1, 2, 2]
    epochs.clear()
    assert torch.equal(whole, points.trained(points.trainer(tmp_path, data, **settings), tmp_path / "checkpoint-3"))
    assert epochs[-2:] == [2, 2] and set(epochs) == {1, 2}


def test_evaluation_of_tensors_and_rows_agrees(tmp_path: Path) -> None:
    data = points.pairs(15, PAIRED)
    results = []
    for name, pairs in (("a", data), ("b", points.rows_of(data))):
        made = points.trainer(tmp_path / name, None, per_device_eval_batch_size=3)
        found = made.evaluate_pairs(pairs, points.correct)
        loss = made.evaluate(pairs)
        results.append({**found, **{key: loss[key] for key in ("eval_loss", "eval_rows", "eval_pairs")}})
    assert results[0] == results[1]
    assert (results[0]["rows"], results[0]["pairs"]) == (15, 10)


def test_data_loader_workers_see_every_epoch(tmp_path: Path) -> None:
    made, plain = (
        points.trained(points.trainer(tmp_path, points.pairs(8), dataloader_num_workers=workers)) for workers in (1, 0)
    )
    assert torch.equal(made, plain)


def drawn(epoch: int) -> datasets.Dataset:
    """Return pairs whose partners are longer in later epochs."""
    longer = [5] * (7 + 2 * epoch) + [6]
    columns = {"input_ids": longer, "attention_mask": [1] * len(longer), "labels": [-100] * (len(longer) - 1) + [6]}
    has_partner = np.random.default_rng(epoch).random(20) < 0.5
    partners = {f"augmented_{name}": [value if at else None for at in has_partner] for name, value in columns.items()}
    return datasets.Dataset.from_dict(tiny.pairs("gpt2", 20)[:] | partners)


def test_token_batches_of_redrawn_partners_keep_the_limit_in_every_epoch(tmp_path: Path) -> None:
    sizes: list[int] = []
    settings = {"max_tokens_per_batch": 40, "num_train_epochs": 3, "logging_strategy": "steps", "logging_steps": 1}
    made = tiny.trainer(tmp_path, "gpt2", EpochPairs(drawn), **settings)
    made.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    made.train()
    assert max(sizes) <= 40
    steps = made.state.global_step // 3
    rows = [log["rows"] for log in made.state.log_history if "rows" in log]
    assert [sum(rows[epoch * steps : (epoch + 1) * steps]) for epoch in range(3)] == [20] * 3
    with pytest.raises(DataError, match="max_tokens_per_batch=40.* in epoch 7"):
        tiny.trainer(tmp_path, "gpt2", EpochPairs(drawn), **{**settings, "num_train_epochs": 8}).train()


@pytest.mark.parametrize("setting", [{"pair_group_by_length": True}, {"max_tokens_per_batch": 40}])
def test_the_order_does_not_depend_on_the_epoch_that_the_pairs_are_in(tmp_path: Path, setting: dict[str, Any]) -> None:
    pairs = EpochPairs(drawn)
    settings = {**setting, "num_train_epochs": 3, "save_strategy": "epoch"}
    first = tiny.trainer(tmp_path, "gpt2", pairs, **settings)
    first.train()
    assert pairs.epoch == 2
    again = tiny.trained(tmp_path / "again", "gpt2", pairs, **settings)
    assert tiny.distance(tiny.weights(first.model), again) == 0.0
    resumed = tiny.trainer(tmp_path / "resumed", "gpt2", EpochPairs(drawn), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{first.state.global_step // 3}"))
    assert tiny.distance(tiny.weights(resumed.model), again) == 0.0


def test_a_run_without_a_sampler_does_not_keep_that_of_an_earlier_run(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 8), max_tokens_per_batch=60, max_steps=1)
    made.train()
    assert made.pair_sampler is not None
    made.args.max_tokens_per_batch, made.train_dataset = None, tiny.pairs("gpt2", 8).to_iterable_dataset()
    made.train()
    assert made.pair_sampler is None


def test_erm_counts_the_tokens_of_originals_alone(tmp_path: Path) -> None:
    data = drawn(5)  # 18 tokens in every partner
    for pairs in (data, EpochPairs(lambda epoch: data)):
        made = tiny.trainer(tmp_path, "gpt2", pairs, method="erm", max_tokens_per_batch=12)
        made.get_train_dataloader()
        batches = list(made.pair_sampler)
        assert all(len(batch) * max(len(data[row]["input_ids"]) for row in batch) <= 12 for batch in batches)
        assert sorted(row for batch in batches for row in batch) == list(range(20))


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data,
        lambda data: data.with_transform(lambda rows: rows),
        lambda data: data.to_iterable_dataset(),
        lambda data: EpochPairs(lambda epoch: data),
        lambda data: points.pairs(8),
    ],
    ids=["rows", "transformed", "stream", "drawn", "tensors"],
)
def test_erm_collates_originals_alone(tmp_path: Path, make: Any) -> None:
    data = make(tiny.pairs("gpt2", 8))
    trainer = points.trainer if isinstance(data, TensorPairs) else partial(tiny.trainer, kind="gpt2")
    made = trainer(tmp_path, data=data, method="erm", max_steps=1)
    for batch in made.get_train_dataloader():
        assert batch["view_mask"].tolist() == [[True]] * 4
        assert batch["layout"].exists.shape == (4, 1)


class Reads:
    """Base collator that computes inputs from paths and records the columns it gets."""

    columns: tuple[str, ...] = ("image", "answers")

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, views: list[dict[str, Any]]) -> dict[str, Tensor]:
        self.seen += views
        x = torch.tensor([[float(view["image"][:-4]), 1.0] for view in views], dtype=torch.float64)
        return {"x": x, "labels": torch.tensor([float(view["answers"] == ["yes"]) for view in views]).double()}


def told() -> datasets.Dataset:
    """Return six rows of paths and answers, with an unused column; every third row has no partner."""
    rows: list[dict[str, Any]] = []
    for row in range(6):
        views = {}
        for prefix, place in (("", row), ("augmented_", 10 + row)):
            exists = not prefix or row % 3 != 1
            views[f"{prefix}image"] = f"{place}.jpg" if exists else None
            views[f"{prefix}answers"] = ["yes" if place % 2 else "no"] if exists else None
            views[f"{prefix}question"] = "Is it odd?" if exists else None
        rows.append({"row_id": f"R{row}", "source": "made up", **views})
    return datasets.Dataset.from_list(rows)


def reading(folder: Path, data: Any, collator: Reads, **settings: Any) -> DAIRTrainer:
    args = DAIRConfig(
        str(folder), num_train_epochs=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", **settings
    )
    assert args.remove_unused_columns
    return DAIRTrainer(points.model(), args, collator, data, sample_loss="binary")


@pytest.mark.parametrize(
    ("data", "method"),
    [(told(), "erm"), (EpochPairs(lambda epoch: told()), "dair")],
    ids=["originals alone", "drawn each epoch"],
)
def test_a_collator_gets_the_columns_that_it_lists(tmp_path: Path, data: Any, method: str) -> None:
    collator = Reads()
    reading(tmp_path, data, collator, method=method).train()
    partners = ["10.jpg", "12.jpg", "13.jpg", "15.jpg"] if method == "dair" else []
    assert sorted(view["image"] for view in collator.seen) == sorted([f"{row}.jpg" for row in range(6)] + partners)
    assert all(view.keys() == {"image", "answers"} for view in collator.seen)
    assert all(view["answers"] == ["yes" if int(view["image"][:-4]) % 2 else "no"] for view in collator.seen)


def test_a_collator_gets_the_same_columns_in_evaluation(tmp_path: Path) -> None:
    collator = Reads()
    made = reading(tmp_path, told(), collator)
    found = made.evaluate_pairs(
        told(), PairEvaluator(lambda logits, answers: [len(a) == 1 for a in answers], references="answers")
    )
    assert (found["rows"], found["pairs"], found["original_accuracy"]) == (6, 4, 1.0)
    assert len(collator.seen) == 10
    assert made.evaluate(told())["eval_pairs"] == 4
    assert len(collator.seen) == 20
    assert all(view.keys() == {"image", "answers"} for view in collator.seen)


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("as_sampler", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n_rows", [13, 16, 24])
def test_rows_that_accelerate_repeats_in_the_last_batch_are_known_after_batches_were_skipped(
    n_rows: int, drop_last: bool, split: bool, as_sampler: bool, skipped: int
) -> None:
    """Batches of three ranks: every row once, if those that count are put together."""
    PartialState(cpu=True)
    trained, repeated = [], 0
    for rank in range(3):
        batches = BatchSampler(SequentialSampler(range(n_rows)), 6 if split else 2, drop_last)
        shard = BatchSamplerShard(batches, num_processes=3, process_index=rank, split_batches=split)
        how: dict[str, Any] = {"sampler": shard, "batch_size": None} if as_sampler else {"batch_sampler": shard}
        loader = DataLoaderShard(np.arange(n_rows), _drop_last=drop_last, **how)
        loader = skip_first_batches(loader, skipped) if skipped else loader
        read = [batch.tolist() for batch in loader]
        assert all(len(batch) == 2 for batch in read)
        count = _rows_in_last_batch(loader)
        kept = read[-1] if count is None else read[-1][:count]
        repeated += len(read[-1]) - len(kept)
        trained += [row for batch in read[:-1] for row in batch] + kept
    expected = range(6 * skipped, n_rows - n_rows % 6 if drop_last else n_rows)
    assert sorted(trained) == list(expected)
    assert repeated == (0 if drop_last else -n_rows % 6)


def test_no_row_of_a_sampler_of_ready_batches_is_repeated() -> None:
    loader = DataLoaderShard(list(range(6)), batch_sampler=TokenBatchSampler([1] * 6, max_tokens=4))
    assert _rows_in_last_batch(loader) is None


def test_the_tokenizer_of_a_collator_is_saved_with_the_model(tmp_path: Path) -> None:
    tiny.trainer(tmp_path, "t5", None, processing_class=None).save_model()
    assert (tmp_path / "tokenizer.json").exists()
