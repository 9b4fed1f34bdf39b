"""`dair-hf evaluate`: figures against plain loops, files, and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import ClassLabel, Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForMaskedLM,
    GenerationConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from dair_hf import DAIRTrainer
from dair_hf.commands.main import run
from dair_hf.errors import DataError
from dair_hf.io.archives import sha256_of
from dair_hf.pair_report.report import PairReport
from tests.fixtures import chats, saved_models, tiny

WORDS = [f"w{number}" for number in range(4, tiny.VOCAB)]
CLASSES = [
    {
        "text": f"{WORDS[row]} {WORDS[row + 1]}",
        "label": ("yes", "no")[row % 2],
        "augmented_text": None if row % 4 == 3 else f"{WORDS[row]} {WORDS[(5 * row) % 20]}",
        "augmented_label": None if row % 4 == 3 else ("yes", "no")[row % 3 == 0],
    }
    for row in range(14)
]

GENERATED = {"source": "w4", "target": "w5", "augmented_source": "w6", "augmented_target": "w7"}
# Labels of token ids are not read from texts.
ENCODED = {"input_ids": [4, 5], "labels": 1, "augmented_input_ids": [6], "augmented_labels": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    saved_models.classifier(folder / "classifier")
    for kind in ("t5", "bart", "gpt2"):
        saved_models.generator(folder / kind, kind)
    sampling = GenerationConfig.from_pretrained(folder / "gpt2")
    sampling.update(do_sample=True, temperature=5.0, top_p=0.9)  # which evaluations do not follow
    sampling.save_pretrained(folder / "gpt2")
    tokenizer = chats.tokenizer()
    for part in (chats.llama(tokenizer), tokenizer):
        part.save_pretrained(folder / "chat")
    BertForMaskedLM(saved_models.bert_config()).save_pretrained(folder / "masked")
    tiny.tokenizer().save_pretrained(folder / "masked")
    AutoModelForSequenceClassification.from_pretrained(folder / "classifier").save_pretrained(folder / "bare")
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def evaluate(model: str | Path, pairs: Path, out: Path, *options: str) -> int:
    """Run the command on a CPU without a progress bar; return the exit status."""
    return run(["evaluate", str(model), str(pairs), "--output", str(out), "--no-progress", "--device", "cpu", *options])


def predictions(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def answer_of(model: Any, tokenizer: Any, source: str, tokens: int = 3) -> str:
    """The answer of plain `generate`."""
    ids = tokenizer(source, return_tensors="pt", add_special_tokens=model.config.model_type != "llama").input_ids
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    start = 0 if model.config.is_encoder_decoder else ids.shape[1]
    return str(tokenizer.decode(made[0, start:], skip_special_tokens=True))


def class_of(model: Any, tokenizer: Any, text: str) -> str:
    """The class that a model, which is loaded in evaluation mode, gives a text."""
    with torch.no_grad():
        return str(model.config.id2label[int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())])


def figures(right: list[tuple[bool, bool | None]], labels: list[tuple[str, str | None]]) -> dict[str, tuple[int, int]]:
    """Numerators and denominators, counted one by one; those of CM over the pairs whose labels differ, if any do."""
    pairs = [(first, second) for first, second in right if second is not None]
    of_cm = [pair for pair, (one, other) in zip(right, labels, strict=True) if None not in pair and one != other]
    of_cm = of_cm or pairs
    return {
        "original_accuracy_pairs": (sum(a for a, _ in pairs), len(pairs)),
        "augmented_accuracy_pairs": (sum(b for _, b in pairs), len(pairs)),
        "cm": (sum(bool(a and b) for a, b in of_cm), sum(a for a, _ in of_cm)),
        "reverse_cm": (sum(bool(a and b) for a, b in of_cm), sum(bool(b) for _, b in of_cm)),
        "both_correct": (sum(a and b for a, b in pairs), len(pairs)),
        "pos_to_neg": (sum(a and not b for a, b in pairs), len(pairs)),
        "neg_to_pos": (sum(b and not a for a, b in pairs), len(pairs)),
        "original_accuracy": (sum(a for a, _ in right), len(right)),
    }


def assert_figures(
    metrics: dict[str, Any], right: list[tuple[bool, bool | None]], labels: list[tuple[str, str | None]]
) -> None:
    for key, (top, bottom) in figures(right, labels).items():
        assert metrics[key] == (pytest.approx(top / bottom) if bottom else None), key
        if bottom:
            assert metrics[f"{key}_low"] <= metrics[key] <= metrics[f"{key}_high"]


def test_classifier_against_a_plain_loop(tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, out = write(tmp_path / "pairs.jsonl", CLASSES), tmp_path / "out"
    name = str(models / "classifier")
    assert evaluate(name, pairs, out) == 0
    printed = capsys.readouterr().out.splitlines()
    record = json.loads((out / "evaluation.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(name)
    right, expected = [], []
    for view in ("", "augmented_"):
        for number, row in enumerate(CLASSES):
            if row[f"{view}text"] is not None:
                given, wanted = class_of(model, tokenizer, row[f"{view}text"]), row[f"{view}label"]
                variant = "augmented" if view else "original"
                expected.append([str(number), variant, given, wanted, given == wanted])
    assert [list(line.values()) for line in predictions(out)] == expected
    for number in range(len(CLASSES)):
        of_row = {line[1]: line[4] for line in expected if line[0] == str(number)}
        right.append((of_row["original"], of_row.get("augmented")))
    assert 0 < sum(first for first, _ in right) < len(right), "the case must hold right and wrong answers"
    labels = [(row["label"], row["augmented_label"]) for row in CLASSES]
    assert_figures(record["metrics"], right, labels)
    top, bottom = figures(right, labels)["cm"]
    (line,) = (line for line in printed if line.startswith("CM:"))
    assert line.split()[-2:] == ["-", f"{top}/{bottom}"]  # over too few pairs
    assert printed[-1].startswith("took ") and record["seconds"]["total"] > 0
    assert record["pairs"] == {"path": str(pairs), "fingerprint": f"sha256:{sha256_of(pairs)}", "rows": len(CLASSES)}
    assert record["settings"]["match"] == "label" and record["model"]["class"] == "BertForSequenceClassification"
    assert record["versions"]["torch"].startswith(torch.__version__.partition("+")[0])


@pytest.mark.parametrize(
    ("kind", "loader", "columns", "inherited"),
    [
        ("bart", AutoModelForSeq2SeqLM, ("source", "target"), False),
        ("gpt2", AutoModelForCausalLM, ("prompt", "completion"), False),
        ("t5", AutoModelForSeq2SeqLM, ("source", "target"), True),
        ("gpt2", AutoModelForCausalLM, ("prompt", "completion"), True),
    ],
)
def test_generated_answers_against_generate(
    tmp_path: Path,
    models: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    loader: Any,
    columns: tuple[str, str],
    inherited: bool,
) -> None:
    """Partners without a column of the target have the target of their original."""
    name, (source, target) = str(models / kind), columns
    model, tokenizer = loader.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)

    def answer(text: str) -> str:
        return answer_of(model, tokenizer, text)

    rows: list[dict[str, Any]] = []
    for number in range(6):
        original, partner = f"{WORDS[number]} {WORDS[number + 3]}", f"{WORDS[number + 7]}"
        # Of every other view the target is what the model says.
        target_text = answer(partner if inherited else original) or "w4" if number % 2 else "w4 w5 Unknown"
        rows.append({source: original, target: target_text, f"augmented_{source}": partner})
        if not inherited:
            rows[-1][f"augmented_{target}"] = answer(partner) or "w4" if number % 3 else "w4 w5 w6"
    rows[-1][f"augmented_{source}"] = None if inherited else partner
    pairs, out = write(tmp_path / "pairs.jsonl", rows), tmp_path / "out"
    assert evaluate(name, pairs, out, "--max-new-tokens", "3", "--json", "--report") == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record == json.loads((out / "evaluation.json").read_text())
    assert ("6 of 11 references" if inherited else "3 of 12 references") in printed.err  # with an unknown word

    # References are the texts of the file, as they are.
    targets = [(row[target], row.get(f"augmented_{target}", row[target])) for row in rows]
    views = [(row[source], wanted) for row, (wanted, _) in zip(rows, targets, strict=True)]
    views += [(row[f"augmented_{source}"], wanted) for row, (_, wanted) in zip(rows, targets, strict=True)]
    views = [view for view in views if view[0]]
    said = [(line["prediction"].split(), line["reference"]) for line in predictions(out)]
    assert said == [(answer(text).split(), wanted) for text, wanted in views]
    correct = [answer(text).split() == wanted.split() for text, wanted in views]
    assert_figures(record["metrics"], [*itertools.zip_longest(correct[:6], correct[6:])], targets)
    assert set(correct[6:]) == {True, False} and (inherited or set(correct[:6]) == {True, False})
    assert record["settings"]["match"] == "exact" and record["settings"]["max_new_tokens"] == 3
    worst = json.loads((out / "pair_report.json").read_text())["worst"]
    shown = [(field["original"], field["augmented"]) for pair in worst for field in pair["fields"]
             if field["name"] == target]  # fmt: skip
    assert sorted(shown) == sorted(targets[: len(views) - 6])


def test_a_column_named_like_the_target_of_another_form_is_no_reference(tmp_path: Path, models: Path) -> None:
    question = [{"role": "user", "content": "a"}]
    reply = [{"role": "assistant", "content": "Yes."}]
    for columns in (
        {"messages": question + reply, "augmented_messages": question * 2 + reply},
        {"prompt": question, "completion": reply, "augmented_prompt": question * 2},  # with an inherited completion
    ):
        pairs = write(tmp_path / "pairs.jsonl", [{**columns, "target": "low", "augmented_target": "high"}])
        out = tmp_path / "_".join(columns)
        assert evaluate(models / "chat", pairs, out, "--max-new-tokens", "2") == 0
        assert [line["reference"] for line in predictions(out)] == ["Yes.", "Yes."]


def test_last_turn_of_a_chat_is_the_answer(tmp_path: Path, models: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models / "chat")
    model = AutoModelForCausalLM.from_pretrained(models / "chat").eval()

    def answer(question: str) -> str:
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        return answer_of(model, tokenizer, text, tokens=4)

    def chat(question: str, reply: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]

    rows = [{"messages": chat(question, "Yes."), "augmented_messages": chat(question * 2, "No.")} for question in "abc"]
    pairs, out = write(tmp_path / "pairs.jsonl", rows), tmp_path / "out"
    assert evaluate(models / "chat", pairs, out, "--max-new-tokens", "4") == 0
    assert [line["prediction"] for line in predictions(out)] == [answer(q) for q in ("a", "b", "c", "aa", "bb", "cc")]
    assert [line["reference"] for line in predictions(out)] == ["Yes."] * 3 + ["No."] * 3
    # The same as prompts with completions, which are lists of messages; and a second partner, the first once more.
    split = [{"augmented_2_messages": row["augmented_messages"], **row} for row in rows]
    split = [
        {key.replace("messages", name): value[part] for key, value in row.items()
         for name, part in (("prompt", slice(1)), ("completion", slice(1, 2)))}
        for row in split
    ]  # fmt: skip
    assert evaluate(models / "chat", write(pairs, split), tmp_path / "split", "--max-new-tokens", "4") == 0
    again = [line["prediction"] for line in predictions(tmp_path / "split")]
    assert again == [answer(q) for q in ("a", "b", "c", *("aa", "bb", "cc") * 2)]


def test_answers_made_elsewhere_are_evaluated_as_those_of_the_model(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(models / "classifier")
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    none, second = ({"augmented_2_text": text, "augmented_2_label": text and "yes"} for text in (None, "w9"))
    pairs = write(tmp_path / "pairs.jsonl", [{**CLASSES[0], **second}, *({**row, **none} for row in CLASSES[1:])])
    assert evaluate(name, pairs, tmp_path / "model") == 0
    capsys.readouterr()
    assert run(["prompts", str(pairs)]) == 0
    prompts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    given = [{"answer": class_of(model, tokenizer, line.pop("prompt")), **line} for line in prompts[::-1]]
    answers = write(tmp_path / "a.jsonl", given)
    record = json.loads((tmp_path / "model" / "evaluation.json").read_text())
    assert 0 < record["metrics"]["both_correct"] < 1 and len(prompts) == len(predictions(tmp_path / "model")) == 26
    for file in (answers, tmp_path / "model" / "predictions.jsonl"):  # the predictions are such a file
        assert evaluate(file, pairs, tmp_path / file.stem) == 0
        assert predictions(tmp_path / file.stem) == predictions(tmp_path / "model")
        found = json.loads((tmp_path / file.stem / "evaluation.json").read_text())
        assert (found["metrics"], found["pairs"]) == (record["metrics"], record["pairs"])
        unused = ("batch_size", "max_tokens", "max_new_tokens", "device")
        assert [found["settings"][name] for name in ("match", *unused)] == ["exact"] + [None] * 4
        assert found["answers"] == {"path": str(file), "fingerprint": f"sha256:{sha256_of(file)}"}
    # Answers to other rows of the pairs do not count, nor does the device, since no model runs.
    assert evaluate(answers, pairs, tmp_path / "two", "--limit", "2", "--device", "cuda:99") == 0
    assert predictions(tmp_path / "two") == [n for n in predictions(tmp_path / "model") if n["row_id"] in ("0", "1")]


@pytest.mark.parametrize(
    ("label", "given"),
    [
        (1.0, (1, "1.0")),
        (1.0, (1.0, "1")),
        (0.5, (0.5, "0.5")),
        (True, (True, "true")),
        (False, ("False", "false")),
        (1, ("yes", "yes")),
        (1, ("1", 1)),
    ],
)
def test_answers_name_a_class_as_json_or_its_names_do(tmp_path: Path, label: Any, given: tuple[Any, Any]) -> None:
    pairs = Dataset.from_list([{"text": "a", "label": label, "augmented_text": "b"}])
    if type(label) is int:
        pairs = pairs.cast_column("label", ClassLabel(names=["no", "yes"]))
    pairs.save_to_disk(tmp_path / "pairs")
    answers = write(tmp_path / "a.jsonl", [{"row_id": "0", "view": v, "answer": a} for v, a in enumerate(given)])
    assert evaluate(answers, tmp_path / "pairs", tmp_path / "out") == 0
    assert [line["correct"] for line in predictions(tmp_path / "out")] == [True, True]


def test_answers_that_are_no_labels_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write(tmp_path / "pairs.jsonl", [{"text": "a", "label": 1, "augmented_text": "b", "augmented_label": 0}])
    for names, is_reported in ((("POSITIVE", "NEGATIVE"), True), (("0", "1"), False)):
        answers = write(tmp_path / "a.jsonl", [{"row_id": "0", "view": v, "answer": a} for v, a in enumerate(names)])
        assert evaluate(answers, pairs, tmp_path / names[0]) == 0
        assert ("'POSITIVE' and '1'" in capsys.readouterr().err) is is_reported


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda lines: lines[:-1], [], "row '1' (augmented view)"),
        (lambda lines: [*lines, lines[2]], [], "row '0', view 1"),
        (lambda lines: [*lines, {"row_id": "2", "view": 0, "answer": "a"}], [], "row '2', view 0"),
        (lambda lines: [*lines, {"row_id": "2", "view": 0, "answer": "a"}], ["--limit", "1"], "row '2', view 0"),
        (lambda lines: [{**line, "view": "first"} for line in lines], [], "view 'first'"),
        (lambda lines: [*lines[1:], {**lines[0], "answer": None}], [], "row '0', view 0"),
        (list, ["--report"], "--report"),
        (list, ["--match", "label"], "--match label"),
    ],
)
def test_answers_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[Any], Any], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write(tmp_path / "pairs.jsonl", [GENERATED] * 2)
    lines = [{"row_id": row, "view": view, "answer": "w5"} for view in (0, 1) for row in ("0", "1")]
    assert evaluate(write(tmp_path / "a.jsonl", change(lines)), pairs, tmp_path / "out", *options) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_missing_libraries_of_a_report_are_named_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write(tmp_path / "pairs.jsonl", CLASSES)
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert evaluate("no-model", pairs, tmp_path / "out", "--report") == 2
    assert "plotly" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_limit_report_and_overwrite(tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "domain": "ab"[number % 2]} for number, row in enumerate(CLASSES)]
    pairs, out = write(tmp_path / "pairs.jsonl", rows), tmp_path / "out"
    name = models / "classifier"
    options = ("--limit", "5", "--group", "domain", "--group", "label", "--clusters", "domain")
    assert evaluate(name, pairs, out, *options) == 0
    assert [line["cluster"] for line in predictions(out)[:5]] == [*"ababa"]
    record = json.loads((out / "evaluation.json").read_text())
    assert record["metrics"]["rows"] == 5
    assert evaluate(name, pairs, tmp_path / "other", "--report", "--group", "nope") == 2
    assert "nope" in capsys.readouterr().err and not (tmp_path / "other").exists()
    assert sorted(record["files"]) == sorted(file.name for file in out.iterdir() if "manifest" not in file.name)
    report = PairReport.read(out / "pair_report.json")
    for key in ("cm_numerator", "cm_denominator"):
        assert report.summary[key] == record["metrics"][key]
    assert [table["name"] for table in report.losses] == ["domain", "label"]
    shown = report.worst[report.pairs["row_id"].index("0")]["fields"]
    assert [(field["name"], field["original"]) for field in shown] == [("text", "w4 w5"), ("label", "yes")]
    assert (out / "pair_report.html").stat().st_size > 100_000
    capsys.readouterr()
    assert evaluate(name, pairs, out) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert json.loads((out / "evaluation.json").read_text()) == record
    assert evaluate(name, pairs, out, "--overwrite") == 0
    assert json.loads((out / "evaluation.json").read_text())["metrics"]["rows"] == len(CLASSES)
    assert not (out / "pair_report.json").exists()


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_folder_with_files_of_others_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], overwrite: list[str]
) -> None:
    pairs, out = write(tmp_path / "pairs.jsonl", CLASSES), tmp_path / "run"
    out.mkdir()
    (out / "predictions.jsonl").write_text("of a training run")
    monkeypatch.setitem(sys.modules, "dair_hf.commands.model_evaluation", None)  # imports torch, loads the model
    assert evaluate("no-model", pairs, out, *overwrite) == 2
    assert "predictions.jsonl" in capsys.readouterr().err
    assert [path.read_text() for path in out.iterdir()] == ["of a training run"]


def test_a_failure_leaves_the_earlier_evaluation(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, out = write(tmp_path / "pairs.jsonl", CLASSES), tmp_path / "out"
    name = models / "classifier"
    assert evaluate(name, pairs, out) == 0
    written = {path.name: path.read_bytes() for path in out.iterdir()}

    def fail(*arguments: Any) -> None:
        raise DataError("the report cannot be written")

    monkeypatch.setattr("dair_hf.commands.model_evaluation.write_report", fail)
    assert evaluate(name, pairs, out, "--report", "--overwrite") == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == written


def test_second_partners_and_the_log_of_the_training_are_reported(tmp_path: Path, models: Path) -> None:
    folder = shutil.copytree(models / "classifier", tmp_path / "model")
    logs = [{"step": step, "consistency": 1.0 / step} for step in (1, 2)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": logs, "global_step": 2}))
    rows = [{**row, "augmented_2_text": "w5", "augmented_2_label": "yes"} for row in CLASSES[3:5]]
    pairs = write(tmp_path / "pairs.jsonl", rows)
    assert evaluate(folder, pairs, tmp_path / "out", "--report") == 0
    report = PairReport.read(tmp_path / "out" / "pair_report.json")
    names = list(zip(report.pairs["row_id"], report.pairs["partner"], strict=True))
    assert sorted(names) == [("0", 2), ("1", 1), ("1", 2)]
    texts = report.worst[names.index(("1", 2))]["fields"]
    assert (texts[0]["augmented"], texts[1]["augmented"]) == ("w5", "yes")
    assert report.curves == {"consistency": {"step": [1, 2], "value": [1.0, 0.5]}}


def test_limits_of_texts_are_named_as_the_option_and_recorded(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"source": "w4 w5 w6", "target": "w7 w8 w9", "augmented_source": "w4", "augmented_target": "w7"}
    pairs = write(tmp_path / "pairs.jsonl", [row])
    assert evaluate(models / "t5", pairs, tmp_path / "out", "--max-tokens", "3") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "row '0'" in said and "--max-tokens 3" in said and "max_length" not in said
    assert not (tmp_path / "out").exists()
    # Without the option: 512, or the 16 positions of the classifier. Token ids are not cut.
    cases: list[tuple[str, dict[str, Any], list[str], int | None]] = [
        ("t5", row, [], 512), ("t5", row, ["--max-tokens", "9"], 9), ("classifier", CLASSES[0], [], 16),
        ("classifier", ENCODED, [], None),
    ]  # fmt: skip
    for number, (model, one, options, wanted) in enumerate(cases):
        out = tmp_path / f"{number}"
        assert evaluate(models / model, write(pairs, [one]), out, *options) == 0
        assert json.loads((out / "evaluation.json").read_text())["settings"]["max_tokens"] == wanted


@pytest.mark.parametrize(
    ("model", "rows", "options", "message"),
    [
        ("classifier", [GENERATED], [], "expected text and label"),
        ("masked", CLASSES, [], "BertForMaskedLM"),
        ("bare", CLASSES, [], "bare"),
        ("absent", CLASSES, [], "absent"),
        ("classifier", [{**CLASSES[0], "label": 7, "augmented_label": 0}], [], "column 'label'"),
        ("classifier", [{**ENCODED, "augmented_labels": -100}], [], "row 0, column 'augmented_labels'"),
        ("classifier", CLASSES, ["--match", "exact"], "--match exact"),
        ("classifier", CLASSES, ["--clusters", "nope"], "clusters='nope'"),
        ("t5", [{**GENERATED, "target": "none"}], ["--match", "last-number"], "'none'"),
        ("classifier", [{**CLASSES[0], "label": 0.5, "augmented_label": 1}], [], "row '0', column 'label'"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_in_one_line(
    tmp_path: Path,
    models: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    rows: list[dict[str, Any]],
    options: list[str],
    message: str,
) -> None:
    pairs, out = write(tmp_path / "pairs.jsonl", rows), tmp_path / "out"
    assert evaluate(models / model, pairs, out, *options) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(("kind", "task"), [("gpt2", "CAUSAL_LM"), ("gpt2", None), ("classifier", "SEQ_CLS")])
def test_adapters_are_run_on_the_base_that_they_name(
    tmp_path: Path, models: Path, kind: str, task: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    auto: Any = AutoModelForSequenceClassification if kind == "classifier" else AutoModelForCausalLM
    torch.manual_seed(1)
    target = "dense" if kind == "classifier" else "c_attn"
    kept = {"init_lora_weights": False, "fan_in_fan_out": kind == "gpt2"}
    settings = LoraConfig(task_type=task, lora_alpha=640, target_modules=[target], **kept)
    adapted = get_peft_model(auto.from_pretrained(models / kind), settings)
    adapted.save_pretrained(tmp_path / "adapters")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    tiny.tokenizer().save_pretrained(tmp_path / "merged")  # the adapters have that of their base
    pairs = write(tmp_path / "pairs.jsonl", CLASSES if kind == "classifier" else [GENERATED])
    said = {}
    for name in (tmp_path / "adapters", tmp_path / "merged", models / kind):
        out = tmp_path / f"of_{name.name}"
        assert evaluate(name, pairs, out, "--report") == 0
        report = json.loads((out / "pair_report.json").read_text())
        said[name.name] = report["summary"]["loss_original"], (out / "predictions.jsonl").read_text()
    assert said["adapters"][0] == pytest.approx(said["merged"][0]) and said["adapters"][1] == said["merged"][1]
    assert said["adapters"][0] != pytest.approx(said[kind][0]), "the adapters must change the model"

    capsys.readouterr()
    file = tmp_path / "adapters" / "adapter_config.json"
    for base in ("gone", None):
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
        assert evaluate(tmp_path / "adapters", pairs, tmp_path / "out") == 2
        assert "base_model_name_or_path" in capsys.readouterr().err


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    """A folder with a language model without classes, and without a padding token."""
    tokenizer = chats.tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, **sizes))
    made.config.pad_token_id = None
    made.save_pretrained(tmp_path / "language_model")
    tokenizer.save_pretrained(tmp_path / "language_model")
    return tmp_path / "language_model"


NAMES = ["yes", "no", "maybe"]
THREE = [
    {**row, "label": NAMES[at % 3], "augmented_label": row["augmented_text"] and NAMES[at % 2]}
    for at, row in enumerate(CLASSES)
]


def test_adapters_of_a_classifier_on_a_language_model(
    tmp_path: Path, language_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adapters name neither their classes nor how many there are; the base has none."""
    torch.manual_seed(3)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    base = AutoModelForSequenceClassification.from_pretrained(
        language_model, id2label=dict(enumerate(NAMES)), pad_token_id=tokenizer.pad_token_id
    )
    settings = LoraConfig(task_type="SEQ_CLS", lora_alpha=8, init_lora_weights=False, target_modules=["q_proj"])
    adapted: Any = get_peft_model(base, settings).eval()
    with torch.no_grad():
        adapted.base_model.model.score.modules_to_save["default"].weight.normal_()
        texts = [row[column] for column in ("text", "augmented_text") for row in THREE if row[column]]
        expected = [int(adapted(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts]
    adapted.save_pretrained(tmp_path / "adapters")
    assert len(set(expected)) > 1
    numbers = [
        {name: NAMES.index(value) if name.endswith("label") and value else value for name, value in row.items()}
        for row in THREE
    ]

    def evaluated(rows: list[dict[str, Any]], number: int) -> list[str]:
        out = tmp_path / f"out{number}"
        pairs = write(tmp_path / "pairs.jsonl", rows)
        assert evaluate(tmp_path / "adapters", pairs, out) == 0
        return [line["prediction"] for line in predictions(out)]

    assert evaluated(numbers, 0) == [str(number) for number in expected]

    trained = DAIRTrainer(adapted, tiny.config(tmp_path / "run"), processing_class=tokenizer)
    trained.save_model(str(tmp_path / "adapters"))
    assert evaluated(THREE, 1) == [NAMES[number] for number in expected]

    file = tmp_path / "adapters" / "dair_classes.json"
    capsys.readouterr()
    for names, message in (({"0": "no", "1": "yes"}, "3 classes"), ({"no": "0"}, "names of all classes")):
        file.write_text(json.dumps({"id2label": names}))
        pairs = write(tmp_path / "pairs.jsonl", THREE)
        assert evaluate(tmp_path / "adapters", pairs, tmp_path / "o") == 2
        assert message in capsys.readouterr().err


def test_adapters_without_their_head_are_refused(
    tmp_path: Path, language_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head that was saved nowhere would be new, and the answers a matter of chance."""
    base = AutoModelForSequenceClassification.from_pretrained(language_model)
    adapted: Any = get_peft_model(base, LoraConfig(target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "adapters")
    file = tmp_path / "adapters" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "task_type": "SEQ_CLS", "modules_to_save": None}))
    pairs = write(tmp_path / "pairs.jsonl", CLASSES)
    capsys.readouterr()
    assert evaluate(tmp_path / "adapters", pairs, tmp_path / "out") == 2
    assert "score.weight" in capsys.readouterr().err
