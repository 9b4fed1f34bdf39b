"""Synchronizations of host and device per step; no graph breaks in the loss."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from dair_hf import PairCollator, TensorPairs
from dair_hf.data.batch_layout import LayoutCollator
from dair_hf.data.collator import count_positions
from dair_hf.losses.per_sample import cross_entropy, seq2seq_nll
from dair_hf.pair_report.history import PairHistory
from dair_hf.training.forward.pair_loss import PairLoss
from dair_hf.training.lambda_control import LambdaControl, root_gradients
from dair_hf.training.train_metrics import lowest_slopes, sum_terms
from tests.fixtures import tiny
from tests.fixtures.paths import ROOT

# Operations for whose result, or its shape, the host has to wait.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "_unique2")
METHODS = ("tolist", "cpu")  # of tensors, which do not reach the dispatcher on a CPU
STEPS = 3


LIBRARY, TORCH = str(ROOT / "dair_hf"), str(Path(torch.__file__).parent)


class Waits(Counter[str]):
    """Numbers of operations for which the host waits, by name, and those that the library itself asks for, by place."""

    def __init__(self) -> None:
        super().__init__()
        self.of_library: Counter[str] = Counter()

    def note(self, name: str) -> None:
        self[name] += 1
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(LIBRARY):
            self.of_library[f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_qualname}"] += 1

    def clear(self) -> None:
        super().clear()
        self.of_library.clear()


class Synchronizations(TorchDispatchMode):
    """Counts operations that would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Waits()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
        counts_repeats = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
        if name in WAITING or by_mask or counts_repeats:
            self.found.note(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    mode = Synchronizations()
    with monkeypatch.context() as patched:
        for name in METHODS:
            method = getattr(Tensor, name)

            def noted(self: Tensor, *args: Any, name: str = name, method: Any = method, **kwargs: Any) -> Any:
                mode.found.note(name)
                return method(self, *args, **kwargs)

            patched.setattr(Tensor, name, noted)
        with mode:
            yield mode.found


def test_synchronizations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    values, mask = torch.arange(3.0), torch.tensor([True, False, True])
    with counted(monkeypatch) as found:
        bool(mask.any()), values[mask], mask.nonzero(), values.tolist(), values.cpu(), values.sum().item()
        torch.equal(values, values), values.masked_select(mask), values.repeat_interleave(mask.long())
        values[torch.tensor([0])], values.masked_fill(mask, 0.0), values + 1
    assert found == {
        "_local_scalar_dense": 2, "index": 1, "nonzero": 1, "tolist": 1, "cpu": 1, "equal": 1, "masked_select": 1,
        "repeat_interleave": 1,
    }  # fmt: skip


def of_a_run(made: Any, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Return the synchronizations of the training process after its first step; batches are collated in another."""
    made.args.dataloader_num_workers = 1
    made.args.max_steps = 1 + STEPS
    with counted(monkeypatch) as found:
        made.add_callback(AfterTheFirstStep(found))
        made.train()
    assert found.total() > 0  # those of Trainer, optimizer and attention mask
    return found


class AfterTheFirstStep(TrainerCallback):
    """Resets the count after the first step, which compares the loss with the model's own."""

    def __init__(self, found: Waits) -> None:
        self.found = found

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.found.clear()


@pytest.mark.parametrize(
    "settings",
    [
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        {"dair_lambda": "auto", "normalization": "token"},
    ],
)
def test_the_library_itself_waits_for_nothing_in_a_step(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.pairs("gpt2", 4 * (1 + STEPS))
    made = tiny.trainer(tmp_path, "gpt2", data, **settings)
    assert of_a_run(made, monkeypatch).of_library == {}
    _, steps = made.pair_history.sums(data["row_id"][:])
    assert steps.sum() == sum(partner is not None for partner in data["augmented_input_ids"])
    found = made.lambda_control.latest
    assert found > 0 and (found != tiny.config(tmp_path).dair_lambda) == ("dair_lambda" in settings)


def test_the_library_waits_where_it_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"dair_lambda": "auto", "logging_strategy": "steps", "logging_steps": 1}
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 4 * (1 + STEPS)), **settings)
    found = of_a_run(made, monkeypatch).of_library
    assert set(found) == {"train_metrics.py: mean_terms", "lambda_control.py: LambdaControl.logs"}


# ---- launches ----


class Launches(TorchDispatchMode):
    """Counts operations other than views, each of which launches kernels on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Waits()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func._schema.returns
        if all(result.alias_info is None or result.alias_info.is_write for result in results):
            self.found[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["erm", "dair"])
def test_a_step_launches_at_most_a_tenth_more_than_one_of_the_plain_trainer(tmp_path: Path, method: str) -> None:
    """With the 30 layers of SmolLM2-135M; what a step adds is the same for every model."""
    data = tiny.pairs("llama", 4 * (1 + STEPS), partner=lambda row: method == "dair")
    views = [
        {name: row[prefix + name] for name in ("input_ids", "attention_mask", "labels")}
        for row in data.to_list()
        for prefix in ("", "augmented_")
        if row.get(f"{prefix}input_ids") is not None
    ]
    sizes = {**tiny.KINDS["llama"][2], "num_hidden_layers": 30}
    models = [LlamaForCausalLM(LlamaConfig(vocab_size=tiny.VOCAB, **sizes)) for _ in range(2)]
    made = tiny.trainer(tmp_path, "llama", data, built=models[0], method=method, max_steps=1 + STEPS)
    settings = {"max_steps": 1 + STEPS, "per_device_train_batch_size": 4 * len(views) // len(data)}
    shared = ("use_cpu", "disable_tqdm", "report_to", "save_strategy", "logging_strategy", "dataloader_pin_memory")
    args = Seq2SeqTrainingArguments(str(tmp_path), **settings, **{name: getattr(made.args, name) for name in shared})
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    plain = Seq2SeqTrainer(models[1], args, collator, datasets.Dataset.from_list(views))
    counts = []
    for trainer in (made, plain):
        with Launches() as mode:
            trainer.add_callback(AfterTheFirstStep(mode.found))
            trainer.train()
        counts.append(mode.found.total() / STEPS)
    assert 1000 < counts[1] < counts[0] < 1.1 * counts[1]


# ---- tensors without values: reading one raises an error ----


class Positions(nn.Module):
    """Return logits of every target position, or of every row without a decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tiny.VOCAB, 8)
        self.head = nn.Linear(8, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.embedding(decoder_input_ids)))


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.linear(x))


class MetaAccelerator:
    """Stands for the accelerator of a single process."""

    device = torch.device("meta")

    def reduce(self, values: Tensor, how: str) -> Tensor:
        return values


def without_values(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: v.to("meta") if isinstance(v, Tensor) else v for name, v in batch.items()}


def assert_nothing_is_read(pair_loss: PairLoss, model: nn.Module, batch: dict[str, Any]) -> None:
    args, model, batch = pair_loss.args, model.to("meta").train(), without_values(batch)
    found, counts = pair_loss(model, batch, args.uses_partners), pair_loss.count(batch)
    pair_loss.objective(found.terms, counts, 0.5).backward()
    assert all(value.grad is not None for value in model.parameters())
    exists, filled = batch["view_mask"][:, 0], count_positions(batch, found.was_run)
    slopes, control = pair_loss.slopes(found), LambdaControl(args, MetaAccelerator())
    gradients = root_gradients(found.losses, found.terms, slopes, args)
    for step in range(3):  # from the second on lambda is not 0, and its target may be lower
        dair_lambda = control.at_step(step, counts)
        control.add(gradients, found.terms)
        control.on_step_end(None, SimpleNamespace(global_step=step + 1), None)
    was_run, targets, lowest = found.was_run, found.targets[:, 0], lowest_slopes(slopes, found.terms)
    sums = sum_terms(found.terms, targets, exists, counts, args, dair_lambda, lowest, gradients, was_run[:, 0], filled)
    assert sums.device.type == "meta"
    assert isinstance(dair_lambda, Tensor) == (args.dair_lambda == "auto")
    PairHistory().add(range(len(exists)), found.losses, was_run[:, :1] & was_run[:, 1:])


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "erm"},
        {"method": "augmented"},
        {"regularizer": "js"},
        {"forward_mode": "separate"},
        {"dair_lambda": "auto"},
        {"dair_lambda": "auto", "normalization": "token", "regularizer": "l1"},
    ],
)
def test_a_step_on_sequences_reads_no_tensor_values(tmp_path: Path, settings: dict[str, Any]) -> None:
    pair_loss = PairLoss(tiny.config(tmp_path, **settings), seq2seq_nll, decoder_inputs=lambda labels: labels.clamp(0))
    pad = PairCollator(DataCollatorForSeq2Seq(tiny.tokenizer(), model=None))
    batch = LayoutCollator(pad, pair_loss.target_rule)([dict(row) for row in tiny.pairs("bart", 7)])
    assert_nothing_is_read(pair_loss, Positions(tiny.VOCAB), batch)


@pytest.mark.parametrize("settings", [{}, {"method": "trades"}, {"method": "mart"}])
@pytest.mark.parametrize("has_partner", [None, torch.arange(7) % 3 != 1])
def test_a_step_on_classes_reads_no_tensor_values(
    tmp_path: Path, settings: dict[str, Any], has_partner: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair_loss = PairLoss(tiny.config(tmp_path, regularizer="kl", **settings), cross_entropy)
    x = torch.zeros(7, 2, dtype=torch.float64)
    view = {"x": x, "labels": torch.zeros(7, dtype=torch.long)}
    pairs = TensorPairs(view, lambda rows, epoch: {name: v[rows] for name, v in view.items()}, has_partner=has_partner)
    with counted(monkeypatch) as found:
        made = pairs.__getitems__(range(7))
    assert not found
    batch = LayoutCollator(lambda rows: made, pair_loss.target_rule)([])
    assert_nothing_is_read(pair_loss, Scores(), batch)
