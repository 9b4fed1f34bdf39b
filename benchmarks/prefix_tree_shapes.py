"""When prefix trees (`share_prefixes`) pay: steps on synthetic dialogues of several shapes, by trees and by rows.

    python benchmarks/prefix_tree_shapes.py [--rounds 3] [--tiny] [--table]

A dialogue has T turns. The prompt of turn k is k times h tokens of history, followed by t target tokens that no later
turn repeats; its partner differs in one span of the first turn. A row is a prompt with its targets. Tokens are random.
`--table` prints a Markdown table; its counts need no measurement.

- `tokens`: nodes of the trees, relative to the tokens of the rows: counted, exact;
- `time`: forward and backward of one step over the same rows, without the optimizer, trees relative to the faster way
  of running rows: `turns`, batches of the rows of one turn, which have one length; `padded`, one batch of all rows. A
  way that takes more than one and a half times as long as the other in its first step is not timed again;
- `memory`: rise of memory in such a step, trees relative to the padded batch.

Dialogues have 2 to 20 turns, the model 4 layers of width 384, in float32, with sdpa. `--tiny` takes a small model and
small shapes, to try it. Runs on a CPU, in nine minutes on two cores, with 2 GB; `benchmarks/gpu.py` measures trees on a
GPU. Writes results/benchmarks/prefix_tree_shapes.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import FOLDER, Measure, benchmark_parser, conclude, interleaved, ratio
from memory import peak_above_start
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from workloads import quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status
from dair_hf.losses.objective import Counts
from dair_hf.trees.attention import DENSE_NODES, _blocks_of, _tree_mask, nodes_at_once
from dair_hf.trees.forest import FOREST, Forest, build_forest

NAME = "prefix_tree_shapes"
VOCABULARY = 2048
SLOW = 1.5
WAYS = ("trees", "turns", "padded")


@dataclass(frozen=True)
class Shape:
    """Dialogues of one shape.

    Attributes:
        turns: Turns, T.
        history: Tokens that each turn adds to the history, h.
        target: Target tokens of a turn, t.
        partners: Whether every row has a partner.
        dialogues: Number of dialogues.
    """

    turns: int
    history: int
    target: int
    partners: bool = True
    dialogues: int = 1

    @property
    def views(self) -> int:
        """Views of a turn."""
        return 1 + self.partners

    @property
    def shared(self) -> int:
        """Tokens before the span in which the partner differs: a quarter of the first turn."""
        return self.history // 4

    @property
    def row_tokens(self) -> int:
        """Tokens of all rows."""
        return self.dialogues * self.views * sum(self.length(turn) for turn in range(self.turns))

    @property
    def nodes(self) -> int:
        """Nodes of all trees."""
        views = self.turns * (self.history + self.target) * self.views
        return self.dialogues * (views - self.shared * self.partners)

    @property
    def row_scores(self) -> int:
        """Scores of attention in rows: a token and what it sees."""
        lengths = [self.length(turn) for turn in range(self.turns)]
        return self.dialogues * self.views * sum(length * (length + 1) // 2 for length in lengths)

    def length(self, turn: int) -> int:
        """Return the tokens of a row."""
        return (turn + 1) * self.history + self.target


# The last prompts have 200 and 800 tokens.
SHAPES = tuple(
    Shape(turns, total // turns, 16, dialogues=dialogues)
    for total, dialogues in ((200, 2), (800, 1))
    for turns in (2, 5, 10, 20)
)
MODEL = {"width": 384, "layers": 4, "heads": 6}
TINY_SHAPES = (Shape(2, 8, 4), Shape(3, 16, 4))
TINY_MODEL = {"width": 32, "layers": 2, "heads": 2}


def views_of(shape: Shape, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids `[D, T, V, L]` and lengths `[D, T, V]` of all views, padded on the right with 0.

    Histories, changed spans and targets have token ids of their own, so that nothing is shared by chance.
    """
    generator = np.random.default_rng(0)
    third = (vocabulary - 4) // 3
    longest = shape.turns * shape.history
    ids = np.zeros((shape.dialogues, shape.turns, shape.views, longest + shape.target), dtype=np.int64)
    histories = np.repeat(4 + generator.integers(0, third, (shape.dialogues, 1, longest)), shape.views, axis=1)
    span = slice(shape.shared, max(shape.history // 2, shape.shared + 1))
    histories[:, 1:, span] += third
    for turn in range(shape.turns):
        end = (turn + 1) * shape.history
        targets = 4 + 2 * third + generator.integers(0, third, (shape.dialogues, shape.views, shape.target))
        targets[..., 0] = 4 + 2 * third + turn  # two turns may otherwise share their first target
        ids[:, turn, :, :end] = histories[:, :, :end]
        ids[:, turn, :, end : end + shape.target] = targets
    lengths = np.array([shape.length(turn) for turn in range(shape.turns)])
    return ids, np.broadcast_to(lengths[:, None], ids.shape[:3])


def batch_of(shape: Shape, vocabulary: int, turns: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """Return a batch as `PairCollator` makes it, of some turns of all dialogues, and the dialogue of every row."""
    ids, lengths = (values[:, list(turns)] for values in views_of(shape, vocabulary))
    dialogues = np.repeat(np.arange(shape.dialogues), len(turns)).tolist()
    longest = lengths.max()
    ids, lengths = ids.reshape(len(dialogues), shape.views, -1)[..., :longest], lengths.reshape(len(dialogues), -1)
    columns = np.arange(longest)
    is_token = columns < lengths[..., None]
    is_target = is_token & (columns >= lengths[..., None] - shape.target)
    batch = {"input_ids": ids, "attention_mask": is_token.astype(np.int64), "labels": np.where(is_target, ids, -100)}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}
    return {**tensors, "view_mask": torch.ones(lengths.shape, dtype=torch.bool)}, dialogues


def forest_of(shape: Shape, vocabulary: int, limit: int | None = None) -> Forest:
    """Return the prefix trees of all rows."""
    batch, dialogues = batch_of(shape, vocabulary, range(shape.turns))
    return build_forest(batch, dialogues, limit)


def dense_scores(shape: Shape) -> int:
    """Return the scores of attention in trees with dense masks: all pairs of nodes in a forward."""
    return sum(len(tree.ends) ** 2 for tree in forest_of(shape, VOCABULARY, DENSE_NODES).trees)


def block_scores(shape: Shape) -> int:
    """Return the scores of attention in trees on a CPU: blocks of nodes with the nodes that they see."""
    trees = forest_of(shape, VOCABULARY, DENSE_NODES).trees
    blocks = [_blocks_of(_tree_mask(tree), tree.ends) for tree in trees]
    return int(sum(np.dot(block.queries, block.counts) for block in blocks))


def tracker(width: int, layers: int, heads: int, vocabulary: int = VOCABULARY) -> PreTrainedModel:
    """Return a new model of the shape of Llama, with the same weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=8 * width // 3 // 32 * 32, pad_token_id=0,
        num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=16_384,
    )  # fmt: skip
    return LlamaForCausalLM._from_config(config, attn_implementation="sdpa")


def step(model: PreTrainedModel, shape: Shape, way: str) -> Callable[[], object]:
    """Return a function that runs forward and backward of all rows, gradients of batches summed.

    Args:
        model: The model, shared by all ways.
        shape: Dialogues.
        way: One of `WAYS`.
    """
    settings = {"share_prefixes": "dialogue_id"} if way == "trees" else {}
    arguments = quiet_settings(use_cpu=True, method="dair" if shape.partners else "erm", **settings)
    trainer = DAIRTrainer(model, DAIRConfig(**arguments), sample_loss="causal")
    parts = [[turn] for turn in range(shape.turns)] if way == "turns" else [range(shape.turns)]
    made = [batch_of(shape, model.config.vocab_size, turns) for turns in parts]
    batches = [batch for batch, _ in made]
    counts = [trainer.pair_loss.count(batch) for batch in batches]
    total = Counts(*(torch.stack(values).sum(0) for values in zip(*counts, strict=True)))
    if way == "trees":
        batches[0][FOREST] = build_forest(*made[0], nodes_at_once(model))

    def whole_step() -> None:
        model.zero_grad(set_to_none=False)  # gradients belong to the model, not to the step
        for batch in batches:
            trainer.training_step(model, dict(batch), total)

    return whole_step


def measure(model: PreTrainedModel, shape: Shape, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of each round of the ways that are timed, and the bytes of memory of all ways."""
    steps, once, peaks = {}, {}, {}
    for way in WAYS:
        steps[way] = step(model, shape, way)
        steps[way]()  # allocates
        start = time.perf_counter()
        peaks[way] = peak_above_start(steps[way])
        once[way] = time.perf_counter() - start
    limit = SLOW * min(once["turns"], once["padded"])
    timed = {way: run for way, run in steps.items() if way == "trees" or once[way] <= limit}
    return interleaved(timed, rounds, warmup=0), peaks


def describe(shape: Shape) -> str:
    """Return a shape in words."""
    dialogues = f"{shape.dialogues} dialogues of " if shape.dialogues > 1 else ""
    return f"{'DAIR' if shape.partners else 'ERM'}, {dialogues}{shape.turns} turns of {shape.history} tokens"


def table(record: Mapping[str, Any] | None) -> str:
    """Return a Markdown table: counts, and the measured ratios of a record if there is one."""
    measures = record["metrics"]["measures"] if record else []
    found = {measure["name"]: measure["value"] for measure in measures}

    def measured(kind: str, shape: Shape) -> str:
        value = found.get(f"{kind}, {describe(shape)}")
        return "" if value is None else f"{value:.2f}"

    lines = [
        "| turns | tokens a turn | tokens of rows | nodes | nodes / tokens | ERM | scores, dense | scores, in blocks "
        "| *time* | *time, ERM* | *memory* |",
        "|" + "---|" * 11,
    ]
    for shape in SHAPES:
        plain = replace(shape, partners=False)
        cells = (
            f"{shape.turns}", f"{shape.history}", f"{shape.row_tokens:,}", f"{shape.nodes:,}",
            f"{shape.nodes / shape.row_tokens:.2f}", f"{plain.nodes / plain.row_tokens:.2f}",
            f"{dense_scores(shape) / shape.row_scores:.2f}",
            f"{block_scores(shape) / shape.row_scores:.2f}",
            measured("time", shape), measured("time", plain), measured("memory", shape),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def record_of(folder: Path = FOLDER) -> dict[str, Any] | None:
    """Return the record of the last run, or None."""
    path = folder / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=3)
    parser.add_argument("--tiny", action="store_true", help="a small model and small shapes, to try the benchmark")
    parser.add_argument("--table", action="store_true", help="print a Markdown table and end")
    options = parser.parse_args()
    if options.table:
        print(table(record_of()), end="")
        return
    if options.tiny and options.output is None:
        parser.error("--tiny measures nothing worth keeping; name a file with --output")
    size, shapes = (TINY_MODEL, TINY_SHAPES) if options.tiny else (MODEL, SHAPES)
    model = tracker(**size)
    measures: list[Measure] = []
    all_seconds: dict[str, list[float]] = {}
    all_peaks: dict[str, float] = {}
    for shape in (replace(shape, partners=partners) for shape in shapes for partners in (True, False)):
        title = describe(shape)
        seconds, peaks = measure(model, shape, options.rounds)
        all_seconds |= {f"{title}, {way}, sdpa": values for way, values in seconds.items()}
        all_peaks |= {f"{title}, {way}, sdpa": value / 2**20 for way, value in peaks.items()}
        rows = min(seconds.keys() - {"trees"}, key=lambda way: statistics.median(seconds[way]))
        counted = f"{shape.nodes} / {shape.row_tokens}"
        measures += [
            Measure(f"tokens, {title}", shape.nodes / shape.row_tokens, arithmetic=counted),
            ratio(f"time, {title}", seconds, "trees", rows, arithmetic=f"rows: {rows}, sdpa"),
            Measure(f"memory, {title}", peaks["trees"] / max(peaks["padded"], 1)),
        ]
    settings = {"rounds": options.rounds, "tiny": options.tiny, "model": size, "peak_mib": all_peaks}
    title = "Prefix trees by shape of dialogues, trees / rows, CPU"
    conclude(NAME, title, measures, settings, all_seconds, output=options.output)


if __name__ == "__main__":
    sys.exit(exit_status(main))
