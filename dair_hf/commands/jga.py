"""`dair-hf jga`: joint goal accuracy."""

from __future__ import annotations

import typer

# `dair_hf.metrics.command_line` reads all options, also `--help`.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def jga(context: typer.Context) -> int:
    """Compute the joint goal accuracy of predicted dialogue states under a named convention."""
    from dair_hf.metrics.command_line import main

    return main(context.args)
