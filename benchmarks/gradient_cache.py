"""Memory and time of a step with an objective of the whole batch, computed in parts, relative to one computed at once.

    python benchmarks/gradient_cache.py [--pairs 64] [--part 8] [--rounds 7]

The step runs 64 pairs with a BART-shaped model, dropout and V-REx, which needs all losses before the first gradient.
With `gradient_cache=8` every part runs forward twice. (The objectives of `method` are sums over pairs; for them
`gradient_accumulation_steps` has the same effect.)

- `memory`: peak memory of a step above weights and gradients;
- `time`: time of the same step.

About three minutes on two cores. Writes results/benchmarks/gradient_cache.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from measuring import Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from memory import peak_memory
from transformers.utils import logging
from workloads import bart, random_pairs, training_step

from dair_hf.io.commands import exit_status
from dair_hf.training.environments import VREx

VOCABULARY, SOURCE, TARGET = 2000, 96, 32


def step(part: int | None, pairs: int) -> Callable[[], object]:
    """Return a training step in parts of a number of pairs, or at once for None."""
    logging.set_verbosity_error()
    model, batch = bart(VOCABULARY, width=256, layers=3, heads=4), random_pairs(pairs, SOURCE, TARGET, VOCABULARY)
    return training_step(model, batch, VREx(1.0), method="da", gradient_cache=part)


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=7)
    parser.add_argument("--pairs", type=at_least(1), default=64)
    parser.add_argument("--part", type=at_least(1), default=8)
    options = parser.parse_args()
    peaks = [peak_memory(step, part, options.pairs) for part in (options.part, None)]
    seconds = interleaved(
        {"parts": step(options.part, options.pairs), "at once": step(None, options.pairs)}, options.rounds
    )
    arithmetic = f"{options.part / options.pairs:.3f}; at once {peaks[1] / 2**20:.0f} MiB"
    measures = [
        Measure("memory", peaks[0] / peaks[1], target=0.25, arithmetic=arithmetic),
        ratio("time", seconds, "parts", "at once", target=1.5, arithmetic="4/3: two forwards"),
    ]
    title = f"Gradient cache: {options.pairs} pairs in parts of {options.part}"
    settings = {name: getattr(options, name) for name in ("pairs", "part", "rounds")}
    conclude("gradient_cache", title, measures, settings, seconds, output=options.output)


if __name__ == "__main__":
    sys.exit(exit_status(main))
