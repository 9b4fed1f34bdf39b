"""`dair-hf compare`: whether training on pairs pays for a model and a file of pairs, and with which method."""

from __future__ import annotations

from typing import Annotated

import typer

from dair_hf.commands.train import train

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}  # other options are for the recipe


def compare_methods(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model id on the Hub, or local folder.", show_default=False)],
    pairs: Annotated[str, typer.Argument(help="Paired rows, as for `dair-hf evaluate`.", show_default=False)],
    output: Annotated[str, typer.Option(help="Folder for table, picture, records and the best model.")] = "comparison",
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each method, each with a seed.")] = 3,
    epochs: Annotated[
        float, typer.Option(min=0, help="Epochs of each run; 0: from 2 to 10, the more the fewer rows there are.")
    ] = 0,
    group: Annotated[
        str | None,
        typer.Option(
            help="Column of rows that belong together, for training or for testing; default: rows that share "
            "dialogue_id, original_id, or the first text of their input.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train ERM, DA, KL and DAIR on the pairs of a file, and say which differences the test pairs support.

    The command holds out a dev and a test part, and chooses settings and epochs on dev. The same command continues
    where an earlier one ended. All other options are for the recipe: --methods erm dair, --max_length 256, --use_peft
    true, --learning_rate 1e-5.
    """
    options = ["--seeds", *map(str, range(seeds))]
    options += [f"--model_name_or_path={model}", f"--pairs={pairs}", f"--output_dir={output}"]
    options += [f"--num_train_epochs={epochs}"] if epochs else []
    options += [f"--group={group}"] if group else []
    context.args = [*options, *context.args]  # after the seeds, or 2 and 3 of --seeds 1 2 3 would be some
    train(context, "compare_pairs")
