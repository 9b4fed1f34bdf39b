"""Two processes on two cores against one process with two threads: rows a second of DAIR training.

    python benchmarks/processes.py [--rounds 5]

Starts itself: under `accelerate launch` with `recipes/accelerate_configs/cpu_processes.yaml`, one thread each, and as
one process with two threads; 16 pairs a step in both, all cores used in both. What a launch takes does not count.

About six minutes on two cores. Writes results/benchmarks/processes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from outcome import conclude, measured
from steps import bart
from timing import ratio
from tqdm.auto import tqdm
from transformers import TrainerCallback

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "recipes" / "accelerate_configs" / "cpu_processes.yaml"
PAIRS, SOURCE, TARGET, VOCABULARY = 16, 96, 32, 2000
WARMUP, STEPS = 5, 25


class Clock(TrainerCallback):
    """Seconds from the end of the warm-up to the end of training."""

    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the clock."""
        if state.global_step == WARMUP:
            self.start = time.perf_counter()
        self.seconds = time.perf_counter() - self.start


def work(output: Path) -> None:
    """Train on this process's share and write the seconds."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(2 // processes)
    model = bart(VOCABULARY, width=256, layers=3, heads=4)
    row = {
        name: [5] * length for name, length in (("input_ids", SOURCE), ("attention_mask", SOURCE), ("labels", TARGET))
    }
    row["attention_mask"] = [1] * SOURCE
    rows = [{**row, **{f"augmented_{name}": value for name, value in row.items()}}] * (PAIRS * (WARMUP + STEPS))
    clock = Clock()
    args = DAIRConfig(
        tempfile.mkdtemp(),
        max_steps=WARMUP + STEPS,
        per_device_train_batch_size=PAIRS // processes,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = DAIRTrainer(model, args, train_dataset=rows, callbacks=[clock])
    trainer.train()
    if trainer.is_world_process_zero():
        output.write_text(json.dumps({"seconds": clock.seconds, "processes": trainer.accelerator.num_processes}))


def launch(processes: int) -> float:
    """Seconds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        start = [sys.executable]
        if processes > 1:
            port = ["--main_process_port", "0"]
            start += ["-m", "accelerate.commands.launch", "--config_file", str(CONFIG), *port]
        environment = {**os.environ, "OMP_NUM_THREADS": str(2 // processes), "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            [*start, __file__, "--worker", str(output)], env=environment, capture_output=True, text=True, cwd=ROOT
        )
        if done.returncode:
            sys.exit(f"error: {processes} processes ended with {done.returncode}:\n{done.stderr[-3000:]}")
        found = json.loads(output.read_text())
    assert found["processes"] == processes, found
    return float(found["seconds"])


def main() -> None:
    """Launch in turn, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    seconds: dict[str, list[float]] = {"two processes": [], "one process": []}
    for turn in tqdm(range(options.rounds), desc="Timing", unit="round"):
        for name in list(seconds)[:: 1 if turn % 2 else -1]:
            seconds[name].append(launch(2 if name == "two processes" else 1))
    conclude(
        "processes",
        f"Two processes against two threads, {PAIRS} pairs a step",
        [measured("rows a second", ratio(seconds, "one process", "two processes"), target=1.0, at_least=True)],
        {"rounds": options.rounds, "steps": STEPS, "pairs": PAIRS, "source": SOURCE, "target": TARGET},
        seconds,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
