"""Training metrics against arithmetic by hand: sums and counts first, one division at the end."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerState
from transformers.utils import logging

from dair_hf.config import DAIRConfig
from dair_hf.losses.objective import Counts, PairTerms, pair_slopes
from dair_hf.training import train_metrics
from dair_hf.training.lambda_control import root_gradients
from dair_hf.training.train_metrics import EvaluatedRows, _TermSums, lowest_slopes, mean_terms, print_log, sum_terms
from tests.fixtures import tiny
from tests.fixtures.tiny import config


def terms(original: list[float], augmented: list[float], has_partner: list[bool]) -> PairTerms:
    left, right = torch.tensor(original), torch.tensor(augmented)
    consistency = ((left.sqrt() - right.sqrt()) ** 2).masked_fill(~torch.tensor(has_partner), 0.0)
    return PairTerms(left, right, consistency, torch.tensor(has_partner))


BATCH = terms([4.0, 9.0, 2.0, 0.0], [1.0, 1.0, 0.0, 0.0], [True, True, False, False])
TARGETS = torch.tensor([5, 5, 3, 0])
EXISTS = torch.ones(4, dtype=torch.bool)


def gradients_of(batch: PairTerms, args: DAIRConfig) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the slopes of R and the squared norms of gradients that the trainer gives to `sum_terms`."""
    losses = torch.stack([batch.original, batch.augmented], dim=1)
    slopes = None
    if args.loss_regularizer is not None:
        slopes = pair_slopes(losses, batch.has_partner.unsqueeze(1), args.loss_regularizer, args.loss_epsilon)
    return lowest_slopes(slopes, batch), root_gradients(losses, batch, slopes, args)


def sums(folder: Path, batch: PairTerms = BATCH, tokens: int = 24, **settings: Any) -> _TermSums:
    args = config(folder, **settings)
    counts = Counts(*torch.tensor([4, 2, tokens]))
    return _TermSums(
        *sum_terms(batch, TARGETS, EXISTS, counts, args, args.dair_lambda, *gradients_of(batch, args)).tolist()
    )


def test_sums_by_hand(tmp_path: Path) -> None:
    found = sums(tmp_path, dair_lambda=0.5)
    # c~ of (4, 1) is 1/2 + 1/2 (1 - 2) = 0, not below 0; of (9, 1) it is 1/2 + 1/2 (1 - 3) = -1/2.
    # Squared norms: 0.5^2 * 8 * (1 + 4), and the losses (4 + 9 + 1 + 1) of pairs, of which 7.5 is half.
    assert found == pytest.approx(_TermSums(15.0, 2.0, 1.0 + 4.0, 4, 4, 2, 1, 1, 0, 0, 10.0, 15.0, 7.5), rel=1e-6)


class WithoutFloat64(TorchDispatchMode):
    """Refuse results in float64, as MPS does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return result


def test_sums_on_a_device_without_float64_are_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train_metrics._sums_dtype(torch.device("mps")) == torch.float32
    assert train_metrics._sums_dtype(torch.device("cuda")) == torch.float64
    exact = sums(tmp_path)
    monkeypatch.setattr(train_metrics, "_sums_dtype", lambda device: torch.float32)
    with WithoutFloat64():
        counts, args = Counts(*torch.tensor([4, 2, 24])), config(tmp_path)
        found = sum_terms(BATCH, TARGETS, EXISTS, counts, args, 0.5, *gradients_of(BATCH, args))
    assert found.dtype == torch.float32
    assert found.tolist() == list(exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_terms_of_an_evaluation_are_float64_on_the_host_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    made = tiny.trainer(tmp_path, "gpt2", None, built=tiny.model("gpt2", dtype=dtype))
    gathered: list[torch.dtype] = []
    gather = made.accelerator.gather_for_metrics
    monkeypatch.setattr(
        made.accelerator, "gather_for_metrics", lambda v, *a, **k: (gathered.append(v.dtype), gather(v, *a, **k))[1]
    )
    made.evaluate(tiny.pairs("gpt2", 4))
    full = torch.float64 if dtype == torch.float64 else torch.float32
    assert full in gathered and set(gathered) <= {full, torch.bool}
    assert made._evaluated_rows[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("settings", "tokens", "unlearned"),
    [
        ({"dair_lambda": 0.25}, 24, 0),  # unlearned beyond the ratio (1 + 2)^2 = 9, which (9, 1) only reaches
        ({"dair_lambda": 0.26}, 24, 1),
        ({"dair_lambda": 0.51}, 24, 2),  # beyond (1 + 1 / 1.02)^2 = 3.92
        ({"dair_lambda": 0.0}, 24, 0),
        ({"regularizer": "l1", "dair_lambda": 0.49}, 24, 0),  # 1/2 - lambda
        ({"regularizer": "l1", "dair_lambda": 0.51}, 24, 2),
        # Token units: lambda_pair = lambda * tokens / (2 pairs) = 0.05 * 24 / 4 = 0.3, or 0.05 * 16 / 4 = 0.2.
        ({"dair_lambda": 0.05, "normalization": "token"}, 24, 1),
        ({"dair_lambda": 0.05, "normalization": "token"}, 16, 0),
        ({"dair_lambda": 9.0, "method": "da"}, 24, 0),
        ({"dair_lambda": 9.0, "regularizer": "kl"}, 24, 0),
    ],
)
def test_unlearned_pairs_by_hand(tmp_path: Path, settings: dict[str, Any], tokens: int, unlearned: int) -> None:
    assert sums(tmp_path, tokens=tokens, **settings).unlearned == unlearned


def test_repeated_rows_are_not_counted(tmp_path: Path) -> None:
    exists = torch.tensor([True, True, False, False])
    args, counts = config(tmp_path), Counts(*torch.tensor([2, 2, 20]))
    found = _TermSums(*sum_terms(BATCH, TARGETS * exists, exists, counts, args, 0.5, *gradients_of(BATCH, args)))
    assert (found.rows, found.rows_without_target) == (2, 0)


def test_means_by_hand(tmp_path: Path) -> None:
    total = torch.tensor([15.0, 2.0, 5.0, 4.0, 4.0, 2.0, 1.0, 1.0, 0.0, 0.0, 2.5, 3.75, 7.5], dtype=torch.float64)
    assert mean_terms(total, config(tmp_path)) == {
        "loss_original": 15 / 4,
        "loss_augmented": 1.0,
        "consistency": 2.5,
        "inconsistency": 5 / 7.5,
        "gradient_share": pytest.approx((2.5 / 3.75) ** 0.5),
        "partner_share": 0.5,
        "unlearned_share": 0.5,
        "rows": 4,
        "pairs": 2,
        "rows_without_target": 1,
    }


@pytest.mark.parametrize(
    ("settings", "absent"),
    [
        ({"method": "da"}, {"unlearned_share", "gradient_share"}),
        ({"method": "da", "regularizer": "kl"}, {"unlearned_share", "consistency", "inconsistency", "gradient_share"}),
        ({"regularizer": "kl"}, {"unlearned_share"}),
        ({}, set()),
    ],
)
def test_undefined_metrics_are_left_out(tmp_path: Path, settings: dict[str, Any], absent: set[str]) -> None:
    total = torch.tensor([15.0, 2.0, 5.0, 4.0, 4.0, 2.0, 1.0, 1.0, 0.0, 0.0, 2.5, 3.75, 7.5], dtype=torch.float64)
    everything = set(mean_terms(total, config(tmp_path)))
    assert everything - set(mean_terms(total, config(tmp_path, **settings))) == absent


def test_without_pairs_no_metrics_of_pairs_are_reported(tmp_path: Path) -> None:
    total = torch.tensor([3.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    found = mean_terms(total, config(tmp_path))
    assert found == {"loss_original": 1.5, "partner_share": 0.0, "rows": 2, "pairs": 0, "rows_without_target": 0}
    nothing = mean_terms(torch.zeros(13, dtype=torch.float64), config(tmp_path))
    assert nothing == {"partner_share": 0.0, "rows": 0, "pairs": 0, "rows_without_target": 0}


def test_originals_that_were_not_run_have_no_mean_loss(tmp_path: Path) -> None:
    args = config(tmp_path, method="augmented")
    batch = terms([0.0, 9.0], [1.0, 0.0], [True, False])
    counts, exists = Counts(*torch.tensor([2, 1, 4])), torch.ones(2, dtype=torch.bool)
    given = gradients_of(batch, args)
    found = sum_terms(
        batch, torch.tensor([2, 2]), exists, counts, args, 0.5, *given, was_run=torch.tensor([False, True])
    )
    assert mean_terms(found, args)["loss_original"] == 9.0  # of the original that was run, not 4.5
    none = sum_terms(
        batch, torch.tensor([2, 2]), exists, counts, args, 0.5, *given, was_run=torch.zeros(2, dtype=torch.bool)
    )
    assert "loss_original" not in mean_terms(none, args)
    # A pair has a consistency only if both views were run.
    assert "consistency" not in mean_terms(found, args) and "consistency" not in mean_terms(none, args)
    both = sum_terms(batch, torch.tensor([2, 2]), exists, counts, args, 0.5, *given)
    assert mean_terms(both, args)["consistency"] == pytest.approx(batch.consistency.sum().item())


def test_the_padding_share_is_over_all_positions(tmp_path: Path) -> None:
    args, counts = config(tmp_path), Counts(*torch.tensor([4, 2, 24]))
    given = gradients_of(BATCH, args)
    batches = [
        sum_terms(BATCH, TARGETS, EXISTS, counts, args, 0.5, *given, positions=torch.tensor(filled))
        for filled in ([30, 40], [10, 60])
    ]
    assert mean_terms(batches[0], args)["padding_share"] == 0.25
    assert mean_terms(batches[0] + batches[1], args)["padding_share"] == pytest.approx(0.6)
    assert "padding_share" not in mean_terms(sum_terms(BATCH, TARGETS, EXISTS, counts, args, 0.5, *given), args)


def test_columns_of_evaluated_rows_by_name() -> None:
    """Of three rows, the second only pads a batch; two columns of losses follow, as `pair_losses` keeps them."""
    table = torch.arange(39, dtype=torch.float64).reshape(3, 13)
    table[:, 3], table[:, 6] = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])
    rows = EvaluatedRows.of_table(table)
    assert (rows.targets.tolist(), rows.partner_targets.tolist()) == ([4, 30], [5, 31])
    assert (rows.slope.tolist(), rows.lowest_slope.tolist()) == ([7, 33], [8, 34])
    assert (rows.regularizer_gradient.tolist(), rows.loss_gradient.tolist()) == ([9, 35], [10, 36])
    assert [term.tolist() for term in rows.terms] == [[0, 26], [1, 27], [2, 28], [0, 2]]
    assert rows.terms.partners.dtype == torch.int64 and rows.terms.has_partner.tolist() == [False, True]


def test_the_console_shows_the_main_values_and_the_log_keeps_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "logging_strategy": "steps",
        "logging_steps": 1,
        "max_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }

    def trained(**others: Any) -> tuple[list[dict[str, Any]], list[str]]:
        made = tiny.trainer(
            tmp_path, "bart", tiny.pairs("bart"), eval_dataset=tiny.pairs("bart", 5, seed=1),
            evaluator=lambda predictions, references: [True] * len(predictions),
            compute_metrics=lambda prediction: {"own": 0.5}, **settings, **others,
        )  # fmt: skip
        made.train()
        return made.state.log_history, [line for line in capsys.readouterr().out.splitlines() if "epoch" in line]

    history, lines = trained(dair_lambda=1.0)
    assert all(type(value) in (int, float) for log in history for value in log.values())  # trackers drop others
    first, evaluated = history[0], next(log for log in history if "eval_loss" in log)
    keys = "loss", "loss_original", "loss_augmented", "consistency", "dair_lambda", "learning_rate", "epoch"
    assert re.findall(r"[-\d.e]*\d", lines[0]) == [f"{first[key]:.3g}" for key in keys]  # one value each, in this order
    assert {"grad_norm", "rows", "padding_share"} <= first.keys() and {
        "eval_rows",
        "eval_pos_to_neg",
    } <= evaluated.keys()
    (shown,) = (ast.literal_eval(line) for line in lines if "eval_loss" in line)
    names = "loss", "original_accuracy", "augmented_accuracy", "cm", "cm_denominator", "both_correct", "own"
    assert shown.keys() == {"epoch", *(f"eval_{name}" for name in names)}
    try:
        history, lines = trained(dair_lambda=1.0, log_level="info")
    finally:
        logging.set_verbosity_warning()
    assert {*ast.literal_eval(lines[0])} == history[0].keys() - {"step"}


def test_rows_without_a_target_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    state = TrainerState(is_world_process_zero=True)
    for count in (0, 2):
        print_log(print, None, state, logs={"loss": 1.0, "rows_without_target": count})
    assert capsys.readouterr().out.splitlines() == ["loss 1", "loss 1, without target 2"]
