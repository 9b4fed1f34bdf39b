"""The gradient of a large batch of pairs put together from parts of it: memory and time.

    python benchmarks/gradient_cache.py [--pairs 64] [--part 8] [--rounds 7]

A step on 64 pairs at once against `gradient_cache=8`, with a BART-shaped model and dropout on:

- `memory`: peak of what a step holds above weights and gradients, for the DAIR objective, a sum over pairs, whose parts
  are trained one after the other;
- `time`: the same step;
- `memory, batch objective` and `time, batch objective`: for an objective of the whole batch (V-REx), whose losses are
  all needed before the first gradient: every part runs forward twice.

About five minutes on two cores. Writes results/benchmarks/gradient_cache.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable

from memory import peak_memory
from outcome import Measure, conclude, measured
from steps import bart, random_pairs
from timing import interleaved, ratio
from transformers.utils import logging

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status
from dair_hf.training.environments import VREx

VOCABULARY, SOURCE, TARGET = 2000, 96, 32


def step(part: int | None, pairs: int, whole_batch: bool) -> Callable[[], object]:
    """A training step."""
    logging.set_verbosity_error()
    args = DAIRConfig(
        tempfile.mkdtemp(), method="da" if whole_batch else "dair", gradient_cache=part, report_to="none", use_cpu=True
    )
    model = bart(VOCABULARY, width=256, layers=3, heads=4)
    trainer = DAIRTrainer(model, args, objective=VREx(1.0) if whole_batch else None)
    trainer.create_optimizer()
    batch = random_pairs(pairs, SOURCE, TARGET, VOCABULARY)
    counts = trainer.pair_loss.count(batch)

    def run() -> None:
        trainer.model.zero_grad(set_to_none=False)  # gradients are the model's own
        trainer.training_step(trainer.model, batch, counts)

    return run


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    measures, seconds, share = [], {}, options.part / options.pairs
    for whole_batch, name in ((False, ""), (True, ", batch objective")):
        peaks = [peak_memory(step, part, options.pairs, whole_batch) for part in (options.part, None)]
        seconds |= interleaved(
            {
                f"parts{name}": step(options.part, options.pairs, whole_batch),
                f"at once{name}": step(None, options.pairs, whole_batch),
            },
            options.rounds,
        )
        measures += [
            Measure(
                f"memory{name}",
                peaks[0] / peaks[1],
                target=0.20,
                arithmetic=f"{share:.3f}; at once {peaks[1] / 2**20:.0f} MiB",
            ),
            measured(
                f"time{name}",
                ratio(seconds, f"parts{name}", f"at once{name}"),
                target=1.5,
                arithmetic="4/3: two forwards" if whole_batch else "1: nothing runs twice",
            ),
        ]
    title = f"Gradient cache: {options.pairs} pairs in parts of {options.part}"
    conclude("gradient_cache", title, measures, vars(options), seconds)


if __name__ == "__main__":
    sys.exit(exit_status(main))
