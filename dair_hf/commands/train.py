"""`dair-hf train`: run the recipe of a configuration, one that is shipped or one of your own."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dair_hf.errors import DataError
from dair_hf.io.files import decode_utf8, read_bytes, read_yaml

# Everything after CONFIG is for the recipe, also `--help`.
CONTEXT = {"allow_extra_args": True, "allow_interspersed_args": False}
_YAML = (".yaml", ".yml")


class _Configuration(NamedTuple):
    """Shipped configuration, described by the header of its file: recipe, purpose, requirements and time."""

    name: str
    recipe: str
    trains: str
    needs: str
    time: str


def train(
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Argument(
            help="Name of a shipped configuration (see --list), or YAML file with a line `recipe: NAME`. All that "
            "follows is for the recipe: --max_steps 100, or --help for the list.",
            show_default=False,
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the shipped configurations and launchers.")] = False,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="LAUNCHER",
            help="Start several processes by accelerate launch: the name of shipped settings, such as ddp, or a file "
            "of accelerate config.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: print JSON.")] = False,
) -> None:
    """Train and compare the methods of a recipe: dair-hf train [OPTIONS] CONFIG [OPTIONS OF THE RECIPE].

    The command writes to the output_dir of the configuration, below the current folder. Finished runs are kept; the
    same command continues where an earlier one ended.
    """
    if show_list:
        _print_list(as_json)
        return
    path = _find_configuration(config or "")
    recipe = _recipe_of(path)
    if launch is not None:
        _launch(_find_configuration(launch, "accelerate_configs"), [str(config), *context.args])
    sys.argv = [str(recipe), "--config", str(path), *context.args]
    runpy.run_path(str(recipe), run_name="__main__")


def _recipes_folder() -> Path:
    """Return the folder of the recipes: in an installation inside the package, in a clone next to it."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "recipes", package.parent / "recipes")
    for folder in candidates:
        if (folder / "configs").is_dir():
            return folder
    raise DataError(f"{candidates[0]}: the recipes are missing; install the library again")


def _find_configuration(name: str, kind: str = "configs") -> Path:
    """Return the file of a configuration."""
    if name.endswith(_YAML) or "/" in name:
        return Path(name)
    if name not in _names(kind):
        raise DataError(f"{name!r}: expected a name of dair-hf train --list, or a file that ends in .yaml")
    return _recipes_folder() / kind / f"{name}.yaml"


def _recipe_of(path: Path) -> Path:
    """Return the script of the recipe that a configuration names in its line `recipe: NAME`."""
    folder = _recipes_folder()
    known = sorted(script.stem for script in folder.glob("*.py"))
    settings = read_yaml(path)
    recipe = settings.get("recipe") if isinstance(settings, dict) else None
    if recipe not in known:
        raise DataError(f"{path}: recipe: expected one of {', '.join(known)}, got {recipe!r:.80}")
    return folder / f"{recipe}.py"


def _shipped_configurations() -> list[_Configuration]:
    """Return the shipped configurations, by name."""
    return [_described(path) for path in sorted((_recipes_folder() / "configs").glob("*.yaml"))]


def _described(path: Path) -> _Configuration:
    """Describe a configuration by its header: the first sentence, and the lines `Needs:` and `Hours:`."""
    text = decode_utf8(read_bytes(path), str(path))
    header = re.match(r"(?:#.*\n)*", text)
    lines = [line.removeprefix("#").strip() for line in header[0].splitlines()] if header else []
    # A paragraph ends at an empty line, and where the next one begins with its name.
    paragraphs = re.split(r"\n\n+|\n(?=(?:Expect|Needs|Hours)\b)", "\n".join(lines))
    joined = [" ".join(paragraph.split()) for paragraph in paragraphs]
    named = {name: rest for name, colon, rest in (text.partition(": ") for text in joined) if colon}
    return _Configuration(
        path.stem,
        _recipe_of(path).stem,
        _sentence(joined[0]),
        _sentence(named.get("Needs", "not stated")),
        _sentence(named.get("Hours", "not stated")),
    )


def _sentence(text: str) -> str:
    """Return the first sentence of a text, without the dot at its end."""
    return re.split(r"(?<=[.?!])\s+(?=[A-Z])", text, maxsplit=1)[0].removesuffix(".")


def _names(kind: str) -> list[str]:
    return sorted(path.stem for path in (_recipes_folder() / kind).glob("*.yaml"))


def _print_list(as_json: bool) -> None:
    found, launchers = _shipped_configurations(), _names("accelerate_configs")
    if as_json:
        listed: dict[str, Any] = {"configurations": [item._asdict() for item in found], "launchers": launchers}
        typer.echo(json.dumps(listed, ensure_ascii=False))
        return
    width = max(len(item.name) for item in found)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for item in found:
        trains = textwrap.shorten(item.trains, max(20, columns - width - 2), placeholder=" ...")
        typer.echo(f"{item.name:<{width}}  {trains}")
    typer.echo("with needs and time: dair-hf train --list --json")
    typer.echo(f"launchers for --launch: {', '.join(launchers)}")
    typer.echo(f"their files are in {_recipes_folder()}")


def _launch(settings: Path, arguments: list[str]) -> None:
    """Replace this process by `accelerate launch`, which starts this command in every process."""
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--quiet"]
    command += ["--config_file", str(settings), "-m", "dair_hf.commands", "train", *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
