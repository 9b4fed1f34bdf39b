"""Recipes with partners from attacks or on other backgrounds: complete tiny runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dair_hf.vision.backgrounds import drawn
from dair_hf.vision.backgrounds.variants import VARIANTS
from tests.fixtures.digits import noise_digits, write_parquet
from tests.fixtures.recipe_runs import run

SIZES = ["--network", "preact_resnet", "--hidden_sizes", "4", "8", "--depths", "1", "1"]
DRAWN = ["--train_each", "8", "--test_each", "4", "--num_train_epochs", "1"]

pytestmark = pytest.mark.slow


def records(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*_seed*.json"))}


def shares_of(metrics: dict[str, Any], names: Sequence[str]) -> list[float]:
    shares = [metrics[name] for name in names]
    assert all(0 <= share <= 1 for share in shares)
    return shares


@pytest.fixture(scope="module")
def attack_options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("mnist")
    write_parquet(folder / "train.parquet", noise_digits(80, seed=1))
    write_parquet(folder / "test.parquet", noise_digits(50, seed=2))
    sizes = {"train_rows": 60, "validation_rows": 20, "test_rows": 40, "train_steps": 2, "test_steps": 3}
    options = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    return ["--mnist", str(folder), *options, "--num_train_epochs", "1"]


def test_every_adversarial_method_is_trained_and_evaluated(
    attack_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regularized = ["trades", "mart", "js", "dair"]
    for methods, lambdas in ((["pgd", *regularized], ["6"]), (["dair"], ["1", "6"])):
        options = [*attack_options, "--methods", *methods, "--lambda_sweep", *lambdas]
        run("cifar10_adversarial", "mnist_adversarial", tmp_path, *options)
    by_name = records(tmp_path)
    assert set(by_name) == {"pgd_seed0", "dair_lambda1_seed0", *(f"{name}_lambda6_seed0" for name in regularized)}
    for record in by_name.values():
        shares_of(record["metrics"], ["accuracy", "accuracy_fgsm", "accuracy_pgd"])
        assert record["metrics"]["rows"] == 40
    assert by_name["pgd_seed0"]["config"]["training"]["method"] == "augmented"
    assert by_name["dair_lambda6_seed0"]["config"]["attacks"]["train_steps"] == 2
    assert "PGD-3" in capsys.readouterr().out
    for plot in ("comparison.png", "lambda_accuracy_pgd.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")


def test_settings_can_be_chosen_on_validation_rows(attack_options: list[str], tmp_path: Path) -> None:
    options = ["--methods", "pgd", "--evaluate_on", "validation"]
    run("cifar10_adversarial", "mnist_adversarial", tmp_path, *attack_options, *options)
    assert records(tmp_path)["pgd_seed0"]["metrics"]["rows"] == 20


def test_drawn_images_are_evaluated_in_all_variants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "VALIDATION_EACH", 4)
    run("imagenet9", "backgrounds", tmp_path, *DRAWN, *SIZES, "--seeds", "0", "--methods", "erm", "dair")
    by_name = records(tmp_path)
    assert set(by_name) == {"erm_seed0", "dair_seed0"}
    for record in by_name.values():
        shares_of(record["metrics"], [f"accuracy_{variant}" for variant in VARIANTS])
        assert record["metrics"]["rows"] == 36
    assert "BG-T" in capsys.readouterr().out
    validation = tmp_path / "validation"
    options = ["--seeds", "0", "--methods", "dair", "--evaluate_on", "validation"]
    run("imagenet9", "backgrounds", validation, *DRAWN, *SIZES, *options)
    assert records(validation)["dair_seed0"]["metrics"] != by_name["dair_seed0"]["metrics"]
