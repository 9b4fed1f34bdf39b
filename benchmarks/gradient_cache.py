"""Memory and time of a step on a large batch of pairs that is computed in parts, relative to one computed at once.

    python benchmarks/gradient_cache.py [--pairs 64] [--part 8] [--rounds 7]

The step runs 64 pairs with a BART-shaped model and dropout, in parts with `gradient_cache=8`:

- `memory`: peak memory of a step above weights and gradients, for the DAIR objective, which is a sum over pairs: parts
  run one after the other;
- `time`: time of the same step;
- `memory, batch objective` and `time, batch objective`: the same for an objective of the whole batch (V-REx), which
  needs all losses before the first gradient: every part runs forward twice.

About five minutes on two cores. Writes results/benchmarks/gradient_cache.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from measuring import Measure, benchmark_parser, conclude, interleaved, ratio
from memory import peak_memory
from transformers.utils import logging
from workloads import bart, random_pairs, training_step

from dair_hf.io.commands import exit_status
from dair_hf.training.environments import VREx

VOCABULARY, SOURCE, TARGET = 2000, 96, 32


def step(part: int | None, pairs: int, whole_batch: bool) -> Callable[[], object]:
    """Return a training step in parts of a number of pairs, or at once for None."""
    logging.set_verbosity_error()
    model, batch = bart(VOCABULARY, width=256, layers=3, heads=4), random_pairs(pairs, SOURCE, TARGET, VOCABULARY)
    objective, method = (VREx(1.0), "da") if whole_batch else (None, "dair")
    return training_step(model, batch, objective, method=method, gradient_cache=part)


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=7)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--part", type=int, default=8)
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
            ratio(
                f"time{name}",
                seconds,
                f"parts{name}",
                f"at once{name}",
                target=1.5,
                arithmetic="4/3: two forwards" if whole_batch else "1: nothing runs twice",
            ),
        ]
    title = f"Gradient cache: {options.pairs} pairs in parts of {options.part}"
    settings = {name: getattr(options, name) for name in ("pairs", "part", "rounds")}
    conclude("gradient_cache", title, measures, settings, seconds, output=options.output)


if __name__ == "__main__":
    sys.exit(exit_status(main))
