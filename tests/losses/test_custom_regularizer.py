"""R as a function of the user: the built-in regularizers as oracles, in value, gradient and training."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.losses.custom_regularizer import CustomRegularizer
from dair_hf.losses.objective import LOSS_EPSILON, LOSS_REGULARIZERS
from tests.fixtures import tiny
from tests.fixtures.launching import forked

STEADY = {"adam_epsilon": 1e-6}


def squared_roots(original: Tensor, augmented: Tensor) -> Tensor:
    """R_sq, written another way."""
    return original + augmented + 2e-7 - 2 * ((original + 1e-7) * (augmented + 1e-7)).sqrt()


@pytest.mark.parametrize("normalization", ["pair", "token"])
def test_training_equals_that_of_the_built_in_regularizer(tmp_path: Path, normalization: str) -> None:
    data = tiny.pairs("gpt2", 13)
    settings = {"normalization": normalization, "logging_strategy": "steps", "logging_steps": 2, **STEADY}
    runs = [
        tiny.trainer(tmp_path, "gpt2", data, regularizer=regularizer, **settings)
        for regularizer in ("sq", squared_roots, "l1")
    ]
    for run in runs:
        run.train()
    built_in, custom, other = (tiny.weights(run.model) for run in runs)
    assert tiny.distance(built_in, custom) < 1e-9
    assert tiny.distance(built_in, other) > 1e-5
    keys = ("consistency", "unlearned_share", "inconsistency", "gradient_share")
    logs = [[[log[key] for key in keys] for log in run.state.log_history if "consistency" in log] for run in runs]
    assert logs[1] == [pytest.approx(line, rel=1e-6) for line in logs[0]]


@pytest.mark.parametrize("name", ["sq", "l1"])
def test_slopes_are_those_of_the_built_in_regularizer(name: str) -> None:
    function = {"sq": squared_roots, "l1": lambda one, other: (one - other).abs()}[name]
    losses = torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64), torch.tensor([1.0, 9.0, 0.25], dtype=torch.float64)
    with torch.no_grad():
        found = CustomRegularizer(function).as_regularizer().slopes(*losses, LOSS_EPSILON)
    for one, other in zip(found, LOSS_REGULARIZERS[name].slopes(*losses, LOSS_EPSILON), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    one_sided = CustomRegularizer(lambda original, augmented: original * 2).as_regularizer()
    assert [slope.tolist() for slope in one_sided.slopes(*losses, LOSS_EPSILON)] == [[2.0] * 3, [0.0] * 3]
    constant = CustomRegularizer(lambda original, augmented: torch.ones_like(original)).as_regularizer()
    assert [slope.tolist() for slope in constant.slopes(*losses, LOSS_EPSILON)] == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    "returned",
    [lambda one, other: one.mean(), lambda one, other: 1.0, lambda one, other: one[:, None]],
)
def test_anything_but_one_value_per_pair_is_refused(returned: Any) -> None:
    with pytest.raises(DataError, match="regularizer="):
        CustomRegularizer(returned)(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("regularizer", ["l2", 3])
def test_what_is_no_function_is_refused(tmp_path: Path, regularizer: Any) -> None:
    with pytest.raises(DataError, match="regularizer="):
        tiny.config(tmp_path, regularizer=regularizer)


def test_modules_and_functions_with_defaults_are_regularizers(tmp_path: Path) -> None:
    for function in (
        torch.nn.MSELoss(reduction="none"),
        torch.dist,
        lambda one, other, power=2: (one - other) ** power,
    ):
        assert tiny.config(tmp_path, regularizer=function).regularizer.function is function


def test_settings_with_a_function_are_copied_saved_and_printed(tmp_path: Path) -> None:
    args = tiny.config(tmp_path, regularizer=lambda one, other: (one - other) ** 2)
    assert copy.deepcopy(args).regularizer is args.regularizer
    assert "lambda" in json.loads(args.to_json_string())["regularizer"]
    saved = io.BytesIO()
    torch.save(args, saved)  # as the Trainer does in every checkpoint
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    with pytest.raises(DataError, match="was not saved"):
        loaded.regularizer(torch.ones(1), torch.ones(1))
    named = tiny.config(tmp_path, regularizer=squared_roots)
    assert pickle.loads(pickle.dumps(named)).regularizer.function is squared_roots
    assert named.regularizer == CustomRegularizer(squared_roots)


def test_settings_with_a_function_of_the_main_script_are_read_elsewhere(tmp_path: Path) -> None:
    """A checkpoint's training arguments, written by a script and read here."""
    script, saved = tmp_path / "script.py", tmp_path / "training_args.bin"
    script.write_text(
        "import pickle, sys, torch\n"
        "from dair_hf import DAIRConfig\n"
        "def squared(one, other): return (one - other) ** 2\n"
        "args = DAIRConfig(sys.argv[1], regularizer=squared, dair_lambda=0.25, use_cpu=True)\n"
        "torch.save(args, sys.argv[2])\n"
        "assert pickle.loads(pickle.dumps(args)).regularizer.function is squared\n"
    )
    assert (done := forked(script, tmp_path, saved)).returncode == 0, done.stderr
    loaded = torch.load(saved, weights_only=False)
    assert (loaded.dair_lambda, repr(loaded.regularizer)) == (0.25, "squared")
    again = pickle.loads(pickle.dumps(loaded))
    with pytest.raises(DataError, match="regularizer=squared was not saved"):
        again.regularizer(torch.ones(1), torch.ones(1))


def test_a_function_of_a_module_that_is_gone_does_not_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("rules_of_a_user")
    exec("def squared(one, other): return (one - other) ** 2", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    saved = pickle.dumps(CustomRegularizer(module.squared))
    assert pickle.loads(saved)(torch.tensor([4.0]), torch.tensor([1.0])).tolist() == [9.0]
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(DataError, match="was not saved"):
        pickle.loads(saved)(torch.ones(1), torch.ones(1))


def test_a_run_with_a_function_saves_checkpoints(tmp_path: Path) -> None:
    settings = {"regularizer": lambda one, other: (one - other) ** 2, "save_strategy": "steps", "save_steps": 2}
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 8), **settings)
    made.train()
    made.save_model(str(tmp_path / "saved"))
    made.create_model_card()
    assert (tmp_path / "checkpoint-2" / "trainer_state.json").exists() and (tmp_path / "README.md").exists()


@pytest.mark.parametrize(
    "function",
    [lambda one, other: ((one - other) ** 2).detach(), lambda one, other: one > other],
)
def test_values_without_a_gradient_are_refused_where_the_losses_have_one(tmp_path: Path, function: Any) -> None:
    data = tiny.pairs("gpt2", 4)
    with pytest.raises(DataError, match="^regularizer="):
        tiny.trainer(tmp_path, "gpt2", data, regularizer=function).train()
    with torch.no_grad():
        assert CustomRegularizer(function)(torch.ones(2), torch.ones(2)).shape == (2,)
    assert CustomRegularizer(function)(torch.ones(2), torch.ones(2)).shape == (2,)
