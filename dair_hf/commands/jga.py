"""`dair-hf jga`: joint goal accuracy, with the options of `python -m dair_hf.metrics.joint_goal_accuracy`."""

from __future__ import annotations

import typer

# All options are those of the metric, also `--help`.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def jga(context: typer.Context) -> int:
    """Compute the joint goal accuracy of predicted dialogue states under a named convention."""
    from dair_hf.metrics.joint_goal_accuracy.__main__ import main

    return main(context.args, "dair-hf jga")
