"""`dair-hf compare` on tiny models: parts, equal starts and steps, resumption, the table and the best model."""

from __future__ import annotations

import contextlib
import json
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from dair_hf import DAIRTrainer
from dair_hf.commands import main
from dair_hf.experiments import comparison
from dair_hf.experiments.run_records import SETTINGS_NOTE
from dair_hf.experiments.trials import DEV_METRIC
from dair_hf.io.commands import INTERRUPTED
from dair_hf.io.files import write_json
from dair_hf.text.pair_files import GROUP
from tests.fixtures import chats, saved_models, tiny
from tests.fixtures.paths import ROOT
from tests.fixtures.recipe_runs import QUIET, UNDRAWN, predictions, read

pytestmark = pytest.mark.slow
NAMES = "bad", "good"
OPTIONS = ["--methods", "erm", "da", "dair", "--learning_rate", "0.03", "--epochs", "5"]
Started = tuple[str, float, set[str], set[str]]  # name, sum of weights, groups of the train and the dev part


def compare(model: Path, pairs: Path, folder: Path, *options: str) -> None:
    main_options = ["--output", str(folder), "--seeds", "2", *options, *QUIET, "--per_device_train_batch_size", "4"]
    with contextlib.ExitStack() as kept:  # what the recipe sets for its process
        kept.enter_context(mock.patch(*UNDRAWN))
        for library in ("transformers", "datasets"):
            kept.enter_context(mock.patch(f"{library}.utils.logging.disable_progress_bar"))
        assert main.run(["compare", str(model), str(pairs), *main_options]) == 0


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reviews(path: Path) -> Path:
    """Sixty pairs in groups of two: w5 or w6 decides, and w4 or w7 tells the label of the original."""
    draw, rows = random.Random(0), []
    for number in range(60):
        words, label = " ".join(f"w{draw.randint(8, 23)}" for _ in range(4)), number % 2
        text, other = (f"{('w4', 'w7')[label]} {words} {('w5', 'w6')[which]}" for which in (label, 1 - label))
        views = {"text": text, "label": NAMES[label], "augmented_text": other, "augmented_label": NAMES[1 - label]}
        rows.append({**views, "original_id": f"r{number // 2}"})
    return write(path, rows)


def watched(begun: list[Started], stop_after: int) -> Callable[..., Any]:
    train = comparison.train_evaluate_save

    def run(trainer: DAIRTrainer, *args: Any, **card: Any) -> Any:
        if len(begun) == stop_after:
            raise KeyboardInterrupt
        start = sum(weights.double().abs().sum().item() for weights in trainer.model.parameters())
        parts = (set(part[GROUP]) for part in (trainer.train_dataset, trainer.eval_dataset))
        begun.append((Path(trainer.args.output_dir).name, start, *parts))
        return train(trainer, *args, **card)

    return run


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Started]]:
    """Output of a comparison that was interrupted in its fourth run, and taken up again."""
    folder = tmp_path_factory.mktemp("compare")
    model, pairs = saved_models.classifier(folder / "model"), reviews(folder / "pairs.jsonl")
    begun: list[Started] = []
    with mock.patch.object(comparison, "train_evaluate_save", watched(begun, 3)):
        with pytest.raises(SystemExit) as ended:
            compare(model, pairs, folder / "out", *OPTIONS)
    assert ended.value.code == INTERRUPTED and len(begun) == 3
    with mock.patch.object(comparison, "train_evaluate_save", watched(begun, -1)):
        compare(model, pairs, folder / "out", *OPTIONS)
    return folder / "out", begun


def records(folder: Path) -> list[dict[str, Any]]:
    return [read(path) for path in sorted(folder.glob("*_seed*.json"))]


def test_finished_runs_are_not_repeated_and_all_start_alike(classified: tuple[Path, list[Started]]) -> None:
    folder, begun = classified
    names, starts, trains, devs = zip(*begun, strict=True)
    assert names[:4] == ("erm_seed0", "da_weight0.5_seed0", "da_weight1_seed0", "dair_weight0.5_seed0")
    assert len(names) == len(set(names)) == 8 and set(names) == {record["name"] for record in records(folder)}
    assert len({(start, name[-1]) for name, start in zip(names, starts, strict=True)}) == len(set(starts)) == 2
    assert len({record["metrics"]["steps"] for record in records(folder)}) == 1
    # No group is in two parts.
    test = {json.loads(line)["original_id"] for line in (folder / "test.jsonl").read_text().splitlines()}
    train, dev = trains[0], devs[0]
    assert all(part == train for part in trains) and all(part == dev for part in devs)
    assert len(train | dev | test) == len(train) + len(dev) + len(test) == 30
    assert {view["cluster"] for view in predictions(folder / "runs" / names[-1])} == test


def test_the_best_model_is_kept_and_has_the_stored_accuracy(classified: tuple[Path, list[Started]]) -> None:
    folder, _ = classified
    best = max(records(folder), key=lambda record: record["metrics"]["dev_both_correct"])
    assert best["metrics"]["both_correct"] > 0.9, "nothing was learned"
    model = AutoModelForSequenceClassification.from_pretrained(folder / "best_model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "best_model")
    assert read(folder / "best_model" / "trainer_state.json")["best_metric"] == best["metrics"]["dev_both_correct"]
    right = []
    for row in map(json.loads, (folder / "test.jsonl").read_text().splitlines()):
        for view in ("", "augmented_"):
            with torch.no_grad():
                number = model(**tokenizer(row[view + "text"], return_tensors="pt")).logits.argmax().item()
            right.append(model.config.id2label[number] == row[view + "label"])
    both = sum(first and second for first, second in zip(right[::2], right[1::2], strict=True)) / (len(right) / 2)
    scores = {(r["metrics"]["dev_both_correct"], r["metrics"]["both_correct"]) for r in records(folder)}
    assert (best["metrics"]["dev_both_correct"], both) in scores
    assert "test pairs" in (folder / "best_model" / "README.md").read_text()
    assert not list(folder.rglob("checkpoint-*")) and len(list(folder.rglob("*.safetensors"))) == 1


def test_the_report_of_finished_runs(
    classified: tuple[Path, list[Started]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = classified
    compare(folder.parent / "model", folder.parent / "pairs.jsonl", folder, *OPTIONS)
    head, erm, da, dair = capsys.readouterr().out.split("\n\n")[1].splitlines()
    both = {record["name"]: record["metrics"]["both_correct"] for record in records(folder)}
    shown = {line.split()[0]: float(line.split()[4]) for line in (erm, da, dair)}
    assert shown["DA"] > shown["ERM"] + 0.2 and f" {shown['DA'] - shown['ERM']:+.2f} " in da
    chosen = next(name[:-6] for name in both if name.startswith("dair") and name.endswith("_seed1"))
    assert [f"{(both[f'{name}_seed0'] + both[f'{name}_seed1']) / 2:.3f}" for name in ("erm", chosen)] == [
        f"{shown[name]:.3f}" for name in ("ERM", "DAIR")
    ]
    assert max(map(len, (head, erm, da, dair))) <= 80
    assert {path.name for path in folder.iterdir()} >= {"comparison.md", "comparison.png", "paired.md"}


def test_the_best_model_is_of_a_current_run(tmp_path: Path) -> None:
    recipe = runpy.run_path(str(ROOT / "recipes" / "compare_pairs.py"))
    best = tmp_path / "best_model"

    def finish(name: str, settings: str, metric: float) -> dict[str, Any]:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / SETTINGS_NOTE).write_text(settings + "\n")
        write_json(folder / "trainer_state.json", {"best_metric": metric})
        recipe["keep_if_best"](folder, best, [tmp_path / f"{name}.json" for name in "abcd"])
        record = {"name": name, "settings_fingerprint": settings, "metrics": {DEV_METRIC: metric}}
        write_json(tmp_path / f"{name}.json", record)
        return record

    records = [finish("a", "1", 0.5), finish("b", "2", 0.4)]
    assert recipe["run_of"](best, records)["name"] == "a"
    (tmp_path / "a.json").unlink()  # moved away: its model is of no current run
    records = [records[1], finish("c", "3", 0.3)]
    assert recipe["run_of"](best, records)["name"] == "c"
    records.append(finish("d", "4", 0.6))
    assert recipe["run_of"](best, records)["name"] == "d" and recipe["run_of"](best, records[:2]) is None


def test_classes_that_no_row_teaches_are_named(tmp_path: Path) -> None:
    views = {"train": ("a", "b"), "dev": ("a", "c"), "test": ("d", "a")}
    parts = {
        name: Dataset.from_dict({"text": ["w4"], "label": [original], "augmented_label": [partner]})
        for name, (original, partner) in views.items()
    }
    describe = runpy.run_path(str(ROOT / "recipes" / "compare_pairs.py"))["describe"]
    args = tiny.config(tmp_path, max_length=8)
    assert any("c, d" in line for line in describe(parts, [*"abcd"], tiny.tokenizer(), args))
    assert len(describe(parts, [*"ab"], tiny.tokenizer(), args)) == 2


def test_a_folder_with_other_files_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "out" / "best_model").mkdir(parents=True)
    for name in ("best_model/notes.txt", "dair_hf.lock"):
        (tmp_path / "out" / name).touch()
    model, pairs = saved_models.classifier(tmp_path / "model"), reviews(tmp_path / "pairs.jsonl")
    with pytest.raises(SystemExit, match=r"notes\.txt"):
        compare(model, pairs, tmp_path / "out", *OPTIONS)
    assert not list((tmp_path / "out").glob("*_seed*.json"))


def test_a_causal_model_answers_in_text(tmp_path: Path) -> None:
    model = saved_models.generator(tmp_path / "model", "gpt2")
    rows = [{"prompt": f"w{a} w{b}", "completion": f" w{a}"} for a in range(4, 24) for b in (7, 8)]
    rows = [{**row, "augmented_prompt": f"w9 {row['prompt']}", "augmented_completion": " w9"} for row in rows]
    options = ["--methods", "dair", "--seeds", "1", "--epochs", "12", "--learning_rate", "0.01"]
    compare(model, write(tmp_path / "pairs.jsonl", rows), tmp_path / "out", *options)
    metrics = max((r["metrics"] for r in records(tmp_path / "out")), key=lambda found: found["dev_both_correct"])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "best_model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "best_model")
    right = []
    for row in map(json.loads, (tmp_path / "out" / "test.jsonl").read_text().splitlines()):
        ids = tokenizer(row["augmented_prompt"], return_tensors="pt", add_special_tokens=False).input_ids
        answer = loaded.generate(ids, max_new_tokens=2, do_sample=False)[0, ids.shape[1] :]
        right.append(tokenizer.decode(answer, skip_special_tokens=True).strip() == "w9")
    assert sum(right) / len(right) == metrics["augmented_accuracy"] > 0


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    pairs = reviews(tmp_path / "mine.jsonl")
    (tmp_path / "test.jsonl").write_text("mine")
    with pytest.raises(SystemExit, match="expected a new folder"):
        main.run(["compare", "absent", str(pairs), "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="unknown option 2"):
        main.run(["compare", "absent", str(pairs), "--output", str(tmp_path), "--seeds", "1", "2", "3"])
    assert {path.name for path in tmp_path.iterdir()} == {"mine.jsonl", "test.jsonl"}
    assert (tmp_path / "test.jsonl").read_text() == "mine"


def test_adapters_of_a_chat_model(tmp_path: Path) -> None:
    tokenizer = chats.tokenizer()
    chats.llama(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = []
    for number in range(12):
        numbers = number, number + 50
        turns = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": str(n)}] for n in numbers]
        rows.append({"messages": turns[0], "augmented_messages": turns[1], "dialogue_id": str(number)})
    options = ["--methods", "erm", "--seeds", "1", "--use_peft", "true", "--lora_r", "2", "--epochs", "1"]
    compare(tmp_path / "model", write(tmp_path / "pairs.jsonl", rows), tmp_path / "out", *options)
    assert (tmp_path / "out" / "best_model" / "adapter_config.json").is_file()
    assert read(tmp_path / "out" / "erm_seed0.json")["metrics"]["rows"] == 4
