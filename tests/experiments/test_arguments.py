"""Settings from a YAML file and the command line: precedence, types and error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest

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


def test_file_sets_fields_of_every_type(tmp_path: Path) -> None:
    path = write_settings(
        tmp_path, "steps: 3\nrate: -1.0e-3\nnames: [b, c]\nweights: {kl: 2}\nflag: true\nkind: y\nplace: -x ü\n"
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


@pytest.mark.parametrize("form", ["{0} null", "{0}=null"])
def test_null_takes_back_the_value_of_the_file(tmp_path: Path, form: str) -> None:
    text = "place: x\nunits: [2]\nweights: {kl: 1}\nrate: 1\nsteps: 7\n"
    options = " ".join(form.format(f"--{name}") for name in ("place", "units", "weights")).split()
    found = parse_arguments(TYPES, ["--config", write_settings(tmp_path, text), *options, "--rate", "2"])
    assert found == (First(steps=7, rate=2.0), Second(units=None))
    assert parse_arguments(TYPES, ["--weights", "null", "--weights", "{kl: 1}"])[0].weights == {"kl": 1}


def test_a_text_or_a_list_in_a_file(tmp_path: Path) -> None:
    for text, expected in (("all-linear", "all-linear"), ("[q]", ["q"]), ("[q, v]", ["q", "v"]), ("null", None)):
        path = write_settings(tmp_path, f"output_dir: {tmp_path}\noptim_target_modules: {text}\n")
        assert parse_arguments([DAIRConfig], ["--config", path])[0].optim_target_modules == expected
    options = ["--config", path, "--optim_target_modules", "all-linear"]
    assert parse_arguments([DAIRConfig], options)[0].optim_target_modules == "all-linear"
    assert parse_arguments(TYPES, ["--config", write_settings(tmp_path, "units: []\n")])[1].units == []


def help_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse_arguments([*TYPES, DAIRConfig], options)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_begins_with_the_fields_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "--help")
    places = [shown.index(f"\n  {name} ") for name in ("--steps", "--kind", "--learning_rate", "--dair_lambda")]
    assert places == sorted(places)
    listed = set(re.findall(r"^  --(\w+)", shown, re.MULTILINE))
    own = {field.name for kind in (First, Second) for field in fields(kind)}
    # DAIRConfig declares some fields of transformers again.
    assert own < listed and {"method", "dair_lambda", "output_dir", "max_steps"} < listed
    assert not {"neftune_noise_alpha", "adam_beta2", "hub_token"} & listed
    path = write_settings(tmp_path, "output_dir: out\nsteps: 7\nadam_beta2: 0.875\nnames: [b, c]\n")
    shown = " ".join(help_of(capsys, "--config", path, "-h").split())
    assert all(f"(default: {value})" in shown for value in ("7", "['b', 'c']", "0.875"))
    assert "--adam_beta1" not in shown


def test_lists_and_mappings_of_the_command_line() -> None:
    first, _ = parse_arguments(TYPES, ["--weights", "{kl: 1, js: 2e-3}", "--names", "b", "c"])
    assert (first.names, first.weights) == (["b", "c"], {"kl": 1, "js": 0.002})
    argv = "--output_dir out --use_cpu true --lr_drop_epochs 20 30 --lr_scheduler_type constant".split()
    argv += ["--lr_scheduler_kwargs", "{min_lr: 1e-3}", "--accelerator-config={split_batches: true}"]
    (args,) = parse_arguments([DAIRConfig], argv)
    assert (args.lr_drop_epochs, args.lr_scheduler_kwargs) == ([20.0, 30.0], {"min_lr": 0.001})
    assert args.accelerator_config.split_batches


def test_any_text_is_read_back(tmp_path: Path) -> None:
    import yaml

    values: list[Any] = ["--steps", "a b", "{x}", "=", "-", "@file", "%s", "ü\u3000", "'"]
    for value in values:
        path = write_settings(tmp_path, yaml.safe_dump({"place": value}, allow_unicode=True))
        assert parse_arguments(TYPES, ["--config", path])[1].place == value


def test_settings_of_the_command_line_are_told_from_those_of_the_file(tmp_path: Path) -> None:
    seen: list[Any] = []

    @dataclass
    class Third:
        REPLACED_BY: ClassVar = {"limit": ("steps",)}
        limit: int | None = field(default=None, metadata={"help": "Limit."})

        def check_with(self, others: Any, given: Any, options: Any) -> None:
            seen.append((others[0].steps, self.limit, sorted(given), sorted(options)))

    path = write_settings(tmp_path, "limit: 3\nrate: 1\n")
    for options in (["--rate=2"], ["--steps", "5"]):
        parse_arguments([First, Third], ["--config", path, *options])
    assert seen == [(1, 3, ["limit", "rate"], ["rate"]), (5, None, ["rate", "steps"], ["steps"])]
