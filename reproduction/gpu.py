"""Train and compare the methods on one GPU from scratch, in parts of a few minutes: dialogue trackers, then CIFAR-10.

Run from the root of the checkout, in the order of the parts, or all of them at once:

    python -m reproduction.gpu --data path/to/data --output outputs/gpu --part all --minutes 9

`--data` holds `multiwoz21/`, `sgd/` and `cifar10/` (or `--cifar10 path`); nothing else is read. Parts:

- `data`: the raw dialogues, prepared and encoded. Needs no GPU.
- `base`: a causal tracker of 88 million parameters, trained on SGD with scrambled names, for as long as time allows.
- `plan`: a short run of KL from the base, which decides how many epochs fit into `--minutes`, evaluation included.
- `erm`, `da`, `kl`, `dair_0.02`, `dair_0.5`, `auto`: one run each on MultiWOZ 2.1, from that base.
- `cifar10_plan`, then `cifar10_pgd`, `cifar10_trades`, `cifar10_mart`, `cifar10_dair_6`, `cifar10_dair_16.7`: the same
  for the paper's adversarial robustness.

All methods train for the same number of epochs, as in the paper, not for the same time: the plan is for the slowest
one, and its learning rate decays to the end of these epochs. The record of each run states them.

A part that has its record is skipped. A part that is interrupted resumes from its last checkpoint. Records come from
the recipes, in `multiwoz21/` and `cifar10/` of the output folder, with a table each. Weights of finished runs are
removed, except the base's, and predictions are kept. `--small` tries everything on a CPU, in minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from dair_hf.errors import DataError
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json, read_yaml, write_json, write_text
from reproduction.experiments import sole_worker
from reproduction.gpu_base import prepare_data, train_base
from reproduction.gpu_plans import Timing, plan_epochs

ATTENTIONS = ("flex_attention", "sdpa")  # timed on a GPU
TAIL_LINES = 15
GRACE = 30.0  # seconds in which a recipe that is out of time ends by itself


class Family(NamedTuple):
    """Runs that are compared with each other.

    Attributes:
        folder: Folder of their records, below the output folder.
        recipe: Name of the recipe.
        config: Name of its configuration.
        most_epochs: Number of epochs, if time allows.
        slowest: Settings of the run that is timed.
        record: Name of its record.
        test_share: Name of the setting that limits the test data, its value in the timed run, and the full number.
        small: Settings of `--small`.
    """

    folder: str
    recipe: str
    config: str
    most_epochs: int
    slowest: Mapping[str, Any]
    record: str
    test_share: tuple[str, int, int]
    small: Mapping[str, Any]


DIALOGS = Family(
    "multiwoz21", "multiwoz_simpletod", "multiwoz21_gpu", 20, {"methods": ["kl"]}, "kl_seed0",
    ("test_dialogs", 100, 1000),
    {
        "model_settings": {
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 1024,
        },
        "train_dialogs": 12, "test_dialogs": 6, "max_tokens_per_batch": 2048, "per_device_eval_batch_size": 32,
        "logging_steps": 1, "save_steps": 5,
    },
)  # fmt: skip
CIFAR10 = Family(
    "cifar10", "cifar10_adversarial", "cifar10_adversarial", 120, {"methods": ["trades"], "lambda_sweep": [6]},
    "trades_lambda6_seed0", ("test_rows", 1000, 10000),
    {
        "hidden_sizes": [8, 16], "depths": [1, 1], "train_rows": 64, "test_rows": 32, "train_steps": 2, "test_steps": 2,
        "per_device_train_batch_size": 16, "logging_steps": 1,
    },
)  # fmt: skip
SMALL_EPOCHS, SMALL_DIALOGS, SMALL_BASE, SMALL_STEPS = 2, 60, 30, 6
BASE_STEPS = 30_000  # if time allows
TIMED_STEPS = 40  # of a run of a method
# Part of a run -> family, settings, name of its record.
RUNS: dict[str, tuple[Family, dict[str, Any], str]] = {
    "erm": (DIALOGS, {"methods": ["erm"]}, "erm_seed0"),
    "da": (DIALOGS, {"methods": ["da"]}, "da_seed0"),
    "kl": (DIALOGS, {"methods": ["kl"]}, "kl_seed0"),
    "dair_0.02": (DIALOGS, {"methods": ["dair"], "lambda_sweep": [0.02]}, "dair_lambda0.02_seed0"),
    "dair_0.5": (DIALOGS, {"methods": ["dair"], "lambda_sweep": [0.5]}, "dair_lambda0.5_seed0"),
    "auto": (DIALOGS, {"methods": ["dair"], "dair_lambda": "auto"}, "dair_seed0"),
    "cifar10_pgd": (CIFAR10, {"methods": ["pgd"]}, "pgd_seed0"),
    "cifar10_trades": (CIFAR10, {"methods": ["trades"], "lambda_sweep": [6]}, "trades_lambda6_seed0"),
    "cifar10_mart": (CIFAR10, {"methods": ["mart"], "lambda_sweep": [6]}, "mart_lambda6_seed0"),
    "cifar10_dair_6": (CIFAR10, {"methods": ["dair"], "lambda_sweep": [6]}, "dair_lambda6_seed0"),
    "cifar10_dair_16.7": (CIFAR10, {"methods": ["dair"], "lambda_sweep": [16.7]}, "dair_lambda16.7_seed0"),
}
PLANS = {"plan": DIALOGS, "cifar10_plan": CIFAR10}
PARTS = ("data", "base", "plan", *list(RUNS)[:6], "cifar10_plan", *list(RUNS)[6:])


class Runner:
    """Runs the parts.

    Args:
        options: Command line.
        lock: Lock file, held by the recipes as well.
    """

    def __init__(self, options: argparse.Namespace, lock: int) -> None:
        self.options, self.lock = options, lock
        self.output: Path = options.output
        self.data = self.output / "data"
        self.on_gpu = torch.cuda.is_available() and not options.small
        if not self.on_gpu and not options.small:
            raise DataError("no GPU: the parts would take days; give --small to try them on a CPU")
        self.start = time.monotonic()

    def run(self, part: str) -> None:
        """Run a part, unless it is finished."""
        self.start = time.monotonic()
        if self.result_of(part).exists():
            print(f"{part}: finished before", flush=True)
            return
        if part == "data":
            settings = self.settings_file(part, DIALOGS, {"sgd_dir": str(self.options.data / "sgd")})
            dialogs = SMALL_DIALOGS if self.options.small else None
            prepare_data(self.data, self.options.data, settings, self.call, dialogs)
        elif part == "base":
            self.require(part, "data")
            settings = self.settings_file(part, DIALOGS, {"sgd_dir": str(self.options.data / "sgd")})
            attentions = ATTENTIONS if self.on_gpu else ("sdpa",)
            folder, seconds = self.output / "base", self.options.minutes * 60
            most = SMALL_BASE if self.options.small else BASE_STEPS
            train_base(folder, self.data, settings, attentions, self.start, seconds, most)
        elif part in PLANS:
            self.plan(part, PLANS[part])
        else:
            self.run_method(part)
        print(f"{part}: finished in {time.monotonic() - self.start:.0f} s", flush=True)

    def result_of(self, part: str) -> Path:
        """Return the file that a finished part has written."""
        if part in RUNS:
            return self.output / RUNS[part][0].folder / f"{RUNS[part][2]}.json"
        names = {"data": "data/base/dair_hf_manifest.json", "base": "base/base_seed0.json"}
        return self.output / names.get(part, f"{part}.json")

    def require(self, part: str, other: str) -> None:
        """Refuse a part that needs another one which has not finished."""
        if not self.result_of(other).exists():
            raise DataError(f"{part}: {self.result_of(other)} is missing; run --part {other} first")

    def settings_file(self, part: str, family: Family, changes: Mapping[str, Any]) -> Path:
        """Write the settings of a part: the configuration's, changed for this machine and the part."""
        settings = read_yaml(Path("recipes") / "configs" / f"{family.config}.yaml")
        settings |= {"output_dir": str(self.output / family.folder), "disable_tqdm": True, "seeds": [0]}
        settings |= {"bf16": self.on_gpu, "tf32": True if self.on_gpu else None, "use_cpu": not self.on_gpu}
        if family is DIALOGS:
            settings["data_dir"] = str(self.data / "multiwoz21") if part != "data" else str(self.options.data)
            settings["attn_implementation"] = "sdpa"
        else:
            settings["cifar10"] = str(self.cifar10())
            settings.pop("lambda_sweep")
        if not self.on_gpu:
            settings["dataloader_num_workers"] = 0
        if self.options.small:
            settings |= family.small
        settings |= changes
        file = self.output / "settings" / f"{part}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, yaml.safe_dump({name: value for name, value in settings.items() if value is not None}))
        return file

    def cifar10(self) -> Path:
        """Return the folder of CIFAR-10, which must exist."""
        path: Path = self.options.cifar10 or self.options.data / "cifar10"
        if not path.exists():
            raise DataError(f"CIFAR-10: {path} does not exist; give its folder or archive by --cifar10")
        return path

    def from_base(self, part: str, family: Family) -> dict[str, Any]:
        """Return the settings with which a run starts from the base; none for CIFAR-10."""
        if family is CIFAR10:
            return {}
        self.require(part, "base")
        return {
            "model_settings": None,
            "pretrain": None,
            "model_name_or_path": str(self.output / "base" / "model"),
            "sgd_dir": str(self.data / "sgd_names.json"),
        }

    def plan(self, part: str, family: Family) -> None:
        """Time a short run with each attention, and store the number of epochs of all runs."""
        start_settings = self.from_base(part, family)
        attentions = [None] if family is CIFAR10 else list(ATTENTIONS if self.on_gpu else ("sdpa",))
        timings, failures = {}, {}
        for attention in attentions:
            changes = {**start_settings, "attn_implementation": attention} if attention else {}
            try:
                timings[attention] = self.timing(part, family, changes)
            except DataError as error:
                failures[attention] = error
        if not timings:
            raise next(iter(failures.values()))
        most = SMALL_EPOCHS if self.options.small else family.most_epochs
        best = min(timings, key=lambda name: timings[name].needed(most))
        epochs = plan_epochs(timings[best], self.options.minutes, most)
        all_timings = {str(name): timing._asdict() for name, timing in timings.items()}
        write_json(
            self.result_of(part),
            {
                "num_train_epochs": epochs,
                "minutes": self.options.minutes,
                "attn_implementation": best,
                "seconds": all_timings,
                "failures": {str(name): str(error) for name, error in failures.items()},
            },
        )

    def timing(self, part: str, family: Family, changes: Mapping[str, Any]) -> Timing:
        """Run the slowest method for some steps and a part of the test data."""
        folder = self.output / "timing"
        shutil.rmtree(folder, ignore_errors=True)
        steps = SMALL_STEPS if self.options.small else TIMED_STEPS
        every = max(1, steps // 10)
        name, few, whole = family.test_share
        few, whole = (family.small[name],) * 2 if self.options.small else (few, whole)
        short = {
            "max_steps": steps,
            "logging_steps": every,
            "save_strategy": "no",
            "output_dir": str(folder),
            name: few,
        }
        settings = self.settings_file(part, family, {**family.slowest, **changes, **short})
        start = time.monotonic()
        logs = self.call([sys.executable, f"recipes/{family.recipe}.py", "--config", str(settings)], part)
        wall = time.monotonic() - start
        seconds = read_json(folder / f"{family.record}.json")["seconds"]
        state = read_json(folder / "runs" / family.record / "trainer_state.json")
        shutil.rmtree(folder)
        gaps = [later - earlier for earlier, later in zip(logs, logs[1:], strict=False)]
        step = statistics.median(gaps[len(gaps) // 2 :]) / every
        return Timing(
            startup=wall - seconds["training"] - seconds["evaluation"],
            warmup=max(0.0, seconds["training"] - steps * step),
            epoch=step * state["global_step"] / state["epoch"],
            evaluation=seconds["evaluation"] * whole / few,
        )

    def run_method(self, part: str) -> None:
        """Run a method for the planned epochs, then remove its weights."""
        family, changes, record = RUNS[part]
        plan = next(name for name, planned in PLANS.items() if planned is family)
        start_settings = self.from_base(part, family)
        self.require(part, plan)
        planned = read_json(self.result_of(plan))
        if self.options.minutes < planned["minutes"]:
            raise DataError(
                f"{part}: {planned['num_train_epochs']} epochs were planned for --minutes {planned['minutes']:g}, and "
                f"all methods need the same number; give as many minutes, or delete {self.result_of(plan)} and all runs"
            )
        settings = {**start_settings, **changes, "num_train_epochs": planned["num_train_epochs"]}
        if planned["attn_implementation"]:
            settings["attn_implementation"] = planned["attn_implementation"]
        file = self.settings_file(part, family, settings)
        self.call([sys.executable, f"recipes/{family.recipe}.py", "--config", str(file)], part)
        remove_weights(self.output / family.folder / "runs" / record)

    def call(self, argv: list[str], name: str) -> list[float]:
        """Run a command until the time of the part is over; return when it logged a training loss.

        Raises:
            DataError: It failed, or ran out of time.
        """
        log = self.output / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.getcwd()}
        seconds = self.options.minutes * 60 - (time.monotonic() - self.start)
        times: list[float] = []
        with (
            log.open("w", encoding="utf-8") as file,
            subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=file, text=True, env=environment, pass_fds=[self.lock]
            ) as process,
        ):
            clocks = [threading.Timer(seconds, process.terminate), threading.Timer(seconds + GRACE, process.kill)]
            for clock in clocks:
                clock.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if "'loss'" in line:
                        times.append(time.monotonic())
                    file.write(line)
                process.wait()
            except BaseException:
                process.terminate()
                raise
            finally:
                for clock in clocks:
                    clock.cancel()
        if process.returncode and time.monotonic() - self.start >= self.options.minutes * 60:
            raise DataError(
                f"{name}: not finished within --minutes {self.options.minutes:g}; run the part again, which resumes "
                "from the last checkpoint"
            )
        if process.returncode:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
            raise DataError(f"{name}: ended with {process.returncode}; the end of {log}:\n{tail}")
        return times


def remove_weights(folder: Path) -> None:
    """Remove the model and the checkpoints of a finished run; keep its predictions."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix in (".safetensors", ".bin"):
            path.unlink()


def parse_options(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of multiwoz21/, sgd/ and cifar10/")
    parser.add_argument("--output", type=Path, required=True, help="folder of the base, the records and the tables")
    parser.add_argument("--part", choices=(*PARTS, "all"), required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="time of each part (default: 9)")
    parser.add_argument("--small", action="store_true", help="tiny models and data on a CPU")
    parser.add_argument("--cifar10", type=Path, help="CIFAR-10 (default: cifar10/ of the data)")
    return parser.parse_args(argv)


def main() -> None:
    """Run a part, or all, and print the tables."""
    options = parse_options()
    with sole_worker(options.output / "gpu.lock") as lock:
        runner = Runner(options, lock)
        refused = []
        for part in PARTS if options.part == "all" else [options.part]:
            try:
                if part.startswith("cifar10"):
                    runner.cifar10()
            except DataError as error:
                refused.append(str(error))
                continue
            runner.run(part)
        for family in (DIALOGS, CIFAR10):
            table = options.output / family.folder / "comparison.md"
            if table.exists():
                print(f"\n{table.read_text(encoding='utf-8')}")
    if refused:
        raise DataError(refused[0])


if __name__ == "__main__":
    run_recipe(main)
