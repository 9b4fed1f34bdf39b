# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[text]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Counterfactual texts: people edited reviews, or premises and hypotheses, so that the label changes.

Command (two minutes on one core; `--cad` takes a clone of acmi-lab/counterfactually-augmented-data, or its files):

    accelerate launch recipes/counterfactual_text.py --config recipes/configs/counterfactual_sentiment.yaml --cad FOLDER

`counterfactual_nli.yaml` is natural language inference. The header of each configuration states the expected results,
time and hardware. Models are small and trained from scratch (`--model_kind bag_of_words`, `embeddings`, `bilstm`,
`transformer`), or pretrained (`--model_kind pretrained --model_name_or_path NAME`). `--pair_share 0.1` leaves a tenth
of the rows their partner. `--search_lambdas 0.1 1 10 100` chooses the lambda of each method on the dev split, and
`--search_weights 0.25 0.5 0.75` the weight of DA's partners.

Steps: read originals and revisions; tokenize them with the words of the training texts and of the revisions that are
kept, the same for all methods; train every method from the same weights, and keep the epoch with the best dev accuracy
over both views, for every method alike; write accuracy on originals and revisions, CM in both directions and the share
of pairs with both views right.
Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from datasets import Dataset
from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer, PairEvaluator
from dair_hf.data.sampling import keep_partners
from dair_hf.evaluation.answers import same_classes
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig, Result, Run, claim_output_folder, train_evaluate_save
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.io.commands import run_recipe
from dair_hf.modeling import ModelConfig, load_text_classifier
from dair_hf.text.task import TextConfig, classifier_tokenizer, encode_rows, load_rows

COLUMNS = [
    Column("original_accuracy", "accuracy, originals"),
    Column("augmented_accuracy", "accuracy, revisions"),
    Column("cm", "CM, original to revision"),
    Column("reverse_cm", "CM, revision to original"),
    Column("both_correct", "both right"),
]
# Split of a search or a comparison -> split of the data.
SPLITS = {"validation": "dev", "test": "test"}
CHOOSES = ("both_views_accuracy", "cm")


def train_and_evaluate(
    run: Run,
    split: str,
    data: TextConfig,
    model: ModelConfig,
    rows: Mapping[str, Dataset],
) -> Result:
    """Train and evaluate one run from new or pretrained weights."""
    set_seed(run.seed)
    # Partners are removed before the words are counted: a model does not know the words of revisions it does not have.
    rows = {**rows, "train": keep_partners(rows["train"], data.pair_share, run.seed)}
    tokenizer = classifier_tokenizer(rows["train"], data, model)
    parts = "train", "dev", SPLITS[split]
    encoded = {part: encode_rows(rows[part], tokenizer, data, run.args.max_length) for part in parts}
    trainer = DAIRTrainer(
        load_text_classifier(model, tokenizer, data.labels, run.seed),
        run.args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["dev"],
        processing_class=tokenizer,
        evaluator=PairEvaluator(same_classes, clusters="original_id"),  # an original with all its revisions
    )
    name = f"{data.title}, {SPLITS[split]}"
    return train_evaluate_save(
        trainer,
        lambda trained: trained.evaluate_pairs(
            encoded[SPLITS[split]], predictions_file=run.predictions_file, data_name=name
        ),
        dataset=data.title,
    )


def main() -> None:
    """Train all unfinished runs and write the table; with a grid of lambdas, choose lambda first."""
    types = [TextConfig, ModelConfig, ComparisonConfig, SearchConfig, DAIRConfig]
    data, model, comparison, search, args = parse_arguments(types)
    model = data.complete(model)
    claim_output_folder(args)
    rows = load_rows(data)
    search_or_compare(
        search,
        comparison,
        args,
        partial(train_and_evaluate, data=data, model=model, rows=rows),
        f"{data.title.capitalize()}, {data.model_kind.replace('_', ' ')}",
        COLUMNS,
        {"data": data, "model": model},
        {split: part._fingerprint for split, part in rows.items()},
        ["Every method keeps the epoch with the best dev accuracy over both views. An original counts per revision."],
        metrics=CHOOSES,
    )


if __name__ == "__main__":
    run_recipe(main)
