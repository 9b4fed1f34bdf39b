"""Settings from a YAML file and the command line: precedence, types and error messages."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from transformers import Seq2SeqTrainingArguments

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.arguments import parse_arguments


@dataclass
class First:
    steps: int = field(default=1, metadata={"help": "Steps."})
    rate: float = field(default=0.5, metadata={"help": "Rate."})
    names: list[str] = field(default_factory=lambda: ["a"], metadata={"help": "Names."})
    weights: dict[str, float] | None = field(default=None, metadata={"help": "Weights, 5 % of them."})

    def __post_init__(self) -> None:
        if self.weights and "bad" in self.weights:
            raise DataError("weights: bad is refused")


@dataclass
class Second:
    flag: bool = field(default=False, metadata={"help": "Flag."})
    kind: str = field(default="x", metadata={"help": "Kind.", "choices": ("x", "y")})
    place: str | None = field(default=None, metadata={"help": "Place."})
    units: list[int] | None = field(default_factory=lambda: [1], metadata={"help": "Units."})


TYPES = (First, Second)


def write_settings(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_without_file() -> None:
    assert parse_arguments(TYPES, []) == (First(), Second())


def test_file_sets_fields_of_every_type(tmp_path: Path) -> None:
    path = write_settings(
        tmp_path,
        "steps: 3\nrate: -1.0e-3\nnames: [b, c]\nweights: {kl: 2}\nflag: true\nkind: y\nplace: -x ü\n",
    )
    first, second = parse_arguments(TYPES, ["--config", path])
    assert first == First(3, -0.001, ["b", "c"], {"kl": 2})
    assert second == Second(True, "y", "-x ü")


@pytest.mark.parametrize("form", ["separate", "joined", "in the middle"])
def test_command_line_takes_precedence(tmp_path: Path, form: str) -> None:
    path = write_settings(tmp_path, "steps: 3\nnames: [b, c]\nweights: {kl: 2}\nflag: true\n")
    options = ["--steps", "7", "--names", "d", "--weights", '{"kl": 3.5}', "--flag", "false"]
    argv = {
        "separate": ["--config", path, *options],
        "joined": [*options, f"--config={path}"],
        "in the middle": [*options[:2], "--config", path, *options[2:]],
    }[form]
    first, second = parse_arguments(TYPES, argv)
    assert (first.steps, first.names, first.weights, second.flag) == (7, ["d"], {"kl": 3.5}, False)


@pytest.mark.parametrize("value", ["", " null", " ~"])
def test_field_without_value_is_none_where_none_is_accepted(tmp_path: Path, value: str) -> None:
    path = write_settings(tmp_path, f"place:{value}\nunits:{value}\nweights:{value}\n")
    assert parse_arguments(TYPES, ["--config", path]) == (First(), Second(units=None))
    assert parse_arguments(TYPES, ["--config", path, "--units", "2"])[1].units == [2]
    path = write_settings(tmp_path, f"rate: 1\nsteps:{value}\n")
    with pytest.raises(DataError, match=r"settings\.yaml: steps has no value; give one, or remove the line"):
        parse_arguments(TYPES, ["--config", path])
    assert parse_arguments(TYPES, ["--config", path, "--steps=7"])[0].steps == 7


@pytest.mark.parametrize("form", ["{0} null", "{0}=null"])
def test_null_takes_back_the_value_of_the_file(tmp_path: Path, form: str) -> None:
    text = "place: x\nunits: [2]\nweights: {kl: 1}\nrate: 1\nsteps: 7\n"
    options = " ".join(form.format(f"--{name}") for name in ("place", "units", "weights")).split()
    found = parse_arguments(TYPES, ["--config", write_settings(tmp_path, text), *options, "--rate", "2"])
    assert found == (First(steps=7, rate=2.0), Second(units=None))
    assert parse_arguments(TYPES, ["--weights", "null", "--weights", "{kl: 1}"])[0].weights == {"kl": 1}


def test_a_single_text_is_a_list_only_if_written_as_one(tmp_path: Path) -> None:
    def modules(options: list[str]) -> Any:
        return parse_arguments([DAIRConfig], ["--output_dir", str(tmp_path), *options])[0].optim_target_modules

    for text, expected in (("all-linear", "all-linear"), ("[q]", ["q"]), ("[q, v]", ["q", "v"]), ("null", None)):
        path = write_settings(tmp_path, f"optim_target_modules: {text}\n")
        assert modules(["--config", path]) == expected
        if expected is not None:
            assert modules(["--optim_target_modules", *text.split()]) == expected
    path = write_settings(tmp_path, "optim_target_modules: [q]\n")
    assert modules(["--config", path, "--optim_target_modules", "all-linear"]) == "all-linear"


def test_optional_list_may_be_empty(tmp_path: Path) -> None:
    for text in ("--units []", "--units=[]", "--units"):
        assert parse_arguments(TYPES, text.split())[1].units == []
    assert parse_arguments(TYPES, ["--config", write_settings(tmp_path, "units: []\n")])[1].units == []


def test_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["recipe.py", "--steps", "4"])
    assert parse_arguments(TYPES)[0].steps == 4


def test_mappings_of_the_trainer(tmp_path: Path) -> None:
    path = write_settings(tmp_path, "output_dir: out\nlr_scheduler_kwargs: {min_lr: 0.1}\nuse_cpu: true\n")
    (args,) = parse_arguments([DAIRConfig], ["--config", path])
    assert args.lr_scheduler_kwargs == {"min_lr": 0.1}


def help_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse_arguments([*TYPES, DAIRConfig], options)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_begins_with_the_fields_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "--help")
    assert len(shown.split("--steps")[0].splitlines()) < 20, "nothing long before the first field"
    places = [shown.index(f"\n  {name} ") for name in ("--steps", "--kind", "--dair_lambda", "--learning_rate")]
    assert places == sorted(places)
    inherited = {field.name for field in fields(Seq2SeqTrainingArguments) if field.init}
    listed = set(re.findall(r"^  --(\w+)", shown, re.MULTILINE))
    own = {field.name for kind in (First, Second) for field in fields(kind)}
    # DAIRConfig declares some of the fields of transformers anew.
    assert own < listed and {"method", "dair_lambda", "output_dir", "max_steps"} < listed
    assert not {"neftune_noise_alpha", "adam_beta2", "hub_token"} & listed
    hidden = inherited - listed
    assert f"{len(hidden)} more training arguments of transformers are shown by --help-all" in " ".join(shown.split())
    path = write_settings(tmp_path, "output_dir: out\nsteps: 7\nadam_beta2: 0.875\nnames: [b, c]\n")
    shown = " ".join(help_of(capsys, "--config", path, "-h").split())
    assert (
        "Steps. (default: 7)" in shown and "Names. (default: ['b', 'c'])" in shown and "Flag. (default: False)" in shown
    )
    assert "(default: 0.875)" in shown and "--adam_beta1" not in shown
    assert f"{len(hidden) - 1} more" in shown


def test_help_of_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    whole = help_of(capsys, "--help-all")
    listed = set(re.findall(r"^  --(\w+)", whole, re.MULTILINE))
    assert {field.name for kind in (*TYPES, DAIRConfig) for field in fields(kind) if field.init} <= listed
    assert "more training arguments" not in whole
    shown = " ".join(whole.split())
    assert "Weights, 5 % of them. (default: None)" in shown
    # A percent sign that transformers has escaped.
    assert "slows down by ~10% " in shown or "at a cost of ~10% slower" in shown


@pytest.mark.parametrize(
    ("argv", "names", "weights"),
    [
        # Quoted or not, separated by a space or an equals sign.
        (["--weights", "{kl: 1, js: 2e-3}"], ["a"], {"kl": 1, "js": 0.002}),
        (["--weights", "{kl:", "1,", "js:", "2e-3}", "--names", "b"], ["b"], {"kl": 1, "js": 0.002}),
        (["--weights={kl: 1}", "--names=[b, c]"], ["b", "c"], {"kl": 1}),
        (["--names", "[b, c]", "--weights", '{"kl": 1}'], ["b", "c"], {"kl": 1}),
        (["--names", "[b,", "c]", "--steps", "3"], ["b", "c"], None),
    ],
)
def test_lists_and_mappings_in_brackets(argv: list[str], names: list[str], weights: Any) -> None:
    first, _ = parse_arguments(TYPES, argv)
    assert (first.names, first.weights) == (names, weights)


MAPPINGS_AND_LISTS = {
    "lr_scheduler_kwargs": ("{min_lr: 1e-3}", {"min_lr": 0.001}),
    "accelerator_config": ("{split_batches: true}", None),
    "lr_drop_epochs": ("[20, 30]", [20.0, 30.0]),
    "include_for_metrics": ("[inputs]", ["inputs"]),
    "label_names": ("[labels, other]", ["labels", "other"]),
}


def test_lists_and_mappings_of_the_trainer_accept_brackets() -> None:
    argv = ["--output_dir", "out", "--lr_scheduler_type", "constant", "--use_cpu", "true"]
    for name, (text, _) in MAPPINGS_AND_LISTS.items():
        argv += [f"--{name}", text]
    (args,) = parse_arguments([DAIRConfig], argv)
    for name, (_, value) in MAPPINGS_AND_LISTS.items():
        if value is not None:
            assert getattr(args, name) == value, name
    assert args.accelerator_config.split_batches


def test_defaults_are_not_shared_between_calls() -> None:
    parse_arguments(TYPES, [])[0].names.append("z")
    assert parse_arguments(TYPES, [])[0].names == ["a"]


BAD_FILES: list[tuple[str, str]] = [
    ("step: 3\n", r"settings\.yaml: unknown field 'step'"),
    ("zzz: 3\n", r"settings\.yaml: unknown field 'zzz'; see --help for the fields"),
    ("1: 3\n", r"unknown field 1;"),
    ("steps: 1\nsteps: 2\n", r"settings\.yaml: not valid YAML"),
    ("weights: " + "{a: " * 500, r"settings\.yaml: not valid YAML"),
    ("steps: [1\n", r"settings\.yaml: not valid YAML"),
    ("steps: 'a\n", r"settings\.yaml: not valid YAML"),
    ("steps: 1\n\tplace: x\n", r"settings\.yaml: not valid YAML"),
    ("place: !!python/object:os.system x\n", r"settings\.yaml: not valid YAML"),
    ("place: \x00\n", r"settings\.yaml: not valid YAML"),
    ("a\n", r"settings\.yaml: found str at the top; write one"),
    ("- steps\n", r"found list at the top"),
    ("", r"found NoneType at the top"),
    ("steps: many\n", r"--steps: invalid int value: 'many'"),
    ("steps: 1.5\n", r"--steps: invalid int value: '1\.5'"),
    ("rate: fast\n", r"--rate: invalid float value: 'fast'"),
    ("flag: perhaps\n", r"perhaps"),
    ("kind: z\n", r"--kind: invalid choice: 'z' \(choose from"),
    ("names: []\n", r"--names: expected at least one argument"),
    ("weights: 3\n", r"--weights: expected a mapping, found int: '3'"),
    ("weights: [1]\n", r"settings\.yaml: weights: found the list \[1\]; write a mapping"),
    # What would otherwise be read as text, or as an unknown option.
    ("place: [a, b]\n", r"settings\.yaml: place: found the list \['a', 'b'\]; write a single value"),
    ("steps: [1]\n", r"steps: found the list \[1\]; write a single value"),
    ("place: {a: 1}\n", r"settings\.yaml: place: found the mapping \{'a': 1\}; write a single value"),
    ("names: {a: 1}\n", r"names: found the mapping \{'a': 1\}; write a list"),
    ("names: [a, null]\n", r"names: found \['a', None\]; each entry of the list must be a single value"),
    ("names: [[a]]\n", r"names: found \[\['a'\]\]; each entry of the list"),
    ("place: no\n", r"settings\.yaml: place: YAML reads this word as false; put it in quotes"),
    ("names: [a, no]\n", r"settings\.yaml: names: YAML reads this word as false; put it in quotes"),
    ("kind: on\n", r"settings\.yaml: kind: YAML reads this word as true; put it in quotes"),
    ("weights: {bad: 1}\n", r"^weights: bad is refused$"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=[repr(text)[:24] for text, _ in BAD_FILES])
def test_invalid_files_are_refused(tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=message) as refused:
        parse_arguments(TYPES, ["--config", write_settings(tmp_path, text)])
    assert "\n" not in str(refused.value)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--config"], r"--config needs a file name after it"),
        (["--config="], r"--config needs a file name after it"),
        (["--config", "a.yaml", "--config=b.yaml"], r"--config is given twice"),
        (["--config", "nowhere.yaml"], r"nowhere\.yaml: no such file; the shipped ones are in recipes/configs/"),
        (["--config", "."], r"\.: cannot be read"),
        (["--stepz", "3"], r"unknown option --stepz; did you mean 'steps'\?"),
        (["--step", "3"], r"unknown option --step; did you mean 'steps'\?"),
        (["stray"], r"unknown option stray"),
        (["--steps", "3", "4"], r"unknown option 4"),
        (["--steps", "null"], r"--steps: invalid int value: 'null'"),
        (["--names=a", "b"], r"^unknown option b"),
        (
            ["--names", "a", "--steps", "2", "--names=b"],
            r"^--names is given twice; give all its values after one",
        ),
        (["--weights", "{a: 1}", "--weights", "{b: 1}"], r"^--weights is given twice"),
        (["demo.yaml"], r"unknown option demo\.yaml"),
        (["--steps"], r"--steps: expected one argument"),
        (["--weights", "{kl: 1"], r"\{kl: 1': not valid YAML"),
        (["--weights", "{kl:1}"], r"--weights: a space is missing after the colon of 'kl:1'"),
        (["--weights", "{kl: 1, kl: 2}"], r"--weights: .*'kl' is given twice"),
        (["--weights", "{d: " + "[" * 500], r"--weights: .*not valid YAML"),
        (["--names", "[a, b"], r"--names: not valid YAML"),
        (["--steps", "[1, 2]"], r"--steps: invalid int value: '\[1, 2\]'"),
    ],
)
def test_invalid_command_lines_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_arguments(TYPES, argv)


def test_a_word_before_the_options_is_not_given_to_the_last_field_of_the_file(tmp_path: Path) -> None:
    path = write_settings(tmp_path, "steps: 3\nnames: [a, b]")
    assert parse_arguments(TYPES, ["--config", path, "--steps", "4"])[0].names == ["a", "b"]
    for argv in (["--config", path, "c"], ["c", "--config", path, "--steps", "4"]):
        with pytest.raises(DataError, match=r"^unknown option c; see --help for the fields$"):
            parse_arguments(TYPES, argv)
    with pytest.raises(DataError, match=r"^unknown option -steps; did you mean 'steps'\?$"):
        parse_arguments(TYPES, ["--config", path, "-steps", "4"])


def test_invalid_training_arguments_are_data_errors() -> None:
    refused: list[tuple[list[str], str]] = [
        (["--dair_lambda", "-1"], r"dair_lambda=-1\.0 is out of range"),
        (["--dair_lambda", "nan"], r"dair_lambda=nan is out of range"),
        (["--learning_rate", "-1"], r"learning_rate=-1\.0 is out of range; it must be a finite number >= 0"),
        (["--gradient_accumulation_steps", "0"], r"gradient_accumulation_steps=0 is out of range"),
        (["--per_device_train_batch_size", "0"], r"per_device_train_batch_size=0 is out of range"),
        (["--seed", "-1"], r"seed: -1 is no seed"),
        (["--deepspeed", "no.json"], r"deepspeed"),
        (["--method", "ermm"], r"--method: invalid choice: 'ermm'"),
        (["--save_strategy", "sometimes"], r"sometimes"),
        (["--lr_scheduler_kwargs", "{a: [1}"], r"--lr-scheduler-kwargs: .*not valid YAML"),
    ]
    for argv, message in refused:
        with pytest.raises(DataError, match=message):
            parse_arguments([DAIRConfig], ["--output_dir", "out", *argv])


def test_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes("place: ü".encode("latin-1"))
    with pytest.raises(DataError, match=r"settings\.yaml: .*not UTF-8"):
        parse_arguments(TYPES, ["--config", str(path)])


def test_any_text_is_read_back(tmp_path: Path) -> None:
    import yaml

    values: list[Any] = ["--steps", "a b", "{x}", "=", "-", "@file", "%s", "null", "ü\u3000", "'"]
    for value in values:
        path = write_settings(tmp_path, yaml.safe_dump({"place": value}, allow_unicode=True))
        assert parse_arguments(TYPES, ["--config", path])[1].place == value


def test_a_configuration_of_another_recipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("recipe: colors\noutput_dir: out\n")
    for name in ("colors", "shapes"):
        (tmp_path / f"{name}.py").touch()
    options = ["--config", str(config)]
    for program in (tmp_path / "colors.py", tmp_path / "elsewhere" / "mine.py", Path("")):
        monkeypatch.setattr(sys, "argv", [str(program)])
        assert parse_arguments([DAIRConfig], options)[0].output_dir == "out"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "shapes.py")])
    with pytest.raises(DataError, match=r"mine\.yaml: belongs to the recipe colors, but shapes\.py is running"):
        parse_arguments([DAIRConfig], options)
