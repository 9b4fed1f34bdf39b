"""`dair-hf report`: a model and a file of pairs, or the JSON of an earlier report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import pytest

from dair_hf.commands.main import run
from dair_hf.pair_report.page import write_report
from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE, PairReport
from tests.fixtures import saved_models, tiny
from tests.fixtures.report_page import small_report

ROWS: list[dict[str, Any]] = [
    {"text": "w4 w5", "label": "yes", "augmented_text": "w4 w6", "augmented_label": "no", "domain": "a"},
    {"text": "w7", "label": "no", "augmented_text": None, "augmented_label": None, "domain": "a"},
    {"text": "w8 w9 w9", "label": "no", "augmented_text": "w8 w9", "augmented_label": "no", "domain": "b"},
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_models.classifier(tmp_path_factory.mktemp("classifier"))


def written(folder: Path, rows: list[dict[str, Any]], kind: str) -> Path:
    path = folder / f"pairs.{kind}"
    data = datasets.Dataset.from_list(rows)
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "folder":
        data.save_to_disk(path)
    else:
        (data.to_csv if kind == "csv" else data.to_parquet)(str(path))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "folder"])
def test_pairs_of_every_kind_of_file(
    tmp_path: Path, classifier: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    pairs = written(tmp_path, ROWS, kind)
    arguments = [
        "report",
        str(classifier),
        str(pairs),
        "--output",
        str(tmp_path / "out"),
        "--group",
        "domain",
        "--json",
    ]
    assert run(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    report = PairReport.read(tmp_path / "out" / JSON_FILE)
    assert printed["summary"] == report.summary and printed["worst"] == report.pairs["row_id"]
    assert set(report.pairs["row_id"]) == {"0", "2"} and report.summary["rows"] == 3
    assert [entry["name"] for entry in report.losses] == ["domain", "label"]
    assert report.summary["cm_denominator"] <= 2
    shown = report.worst[report.pairs["row_id"].index("0")]["fields"]
    assert [(f["name"], f["original"], f["augmented"]) for f in shown] == [
        ("text", "w4 w5", "w4 w6"),
        ("label", "yes", "no"),
    ]
    assert "weight_original" not in report.pairs, "lambda is unknown"
    assert Path(printed["page"]).stat().st_size > 100_000


def test_second_partners_are_pairs_of_their_own(
    tmp_path: Path, classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = [("w5", "yes"), (None, None), ("w9 w6", "no")]
    rows = [
        {**row, "augmented_2_text": text, "augmented_2_label": label}
        for row, (text, label) in zip(ROWS, second, strict=True)
    ]
    rows[2] |= {"augmented_text": None, "augmented_label": None}
    pairs = written(tmp_path, rows, "jsonl")
    assert run(["report", str(classifier), str(pairs), "--output", str(tmp_path / "out")]) == 0
    report = PairReport.read(tmp_path / "out" / JSON_FILE)
    names = list(zip(report.pairs["row_id"], report.pairs["partner"], strict=True))
    assert sorted(names) == [("0", 1), ("0", 2), ("2", 2)]
    texts, labels = report.worst[names.index(("0", 2))]["fields"]
    assert (texts["name"], texts["original"], texts["augmented"]) == ("text", "w4 w5", "w5")
    assert labels["augmented"] == "yes"
    for row in rows:
        del row["augmented_2_label"]
    assert run(["report", str(classifier), str(written(tmp_path, rows, "jsonl")), "--output", str(tmp_path / "b")]) == 2
    assert "lacks the column augmented_2_label" in capsys.readouterr().err


def test_lambda_and_the_log_of_the_training_are_used(tmp_path: Path, classifier: Path) -> None:
    state = classifier / "trainer_state.json"
    logs = [{"step": step, "consistency": 1.0 / step} for step in (1, 2)]
    state.write_text(json.dumps({"log_history": logs, "global_step": 2}))
    try:
        pairs = written(tmp_path, ROWS, "jsonl")
        assert run(["report", str(classifier), str(pairs), "--output", str(tmp_path / "out"), "--lambda", "2"]) == 0
    finally:
        state.unlink()
    report = PairReport.read(tmp_path / "out" / JSON_FILE)
    assert report.curves == {"consistency": {"step": [1, 2], "value": [1.0, 0.5]}}
    left, right = report.pairs["loss_original"][0], report.pairs["loss_augmented"][0]
    assert report.pairs["weight_original"][0] == pytest.approx(0.5 + 2 * (1 - (right / left) ** 0.5), rel=1e-4)


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_language_models_read_source_and_target(tmp_path: Path, kind: str) -> None:
    model = tiny.model(kind)
    model.save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    rows = [
        {"source": "w4 w5", "target": "w6", "augmented_source": "w4 w7", "augmented_target": "w8 w9"},
        {"source": "w4 w5", "target": "w6", "augmented_source": None, "augmented_target": None},
    ]
    pairs = written(tmp_path, rows, "jsonl")
    assert run(["report", str(tmp_path / "model"), str(pairs), "--output", str(tmp_path / "out")]) == 0
    report = PairReport.read(tmp_path / "out" / JSON_FILE)
    assert [field["name"] for field in report.worst[0]["fields"]] == ["source", "target"]
    assert report.pairs["row_id"] == ["0"] and report.losses[-1]["name"] == "target tokens"
    # One token and the end token: their losses by the model itself.
    tokenizer = tiny.tokenizer()
    source, target = (tokenizer(text, add_special_tokens=False).input_ids for text in ("w4 w5", "w6"))
    view = tiny.view(kind, source, [*target, tiny.EOS])
    import torch

    model.eval()
    with torch.no_grad():
        loss = float(model(**{name: torch.tensor([values]) for name, values in view.items()}).loss) * 2
    if kind == "gpt2":
        assert report.pairs["loss_original"][0] == pytest.approx(loss, rel=1e-4)
    else:
        assert report.pairs["loss_original"][0] > 0


def test_a_page_is_drawn_again_from_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = write_report(small_report(), tmp_path / "first")
    before = page.read_bytes()
    page.unlink()
    source = str(tmp_path / "first" / JSON_FILE)
    assert run(["report", source, "--output", str(tmp_path / "first")]) == 0
    assert page.read_bytes() == before
    assert run(["report", source, "--output", str(tmp_path / "second")]) == 0
    assert (tmp_path / "second" / PAGE_FILE).read_bytes() == before
    assert "the worst is the lensfield" in capsys.readouterr().out


def test_title_and_number_of_pairs_of_a_page_drawn_again(
    tmp_path: Path, classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = written(tmp_path, ROWS, "jsonl")
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(["report", str(classifier), str(pairs), "--output", str(first)]) == 0
    before = (first / JSON_FILE).read_bytes()
    command = ["report", str(first / JSON_FILE), "--title", "Another name", "--worst", "1", "--output"]
    assert run([*command, str(second)]) == 0
    made, again = PairReport.read(first / JSON_FILE), PairReport.read(second / JSON_FILE)
    assert (len(made.worst), again.title, again.worst) == (2, "Another name", made.worst[:1])
    assert "Another name" in (second / PAGE_FILE).read_text() and again.pairs == made.pairs
    assert run([*command, str(first)]) == 2
    assert "would be changed, too; name another --output, or give --overwrite" in capsys.readouterr().err
    assert (first / JSON_FILE).read_bytes() == before
    assert run([*command, str(first), "--overwrite"]) == 0
    assert PairReport.read(first / JSON_FILE) == again


def test_empty_output_is_refused(
    tmp_path: Path, classifier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = written(tmp_path, ROWS, "jsonl")
    assert run(["report", str(classifier), str(pairs), "--output", ""]) == 2
    assert "--output '' names no folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{model}"], "name a file of pairs, too"),
        (["{json}", "{pairs}"], "leave out PAIRS"),
        (["{model}", "{folder}/none.jsonl"], "no such file"),
        (["{model}", "{folder}/pairs.txt"], "of an unknown kind; give .jsonl"),
        (["{folder}/nothing", "{pairs}"], "nothing: "),
        (["{pairs}", "{model}"], "pairs.jsonl: is a file, not a model; the order is dair-hf report MODEL PAIRS"),
        (["{model}", "{folder}/semicolons.csv"], "semicolons.csv: its columns are not separated by commas"),
        (["{folder}/other.json"], "is no pair report"),
        (["{model}", "{folder}/plain.jsonl"], "partners have the columns of their originals"),
        (["{model}", "{folder}/unknown.jsonl"], "row '0', column 'label': 'maybe' is no class of the model: no, yes"),
        (["{model}", "{folder}/columns.jsonl"], "give text and label, or columns of the model"),
        (["{model}", "{pairs}", "--group", "nope"], "groups: the data has no column 'nope'"),
        (["{model}", "{pairs}", "--worst", "0"], "--worst"),
        (["{model}", "{pairs}", "--no-such-option"], "--no-such-option"),
        (["{model}", "{pairs}", "--max-tokens", "17"], "--max-tokens 17: the model has 16 positions"),
        (["{json}", "--lambda", "3", "--group", "x"], "--group, --lambda: has no effect when a page is drawn again"),
        (["{json}", "--max-tokens", "9"], "--max-tokens: has no effect when a page is drawn again"),
        (["{json}", "--batch-size", "16"], "--batch-size: has no effect when a page is drawn again"),
        (["{json}", "--worst", "2"], "worst=2: the report holds the contents of 1 pairs"),
        (["{folder}/scores.json"], "scores.json: its pairs lack score; write the report anew"),
        (["{folder}/empty.json"], "empty.json: its pairs lack consistency, loss_augmented"),
        (["{folder}/lengths.json"], "lengths.json: its pairs are no columns of equal length"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_one_message(
    tmp_path: Path, classifier: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    pairs = written(tmp_path, ROWS, "jsonl")
    (tmp_path / "pairs.txt").write_text("")
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "plain.jsonl").write_text('{"text": "w4", "label": 0}\n')
    (tmp_path / "unknown.jsonl").write_text(json.dumps({**ROWS[0], "label": "maybe"}) + "\n")
    (tmp_path / "columns.jsonl").write_text('{"x": "w4", "augmented_x": "w5"}\n')
    (tmp_path / "semicolons.csv").write_text("text;label;augmented_text\nw4;0;w5\n")
    write_report(small_report(), tmp_path / "made")
    content = small_report().to_dict()
    columns = content["pairs"]
    no_scores = {name: values for name, values in columns.items() if name != "score"}
    for name, changed in {"scores": no_scores, "empty": {}, "lengths": {**columns, "score": [0.5]}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "pairs": changed}))
    places = {"model": classifier, "pairs": pairs, "folder": tmp_path, "json": tmp_path / "made" / JSON_FILE}
    given = [argument.format(**places) for argument in arguments]
    assert run(["report", *given, "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_earlier_report_is_replaced_only_if_asked(
    tmp_path: Path, classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = str(written(tmp_path, ROWS, "jsonl"))
    write_report(small_report(), tmp_path / "out")
    command = ["report", str(classifier), pairs, "--output", str(tmp_path / "out")]
    assert run(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert PairReport.read(tmp_path / "out" / JSON_FILE) == small_report()
    assert run([*command, "--overwrite"]) == 0
    assert PairReport.read(tmp_path / "out" / JSON_FILE).summary["rows"] == 3


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
@pytest.mark.parametrize("again", [False, True])
def test_a_page_of_the_user_is_refused_with_one_message_before_the_model_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], again: bool, overwrite: list[str]
) -> None:
    write_report(small_report(), tmp_path / "made")
    (tmp_path / "own").mkdir()
    page = tmp_path / "own" / PAGE_FILE
    page.write_text("my page")
    source = [str(tmp_path / "made" / JSON_FILE)] if again else ["no-model", str(written(tmp_path, ROWS, "jsonl"))]
    assert run(["report", *source, "--output", str(tmp_path / "own"), *overwrite]) == 2
    assert "so it was not generated; move it away" in capsys.readouterr().err
    assert page.read_text() == "my page"


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from dair_hf.commands.main import run; status = run(['report', '--help']);"
        "slow = {'torch', 'transformers', 'datasets', 'plotly', 'numpy'} & set(sys.modules);"
        "sys.exit(f'{status} {slow}')"
    )
    begun = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=tiny.child_environment())
    assert done.stderr.strip() == "0 set()" and "Exit status: 0 success" in done.stdout.replace("\n", " ")
    assert time.process_time() - begun < 1


def test_a_reader_that_is_gone_ends_with_status_141() -> None:
    command = f"{sys.executable} -m dair_hf.commands report --help | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=tiny.child_environment())
    assert done.stdout.strip() in ("0", "141"), "0 if all was written before the pipe closed"
