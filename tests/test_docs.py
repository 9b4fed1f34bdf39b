"""Code of the documentation, run page by page in an empty folder."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import BertModel, DefaultFlowCallback, TrainerControl, TrainerState

from tests.fixtures import saved_models, tiny
from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Pages that hold no code but commands.
WITHOUT_CODE = ("architecture", "how_it_works", "index", "recipes", "results", "troubleshooting", "when_to_use")
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.stem not in WITHOUT_CODE)
STEPS = 10  # of each training of a page
ENCODER, CHAT = "sentence-transformers/all-MiniLM-L6-v2", "HuggingFaceTB/SmolLM2-135M-Instruct"
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def code_of(page: Path) -> str:
    """Return the code of a page, without blocks that begin with `# Needs PACKAGE` where the package is missing."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    needs = [re.match(r"# Needs (\w+)", block) for block in blocks]
    return "\n\n".join(b for b, need in zip(blocks, needs, strict=True) if need is None or find_spec(need[1]))


def write_stand_ins(folder: Path) -> None:  # by the names that the pages use; folders are found before the Hub
    BertModel(saved_models.bert_config(max_position_embeddings=64)).save_pretrained(folder / ENCODER)
    tiny.tokenizer().save_pretrained(folder / ENCODER)
    saved_models.generator(folder / CHAT, "llama")
    (reviews := folder / "counterfactually-augmented-data").mkdir()
    rows = "".join(f"{label}\tw{n % 20 + 4} {label}\t{n}\n" for n in range(500) for label in ("Negative", "Positive"))
    for split in ("train", "test"):
        (reviews / f"{split}_paired.tsv").write_text("Sentiment\tText\tbatch_id\n" + rows)


class StopEarly(DefaultFlowCallback):
    """Ends every training after a few steps."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        super().on_step_end(args, state, control, **kwargs)
        control.should_training_stop |= state.global_step >= STEPS
        return control


def run(code: str, folder: Path, short: bool = True) -> None:
    """Run a program in this process, with short trainings."""
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    torch.manual_seed(67280421310721)  # the seed of a new process
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(action="ignore"),
        mock.patch("transformers.trainer.DEFAULT_CALLBACKS", [StopEarly if short else DefaultFlowCallback]),
    ):
        runpy.run_path(str(script), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    assert (code := code_of(page)), f"{page.name} holds no code"
    write_stand_ins(tmp_path)
    run(code, tmp_path, short=page.stem != "lambda")  # which shows what whole trainings print


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs_and_its_outputs_are_stored(notebook: Path, tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    run("\n\n".join("".join(cell["source"]) for cell in cells), tmp_path)


def test_pages_without_code_have_none() -> None:
    assert [name for name in WITHOUT_CODE if code_of(ROOT / "docs" / f"{name}.md")] == []


@pytest.mark.slow
def test_the_program_and_the_command_of_the_readme_run(tmp_path: Path) -> None:
    write_stand_ins(tmp_path)
    done = forked("-c", code_of(ROOT / "README.md"), cwd=tmp_path)
    assert re.search(r"^both_correct [01]\.\d", done.stdout, re.MULTILINE), done.stderr[-3000:]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    _, *command = re.findall("^    (dair-hf compare .*)", page, re.MULTILINE)[0].split()
    row = re.findall("^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    (tmp_path / "pairs.jsonl").write_text("".join(row.replace('text": "', f'text": "w{n} ') for n in range(20)))
    done = forked("-m", "dair_hf.commands", *command, *"--seeds 1 --methods da --max_steps 2".split(), cwd=tmp_path)
    assert (tmp_path / "comparison" / "best_model").is_dir(), done.stderr[-3000:]


def test_programs_for_answers_made_elsewhere_ask_the_whole_line(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    by_vllm, by_api = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    libraries = {"vllm": mock.MagicMock(), "openai": mock.MagicMock()}
    generate = libraries["vllm"].LLM.return_value.generate
    generate.return_value = [mock.MagicMock()]
    generate.return_value[0].outputs[0].text = "no"
    create = libraries["openai"].OpenAI.return_value.chat.completions.create
    create.return_value.choices[0].message.content = "no"
    line, file = {"row_id": "0", "view": 0}, tmp_path / "prompts.jsonl"
    with mock.patch.dict(sys.modules, libraries):
        file.write_text(json.dumps({**line, "prompt": "He sleeps.", "text_pair": "He runs."}))
        run(by_vllm, tmp_path)
        run(by_api, tmp_path)
        assert generate.call_args.args[0] == ["He sleeps.\nHe runs."]
        assert create.call_args.kwargs["messages"] == [{"role": "user", "content": "He sleeps.\nHe runs."}]
        assert "tools" not in create.call_args.kwargs
        file.write_text(json.dumps({**line, "prompt": [{"role": "user", "content": "Hi"}], "tools": [{"name": "f"}]}))
        run(by_api, tmp_path)
        assert create.call_args.kwargs["tools"] == [{"name": "f"}]
        with pytest.raises(SystemExit):
            run(by_vllm, tmp_path)


def test_a_broken_page_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        run("import dair_hf\ndair_hf.no_such_name", tmp_path)


def missing_from_api(code: str, pages: str) -> set[str]:
    """Modules that code imports from and that no page of the API documents; a package stands for its modules."""
    used = set(re.findall(r"^\s*from (dair_hf\.[\w.]+) import", code, re.MULTILINE))
    documented = re.findall(r"^\.\. auto\w+:: (dair_hf[\w.]*)", pages, re.MULTILINE)
    return {name for name in used if not any(shown == name or shown.startswith(f"{name}.") for shown in documented)}


def test_modules_that_the_pages_import_from_are_in_the_api() -> None:
    api = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "api").glob("*.rst")))
    code = "\n".join(code_of(page) for page in [*PAGES, ROOT / "README.md"])
    assert len(re.findall("^from dair_hf", code, re.MULTILINE)) > 30
    assert missing_from_api(code, api) == set(), "name these modules in docs/api"
    assert missing_from_api("from dair_hf.trees.forest import build_forest", api) == {"dair_hf.trees.forest"}
