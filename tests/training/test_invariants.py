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


def trained(folder: Path, kind: str, data: Any, cut: tuple[int, int], **settings: Any) -> dict[str, torch.Tensor]:
    """Return the parameters after an epoch in micro-batches of `cut[0]` rows, `cut[1]` of them a step."""
    settings = {"num_train_epochs": 1, **STEADY, **settings}
    batch, windows = cut
    return tiny.trained(
        folder, kind, data, per_device_train_batch_size=batch, gradient_accumulation_steps=windows, **settings
    )


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("t5", {"normalization": "token"}),
        ("bart", {}),
        ("gpt2", {"normalization": "token"}),
        ("llama", {}),
        ("gpt2", {"regularizer": "js"}),
        ("gpt2", {"dair_lambda": "auto", "lambda_target": 1.0, "regularizer": "l1", "normalization": "token"}),
        ("gpt2", {"dair_lambda": "auto", "lambda_target": 1.0, "regularizer": "kl"}),
        ("bart, two partners", {"normalization": "token"}),
        ("gpt2, two partners", {"regularizer": "kl", "normalization": "token"}),
    ],
)
def test_any_split_of_the_optimizer_step_gives_the_same_parameters(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    kind, *partners = kind.split(", ")
    data = tiny.two_partners(kind, ROWS) if partners else tiny.pairs(kind, ROWS)
    whole, *parts = [trained(tmp_path, kind, data, cut, **settings) for cut in CUTS]
    limit = 1e-8 if "dair_lambda" in settings else 1e-10
    assert [tiny.distance(whole, part) < limit for part in parts] == [True] * 2
    assert tiny.distance(whole, tiny.weights(tiny.model(kind))) > 1e-3  # weights have changed


def test_any_split_of_a_step_gives_the_same_parameters_with_a_stream(tmp_path: Path) -> None:
    """The last step of each epoch is incomplete, and so is its last micro-batch, or some are empty."""
    data, settings = tiny.pairs("gpt2", ROWS), {"max_steps": 4, "train_sampling_strategy": "sequential", "optim": "sgd"}
    stored = trained(tmp_path, "gpt2", data, CUTS[0], **settings)
    streamed = [trained(tmp_path, "gpt2", data.to_iterable_dataset(), cut, **settings) for cut in CUTS]
    assert [tiny.distance(stored, weights) < 1e-10 for weights in streamed] == [True] * len(CUTS)
    assert tiny.distance(stored, tiny.weights(tiny.model("gpt2"))) > 1e-6


def test_counts_of_single_micro_batches_give_other_parameters(tmp_path: Path) -> None:
    """Negative case: micro-batches that are divided by their own counts give other parameters."""

    class MeanOfMeans(tiny.DAIRTrainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            batches, _ = super().get_batch_samples(*args, **kwargs)
            self.loss_is_scaled_for_ga = False
            return batches, None

    data, model = tiny.pairs("gpt2", ROWS), tiny.model("gpt2")
    exact = trained(tmp_path, "gpt2", data, (4, 2))
    args = tiny.config(tmp_path, gradient_accumulation_steps=2, num_train_epochs=1, **STEADY)
    MeanOfMeans(model, args, train_dataset=data, processing_class=tiny.tokenizer(), sample_loss="causal").train()
    assert tiny.distance(exact, tiny.weights(model)) > 1e-5


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
    method = settings["method"]
    weight = settings["dair_lambda"] if method == "dair" else 0.0
    original_weight, augmented_weight = settings.get("view_weights", (0.5, 0.5))
    sum_f = sum_losses = sum_r = torch.zeros((), dtype=torch.float64)
    tokens = pairs = 0
    for row in data:
        names = [name for name in row if not name.startswith("augmented_") and name != "row_id"]
        original = loss_of_view(model, kind, {name: row[name] for name in names})
        tokens += sum(label != -100 for label in row["labels"])
        if method == "erm" or row["augmented_labels"] is None:
            sum_f, sum_losses = sum_f + original, sum_losses + original
            continue
        augmented = loss_of_view(model, kind, {name: row["augmented_" + name] for name in names})
        tokens += sum(label != -100 for label in row["augmented_labels"])
        pairs += 1
        if settings["regularizer"] == "sq":
            consistency = ((original + 1e-7) ** 0.5 - (augmented + 1e-7) ** 0.5) ** 2
        else:
            consistency = (original - augmented).abs()
        weighted = original_weight * original + augmented_weight * augmented
        sum_losses, sum_r = sum_losses + 2 * weighted, sum_r + consistency
        sum_f = sum_f + weighted + weight * consistency
    if settings["normalization"] == "pair":
        return sum_f / len(data)
    return sum_losses / tokens + weight * sum_r / max(pairs, 1)


@pytest.mark.parametrize(
    ("kind", "normalization", "settings"),
    [
        ("bart", "token", {}),
        ("bart", "pair", {"regularizer": "l1"}),
        ("gpt2", "pair", {"method": "erm"}),
        ("gpt2", "token", {"method": "da", "view_weights": [0.0, 1.0]}),
        ("gpt2", "pair", {"view_weights": [0.9, 0.3]}),
    ],
)
def test_one_step_follows_the_gradient_of_the_objective_over_single_unpadded_views(
    tmp_path: Path, kind: str, normalization: str, settings: dict[str, Any]
) -> None:
    settings = {"method": "dair", "regularizer": "sq", "dair_lambda": 0.7, "normalization": normalization, **settings}
    data = tiny.pairs(kind, 5)
    reference = tiny.model(kind)
    objective_by_hand(reference, kind, data, **settings).backward()
    sgd = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    stepped = trained(tmp_path, kind, data, (2, 3), **sgd, **settings)
    for name, value in reference.named_parameters():
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        torch.testing.assert_close(stepped[name], value.detach() - gradient, rtol=1e-9, atol=1e-10)


# ---- special cases that equal other methods ----


@pytest.mark.parametrize(("kind", "normalization"), [("bart", "pair"), ("gpt2", "token")])
def test_lambda_zero_is_da_erm(tmp_path: Path, kind: str, normalization: str) -> None:
    none, plain, some = (
        tiny.trained(
            tmp_path, kind, tiny.pairs(kind, ROWS), normalization=normalization, num_train_epochs=1, **settings
        )
        for settings in ({"dair_lambda": 0.0}, {"method": "da"}, {"dair_lambda": 0.1})
    )
    assert tiny.distance(none, plain) < 1e-12
    assert tiny.distance(some, plain) > 1e-5


# The plain trainer computes the loss of a float64 GPT-2 in float32 (`ForCausalLMLoss`), so it has no float64 run.
PLAIN_RUNS = [("t5", torch.float64), ("bart", torch.float32), ("gpt2", torch.float32)]


@pytest.mark.parametrize(
    ("kind", "dtype", "cut", "same"),
    [
        *((*run, {}, True) for run in PLAIN_RUNS),
        # For encoder-decoders the plain trainer averages the means of micro-batches.
        ("t5", torch.float32, {"gradient_accumulation_steps": 2}, False),
        ("gpt2", torch.float32, {"gradient_accumulation_steps": 2}, True),
        ("gpt2", torch.float32, {"normalization": "pair"}, False),
    ],
)
def test_token_normalization_without_partners_equals_the_plain_trainer_bit_for_bit(
    tmp_path: Path, kind: str, dtype: torch.dtype, cut: dict[str, Any], same: bool
) -> None:
    data = tiny.pairs(kind, ROWS, partner=lambda row: False)
    settings: dict[str, Any] = {"method": "erm", "normalization": "token", "num_train_epochs": 1, **cut}
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
        ({"regularizer": "kl"}, False),
        ({"method": "erm"}, False),
    ],
)
def test_swapped_views_have_the_same_objective_except_for_kl_and_erm(
    tmp_path: Path, settings: dict[str, Any], same: bool
) -> None:
    data = tiny.pairs("bart", 8, partner=lambda row: True)
    straight, crossed = (trained(tmp_path, "bart", rows, (4, 1), **settings) for rows in (data, swapped(data)))
    distance = tiny.distance(straight, crossed)
    assert distance < 1e-10 if same else distance > 1e-6


def test_separate_forwards_change_nothing_without_layers_across_rows(tmp_path: Path) -> None:
    data = tiny.pairs("bart", ROWS)
    joint, separate = (
        trained(tmp_path, "bart", data, (4, 1), regularizer="kl", forward_mode=mode) for mode in ("joint", "separate")
    )
    assert tiny.distance(joint, separate) < 1e-10


# ---- kill and resume ----


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    """Dropout on, partners redrawn each epoch, batches by length, killed with SIGKILL in the second epoch."""
    killed = forked("-m", "tests.fixtures.resumable_run", tmp_path / "cut", "8")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in (tmp_path / "cut").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6"]
    whole = run_resumable(tmp_path / "whole")
    continued = run_resumable(tmp_path / "cut", resume=True)
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[name], continued[name]) for name in whole)
    # The negative case: partners that are not redrawn give another run, so the redrawing is part of what was resumed.
    frozen = run_resumable(tmp_path / "frozen", redraw=False)
    assert not all(torch.equal(whole[name], frozen[name]) for name in whole)
