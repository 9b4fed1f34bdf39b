"""Comparisons: arguments of each run, reuse of finished runs, sweeps over lambda."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    compare,
    runs_of,
    with_settings,
)
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import fingerprint
from dair_hf.experiments.search import SearchConfig
from dair_hf.io.files import LOCK
from dair_hf.training.environments import EnvironmentConfig
from dair_hf.vision.robustness import AttackConfig
from tests.fixtures import tiny

pytestmark = pytest.mark.usefixtures("undrawn")
COLUMNS = [Column("cm", "CM")]


def test_runs_by_hand(tmp_path: Path) -> None:
    args = tiny.config(tmp_path / "out", dair_lambda=0.25, normalization="token")
    runs = list(runs_of(ComparisonConfig(["erm", "kl", "dair_l1", "irm"], {"kl": 3.0}, [4, 5]), args))
    settings = [(run.name, run.args.method, run.args.regularizer, run.args.dair_lambda) for run in runs]
    assert settings[:4] == [
        ("erm_seed4", "erm", "sq", 0.25),
        ("kl_seed4", "dair", "kl", 3.0),
        ("dair_l1_seed4", "dair", "l1", 0.25),
        ("irm_seed4", "da", "sq", 0.25),
    ]
    assert settings[4:] == [(name.replace("4", "5"), *rest) for name, *rest in settings[:4]]
    assert [run.args.seed for run in runs] == [4] * 4 + [5] * 4
    folders = {run.args.output_dir for run in runs}
    assert len(folders) == 8 and str(tmp_path / "out" / "runs" / "kl_seed5") in folders
    # All other arguments are shared, and the given ones are not modified.
    assert {run.args.normalization for run in runs} == {"token"}
    assert (args.seed, args.output_dir) == (5, str(tmp_path / "out"))
    swept = list(runs_of(ComparisonConfig(["erm", "dair", "kl"], None, [0], [0.5, 10.0]), args))
    assert [(run.name, run.args.regularizer, run.args.dair_lambda) for run in swept] == [
        ("erm_seed0", "sq", 0.25),
        ("dair_lambda0.5_seed0", "sq", 0.5),
        ("dair_lambda10_seed0", "sq", 10.0),
        ("kl_lambda0.5_seed0", "kl", 0.5),
        ("kl_lambda10_seed0", "kl", 10.0),
    ]
    assert swept[1].args.output_dir == str(tmp_path / "out" / "runs" / "dair_lambda0.5_seed0")


def test_copied_arguments_share_nothing(tmp_path: Path) -> None:
    args = tiny.config(tmp_path)
    first, second = with_settings(args), with_settings(args)
    before = fingerprint(second)
    first.accelerator_config.dispatch_batches = False
    assert args.accelerator_config.dispatch_batches is None
    assert fingerprint(second) == before


class Bench:
    """Replacement for training that records which runs were executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executed: list[str] = []

    def execute(self, run: Run) -> Result:
        self.executed.append(run.name)
        Path(run.args.output_dir, "weights").write_text(f"{run.args.learning_rate}")
        return Result({"cm": 0.5}, {"training": 1.234})

    def compare(self, methods: list[str], data: str = "d", shared: str = "s", **settings: Any) -> str:
        runs = list(runs_of(ComparisonConfig(methods), tiny.config(self.folder, **settings)))
        self.executed.clear()
        return compare(
            runs, self.execute, self.folder, "Title", COLUMNS, {"shared": shared}, {"train": data}, ["Note."]
        )


def test_only_unfinished_runs_are_executed(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "out")
    table = bench.compare(["erm", "dair"])
    assert bench.executed == ["erm_seed0", "dair_seed0"]
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| erm", "| dair"]
    assert bench.compare(["erm", "dair"]) == table
    assert bench.executed == []
    bench.compare(["da", "dair"])
    assert bench.executed == ["da_seed0"]
    record = json.loads((tmp_path / "out/da_seed0.json").read_text())
    assert (record["method"], record["seed"], record["metrics"], record["seconds"]) == (
        "da", 0, {"cm": 0.5}, {"training": 1.23},
    )  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", [{"data": "e"}, {"shared": "t"}, {"learning_rate": 0.5}])
def test_finished_runs_with_other_settings_are_not_replaced(tmp_path: Path, change: dict[str, Any]) -> None:
    bench = Bench(tmp_path)
    bench.compare(["erm", "dair"])
    before = contents(tmp_path)
    # Refused before the first run, even if only the last one conflicts.
    with pytest.raises(DataError, match="dair_seed0.json"):
        bench.compare(["da", "dair"], **change)
    assert bench.executed == []
    assert contents(tmp_path) == before


def test_unfinished_run_with_other_settings_is_renamed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    execute = bench.execute

    def interrupt(run: Run) -> Result:
        execute(run)
        raise KeyboardInterrupt

    # The third run has the settings of the first and must not replace its folder.
    for rate in (0.1, 0.2, 0.1, 0.2):
        bench.execute = interrupt if rate == 0.1 else execute  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            bench.compare(["erm"], learning_rate=rate)
        if rate == 0.2:
            (tmp_path / "erm_seed0.json").unlink()
    rates = sorted((path.name[:13], (path / "weights").read_text()) for path in (tmp_path / "runs").iterdir())
    assert rates == [("erm_seed0", "0.2"), *(("erm_seed0_of_", rate) for rate in ("0.1", "0.1", "0.2"))]


def test_two_comparisons_do_not_work_in_one_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with FileLock(tmp_path / LOCK), pytest.raises(DataError, match="another process works there"):
        bench.compare(["erm"])
    assert bench.executed == []
    bench.compare(["erm"])
    assert bench.executed == ["erm_seed0"]


def parsed(folder: Path, content: str, options: str) -> tuple[Any, ...]:
    """Settings of a file and a command line."""
    path = folder / "settings.yaml"
    path.write_text(f"output_dir: out\nuse_cpu: true\n{content}")
    types = [SearchConfig, ComparisonConfig, DAIRConfig]
    return parse_arguments(types, ["--config", str(path), *shlex.split(options)])[1:]


SWEEP = "methods: [dair, kl]\nlambda_sweep: [0.1, 10]\ndair_lambda: 7"
OWN = "methods: [erm, dair, kl]\nlambdas: {dair: 2, kl: 1}"
GRID = "methods: [dair]\ndair_lambda: 3\nsearch_lambdas: [1, 2]"


@pytest.mark.parametrize(
    ("content", "options", "lambdas"),
    [
        (SWEEP, "", {"dair_lambda0.1": 0.1, "dair_lambda10": 10.0, "kl_lambda0.1": 0.1, "kl_lambda10": 10.0}),
        (SWEEP, "--dair_lambda=3", {"dair": 3.0, "kl": 3.0}),
        (SWEEP, "--lambdas '{dair: auto}'", {"dair": "auto", "kl": 7.0}),
        (SWEEP, "--lambda_sweep 5", {"dair_lambda5": 5.0, "kl_lambda5": 5.0}),
        (SWEEP, "--lambda_sweep null", {"dair": 7.0, "kl": 7.0}),
        (OWN, "--methods dair --lambda_sweep 5", {"dair_lambda5": 5.0}),
        (OWN, "--dair_lambda auto --lambdas '{kl: 1}'", {"erm": "auto", "dair": "auto", "kl": 1.0}),
        (f"{OWN}\ndair_lambda: 5", "", {"erm": 5.0, "dair": 2.0, "kl": 1.0}),  # the default of added methods
        (GRID, "", {"dair": 3.0}),
        (GRID, "--search_lambdas null --dair_lambda 4", {"dair": 4.0}),
    ],
)
def test_the_command_line_replaces_lambdas_of_the_file(
    tmp_path: Path, content: str, options: str, lambdas: dict[str, Any]
) -> None:
    assert {run.method: run.args.dair_lambda for run in runs_of(*parsed(tmp_path, content, options))} == lambdas


@pytest.mark.parametrize(
    ("content", "options", "name"),
    [
        (OWN, "--dair_lambda auto", "dair_lambda"),
        ("", "--lambda_sweep 1 2 --dair_lambda auto", "dair_lambda"),
        ("method: da", "", "method"),
        ("", "--method dair", "method"),  # also if it is the default, which a user asks for
        ("regularizer: kl", "", "regularizer"),
        ("seed: 7", "", "seed"),
        ("", "--methods erm dair --lambdas '{kl: 3}'", "lambdas"),
        ("max_steps: 9", "--num_train_epochs 1", "num_train_epochs"),
        (GRID, "--dair_lambda 3", "dair_lambda"),
        (GRID, "--lambda_sweep 3", "lambda_sweep"),
        (GRID, "--lambdas '{dair: 1}'", "lambdas"),
        ("", "--search_lambdas 1 2 --dair_lambda 3", "dair_lambda"),
    ],
)
def test_settings_that_the_runs_would_ignore_are_refused(tmp_path: Path, content: str, options: str, name: str) -> None:
    with pytest.raises(DataError, match=f"^{name} "):
        parsed(tmp_path, content, options)


def test_steps_of_a_file_override_its_epochs(tmp_path: Path) -> None:
    both = "max_steps: 9\nnum_train_epochs: 2"
    assert parsed(tmp_path, both, "")[1].max_steps == 9
    assert parsed(tmp_path, both, "--num_train_epochs 1 --max_steps=-1")[1].max_steps < 0


@pytest.mark.parametrize("method", ["pgd", "trades", "mart", "irm", "rex", "dro"])
def test_methods_run_only_where_what_they_need_is_provided(method: str) -> None:
    options = ["--output_dir", "out", "--methods", "erm", method]
    provider, other = EnvironmentConfig, AttackConfig
    if method in AttackConfig.provided_methods:
        provider, other = other, provider
    for types in ([ComparisonConfig, DAIRConfig], [other, ComparisonConfig, DAIRConfig]):
        with pytest.raises(DataError, match=f"^methods: {method} "):
            parse_arguments(types, options)
    assert parse_arguments([provider, ComparisonConfig, DAIRConfig], options)[1].methods == ["erm", method]


@pytest.mark.parametrize("given", [{"resume_from_checkpoint": "there"}, {"regularizer": lambda a, b: abs(a - b)}])
def test_settings_of_a_single_run_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    args = tiny.config(tmp_path, **given)
    with pytest.raises(DataError, match=next(iter(given))):
        list(runs_of(ComparisonConfig(["erm"]), args))
