"""The command `dair-hf`. Each subcommand is a function of its own module, and imports what is slow when it runs."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from dair_hf.commands import audit, compare, evaluate, train
from dair_hf.io.commands import INTERRUPTED, exit_status

PROGRAM = "dair-hf"  # also the name of the distribution
EPILOG = (
    "Exit status: 0 success; 1 unexpected error, with a file that holds the traceback; 2 refused, with one line that "
    "says what to do; 3 findings of audit --strict; 130 Ctrl-C; 141 the reader of the output is gone; 143 SIGTERM."
)

app = typer.Typer(
    name=PROGRAM,
    help="Robustness through pairs of an original and an augmented sample.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # with rich, --help takes twice as long
)
for name, function, short_help in (
    ("compare", compare.compare_methods, "Train ERM, DA, KL and DAIR on your pairs: does it pay, and which?"),
    ("evaluate", evaluate.evaluate_file, "Evaluate a model on pairs: accuracy, CM, flips; where views disagree."),
    ("prompts", evaluate.print_prompts, "Print the prompts of pairs, for another program to answer."),
    ("audit", audit.audit_file, "Report what is wrong with a file of pairs."),
    ("train", train.train, "Run a recipe; --list shows all."),
):
    settings = {"train": train.CONTEXT, "compare": compare.CONTEXT}.get(name, {})
    app.command(name, short_help=short_help, epilog=EPILOG, context_settings=settings)(function)


@app.command(
    "jga",
    short_help="Compute joint goal accuracy.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,  # the metric's command line reads all options
)
def _jga(context: typer.Context) -> int:
    """Compute the joint goal accuracy of predicted dialogue states under a named convention."""
    from dair_hf.metrics.command_line import jga

    return jga(context.args)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


@app.callback()
def _options(
    is_asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str] | None = None) -> int:
    """Run the command with some arguments, or the arguments of the process, and return its exit status."""

    def call() -> int:
        try:
            result = app(arguments, standalone_mode=False)
        except typer.Abort as error:
            raise KeyboardInterrupt from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # typer ends with status 1
                raise error.__context__ from None
            raise
        except Exception as error:
            # An argument that cannot be used; the class of such errors is not part of typer's interface.
            if not hasattr(error, "exit_code") or not hasattr(error, "show"):
                raise
            error.show()
            return int(error.exit_code)
        if result == INTERRUPTED:  # typer's answer to Ctrl-C, without a line
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0

    return exit_status(call)


def main() -> None:
    """Run the command of the process."""
    sys.exit(run())
