"""Speed of DAIR training in two processes with one thread each, relative to one process with two threads.

    python benchmarks/processes.py [--rounds 5]

Each variant trains on 16 pairs a step on all of two cores, the first under `accelerate launch` with
`recipes/accelerate_configs/cpu_processes.yaml`. Start-up time is excluded.

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
from measuring import benchmark_parser, conclude, ratio
from tqdm.auto import tqdm
from transformers import TrainerCallback
from workloads import bart, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "recipes" / "accelerate_configs" / "cpu_processes.yaml"
PAIRS, SOURCE, TARGET, VOCABULARY = 16, 96, 32, 2000
WARMUP, STEPS = 5, 25


class Clock(TrainerCallback):
    """Callback that measures the seconds from the end of the warm-up to the end of training."""

    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Update the seconds."""
        if state.global_step == WARMUP:
            self.start = time.perf_counter()
        self.seconds = time.perf_counter() - self.start


def work(output: Path) -> None:
    """Train and write the seconds."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(2 // processes)
    model = bart(VOCABULARY, width=256, layers=3, heads=4)
    row = {"input_ids": [5] * SOURCE, "attention_mask": [1] * SOURCE, "labels": [5] * TARGET}
    rows = [{**row, **{f"augmented_{name}": value for name, value in row.items()}}] * (PAIRS * (WARMUP + STEPS))
    clock = Clock()
    settings = quiet_settings(
        max_steps=WARMUP + STEPS,
        per_device_train_batch_size=PAIRS // processes,
        logging_strategy="no",
        use_cpu=True,
    )
    trainer = DAIRTrainer(model, DAIRConfig(**settings), train_dataset=rows, callbacks=[clock])
    trainer.train()
    if trainer.is_world_process_zero():
        output.write_text(json.dumps({"seconds": clock.seconds, "processes": trainer.accelerator.num_processes}))


def launch(processes: int) -> float:
    """Run one variant and return its seconds."""
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
        result = json.loads(output.read_text())
    assert result["processes"] == processes, result
    return float(result["seconds"])


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=5)
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
        [ratio("rows a second", seconds, "one process", "two processes", target=1.0, at_least=True)],
        {"rounds": options.rounds, "steps": STEPS, "pairs": PAIRS, "source": SOURCE, "target": TARGET},
        seconds,
        output=options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
