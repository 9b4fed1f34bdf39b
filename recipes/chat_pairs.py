# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[text]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""LoRA or training from scratch of any decoder-only model on pairs of word problems: ERM, DA-ERM, KL and DAIR.

Command (no data, no network; minutes on one core; writes outputs/arithmetic):

    accelerate launch recipes/chat_pairs.py --config recipes/configs/arithmetic.yaml

- `arithmetic.yaml` trains a small model from scratch on generated word problems, and tests it with numbers that it has
  never seen.
- `chat_lora.yaml` trains adapters of a chat model on GSM8K with changed numbers.

The header of each configuration states the expected results, time and hardware. Every field of the YAML is also a
command-line option: `--methods erm dair --seeds 0 1 2 --dair_lambda 1`. For pairs of your own: `compare_pairs.py`.

Steps: read or generate rows; give them partners with other numbers and answers; train every method
from the same weights; let the model answer both views of the test rows; write the accuracy of both views and CM as a
table. The trainer tokenizes the texts. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    compare,
    lambda_note,
    runs_of,
    train_evaluate_save,
)
from dair_hf.experiments.report import Column
from dair_hf.io.commands import run_recipe
from dair_hf.modeling import ModelConfig, load_model, load_tokenizer
from dair_hf.text.chat_data import ChatConfig, ChatData, build_problem_tokenizer, load_chat_data

COLUMNS = [
    Column("original_accuracy", "accuracy, originals"),
    Column("augmented_accuracy_pairs", "accuracy, partners"),
    Column("cm", "CM"),
    Column("both_correct", "both right"),
]
NOTE = "Accuracy of partners, CM and both right: test rows with a partner."


def train_and_evaluate(
    run: Run, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, rows: ChatData, data: ChatConfig
) -> Result:
    """Train and evaluate one run; save model, model card and predictions."""
    set_seed(run.seed)
    trainer = DAIRTrainer(
        load_model(model, tokenizer, run.seed), run.args, train_dataset=rows.train, processing_class=tokenizer
    )

    def evaluate(trained: DAIRTrainer) -> dict[str, Any]:
        return trained.evaluate_pairs(
            rows.test,
            data.evaluator,
            predictions_file=run.predictions_file,
            data_name=rows.name,
        )

    return train_evaluate_save(trainer, evaluate, dataset=rows.name)


def main() -> None:
    """Train all unfinished runs and write the table."""
    data, model, comparison, args = parse_arguments([ChatConfig, ModelConfig, ComparisonConfig, DAIRConfig])
    folder = claim_output_folder(args)
    rows = load_chat_data(data)
    if model.model_name_or_path:
        tokenizer = load_tokenizer(model)
    else:
        columns = [name for name in rows.train.column_names if rows.train.features[name].dtype == "string"]
        tokenizer = build_problem_tokenizer(text for name in columns for text in rows.train[name] if text)
    compare(
        list(runs_of(comparison, args)),
        lambda run: train_and_evaluate(run, model, tokenizer, rows, data),
        folder,
        f"Pairs of texts, {rows.name}",
        COLUMNS,
        {"data": data, "model": model},
        {"train": rows.train._fingerprint, "test": rows.test._fingerprint},
        [f"{lambda_note(comparison, args)}.", NOTE, *rows.notes],
    )


if __name__ == "__main__":
    run_recipe(main)
