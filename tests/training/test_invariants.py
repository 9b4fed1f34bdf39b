"""The same data gives the same update in any split; one negative case must differ."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

from dair_hf import DAIRConfig
from tests.fixtures import tiny
from tests.fixtures.launching import forked
from tests.fixtures.resumable_run import run_resumable

# Adam divides by the size of the gradient. If that is 0 up to rounding (key biases), epsilon limits the noise.
STEADY = {"adam_epsilon": 1e-6}
CUTS = ((8, 1), (4, 2), (1, 8))
ROWS = 13  # the last step of an epoch is incomplete: 8 + 5


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
def test_any_split_of_the_optimizer_step_gives_the_same_parameters(
    tmp_path: Path, kind: str, normalization: str
) -> None:
    data = tiny.pairs(kind, ROWS)
    results = [
        tiny.trained(
            tmp_path,
            kind,
            data,
            normalization=normalization,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=windows,
            **STEADY,
        )
        for batch, windows in CUTS
    ]
    assert tiny.distance(results[0], results[1]) < 1e-10
    assert tiny.distance(results[0], results[2]) < 1e-10
    assert tiny.distance(results[0], tiny.weights(tiny.model(kind))) > 1e-3  # weights have changed


@pytest.mark.parametrize("regularizer", ["l1", "kl", "js"])
def test_any_split_gives_the_same_parameters_with_other_regularizers(tmp_path: Path, regularizer: str) -> None:
    data = tiny.pairs("gpt2", ROWS)
    results = [
        tiny.trained(
            tmp_path,
            "gpt2",
            data,
            regularizer=regularizer,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=windows,
            **STEADY,
        )
        for batch, windows in CUTS[:2]
    ]
    assert tiny.distance(*results) < 1e-10


def test_any_split_of_a_step_gives_the_same_parameters_with_a_stream(tmp_path: Path) -> None:
    """The last step of each epoch is incomplete, and so is its last micro-batch, or some are empty."""
    data = tiny.pairs("gpt2", ROWS)
    settings = {"max_steps": 4, "train_sampling_strategy": "sequential", "optim": "sgd", **STEADY}
    stored, *streamed = [
        tiny.trained(
            tmp_path,
            "gpt2",
            rows,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=windows,
            **settings,
        )
        for rows, (batch, windows) in [(data, CUTS[0]), *((data.to_iterable_dataset(), cut) for cut in CUTS)]
    ]
    assert [tiny.distance(stored, weights) < 1e-10 for weights in streamed] == [True] * len(CUTS)
    assert tiny.distance(stored, tiny.weights(tiny.model("gpt2"))) > 1e-6


def test_counts_of_single_micro_batches_give_other_parameters(tmp_path: Path) -> None:
    """Negative case: micro-batches that are divided by their own counts give other parameters."""

    class MeanOfMeans(tiny.DAIRTrainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            batches, _ = super().get_batch_samples(*args, **kwargs)
            self.loss_is_scaled_for_ga = False
            return batches, None

    data = tiny.pairs("gpt2", ROWS)
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **STEADY}
    exact = tiny.trainer(tmp_path, "gpt2", data, **settings)
    exact.train()
    model = tiny.model("gpt2")
    known = tiny.tokenizer()
    wrong = MeanOfMeans(
        model=model,
        args=tiny.config(tmp_path, **settings),
        train_dataset=data,
        data_collator=DataCollatorForSeq2Seq(known, model=None),
        processing_class=known,
        sample_loss="causal",
    )
    wrong.train()
    assert tiny.distance(tiny.weights(exact.model), tiny.weights(model)) > 1e-5


# ---- the update against a loop over single views without padding ----


def loss_of_view(model: PreTrainedModel, kind: str, view: dict[str, list[int]]) -> torch.Tensor:
    """Return the negative log-likelihood of one sequence by `gather`."""
    ids, labels = torch.tensor([view["input_ids"]]), torch.tensor(view["labels"])
    if tiny.SAMPLE_LOSS[kind] == "seq2seq":
        start = torch.tensor([[model.config.decoder_start_token_id, *view["labels"][:-1]]])
        logits = model(input_ids=ids, decoder_input_ids=start).logits[0]
    else:
        logits, labels = model(input_ids=ids).logits[0, :-1], labels[1:]
    valid = labels != -100
    chosen = logits[valid].gather(1, labels[valid][:, None])[:, 0]
    return (logits[valid].logsumexp(1) - chosen).sum()


def objective_by_hand(model: PreTrainedModel, kind: str, data: datasets.Dataset, **settings: Any) -> torch.Tensor:
    """Return the objective over all rows by its definition, row by row."""
    method, weight = settings["method"], settings["dair_lambda"]
    sum_f = sum_losses = sum_r = torch.zeros((), dtype=torch.float64)
    tokens = pairs = 0
    for row in data:
        names = [name for name in row if not name.startswith("augmented_") and name != "row_id"]
        original = loss_of_view(model, kind, {name: row[name] for name in names})
        tokens += sum(label != -100 for label in row["labels"])
        sum_losses = sum_losses + original
        if method == "erm" or row["augmented_labels"] is None:
            sum_f = sum_f + original
            continue
        augmented = loss_of_view(model, kind, {name: row["augmented_" + name] for name in names})
        tokens += sum(label != -100 for label in row["augmented_labels"])
        pairs += 1
        if settings["regularizer"] == "sq":
            consistency = ((original + 1e-7) ** 0.5 - (augmented + 1e-7) ** 0.5) ** 2
        else:
            consistency = (original - augmented).abs()
        if method == "da":
            consistency = torch.zeros_like(consistency)
        sum_losses, sum_r = sum_losses + augmented, sum_r + consistency
        sum_f = sum_f + original / 2 + augmented / 2 + weight * consistency
    if settings["normalization"] == "pair":
        return sum_f / len(data)
    return sum_losses / tokens + weight * sum_r / max(pairs, 1)


@pytest.mark.parametrize("normalization", ["pair", "token"])
@pytest.mark.parametrize(("method", "regularizer"), [("erm", "sq"), ("da", "sq"), ("dair", "sq"), ("dair", "l1")])
@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_one_step_follows_the_gradient_of_the_objective_over_single_unpadded_views(
    tmp_path: Path, kind: str, method: str, regularizer: str, normalization: str
) -> None:
    settings = {"method": method, "regularizer": regularizer, "normalization": normalization, "dair_lambda": 0.7}
    data = tiny.pairs(kind, 5)
    reference = tiny.model(kind)
    objective_by_hand(reference, kind, data, **settings).backward()
    stepped = tiny.trained(
        tmp_path,
        kind,
        data,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=1,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        **settings,
    )
    for name, value in reference.named_parameters():
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        torch.testing.assert_close(stepped[name], value.detach() - gradient, rtol=1e-9, atol=1e-10)


# ---- special cases that equal other methods ----


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
@pytest.mark.parametrize("normalization", ["pair", "token"])
def test_lambda_zero_is_da_erm(tmp_path: Path, kind: str, normalization: str) -> None:
    data = tiny.pairs(kind, ROWS)
    none = tiny.trained(tmp_path, kind, data, method="dair", dair_lambda=0.0, normalization=normalization)
    plain = tiny.trained(tmp_path, kind, data, method="da", normalization=normalization)
    some = tiny.trained(tmp_path, kind, data, method="dair", dair_lambda=0.1, normalization=normalization)
    assert tiny.distance(none, plain) < 1e-12
    assert tiny.distance(some, plain) > 1e-5


# The plain trainer computes the loss of a float64 GPT-2 in float32 (`ForCausalLMLoss`), so it has no float64 run.
PLAIN_RUNS = [("t5", torch.float64), ("bart", torch.float64), *((k, torch.float32) for k in ("t5", "bart", "gpt2"))]


@pytest.mark.parametrize(
    ("kind", "dtype", "cut", "same"),
    [
        *((*run, {}, True) for run in PLAIN_RUNS),
        # For encoder-decoders the plain trainer averages the means of micro-batches.
        ("t5", torch.float32, {"gradient_accumulation_steps": 2}, False),
        ("bart", torch.float32, {"gradient_accumulation_steps": 2}, False),
        ("gpt2", torch.float32, {"gradient_accumulation_steps": 2}, True),
        ("gpt2", torch.float32, {"normalization": "pair"}, False),
    ],
)
def test_token_normalization_without_partners_equals_the_plain_trainer_bit_for_bit(
    tmp_path: Path, kind: str, dtype: torch.dtype, cut: dict[str, Any], same: bool
) -> None:
    data = tiny.pairs(kind, ROWS, partner=lambda row: False)
    settings: dict[str, Any] = {"method": "erm", "normalization": "token", **cut}
    ours = tiny.trained(tmp_path, kind, data, built=tiny.model(kind, dtype=dtype, dropout=0.1), **settings)
    model, known = tiny.model(kind, dtype=dtype, dropout=0.1), tiny.tokenizer()
    ours_only = set(DAIRConfig.__dataclass_fields__) - set(Seq2SeqTrainingArguments.__dataclass_fields__)
    shared = tiny.config(tmp_path, **settings)
    plain = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            **{
                name: getattr(shared, name)
                for name, field in DAIRConfig.__dataclass_fields__.items()
                if name not in ours_only and field.init
            }
        ),
        train_dataset=data.select_columns(["input_ids", "attention_mask", "labels"]),
        data_collator=DataCollatorForSeq2Seq(known, model=None),
        processing_class=known,
    )
    plain.train()
    theirs = tiny.weights(model)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) == same
    assert same or tiny.distance(ours, theirs) > 1e-5
    assert tiny.distance(ours, tiny.weights(tiny.model(kind, dtype=dtype))) > 1e-3


def swapped(data: datasets.Dataset) -> datasets.Dataset:
    """Swap original and augmented views (all rows have a partner)."""
    names = [name for name in data.column_names if not name.startswith("augmented_") and name != "row_id"]
    renamed = data.rename_columns({name: "swap_" + name for name in names})
    renamed = renamed.rename_columns({"augmented_" + name: name for name in names})
    return renamed.rename_columns({"swap_" + name: "augmented_" + name for name in names})


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"regularizer": "sq"}, True),
        ({"regularizer": "l1", "normalization": "token"}, True),
        ({"regularizer": "js"}, True),
        ({"method": "da"}, True),
        ({"regularizer": "kl"}, False),
        ({"method": "erm"}, False),
    ],
)
def test_swapped_views_have_the_same_objective_except_for_kl_and_erm(
    tmp_path: Path, settings: dict[str, Any], same: bool
) -> None:
    data = tiny.pairs("bart", 8, partner=lambda row: True)
    straight = tiny.trained(tmp_path, "bart", data, **settings, **STEADY)
    crossed = tiny.trained(tmp_path, "bart", swapped(data), **settings, **STEADY)
    if same:
        assert tiny.distance(straight, crossed) < 1e-10
    else:
        assert tiny.distance(straight, crossed) > 1e-6


@pytest.mark.parametrize("regularizer", ["sq", "kl"])
def test_separate_forwards_change_nothing_without_layers_across_rows(tmp_path: Path, regularizer: str) -> None:
    data = tiny.pairs("bart", ROWS)
    joint = tiny.trained(tmp_path, "bart", data, regularizer=regularizer, **STEADY)
    separate = tiny.trained(tmp_path, "bart", data, regularizer=regularizer, forward_mode="separate", **STEADY)
    assert tiny.distance(joint, separate) < 1e-10


# ---- kill and resume ----


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    """Dropout on, partners redrawn each epoch, batches by length, killed with SIGKILL in the second epoch."""
    command = "-m", "tests.fixtures.resumable_run", tmp_path / "cut"
    killed = forked(*command, "--kill_at", "8")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in (tmp_path / "cut").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6"]
    resumed = forked(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole = run_resumable(tmp_path / "whole")
    continued = torch.load(tmp_path / "cut" / "weights.pt", weights_only=True)
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[name], continued[name]) for name in whole)
    # The negative case: partners that are not redrawn give another run, so the redrawing is part of what was resumed.
    frozen = run_resumable(tmp_path / "frozen", redraw=False)
    assert not all(torch.equal(whole[name], frozen[name]) for name in whole)
