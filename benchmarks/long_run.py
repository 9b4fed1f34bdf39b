"""Memory growth over a long run, and the difference between that run and the same run killed five times.

    python benchmarks/long_run.py [--steps 20000] [--kills 5]

Trains a small model on generated dialogues, in batches of similar length, with new partners each epoch and checkpoints:

- `growth`: slope of a line through the resident memory after the warm-up, read every hundred steps;
- `difference`: largest difference of any weight or optimizer state to the run that was killed with `kill -9` at random
  steps and restarted each time; it must be 0.

About forty minutes on two cores, one for each run. Writes results/benchmarks/long_run.json.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from measuring import Measure, at_least, benchmark_parser, conclude
from memory import resident
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import DataCollatorForSeq2Seq, TrainerCallback
from workloads import quiet_settings, small_model

from dair_hf import DAIRConfig, DAIRTrainer, EpochPairs
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import load_dialogs
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.renaming.entities import EntityAugmenter, redraw
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.experiments.checkpoints import train_resumable
from dair_hf.io.commands import exit_status
from dair_hf.io.files import claim_folder, read_json, write_json

EVERY, WARMUP = 100, 0.1
MODEL = {
    "model_type": "t5", "d_model": 96, "d_ff": 192, "d_kv": 24, "num_heads": 4, "num_layers": 2,
    "num_decoder_layers": 2, "dropout_rate": 0.1,
}  # fmt: skip


class Watch(TrainerCallback):
    """Callback that records the resident memory, and kills the process at one step."""

    def __init__(self, output: Path, kill_at: int) -> None:
        self.output, self.kill_at = output, kill_at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the memory, or kill the process."""
        if state.global_step % EVERY == 0:
            with self.output.open("a") as file:
                file.write(f"{state.global_step} {resident()}\n")
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def work(folder: Path, steps: int, kill_at: int) -> None:
    """Train from the last checkpoint, if there is one, to the end or to the kill."""
    torch.set_num_threads(1)
    data = DialogConfig(source="demo", train_dialogs=300, test_dialogs=10, max_source_tokens=64)
    rows = load_dialogs(data).train
    tokenizer = tokenizer_for([rows], data)
    encoder = DialogEncoder(tokenizer, 64, 48)
    encoded = rows.map(encoder, batched=True)

    def draw(epoch: int) -> datasets.Dataset:
        pairs = redraw(encoded, EntityAugmenter("scramble", seed=0), epoch % 4)
        return pairs.map(encoder, batched=True)

    model = small_model(tokenizer, MODEL)
    settings = quiet_settings(
        output_dir=str(folder / "training"),
        max_steps=steps,
        learning_rate=5e-5,
        per_device_train_batch_size=4,
        pair_group_by_length=True,
        save_strategy="steps",
        save_steps=max(steps // 20, 1),
        save_total_limit=2,
        logging_steps=500,
        use_cpu=True,
    )
    trainer = DAIRTrainer(
        model,
        DAIRConfig(**settings),
        DataCollatorForSeq2Seq(tokenizer),
        EpochPairs(draw),
        processing_class=tokenizer,
        callbacks=[Watch(folder / "memory.txt", kill_at)],
    )
    train_resumable(trainer)


def run(folder: Path, steps: int, kills: list[int]) -> float:
    """Train in processes that are killed at these steps, then to the end; return the seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    for kill_at in tqdm([*kills, 0], desc=folder.name, unit="start"):
        argv = [sys.executable, __file__, "--worker", str(folder), "--steps", str(steps), "--kill_at", str(kill_at)]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != (-signal.SIGKILL if kill_at else 0):
            sys.exit(f"error: a run to step {kill_at or steps} ended with exit status {done.returncode}:\n"
                     f"{done.stderr[-3000:]}")  # fmt: skip
    return time.perf_counter() - start


def final_state(folder: Path, steps: int) -> dict[str, torch.Tensor]:
    """Return weights and optimizer state at the end."""
    checkpoint = folder / "training" / f"checkpoint-{steps}"
    tensors = dict(load_file(checkpoint / "model.safetensors"))
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    for number, state in optimizer["state"].items():
        tensors |= {f"{number}/{name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return tensors


def growth(folder: Path, steps: int) -> tuple[float, list[list[float]]]:
    """Return the slope of the resident memory after the warm-up (bytes a step), and all pairs of step and memory."""
    points = [[float(part) for part in line.split()] for line in (folder / "memory.txt").read_text().splitlines()]
    later = np.array([point for point in points if point[0] >= WARMUP * steps])
    return float(np.polyfit(later[:, 0], later[:, 1], 1)[0]), points


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=20_000)
    parser.add_argument("--kills", type=at_least(0), default=5)
    parser.add_argument("--folder", type=Path, help="working folder; finished parts are not repeated")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill_at", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2 * EVERY:
        parser.error(f"--steps={options.steps}: memory is read every {EVERY} steps; give at least {2 * EVERY}")
    if options.worker:
        work(options.worker, options.steps, options.kill_at)
        return
    folder = claim_folder(options.folder or Path(tempfile.mkdtemp(prefix="long_run_")))
    kills = sorted(random.Random(0).sample(range(options.steps // 20 + 1, options.steps), options.kills))
    planned: dict[str, list[int]] = {"uninterrupted": [], "interrupted": kills}

    def run_once(name: str) -> list[float]:
        done = folder / name / "seconds.json"
        if not done.exists():
            write_json(done, run(folder / name, options.steps, planned[name]))
        return [read_json(done)]

    with ThreadPoolExecutor() as pool:  # each thread waits for its own processes, in its own folder
        seconds = dict(zip(planned, pool.map(run_once, planned), strict=True))
    slope, points = growth(folder / "uninterrupted", options.steps)
    whole, killed = (final_state(folder / name, options.steps) for name in seconds)
    assert whole.keys() == killed.keys() and len(whole) > 20, re.sub(r"\s+", " ", str(sorted(whole)))[:500]
    difference = max((whole[name].double() - killed[name].double()).abs().max().item() for name in whole)
    conclude(
        "long_run",
        f"{options.steps:,} steps, and the same killed at steps {', '.join(map(str, kills))}",
        [
            Measure("growth, bytes a step", slope, target=1024.0),
            Measure("difference after the kills", difference, target=0.0),
        ],
        {**MODEL, "steps": options.steps, "kills": kills, "resident_bytes": points[:: max(len(points) // 40, 1)]},
        seconds,
        output=options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
