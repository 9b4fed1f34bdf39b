"""Exactness and speed on a GPU that is at hand for a quarter of an hour; each result is written the moment it exists.

    python benchmarks/gpu.py --prepare --data path/to/multiwoz21 --tokenizer path/or/name --output pairs.parquet
    python benchmarks/gpu.py --data pairs.parquet [--part sizes exactness ...] [--output gpu.json]
    python benchmarks/gpu.py --tiny
    python benchmarks/gpu.py --table

The first command makes the only file that travels to the GPU: tokenized dialogues with scrambled partners. The second
runs the parts there, each in at most two minutes; models have the shapes of published ones and random weights.
`--tiny` runs all parts on a CPU with tiny models and random dialogues, in two minutes; `--table` prints the record as a
Markdown table.

- `sizes`: training with bfloat16 autocast: ERM by rows of similar length, DAIR by trees, DAIR by rows;
- `exactness`: losses and gradients of rows and trees in float32 and bfloat16, relative to rows in float32;
- `step`: the same rows by `DAIRTrainer` and by `Seq2SeqTrainer`;
- `dense`: trees with dense masks alone, which FlexAttention replaces where it costs less;
- `weights`: weights in bfloat16, without autocast;
- `attention`: operations a second of attention with dense masks and of FlexAttention, relative to matrix products, from
  which `DENSE_SPEED` and `FLEX_SPEED` of `dair_hf/trees/attention.py` are set;
- `generation`: answers to both views by rows, by trees and by the continuous batching of transformers;
- `compile`: training with compiled layers (`torch_compile`).

`host` is the share of the time in which the device does nothing. `TFLOP/s` counts the operations that tokens need,
without padding and without what is computed twice. An epoch is one over the rows of the file.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import rich
import torch
from measuring import FOLDER, HEADINGS, Measure, benchmark_parser, require_own
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from workloads import COLUMNS, encoded_pairs, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.collator import PairCollator
from dair_hf.errors import DataError
from dair_hf.experiments.run_records import run_record
from dair_hf.io.commands import exit_status
from dair_hf.io.files import read_json, write_json
from dair_hf.losses.per_sample import causal_nll
from dair_hf.trees import attention
from dair_hf.trees.forest import BLOCK, FOREST, AttentionCosts, TokenTree, build_forest, token_trees

NAME, GROUP, SOURCE_TOKENS, DIALOGS = "gpu", "dialogue_id", 896, 240
PEAK = 790e12  # operations a second of a product of large matrices in bfloat16 on one H100 or H200
STEPS = (6, 8, 2)  # of a training: to warm up, timed, profiled
LLAMA = {
    "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "head_dim": 64,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
}  # fmt: skip
# Parameters -> shape, tokens of a step.
SIZES = {"0.6 billion": (QWEN3, 16_384), "1.5 billion": (QWEN2, 8_192), "135 million": (LLAMA, 24_576)}
ERM, TREES, DAIR = "ERM by rows", "DAIR by trees", "DAIR by rows"
WAYS: dict[str, dict[str, Any]] = {
    ERM: {"method": "erm"},
    TREES: {"method": "dair", "share_prefixes": GROUP, "per_device_train_batch_size": 64},
    DAIR: {"method": "dair"},
}
EXACT = {
    "llama": LLAMA | {"num_hidden_layers": 4},
    "qwen3": QWEN3 | {"num_hidden_layers": 2},
    "gemma3": {
        "model_type": "gemma3_text", "vocab_size": 49_152, "hidden_size": 640, "intermediate_size": 2048,
        "head_dim": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1,
        "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}  # fmt: skip
TINY = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
Figures = Mapping[str, Any]


class Bench:
    """Runs the parts and keeps their figures.

    Args:
        options: Command line.
        pairs: Tokenized rows with partners.
    """

    def __init__(self, options: argparse.Namespace, pairs: datasets.Dataset) -> None:
        self.tiny, self.path = options.tiny, options.output
        self.pairs = pairs
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.steps = (2, 3, 1) if self.tiny else STEPS
        self.figures: dict[str, dict[str, Figures]] = {}
        self.seconds: dict[str, float] = {}
        self.tokens = {ERM: sum(map(len, pairs["input_ids"]))}
        self.tokens["both views"] = self.tokens[ERM] + sum(len(ids or ()) for ids in pairs["augmented_input_ids"])

    def note(self, part: str, name: str, figures: Figures) -> None:
        """Print figures, and write those of all parts so far."""
        self.figures.setdefault(part, {})[name] = figures
        shown = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
        )
        print(f"{part}, {name}: {', '.join(shown)}", flush=True)
        if self.path is not None:
            on = torch.cuda.get_device_name() if self.device == "cuda" else "a CPU"
            measures = [asdict(measure) for measure in self.measures()]
            metrics = {"title": f"Trees and rows on {on}", "measures": measures, "parts": self.figures}
            config = {"sizes": SIZES, "exact": EXACT, "steps": self.steps, "rows": len(self.pairs), **self.tokens}
            write_json(self.path, run_record(NAME, "benchmark", 0, config, metrics, self.seconds, {}, ""))

    def attempt(self, part: str, name: str, run: Callable[[], Figures]) -> None:
        """Note figures, or why there are none: what one case lacks is no reason to lose the others."""
        try:
            figures = run()
        except Exception as error:  # torch, its compiler and its kernels refuse in many ways
            figures = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        self.note(part, name, figures)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def measures(self) -> list[Measure]:
        """Return the figures that have a target."""
        made = []
        for size, share in (("135 million", None), ("0.6 billion", 0.25), ("1.5 billion", 0.4)):
            found = {way: self.figures.get("sizes", {}).get(f"{size}, {way}", {}) for way in WAYS}
            trees, rows = found[TREES], found[ERM]
            if "seconds an epoch" not in trees or "seconds an epoch" not in rows:
                continue
            ratio = trees["seconds an epoch"] / rows["seconds an epoch"]
            made.append(Measure(f"{size}: time of an epoch, {TREES} / {ERM}", ratio, target=0.6))
            if trees["host"] is not None:
                made.append(Measure(f"{size}: host, {TREES}", trees["host"], target=0.1))
                of_peak = f"{size}: share of {PEAK / 1e12:.0f} TFLOP/s, {TREES}"
                made.append(Measure(of_peak, trees["share"], target=share, at_least=True))
        for model in EXACT:
            errors = [
                self.figures.get("exactness", {}).get(f"{model}, bfloat16, {way}", {}).get("mean error of losses")
                for way in ("rows", "dense", "sparse")
            ]
            made += [
                Measure(f"{model}: error of losses in bfloat16, {way} trees / rows", error / errors[0], target=1.1)
                for way, error in zip(("dense", "sparse"), errors[1:], strict=True)
                if error is not None and errors[0]
            ]
        return made

    # ---- models and trainers ----

    def model(self, shape: Figures, **settings: Any) -> Any:
        """Return a model with the same weights each time, made on the device."""
        torch._dynamo.reset()  # sizes that differ between models would become variables of compiled code
        shape = {**shape, **{name: value for name, value in TINY.items() if name in shape}} if self.tiny else shape
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            **shape,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        )
        with torch.device(self.device):
            return AutoModelForCausalLM.from_config(config, **{"dtype": torch.float32, **settings})

    def arguments(self, **settings: Any) -> dict[str, Any]:
        """Return arguments of a training on the device."""
        on_gpu = self.device == "cuda"
        defaults = {"use_cpu": not on_gpu, "bf16": True, "max_steps": sum(self.steps)}
        loading = {"dataloader_num_workers": 4 if on_gpu else 0, "dataloader_pin_memory": on_gpu}
        return quiet_settings(**{**defaults, **loading, **settings})

    def training(
        self, shape: Figures, tokens: int, way: str | None = None, plain: bool = False, **settings: Any
    ) -> Figures:
        """Return the figures of a training of some steps, by a way, or on the same rows as a plain trainer."""
        model = self.model(shape, **settings.pop("of_model", {}))
        if way is not None:
            settings = {"max_tokens_per_batch": 1024 if self.tiny else tokens, **WAYS[way], **settings}
        trainer: Any
        if plain:
            rows = self.pairs.select_columns(list(COLUMNS))
            trainer = _CountingPlain(model, Seq2SeqTrainingArguments(**self.arguments(**settings)), _collator(), rows)
        else:
            trainer = _Counting(
                model, DAIRConfig(**self.arguments(**settings)), _collator(), self.pairs, sample_loss="causal"
            )
        clock = _Clock(trainer, self.steps)
        trainer.add_callback(clock)
        trainer.train()
        of_epoch = self.tokens["both views" if settings.get("method") == "dair" else ERM]
        return clock.figures(model, of_epoch)

    # ---- parts ----

    def sizes(self) -> None:
        """Train by trees and by rows."""
        for size, (shape, tokens) in SIZES.items():
            for way in WAYS:
                self.attempt("sizes", f"{size}, {way}", partial(self.training, shape, tokens, way))

    def dense(self) -> None:
        """Train by trees without FlexAttention."""
        with patch.object(attention, "FLEX_SPEED", 1e-9):
            self.attempt("dense", f"0.6 billion, {TREES}", partial(self.training, *SIZES["0.6 billion"], TREES))

    def weights(self) -> None:
        """Train weights in bfloat16."""
        half = {"bf16": False, "of_model": {"dtype": torch.bfloat16}}
        for size in ("0.6 billion", "1.5 billion"):
            for way in (ERM, TREES):
                self.attempt("weights", f"{size}, {way}", partial(self.training, *SIZES[size], way, **half))

    def step(self) -> None:
        """Train on the same rows by both trainers."""
        rows = {"per_device_train_batch_size": 4 if self.tiny else 32}
        self.attempt("step", "DAIRTrainer", partial(self.training, LLAMA, 0, method="erm", **rows))
        self.attempt("step", "Seq2SeqTrainer", partial(self.training, LLAMA, 0, plain=True, **rows))

    def compile(self) -> None:
        """Train with compiled layers: one is compiled for all."""
        compiled = {"torch_compile": True, "torch_compile_backend": "eager" if self.tiny else "inductor"}
        with patch.dict(os.environ, {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"}):
            for way in (ERM, TREES):
                run = partial(self.training, *SIZES["0.6 billion"], way, **compiled)
                self.attempt("compile", f"0.6 billion, {way}", run)

    def exactness(self) -> None:
        """Compare rows and trees with rows in float32."""
        dialogues = list(dict.fromkeys(self.pairs[GROUP][:]))[:4]
        rows = [row for row in self.pairs if row[GROUP] in dialogues]
        groups = [row.pop(GROUP) for row in rows]
        batch = PairCollator(_collator())(rows)
        forests = {
            "dense": build_forest(batch, groups, AttentionCosts(500.0, None)),
            "sparse": build_forest(batch, groups, AttentionCosts(None, 1.0)),
        }
        batch = {name: values.to(self.device) for name, values in batch.items()}
        for name, shape in EXACT.items():
            reference: list[Any] = []
            for dtype in (torch.float32, torch.bfloat16):
                for way in ("rows", *forests):
                    if way == "sparse" and (self.device == "cpu" or (dtype == torch.float32 and name != "llama")):
                        continue  # no gradients on a CPU; one compilation in float32 is enough
                    run = partial(self.errors, shape, batch, forests.get(way), dtype, reference)
                    self.attempt("exactness", f"{name}, {dtype}, {way}".replace("torch.", ""), run)

    def errors(
        self, shape: Figures, batch: dict[str, Any], forest: Any, dtype: torch.dtype, reference: list[Any]
    ) -> Figures:
        """Return the errors of losses and gradients relative to the reference, which is the first call."""
        model = self.model(shape)
        trainer = DAIRTrainer(model, DAIRConfig(**self.arguments(share_prefixes=GROUP)), sample_loss=causal_nll)
        trainer.pair_loss.trees._verified_length = 10 * SOURCE_TOKENS  # the comparison before training is this one
        trees = {} if forest is None else {FOREST: forest.to(self.device)}
        with torch.autocast(self.device, dtype=dtype, enabled=dtype != torch.float32):
            found = trainer.pair_loss(model, {**batch, **trees}, with_partners=True)
        trainer.pair_loss.objective(found.terms, trainer.pair_loss.count(batch), 1.0).backward()
        losses, gradients = found.losses.detach(), [weight.grad for weight in model.parameters()]
        if not reference:
            reference += [losses, gradients]
        of_losses = ((losses - reference[0]).abs() / reference[0])[reference[0] > 0]
        difference = sum((one - other).square().sum() for one, other in zip(gradients, reference[1], strict=True))
        norm = sum(other.square().sum() for other in reference[1])
        return {
            "mean error of losses": of_losses.mean().item(),
            "largest": of_losses.max().item(),
            "error of gradients": (difference / norm).sqrt().item(),
        }

    def attention(self) -> None:
        """Time forward and backward of attention, relative to matrix products."""
        if self.device == "cpu":
            return
        one, other = (
            torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
        )
        product = 6 * 8192 * 8192 * 4096 / _seconds(lambda: one @ other.mT)
        for nodes in (2048, 4096, 8192, 16384):
            self.attempt("attention", f"16 heads of 128, {nodes} nodes", partial(self.rates, nodes, product))

    def rates(self, nodes: int, product: float) -> Figures:
        """Return operations a second, relative to a matrix product, with trees of about 1,000 nodes each."""
        heads, size = 16, 128
        tree = _trees(nodes)
        blocks = attention._block_mask(tree, None, has_windows=False)
        seen = int(blocks.kv_num_blocks.sum() + blocks.full_kv_num_blocks.sum()) * BLOCK**2
        flex, figures = attention._compiled_flex_attention(), {}
        states = torch.randn(3, 1, heads, nodes, size, device="cuda", dtype=torch.bfloat16, requires_grad=True).unbind()
        took = _seconds(lambda: flex(*states, block_mask=blocks))
        figures["flex"] = 12 * heads * size * seen / took / product
        sequences = nodes // 1024
        states = torch.randn(
            3, sequences, heads, 1024, size, device="cuda", dtype=torch.bfloat16, requires_grad=True
        ).unbind()
        mask = attention._tree_mask(tree, None, sequences)
        for name, kernel in (("efficient", SDPBackend.EFFICIENT_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            with sdpa_kernel([kernel]):
                took = _seconds(lambda: scaled_dot_product_attention(*states, mask))
            figures[name] = 12 * heads * size * 1024 * nodes / took / product
        return {**figures, "nodes of a node's blocks": seen / nodes}

    def generation(self) -> None:
        """Answer both views of some rows."""
        rows = self.pairs.select(range(8 if self.tiny else 200))
        model = self.model(QWEN3, dtype=torch.bfloat16).eval()
        new = {"max_new_tokens": 4 if self.tiny else 24}
        model.generation_config.eos_token_id = None
        for way, settings in (("rows", {}), ("trees", {"share_prefixes": GROUP})):
            arguments = self.arguments(per_device_eval_batch_size=64, **settings)
            trainer = DAIRTrainer(model, DAIRConfig(**arguments), _collator(), processing_class=_Padding())
            run = partial(trainer.evaluate_pairs, rows, _never_right, intervals=False, **new)
            self.attempt("generation", way, partial(_answers_a_second, run, 2 * len(rows)))
        if self.device == "cpu":
            return
        config = GenerationConfig(**new, do_sample=False, pad_token_id=0, eos_token_id=-1)
        prompts = [_prompt(row, view) for row in rows for view in ("", "augmented_") if row[f"{view}input_ids"]]
        run = partial(model.generate_batch, prompts, generation_config=config)
        self.attempt("generation", "continuous batching", partial(_answers_a_second, run, len(prompts)))


class _Padding:
    """What `DataCollatorForSeq2Seq` needs of a tokenizer: padding on the right with token 0."""

    padding_side, pad_token_id, eos_token_id, model_input_names = "right", 0, 1, list(COLUMNS[:2])

    def pad(self, features: list[dict[str, Any]], *args: Any, **settings: Any) -> dict[str, Tensor]:
        """Pad token ids and masks; labels are padded already."""
        length = max(len(row["input_ids"]) for row in features)
        rows = {name: [list(row[name]) for row in features] for name in features[0]}
        return {
            name: torch.tensor([row + [-100 if name == "labels" else 0] * (length - len(row)) for row in values])
            for name, values in rows.items()
        }


class _Seen:
    """Counts what is computed, on the device."""

    tokens: Any = 0  # of rows
    computed: Any = 0
    scores: Any = 0
    targets: Any = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Tensor:
        """Count a batch."""
        lengths = inputs["attention_mask"].sum(-1)
        self.tokens += lengths.sum()
        self.targets += (inputs["labels"] != -100).sum()
        if FOREST in inputs:
            (tree,) = inputs[FOREST].trees
            self.computed += (tree.position_ids > 0).sum()  # not those that pad, and not the few roots
            self.scores += (tree.position_ids + 1).sum()
        else:
            self.computed += lengths.sum()
            self.scores += (lengths * (lengths + 1) // 2).sum()
        loss: Tensor = super().training_step(model, inputs, *args)  # type: ignore[misc]
        return loss


class _Counting(_Seen, DAIRTrainer):
    pass


class _CountingPlain(_Seen, Seq2SeqTrainer):
    pass


class _Clock(TrainerCallback):
    """Times steps after the first, then profiles some."""

    def __init__(self, trainer: Any, steps: tuple[int, int, int]) -> None:
        self.trainer, self.on_gpu = trainer, torch.cuda.is_available()
        self.warm, self.end, self.last = np.cumsum(steps).tolist()
        self.started, self.first, self.times, self.counts = time.perf_counter(), 0.0, [], []
        self.memory: float | None = None
        activity = torch.profiler.ProfilerActivity
        self.profile = torch.profiler.profile(activities=[activity.CUDA if self.on_gpu else activity.CPU])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take times and counts."""
        step, seen = state.global_step, self.trainer
        if step not in (1, self.warm, self.end, self.last):
            return
        counts = np.array([float(value) for value in (seen.tokens, seen.computed, seen.scores, seen.targets)])
        now = time.perf_counter()  # all work is done: the counts waited for it
        if step == 1:
            self.first = now - self.started
            return
        self.times.append(now)
        self.counts.append(counts)
        if step == self.warm and self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        elif step == self.end:
            self.memory = torch.cuda.max_memory_allocated() / 1e9 if self.on_gpu else None
            self.profile.start()
        elif step == self.last:
            self.profile.stop()

    def figures(self, model: Any, tokens_of_epoch: int) -> Figures:
        """Return the figures of the timed steps."""
        seconds = self.times[1] - self.times[0]
        tokens, computed, scores, targets = self.counts[1] - self.counts[0]
        config = model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        operations = 6 * model.num_parameters(exclude_embeddings=True) * computed
        operations += 6 * config.hidden_size * config.vocab_size * targets
        operations += 12 * config.num_hidden_layers * config.num_attention_heads * size * scores
        kernels = [event for event in self.profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        busy = sum(event.self_device_time_total for event in kernels) / 1e6
        # Steps differ in size.
        busy_a_token, seconds_a_token = busy / (self.counts[2] - self.counts[1])[1], seconds / computed
        return {
            "seconds an epoch": seconds / tokens * tokens_of_epoch,
            "ms a step": 1e3 * seconds / (self.end - self.warm),
            "tokens a second": computed / seconds,
            "tokens a step": computed / (self.end - self.warm),
            "TFLOP/s": operations / seconds / 1e12,
            "share": operations / seconds / PEAK,
            "GB": self.memory,
            "host": max(0.0, 1 - busy_a_token / seconds_a_token) if kernels else None,
            "kernels a step": len(kernels) / (self.last - self.end),
            "seconds of the first step": self.first,
        }


def _collator() -> DataCollatorForSeq2Seq:
    return DataCollatorForSeq2Seq(_Padding(), model=None)


def _seconds(forward: Callable[[], Tensor], rounds: int = 12) -> float:
    """Return the median seconds of a forward and its backward on the GPU."""
    times = []
    for _ in range(rounds):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        outputs = forward()
        outputs.backward(torch.ones_like(outputs))
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]) / 1e3)
    return float(np.median(times))


def _trees(nodes: int) -> TokenTree:
    """Return trees of 1,024 nodes: a dialogue of 16 turns, each with its answer."""
    turn = np.arange(16)
    rows = np.zeros((16, 16 * 32 + 32), dtype=np.int64)
    lengths = 32 * (turn + 1) + 32
    for number, length in enumerate(lengths):
        rows[number, : length - 32] = 1
        rows[number, length - 32 : length] = 2 + number
    count = nodes // 1024
    groups = np.repeat(np.arange(count), 16)
    made = token_trees(np.tile(rows, (count, 1)), np.tile(lengths, count), groups, None).trees[0]
    return TokenTree(*(values.cuda() for values in made))


def _prompt(row: Mapping[str, Any], view: str) -> list[int]:
    pairs = zip(row[f"{view}input_ids"], row[f"{view}labels"], strict=True)
    return [token for token, label in pairs if label == -100]


def _never_right(predictions: list[Any], references: list[Any]) -> list[bool]:
    return [False] * len(predictions)


def _answers_a_second(run: Callable[[], object], answers: int) -> Figures:
    """Return the answers a second of the second of two runs."""
    times = [time.perf_counter()]
    for _ in range(2):
        run()
        times.append(time.perf_counter())
    return {"answers a second": answers / (times[2] - times[1]), "first run": answers / (times[1] - times[0])}


def random_dialogs(dialogs: int = 12, turns: int = 4) -> datasets.Dataset:
    """Return dialogues of random tokens whose partners differ in one token of the first turn."""
    generator = np.random.default_rng(0)
    rows = []
    for dialog in range(dialogs):
        history = generator.integers(8, 500, 12 * turns).tolist()
        for turn in range(1, turns + 1):
            row: dict[str, Any] = {GROUP: f"D{dialog}"}
            prompt, target = history[: 12 * turn], generator.integers(8, 500, 6).tolist()
            for prefix, tokens in (("", prompt), ("augmented_", [*prompt[:4], 5, *prompt[5:]])):
                row[f"{prefix}input_ids"] = tokens + target
                row[f"{prefix}attention_mask"] = [1] * (len(tokens) + 6)
                row[f"{prefix}labels"] = [-100] * len(tokens) + target
            rows.append(row)
    return datasets.Dataset.from_list(rows)


def prepare(options: argparse.Namespace) -> None:
    """Tokenize dialogues and their partners."""
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    pairs, _ = encoded_pairs(str(options.data), "val", options.dialogs, tokenizer, SOURCE_TOKENS, causal=True)
    pairs.select_columns([GROUP, *COLUMNS, *(f"augmented_{name}" for name in COLUMNS)]).to_parquet(options.output)
    print(f"{options.output}: {len(pairs)} rows, {options.output.stat().st_size / 2**20:.1f} MiB")


def table(record: Mapping[str, Any]) -> str:
    """Return a Markdown table."""
    found = record["metrics"]["parts"]["sizes"]
    lines = [
        "| parameters | training | seconds an epoch | / ERM | tokens a second | TFLOP/s | host | GB |",
        "|" + "---|" * 8,
    ]
    for size in SIZES:
        for way in WAYS:
            figures = found[f"{size}, {way}"]
            ratio = figures["seconds an epoch"] / found[f"{size}, {ERM}"]["seconds an epoch"]
            cells = (
                size, way, f"{figures['seconds an epoch']:.1f}", f"{ratio:.2f}", f"{figures['tokens a second']:,.0f}",
                f"{figures['TFLOP/s']:.0f}", f"{figures['host']:.2f}", f"{figures['GB']:.0f}",
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


PARTS = ("sizes", "exactness", "step", "generation", "dense", "weights", "attention", "compile")


def main() -> None:
    """Run the parts."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, help="with --prepare MultiWOZ 2.1, else the file that it made")
    parser.add_argument("--tokenizer", help="with --prepare: folder or name of a tokenizer")
    parser.add_argument("--dialogs", type=int, default=DIALOGS, help="with --prepare: dialogues of the file")
    parser.add_argument("--prepare", action="store_true", help="make the file that travels")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tiny", action="store_true", help="all parts with tiny models on a CPU")
    parser.add_argument("--table", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    if options.table:
        return print(table(read_json(FOLDER / f"{NAME}.json")), end="")
    if options.prepare:
        return prepare(options)
    if not options.tiny and not torch.cuda.is_available():
        raise DataError("no GPU: give --tiny to try the parts on a CPU")
    if not options.tiny and options.output is None:
        options.output = FOLDER / f"{NAME}.json"
        require_own(options.output, NAME)
    bench = Bench(options, random_dialogs() if options.tiny else datasets.Dataset.from_parquet(str(options.data)))
    for part in options.part:
        start = time.perf_counter()
        getattr(bench, part)()
        bench.seconds[part] = time.perf_counter() - start
        print(f"{part}: {bench.seconds[part]:.0f} s", flush=True)
    shown = Table(*HEADINGS)
    for measure in bench.measures():
        shown.add_row(*measure.cells())
    rich.print(shown)


if __name__ == "__main__":
    sys.exit(exit_status(main))
