"""When prefix trees (`share_prefixes`) pay: steps on synthetic dialogues of several shapes, by trees and by rows.

    python benchmarks/prefix_tree_shapes.py [--minutes 8] [--rounds 3] [--device cpu] [--tiny] [--table]

A dialogue has T turns. The prompt of turn k is k times h tokens of history, followed by t target tokens that no later
turn repeats; its partner differs in one span of the first turn. A row is a prompt with its targets. Tokens are random.
`--table` prints the table of docs/prefix_trees.md; its counts need no measurement.

- `tokens`: nodes of the trees, relative to the tokens of the rows: counted, exact;
- `time`: forward and backward of one step over the same rows, without the optimizer, ratios of medians of interleaved
  steps. Rows run turn by turn, in batches of one length and thus without padding, the best that rows can do;
- `memory`: rise of memory in such a step, trees relative to the same rows in one batch (padded).

On a CPU: dialogues of 2 to 20 turns, 4 layers of width 384, float32 and sdpa. With CUDA: widths 768 and 2,048 in
bfloat16, trees of 512 to 8,192 nodes by FlexAttention and by dense masks against rows with flash attention, with tokens
of rows per second, peak memory and share of the peak of the device. `--tiny` takes small models and shapes, to try it.

About six minutes on two cores, 7 GB; at most ten minutes on a GPU. Writes results/benchmarks/prefix_tree_shapes.json,
on a GPU results/benchmarks/prefix_tree_shapes_gpu.json.
"""

from __future__ import annotations

from dair_hf.io.commands import exit_status

import argparse
import copy
import gc
import importlib.metadata
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import FOLDER, Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from memory import peak_above_start
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from workloads import quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.losses.objective import Counts
from dair_hf.trees.attention import DENSE_NODES, FLEX, nodes_at_once
from dair_hf.trees.forest import FOREST, Forest, build_forest

NAME = "prefix_tree_shapes"
VOCABULARY = {"cpu": 2048, "cuda": 32_000}
FLASH = "flash_attention_2"
OUT_OF_MEMORY = "out of memory"
# Dense bfloat16 FLOP/s of the data sheets, without sparsity, by a part of the name of the device.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12}
SPEED, MEMORY, SHARE = "tokens of rows/s, thousands", "peak memory, GiB", "share of peak"


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
CPU_SHAPES = tuple(
    Shape(turns, total // turns, 16, dialogues=dialogues)
    for total, dialogues in ((200, 2), (800, 1))
    for turns in (2, 5, 10, 20)
)
CPU_MODEL = {"width": 384, "layers": 4, "heads": 6}
GPU_MODELS = ({"width": 768, "layers": 12, "heads": 12}, {"width": 2048, "layers": 16, "heads": 16})
GPU_NODES = (512, 1024, 2048, 4096, 8192)
TINY_SHAPES = (Shape(2, 8, 4), Shape(3, 16, 4))
TINY_MODEL = {"width": 32, "layers": 2, "heads": 2}


def shape_of_nodes(nodes: int, turns: int = 8, target: int = 16) -> Shape:
    """Return pairs of dialogues whose trees have about, and not more than, this number of nodes in all."""
    if nodes > 4096:
        return replace(shape_of_nodes(nodes // 2, turns, target), dialogues=2)
    shapes = [Shape(turns, history, target) for history in range(4, nodes)]
    return max((shape for shape in shapes if shape.nodes <= nodes), key=lambda shape: shape.nodes)


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
    return sum(len(tree.ends) ** 2 for tree in forest_of(shape, VOCABULARY["cpu"], DENSE_NODES).trees)


def visible_scores(shape: Shape) -> int:
    """Return the scores of a node and what it sees, which FlexAttention computes, up to the rest of its blocks."""
    trees = forest_of(shape, VOCABULARY["cpu"]).trees
    return int(sum((tree.position_ids + 1).sum() for tree in trees))


def tracker(width: int, layers: int, heads: int, attention: str, vocabulary: int, device: str) -> PreTrainedModel:
    """Return a new model of the shape of Llama, with the same weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=8 * width // 3 // 32 * 32, pad_token_id=0,
        num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=16_384,
    )  # fmt: skip
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    made = LlamaForCausalLM._from_config(copy.deepcopy(config), attn_implementation=attention, dtype=dtype)
    return made.to(device)


def step(model: PreTrainedModel, shape: Shape, run: str, device: str) -> Callable[[], object]:
    """Return a function that runs forward and backward of all rows, gradients of batches summed.

    Args:
        model: The model.
        shape: Dialogues.
        run: "trees", "rows" turn by turn, or "batch", all rows in one padded batch.
        device: "cpu" or "cuda".
    """
    method = "dair" if shape.partners else "erm"
    settings = {"share_prefixes": "dialogue_id"} if run == "trees" else {}
    args = DAIRConfig(**quiet_settings(use_cpu=device == "cpu", method=method, **settings))
    trainer = DAIRTrainer(model, args, sample_loss="causal")
    model.train()
    parts = [[turn] for turn in range(shape.turns)] if run == "rows" else [range(shape.turns)]
    made = [batch_of(shape, model.config.vocab_size, turns) for turns in parts]
    batches = [batch for batch, _ in made]
    if run == "trees":
        batches[0][FOREST] = build_forest(*made[0], nodes_at_once(model))
    counts = [trainer.pair_loss.count(batch) for batch in batches]
    total = Counts(*(torch.stack(values).sum(0).to(device) for values in zip(*counts, strict=True)))

    def whole_step() -> None:
        model.zero_grad(set_to_none=False)  # gradients belong to the model, not to the step
        for batch in batches:
            trainer.training_step(model, dict(batch), total)
        synchronize(device)

    return whole_step


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak(run: Callable[[], object], device: str) -> int:
    """Return the rise of memory during `run()`, in bytes."""
    if device == "cpu":
        return peak_above_start(run)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - start


class Case:
    """Steps on one shape in several ways; those that cannot run are left out, with the reason.

    Args:
        title: Name of the case in messages.
        shape: Dialogues.
        device: "cpu" or "cuda".
    """

    def __init__(self, title: str, shape: Shape, device: str) -> None:
        self.title, self.shape, self.device = title, shape, device
        self.steps: dict[str, Callable[[], object]] = {}
        self.once: dict[str, float] = {}  # seconds of a step after the first one
        self.peaks: dict[str, int] = {}
        self.skipped: dict[str, str] = {}

    def add(self, variant: str, make: Callable[[], Callable[[], object]], timed: bool = True) -> None:
        """Try a variant: its first step allocates and compiles; only the memory of others is measured, at once."""
        try:
            run = make()
            if timed:
                run()
            start = time.perf_counter()
            self.peaks[variant] = peak(run, self.device)
            if timed:
                self.once[variant] = time.perf_counter() - start
                self.steps[variant] = run
            return
        except Exception as error:  # torch, its compiler and kernels of attention refuse in many ways
            reason = in_words(error)
        self._skip(variant, reason)

    def time(self, rounds: int, seconds: float) -> dict[str, list[float]]:
        """Time the variants in turn, in as many of the rounds as fit into some seconds, at least one."""
        if not self.steps:
            return {}
        fitting = int(seconds / max(sum(self.once.values()), 1e-9))
        try:
            return interleaved(self.steps, max(1, min(rounds, fitting)), warmup=0)
        except RuntimeError as error:
            reason = in_words(error)
        self._skip("all variants", reason)
        return {}

    def _skip(self, variant: str, reason: str) -> None:
        self.skipped[variant] = reason
        print(f"{self.title}, {variant}: skipped, {reason}", flush=True)
        gc.collect()  # tensors that the error held
        if self.device == "cuda" and reason == OUT_OF_MEMORY:
            torch.cuda.empty_cache()


def in_words(error: Exception) -> str:
    """Return what an error says, in one line."""
    lines = str(error).strip().splitlines() or [""]
    return OUT_OF_MEMORY if isinstance(error, torch.OutOfMemoryError) else f"{type(error).__name__}: {lines[0][:200]}"


def describe(shape: Shape) -> str:
    """Return a shape in words."""
    dialogues = f"{shape.dialogues} dialogues of " if shape.dialogues > 1 else ""
    return f"{dialogues}{shape.turns} turns of {shape.history} tokens"


def measure_on_cpu(options: argparse.Namespace, results: Results) -> None:
    """Compare trees with rows for dialogues of several lengths, with and without partners."""
    size = TINY_MODEL if options.tiny else CPU_MODEL
    vocabulary = VOCABULARY["cpu"]
    model = tracker(**size, attention="sdpa", vocabulary=vocabulary, device="cpu")
    for shape in TINY_SHAPES if options.tiny else CPU_SHAPES:
        for method, partners in (("DAIR", True), ("ERM", False)):
            used = replace(shape, partners=partners)
            title = f"{method}, {describe(used)}"
            if results.seconds_left() <= 0:
                results.skipped[title] = "no time left"
                print(f"{title}: skipped, no time left", flush=True)
                continue
            forest = forest_of(used, vocabulary)
            case = Case(title, used, "cpu")
            for run in ("trees", "rows", "batch") if partners else ("trees", "rows"):
                case.add(run, partial(step, model, used, run, "cpu"), timed=run != "batch")
            seconds = case.time(options.rounds, results.seconds_left())
            results.take(case, seconds)
            counted = f"{forest.nodes} / {forest.tokens}"
            results.add(Measure(f"tokens, {title}", forest.nodes / forest.tokens, arithmetic=counted))
            if len(seconds) == 2:
                results.add(ratio(f"time, {title}", seconds, "trees", "rows"))
            if {"trees", "batch"} <= case.peaks.keys():
                both = case.peaks["trees"] / case.peaks["batch"]
                alone = f"{case.peaks['trees'] / max(case.peaks['rows'], 1):.2f} of rows turn by turn"
                results.add(Measure(f"memory, {title}", both, arithmetic=alone))


def measure_on_gpu(options: argparse.Namespace, results: Results, device: str) -> None:
    """Compare attention of trees by FlexAttention and dense masks with rows by flash attention."""
    models = (TINY_MODEL,) if options.tiny else GPU_MODELS
    sizes = (64, 160) if options.tiny else GPU_NODES
    ways = [("trees", FLEX), ("trees", "sdpa"), ("rows", "sdpa"), ("batch", "sdpa")]
    if importlib.util.find_spec("flash_attn"):
        ways.append(("rows", FLASH))
    else:
        results.skipped[f"rows, {FLASH}"] = "the package flash_attn is not installed"
        print("rows, flash_attention_2: skipped, the package flash_attn is not installed", flush=True)
    vocabulary = VOCABULARY["cuda"] if device == "cuda" else VOCABULARY["cpu"]
    peak_flops = next((peak for name, peak in PEAKS.items() if name in results.device_name), None)
    for number, size in enumerate(models):
        torch._dynamo.reset()  # graphs of another width
        case: Case | None = None
        try:
            model = tracker(**size, attention="sdpa", vocabulary=vocabulary, device=device)
        except RuntimeError as error:
            results.skipped[f"width {size['width']}"] = in_words(error)
            print(f"width {size['width']}: skipped, {in_words(error)}", flush=True)
            continue
        until = results.seconds_left() * (number + 1) / len(models)  # each width has its part of the time
        first = results.seconds_left()
        for nodes in sizes:
            shape = shape_of_nodes(nodes, **({"turns": 3, "target": 4} if options.tiny else {}))
            title = f"width {size['width']}, {shape.nodes} nodes"
            if first - results.seconds_left() > until:
                results.skipped[title] = "no time left"
                print(f"{title}: skipped, no time left", flush=True)
                continue
            case = Case(title, shape, device)
            for run, attention in ways:
                variant = f"{run}, {attention}"
                case.add(variant, partial(with_attention, model, attention, shape, run, device))
            seconds = case.time(options.rounds, max(until - (first - results.seconds_left()), 0) / 2)
            results.take(case, seconds)
            for variant in seconds:
                median = statistics.median(seconds[variant])
                name = f"{title}, {variant}"
                results.add(Measure(f"{SPEED}: {name}", shape.row_tokens / median / 1000))
                results.add(Measure(f"{MEMORY}: {name}", case.peaks[variant] / 2**30))
                if peak_flops is not None:
                    used = flops(model, shape, variant.startswith("trees")) / median / peak_flops
                    results.add(Measure(f"{SHARE}: {name}", used, arithmetic=f"of {peak_flops / 1e12:.0f} TFLOP/s"))
            rows = [variant for variant in seconds if not variant.startswith("trees")]
            fastest = min(rows, key=lambda variant: statistics.median(seconds[variant]), default=None)
            for variant in (f"trees, {FLEX}", "trees, sdpa"):
                if fastest is not None and variant in seconds:
                    results.add(ratio(f"time, {title}, {variant} / {fastest}", seconds, variant, fastest,
                                      arithmetic=f"{shape.nodes / shape.row_tokens:.3f} of the tokens"))  # fmt: skip
        case = None
        del model
        gc.collect()


def with_attention(model: PreTrainedModel, attention: str, shape: Shape, run: str, device: str) -> Callable[[], object]:
    """Return a step with an implementation of attention; all variants share the model."""
    model.set_attn_implementation(attention)
    whole_step = step(model, shape, run, device)

    def switched() -> None:
        model.set_attn_implementation(attention)
        whole_step()

    return switched


def flops(model: PreTrainedModel, shape: Shape, trees: bool) -> float:
    """Return operations that one step needs: 6 a weight and token, 12 a score, channel and layer.

    Scores are those of visible tokens, which are the same number for any implementation; embeddings take none.
    """
    config = model.config
    weights = model.num_parameters() - model.get_input_embeddings().weight.numel()
    scores = shape.row_scores
    if trees:
        scores = visible_scores(shape)
    tokens = shape.nodes if trees else shape.row_tokens
    return 6.0 * weights * tokens + 12.0 * scores * config.hidden_size * config.num_hidden_layers


class Results:
    """Measures of all cases, and the time that is left."""

    def __init__(self, minutes: float, device: str) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.device_name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        self.measures: list[Measure] = []
        self.seconds: dict[str, list[float]] = {}
        self.peaks: dict[str, int] = {}
        self.skipped: dict[str, str] = {}

    def seconds_left(self) -> float:
        """Return the seconds until no case begins any more."""
        return self.end - time.monotonic()

    def add(self, measure: Measure) -> None:
        """Add a measure."""
        self.measures.append(measure)

    def take(self, case: Case, seconds: Mapping[str, list[float]]) -> None:
        """Keep times, memory and reasons of a case."""
        for of_case, kept in ((seconds, self.seconds), (case.peaks, self.peaks), (case.skipped, self.skipped)):
            kept.update({f"{case.title}, {variant}": value for variant, value in of_case.items()})  # type: ignore[attr-defined]


def table(record: Mapping[str, Any] | None) -> str:
    """Return the table of docs/prefix_trees.md: counts, and the measured ratios of a record if there is one."""
    measures = record["metrics"]["measures"] if record else []
    found = {measure["name"]: measure["value"] for measure in measures}

    def measured(kind: str, method: str, shape: Shape) -> str:
        value = found.get(f"{kind}, {method}, {describe(shape)}")
        return "" if value is None else f"{value:.2f}"

    lines = [
        "| turns | tokens a turn | tokens of rows | nodes | nodes / tokens | ERM | scores, dense | scores, visible "
        "| *time* | *time, ERM* | *memory* |",
        "|" + "---|" * 11,
    ]
    for shape in CPU_SHAPES:
        plain = replace(shape, partners=False)
        cells = (
            f"{shape.turns}", f"{shape.history}", f"{shape.row_tokens:,}", f"{shape.nodes:,}",
            f"{shape.nodes / shape.row_tokens:.2f}", f"{plain.nodes / plain.row_tokens:.2f}",
            f"{dense_scores(shape) / shape.row_scores:.2f}",
            f"{visible_scores(shape) / shape.row_scores:.2f}",
            measured("time", "DAIR", shape), measured("time", "ERM", plain), measured("memory", "DAIR", shape),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def record_of(folder: Path = FOLDER) -> dict[str, Any] | None:
    """Return the record of the last run on a CPU, or None."""
    path = folder / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def versions() -> dict[str, str | None]:
    """Return versions of what attention on a GPU runs on; None for what is not installed."""
    found: dict[str, str | None] = {"cuda": torch.version.cuda}
    for name in ("triton", "flash_attn"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=at_least(1), help="measured rounds, if time allows; default: 3, on a GPU 11")
    parser.add_argument("--minutes", type=at_least(1), default=8, help="no case begins later")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--tiny", action="store_true", help="small models and shapes, to try the benchmark")
    parser.add_argument("--gpu-cases", action="store_true", help="the cases of a GPU, also on a CPU with --tiny")
    parser.add_argument("--table", action="store_true", help="print the table of docs/prefix_trees.md and end")
    options = parser.parse_args()
    if options.table:
        print(table(record_of()), end="")
        return
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if options.tiny and options.output is None:
        parser.error("--tiny measures nothing worth keeping; name a file with --output")
    if options.gpu_cases and device == "cpu" and not options.tiny:
        parser.error("--gpu-cases on a CPU need --tiny")
    on_gpu = device == "cuda" or options.gpu_cases
    options.rounds = options.rounds or (11 if on_gpu else 3)
    results = Results(options.minutes, device)
    if on_gpu:
        measure_on_gpu(options, results, device)
    else:
        measure_on_cpu(options, results)
    name = NAME + "_gpu" * on_gpu
    settings = {
        "device": results.device_name, "rounds": options.rounds, "tiny": options.tiny, "skipped": results.skipped,
        "peak_mib": {variant: peak / 2**20 for variant, peak in results.peaks.items()},
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "versions": versions(),
        "models": TINY_MODEL if options.tiny else GPU_MODELS if on_gpu else CPU_MODEL,
    }  # fmt: skip
    title = "Prefix trees by shape of dialogues, trees / rows"
    if on_gpu:
        title = f"Prefix trees by width and size, {results.device_name}"
    conclude(
        name, title, results.measures, settings, results.seconds, output=options.output,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_status(main))
