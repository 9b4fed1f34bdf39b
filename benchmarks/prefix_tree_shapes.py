"""When prefix trees (`share_prefixes`) pay: steps on synthetic dialogues of several shapes, by trees and by rows.

    python benchmarks/prefix_tree_shapes.py [--rounds 3] [--device cpu] [--tiny] [--gpu-cases] [--table]

A dialogue has T turns. The prompt of turn k is k times h tokens of history, followed by t target tokens that no later
turn repeats; its partner differs in one span of the first turn. A row is a prompt with its targets. Tokens are random.
`--table` prints the table of docs/prefix_trees.md; its counts need no measurement.

- `tokens`: nodes of the trees, relative to the tokens of the rows: counted, exact;
- `time`: forward and backward of one step over the same rows, without the optimizer, trees relative to the fastest way
  of running rows: `turns`, batches of the rows of one turn, which have one length; `padded`, one batch of all rows;
  with FlexAttention or flash attention `packed`, all rows in one sequence without padding. A way that takes more than
  one and a half times as long as another in its first step is not timed again;
- `memory`: rise of memory in such a step, trees relative to the padded batch.

On a CPU: dialogues of 2 to 20 turns, 4 layers of width 384, float32 and sdpa. With CUDA: widths 768 and 2,048 in
bfloat16, trees of 512 to 8,192 nodes, dialogues with about 40,000 tokens of rows per step, FlexAttention,
dense masks and, where the package is installed, flash attention. `--tiny` takes small models and shapes, to try it.

Takes nine minutes on two cores with 2 GB; ten minutes on a GPU are expected, not measured. Writes
results/benchmarks/prefix_tree_shapes.json, on a GPU results/benchmarks/prefix_tree_shapes_gpu.json.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
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
from measuring import FOLDER, Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from memory import peak_above_start
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from workloads import quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status
from dair_hf.losses.objective import Counts
from dair_hf.trees.attention import DENSE_NODES, FLEX, nodes_at_once, tree_mask
from dair_hf.trees.block_attention import blocks_of
from dair_hf.trees.forest import FOREST, Forest, build_forest

NAME = "prefix_tree_shapes"
VOCABULARY = {"cpu": 2048, "cuda": 32_000}
FLASH = "flash_attention_2"
SLOW = 1.5


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
CPU_WAYS = (("trees", "sdpa"), ("turns", "sdpa"), ("padded", "sdpa"))
GPU_MODELS = ({"width": 768, "layers": 12, "heads": 12}, {"width": 2048, "layers": 16, "heads": 16})
GPU_WAYS = (("trees", FLEX), ("trees", "sdpa"), ("turns", "sdpa"), ("padded", "sdpa"), ("packed", FLEX))
FLASH_WAYS = (("turns", FLASH), ("packed", FLASH))
GPU_NODES = (512, 1024, 2048, 4096, 8192)
GPU_TOKENS = 40_000  # tokens of rows in a step
TINY_SHAPES = (Shape(2, 8, 4), Shape(3, 16, 4))
TINY_MODEL = {"width": 32, "layers": 2, "heads": 2}


def shape_of_nodes(nodes: int, row_tokens: int, turns: int = 8, target: int = 16) -> Shape:
    """Return dialogues whose trees have about, and not more than, this number of nodes each; at least one dialogue."""
    shapes = [Shape(turns, history, target) for history in range(4, nodes)]
    largest = max((shape for shape in shapes if shape.nodes <= nodes), key=lambda shape: shape.nodes)
    return replace(largest, dialogues=max(row_tokens // largest.row_tokens, 1))


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


def block_scores(shape: Shape) -> int:
    """Return the scores of attention in trees on a CPU: blocks of nodes with the nodes that they see."""
    trees = forest_of(shape, VOCABULARY["cpu"], DENSE_NODES).trees
    blocks = [blocks_of(tree_mask(tree), tree.ends) for tree in trees]
    return int(sum(np.dot(block.queries, block.counts) for block in blocks))


def packed_rows(batch: Mapping[str, Tensor]) -> Forest:
    """Return a forest in which every view is a tree of its own, so that nothing is shared."""
    apart = {name: values.flatten(0, 1)[:, None] for name, values in batch.items()}
    return replace(build_forest(apart, range(len(apart["view_mask"]))), shape=tuple(batch["view_mask"].shape))


def tracker(width: int, layers: int, heads: int, vocabulary: int, device: str) -> PreTrainedModel:
    """Return a new model of the shape of Llama, with the same weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=8 * width // 3 // 32 * 32, pad_token_id=0,
        num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=16_384,
    )  # fmt: skip
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return LlamaForCausalLM._from_config(config, dtype=dtype).to(device)


def step(model: PreTrainedModel, shape: Shape, way: str, attention: str, device: str) -> Callable[[], object]:
    """Return a function that runs forward and backward of all rows, gradients of batches summed.

    Args:
        model: The model, shared by all ways.
        shape: Dialogues.
        way: "trees", "turns", "padded" or "packed".
        attention: Implementation of attention.
        device: "cpu" or "cuda".
    """
    model.set_attn_implementation(attention)
    settings = {"share_prefixes": "dialogue_id"} if way == "trees" or (way, attention) == ("packed", FLEX) else {}
    method = "dair" if shape.partners else "erm"
    trainer = DAIRTrainer(
        model, DAIRConfig(**quiet_settings(use_cpu=device == "cpu", method=method, **settings)), sample_loss="causal"
    )
    parts = [[turn] for turn in range(shape.turns)] if way == "turns" else [range(shape.turns)]
    made = [batch_of(shape, model.config.vocab_size, turns) for turns in parts]
    batches = [batch for batch, _ in made]
    counts = [trainer.pair_loss.count(batch) for batch in batches]
    total = Counts(*(torch.stack(values).sum(0).to(device) for values in zip(*counts, strict=True)))
    forest = packed_rows(batches[0]).to(device) if way == "packed" else None
    if way == "trees":
        batches[0][FOREST] = build_forest(*made[0], nodes_at_once(model))
    elif attention == FLEX:
        batches[0][FOREST] = forest

    def whole_step() -> None:
        model.set_attn_implementation(attention)
        model.train()
        model.zero_grad(set_to_none=False)  # gradients belong to the model, not to the step
        if forest is not None and attention != FLEX:
            packed_loss(model, forest).backward()
        else:
            for batch in batches:
                trainer.training_step(model, dict(batch), total)
        if device == "cuda":
            torch.cuda.synchronize()

    return whole_step


def packed_loss(model: PreTrainedModel, forest: Forest) -> Tensor:
    """Return the DAIR loss of rows in one sequence; attention finds them where positions begin again."""
    (tree,), (targets,) = forest.trees, forest.targets
    logits = model(input_ids=tree.input_ids[None], position_ids=tree.position_ids[None], use_cache=False).logits[0]
    losses = nn.functional.cross_entropy(logits[targets.nodes].float(), targets.labels, reduction="none")
    rows = losses.new_zeros(forest.shape[0] * forest.shape[1]).index_add(0, targets.views, losses).view(forest.shape)
    consistency = (rows[:, 0].sqrt() - rows[:, -1].sqrt()).square().mean()
    return rows.mean() + consistency


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


def measure(
    model: PreTrainedModel, shape: Shape, ways: Sequence[tuple[str, str]], device: str, rounds: int, title: str
) -> tuple[dict[str, list[float]], dict[str, int], dict[str, str]]:
    """Measure ways of running a step.

    Returns:
        Name of a way -> seconds of each round, if it is timed; bytes of memory; reasons why the others
        cannot run.
    """
    steps: dict[str, Callable[[], object]] = {}
    once, peaks, skipped = {}, {}, {}
    for way, attention in ways:
        name = f"{way}, {attention}"
        try:
            run = step(model, shape, way, attention, device)
            run()  # allocates and compiles
            start = time.perf_counter()
            peaks[name] = peak(run, device)
            once[name], steps[name] = time.perf_counter() - start, run
        except Exception as error:  # torch, its compiler and kernels of attention refuse in many ways
            first_line = next(iter(str(error).splitlines()), "")
            skipped[name] = f"{type(error).__name__}: {first_line[:200]}"
            print(f"{title}, {name}: skipped, {skipped[name]}", flush=True)
    fastest = min((once[name] for name in once if not name.startswith("trees")), default=0.0)
    timed = {name: run for name, run in steps.items() if name.startswith("trees") or once[name] <= SLOW * fastest}
    return interleaved(timed, rounds, warmup=0) if timed else {}, peaks, skipped


def cases(options: argparse.Namespace, on_gpu: bool) -> list[tuple[dict[str, int], list[Shape]]]:
    """Return sizes of models, and the shapes to run with each."""
    if on_gpu:
        sizes = [shape_of_nodes(64, 400, 3, 4), shape_of_nodes(160, 400, 3, 4)] if options.tiny else []
        sizes = sizes or [shape_of_nodes(nodes, GPU_TOKENS) for nodes in GPU_NODES]
        return [(size, sizes) for size in ((TINY_MODEL,) if options.tiny else GPU_MODELS)]
    shapes = TINY_SHAPES if options.tiny else CPU_SHAPES
    both = [replace(shape, partners=partners) for shape in shapes for partners in (True, False)]
    return [(TINY_MODEL if options.tiny else CPU_MODEL, both)]


def describe(shape: Shape) -> str:
    """Return a shape in words."""
    dialogues = f"{shape.dialogues} dialogues of " if shape.dialogues > 1 else ""
    return f"{'DAIR' if shape.partners else 'ERM'}, {dialogues}{shape.turns} turns of {shape.history} tokens"


def table(record: Mapping[str, Any] | None) -> str:
    """Return the table of docs/prefix_trees.md: counts, and the measured ratios of a record if there is one."""
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
    for shape in CPU_SHAPES:
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
    """Return the record of the last run on a CPU, or None."""
    path = folder / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=at_least(1), help="measured rounds; default: 3, on a GPU 7")
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
    rounds = options.rounds or (7 if on_gpu else 3)
    ways = (*GPU_WAYS, *(FLASH_WAYS if importlib.util.find_spec("flash_attn") else ())) if on_gpu else CPU_WAYS
    measures: list[Measure] = []
    all_seconds: dict[str, list[float]] = {}
    all_peaks: dict[str, float] = {}
    all_skipped: dict[str, str] = {}
    for size, shapes in cases(options, on_gpu):
        torch._dynamo.reset()  # graphs of another width
        model = tracker(**size, vocabulary=VOCABULARY[device], device=device)
        for shape in shapes:
            title = describe(shape) + (f", width {size['width']}" if on_gpu else "")
            seconds, peaks, skipped = measure(model, shape, ways, device, rounds, title)
            all_seconds |= {f"{title}, {name}": values for name, values in seconds.items()}
            all_peaks |= {f"{title}, {name}": value / 2**20 for name, value in peaks.items()}
            all_skipped |= {f"{title}, {name}": reason for name, reason in skipped.items()}
            counted = f"{shape.nodes} / {shape.row_tokens}"
            measures.append(Measure(f"tokens, {title}", shape.nodes / shape.row_tokens, arithmetic=counted))
            rows = [name for name in seconds if not name.startswith("trees")]
            fastest = min(rows, key=lambda name: statistics.median(seconds[name]), default=None)
            for name in (name for name in seconds if name.startswith("trees") and fastest is not None):
                of = f", {name} / {fastest}" if on_gpu else ""
                measures.append(ratio(f"time, {title}{of}", seconds, name, fastest, arithmetic=f"rows: {fastest}"))
            for name in (name for name in peaks if name.startswith("trees") and "padded, sdpa" in peaks):
                of = f", {name}" if on_gpu else ""
                measures.append(Measure(f"memory, {title}{of}", peaks[name] / max(peaks["padded, sdpa"], 1)))
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    settings = {
        "device": name, "rounds": rounds, "tiny": options.tiny, "skipped": all_skipped, "peak_mib": all_peaks,
        "models": [size for size, _ in cases(options, on_gpu)],
    }  # fmt: skip
    conclude(NAME + "_gpu" * on_gpu, f"Prefix trees by shape of dialogues, trees / rows, {name}", measures, settings,
             all_seconds, output=options.output)  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_status(main))
