"""Compare ERM, DA-ERM, KL and DAIR for a pretrained tracker: all at once on one GPU, evaluation included, in minutes.

Run from the root of the checkout. First, on any machine with the data and the model, then on the GPU:

    python -m reproduction.gpu --prepare --data path/to/data --model path/to/smollm2 --folder prepared
    python -m reproduction.gpu --folder prepared --output outputs/gpu --minutes 11

`--data` holds `multiwoz21/` and `sgd/`. `--prepare` audits and encodes the pairs and stores the model in bfloat16, in
files of at most 60 MiB. Other options are those of `recipes/multiwoz_simpletod.py` (`--dair_lambda 0.1`); the settings
are in `multiwoz21_smollm2.yaml`. `--tiny` does both steps at tiny size on a CPU.

Each method has a process. All train for the same number of epochs, as many as the slowest method has time for, by its
speed after the first steps, with one learning rate schedule over these epochs. Training ends after `TRAIN_SHARE` of the
time at the latest. Each process then answers test dialogues, in one shuffled order, until time is over. The table
covers the dialogues that all methods have answered, and is written again after each part. The same command continues:
finished trainings and answers are kept. Other settings, data or weights need another `--output`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import load_from_disk
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from dair_hf import DAIRConfig
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import load_dialogs
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.task import check_pairs, evaluation_pairs, state_evaluator, training_pairs
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.errors import DataError
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig, lambda_note, runs_of, with_settings
from dair_hf.experiments.paired import read_outcomes, write_paired
from dair_hf.experiments.report import Column, write_comparison
from dair_hf.experiments.run_records import SETTINGS_NOTE, Run, fingerprint, run_record
from dair_hf.io.archives import sha256_of
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import atomic_folder, claim_folder, read_json, write_json, write_text
from dair_hf.io.records import read_predictions
from dair_hf.modeling import ModelConfig, load_model, load_tokenizer
from recipes.multiwoz_simpletod import COLUMNS, NOTE, trainer_for

CONFIG = Path("recipes") / "configs" / "multiwoz21_smollm2.yaml"
TRAIN_SHARE, TEST_SHARE = 0.6, 0.97  # of the time, when training and answers end
SAFETY = 0.9  # share of the time until then that the planned epochs take


class Pace(NamedTuple):
    """Steps before the speed is measured, seconds over which it is, and test dialogues of a part."""

    first_steps: int
    timing: float
    dialogs: int


FULL, TINY = Pace(10, 20.0, 40), Pace(2, 0.5, 2)
TINY_MODEL = (
    "{model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, "
    "max_position_embeddings: 1024}"
)
TINY_SETTINGS = (
    "--max_tokens_per_batch 1024 --per_device_eval_batch_size 8 --train_dialogs 12 --test_dialogs 6 "
    "--num_train_epochs 12 --warmup_steps 2 --logging_steps 1"
).split()
CPU_SETTINGS = "--bf16 false --use_cpu true --dataloader_num_workers 0".split()


class Settings(NamedTuple):
    """Settings of the recipe, and one run for each method."""

    data: DialogConfig
    model: ModelConfig
    comparison: ComparisonConfig
    args: DAIRConfig
    runs: list[Run]


def read_settings(options: argparse.Namespace, model: Sequence[str] | None = None) -> Settings:
    """Read the configuration with the options that name a model (default: the prepared one), and of this machine."""
    model = ["--model_name_or_path", str(options.folder / "model")] if model is None else model
    argv = [
        "--config", str(CONFIG), "--output_dir", str(options.output), "--data_dir", str(options.data / "multiwoz21"),
        "--sgd_dir", str(options.data / "sgd"), "--disable_tqdm", "true", *model,
        *(() if torch.cuda.is_available() and not options.tiny else CPU_SETTINGS),
        *(TINY_SETTINGS if options.tiny else ()), *options.settings,
    ]  # fmt: skip
    parsed = parse_arguments([DialogConfig, ModelConfig, ComparisonConfig, DAIRConfig], argv)
    return Settings(*parsed, list(runs_of(*parsed[2:])))


def prepare(options: argparse.Namespace) -> None:
    """Write what the runs read: encoded pairs, the test dialogues in a shuffled order, tokenizer and model."""
    name = ["--model_name_or_path", str(options.model)] if options.model else []
    if options.tiny:
        name = ["--model_name_or_path", "null", "--model_settings", TINY_MODEL]
    data, model, _, args, _ = read_settings(options, name)
    dialogs = load_dialogs(data)
    tokenizer = tokenizer_for([dialogs.train], data) if options.tiny else load_tokenizer(model)
    network = load_model(model, tokenizer)
    encoder = DialogEncoder.for_model(network, tokenizer, data)
    with atomic_folder(options.folder) as folder:
        check_pairs(dialogs, data, encoder, folder)
        train = training_pairs(dialogs.train, encoder, data, with_settings(args, method="dair"))
        kept = [name for name in train.column_names if name.endswith(("row_id", "dialogue_id", "input_ids", "labels"))]
        train.select_columns(kept).save_to_disk(folder / "train")
        pairs = evaluation_pairs(dialogs, data).map(encoder, batched=True, desc="Tokenizing test")
        ids = pairs["dialogue_id"][:]
        names = sorted(set(ids))
        places = dict(zip(names, random.Random(0).sample(range(len(names)), len(names)), strict=True))
        pairs.select(sorted(range(len(ids)), key=lambda row: places[ids[row]])).save_to_disk(folder / "test")
        tokenizer.save_pretrained(folder / "model")
        network.to(torch.bfloat16).save_pretrained(folder / "model", max_shard_size="50MB")


class Schedule(TrainerCallback):
    """Learning rate and end of a training whose number of epochs, infinite at first, is planned while it runs."""

    def __init__(self, progress: Any, number: int, epochs: Any, args: Any, first_steps: int, deadline: float) -> None:
        self.progress, self.number, self.epochs, self.warmup_steps = progress, number, epochs, args.warmup_steps
        self.first_steps, self.deadline, self.epoch = first_steps, deadline, 0.0

    def factor(self, step: int) -> float:
        """Return the share of the learning rate: linear warm-up, then linear decay to 0 at the last epoch."""
        return min(1.0, (step + 1) / (self.warmup_steps + 1)) * max(0.0, 1 - self.epoch / self.epochs.value)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report progress; end the training after the planned epochs, or when time is over."""
        self.epoch = state.epoch
        if state.global_step >= self.first_steps:
            self.progress[self.number] = self.epoch
        if self.epoch >= self.epochs.value or time.time() > self.deadline:
            control.should_training_stop = True


def work(options: argparse.Namespace, number: int, progress: Any, epochs: Any, times: tuple[float, float]) -> None:
    """Train and test one method, in a process of its own, until the two times; its output goes to a log.

    `progress[number]` is its epoch: 0 during the first steps, infinite after training.
    """
    settings, pace = read_settings(options), TINY if options.tiny else FULL
    run = settings.runs[number]
    folder = Path(run.args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(settings.runs)))
    is_trained = (folder / TRAINER_STATE_NAME).exists()
    start = folder if is_trained else options.folder / "model"
    model = ModelConfig(str(start), attn_implementation=settings.model.attn_implementation)
    tokenizer = load_tokenizer(model)
    network = load_model(model, tokenizer, run.seed).float()
    encoder = DialogEncoder.for_model(network, tokenizer, settings.data)
    rows = load_from_disk(str(options.folder / "train"))
    if not run.args.uses_partners:
        rows = rows.remove_columns([name for name in rows.column_names if name.startswith("augmented_")])
    trainer = trainer_for(network, run.args, rows, encoder)
    if not is_trained:
        schedule = Schedule(progress, number, epochs, run.args, pace.first_steps, times[0])
        trainer.add_callback(schedule)
        trainer.create_optimizer()
        trainer.lr_scheduler = LambdaLR(trainer.optimizer, schedule.factor)
        trainer.train()
        trainer.save_model()
        trainer.save_state()
    progress[number] = math.inf
    test = load_from_disk(str(options.folder / "test"))
    dialogs, longest = list(dict.fromkeys(ids := test["dialogue_id"][:])), 0.0
    for part, first in enumerate(range(0, len(dialogs), pace.dialogs)):
        file = folder / f"answers_{part:03d}.jsonl"
        if file.exists():
            continue
        began = time.time()
        if began + longest > times[1]:
            break
        chosen = set(dialogs[first : first + pace.dialogs])
        pairs = test.select([row for row, dialogue in enumerate(ids) if dialogue in chosen])
        trainer.evaluate_pairs(pairs, state_evaluator(settings.data.preset), predictions_file=file, intervals=False)
        longest = max(longest, time.time() - began)


def used_by(options: argparse.Namespace, settings: Settings, run: Run) -> tuple[dict[str, Any], dict[str, str], str]:
    """Return the settings of a run, the fingerprints of its data and weights, and the fingerprint of all."""
    used = {"data": settings.data, "model": settings.model, "training": run.args}
    prints = {name: read_json(options.folder / name / "state.json")["_fingerprint"] for name in ("train", "test")}
    prints["model"] = fingerprint(*map(sha256_of, sorted((options.folder / "model").glob("*.safetensors"))))
    return used, prints, fingerprint(used, prints)


def compare_answers(options: argparse.Namespace, settings: Settings) -> str:
    """Write records and table over the dialogues that all methods with answers have answered; return the table."""
    files = {run.name: sorted(Path(run.args.output_dir).glob("answers_*.jsonl")) for run in settings.runs}
    runs = [run for run in settings.runs if files[run.name]]
    if not runs:
        return ""
    common = min(len(files[run.name]) for run in runs)
    evaluator, records = state_evaluator(settings.data.preset), []
    for run in runs:
        write_text(run.predictions_file, "".join(file.read_text("utf-8") for file in files[run.name][:common]))
        rows: dict[str, dict[str, Any]] = {}
        for line in read_predictions(run.predictions_file):
            rows.setdefault(line["row_id"], {})[line["variant"]] = line
        views = [
            [row.get(variant, {}).get(key) for row in rows.values()]
            for key in ("prediction", "reference")
            for variant in ("original", "augmented")
        ]
        clusters = [row["original"]["cluster"] for row in rows.values()]
        state = read_json(Path(run.args.output_dir) / TRAINER_STATE_NAME)
        metrics = evaluator(*views, row_ids=list(rows), clusters=clusters)
        metrics |= {"epochs": state["epoch"], "steps": state["global_step"], "dialogues": len(set(clusters))}
        used, prints, identity = used_by(options, settings, run)
        seconds = {"training": state["log_history"][-1]["train_runtime"]}
        record = run_record(run.name, run.method, run.seed, used, metrics, seconds, prints, identity)
        records.append({**record, "outcomes": read_outcomes(run.predictions_file).to_json()})
        write_json(options.output / f"{run.name}.json", records[-1])
    columns = [column._replace(key=column.key.format(accuracy=evaluator.accuracy_key)) for column in COLUMNS]
    columns += [Column("epochs", "epochs"), Column("dialogues", "test dialogues")]
    title = f"Known and unseen names, MultiWOZ 2.1 {settings.data.test_split}"
    notes = [f"{lambda_note(settings.comparison, settings.args)}.", f"{NOTE} are by `{evaluator.preset}`."]
    table = write_comparison(options.output, title, records, columns, notes)
    return f"{table}\n\n{write_paired(options.output, records)}"


def plan_epochs(then: tuple[float, list[float]], now: tuple[float, list[float]], deadline: float) -> float:
    """Return how many epochs the slowest method will have trained at a deadline, by its progress between two times.

    It is at least the number that the fastest method has trained before.
    """
    seconds, left = now[0] - then[0], SAFETY * (deadline - now[0])
    pairs = [(start, end) for start, end in zip(then[1], now[1], strict=True) if end < math.inf]
    slowest = min(end + (end - start) / seconds * left for start, end in pairs)
    return max(math.floor(10 * slowest) / 10, *(end for _, end in pairs))


def run_all(options: argparse.Namespace) -> None:
    """Run all methods until time is over, and print the table."""
    began, seconds = time.time(), options.minutes * 60
    settings, pace = read_settings(options), TINY if options.tiny else FULL
    claim_folder(options.output)
    notes = {Path(run.args.output_dir) / SETTINGS_NOTE: used_by(options, settings, run)[2] for run in settings.runs}
    if others := [str(note.parent) for note, now in notes.items() if note.exists() and note.read_text("utf-8") != now]:
        raise DataError(f"{', '.join(others)}: of other settings, data or weights; choose another --output")
    for note, now in notes.items():
        write_text(note, now)
    times = began + TRAIN_SHARE * seconds, began + TEST_SHARE * seconds
    context = multiprocessing.get_context("forkserver")  # imports once, and without the threads of this process
    context.set_forkserver_preload(["recipes.multiwoz_simpletod"])
    numbers, plan_file = range(len(settings.runs)), options.output / "plan.json"
    progress, epochs = context.Array("d", len(numbers)), context.Value("d", math.inf)
    if plan_file.exists():  # of an earlier call, which finished some trainings
        epochs.value = read_json(plan_file)["epochs"]
    processes = [context.Process(target=work, args=(options, number, progress, epochs, times)) for number in numbers]
    for process in processes:
        process.start()
    then, answered = None, 0
    try:
        while any(process.is_alive() for process in processes) and time.time() < began + seconds:
            time.sleep(0.1 if options.tiny else 1)
            alive = [process.is_alive() for process in processes]
            now = time.time(), [progress[number] if alive[number] else math.inf for number in numbers]
            if epochs.value == math.inf and 0 < min(now[1]) < math.inf:
                then = then or now
                if now[0] - then[0] >= pace.timing:
                    epochs.value = min(settings.args.num_train_epochs, plan_epochs(then, now, times[0]))
                    write_json(plan_file, {"epochs": epochs.value, "minutes": options.minutes})
                    print(f"{epochs.value:g} epochs planned after {now[0] - began:.0f} s", flush=True)
            if (files := len(list(options.output.glob("runs/*/answers_*.jsonl")))) > answered:
                answered = files
                compare_answers(options, settings)
    finally:
        for process in processes:
            process.terminate()
            process.join()
    print(compare_answers(options, settings))
    failed = [run.args.output_dir for run, process in zip(settings.runs, processes, strict=True) if process.exitcode]
    if failed:
        raise DataError(f"not finished, see log.txt there: {', '.join(failed)}")


def main() -> None:
    """Prepare, or train and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="write what the runs read")
    parser.add_argument("--tiny", action="store_true", help="both steps with a tiny model and few dialogues on a CPU")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of multiwoz21/ and sgd/, to prepare")
    parser.add_argument("--model", type=Path, help="folder of the model, to prepare (default: from the Hub)")
    parser.add_argument("--folder", type=Path, help="prepared folder (default: prepared/ in the output folder)")
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu"), help="folder of the records and the table")
    parser.add_argument("--minutes", type=float, default=11.0, help="time of all runs together (default: 11)")
    options, options.settings = parser.parse_known_args()
    options.folder = options.folder or options.output / "prepared"
    if options.prepare or (options.tiny and not options.folder.exists()):
        prepare(options)
    if not options.prepare:
        run_all(options)


if __name__ == "__main__":
    run_recipe(main)
