"""Model cards: description of the training, and metrics as valid metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import T5ForConditionalGeneration

from dair_hf import DAIRTrainer, PairEvaluator
from dair_hf.modeling import ModelConfig, load_text_classifier
from dair_hf.text.models import BagOfWordsConfig, BagOfWordsForSequenceClassification
from dair_hf.training.environments import GroupDRO
from dair_hf.training.forward.pair_loss import PairOutputs
from dair_hf.training.model_card import ModelFacts, PairResult, TrainingFacts, _task_of, _usage, write_model_card
from dair_hf.vqa.models.pretrained import load_classifier, load_processor
from tests.fixtures import points, saved_models, tiny, vision_language

METRICS = {
    "original_joint_goal_accuracy": 0.5,
    "original_joint_goal_accuracy_low": 0.4,
    "original_joint_goal_accuracy_high": 0.6,
    "augmented_joint_goal_accuracy": 0.25,
    "cm": float("nan"),
    "cm_numerator": 0,
    "cm_denominator": 0,
    "cm_all_rows": 1.0,
    "cm_all_rows_numerator": 30,
    "cm_all_rows_denominator": 30,
    "cm_same_answer": 0.5,
    "cm_same_answer_numerator": 1,
    "cm_same_answer_denominator": 2,
    "pos_to_neg": 0.125,
    "rows": 8,
    "pairs": 5,
}
REPORT = PairResult("MultiWOZ 2.1 test", "joint_goal_accuracy", "any_of", METRICS)


def written(path: Path, *facts: Any, report: PairResult = REPORT, **settings: object) -> ModelCard:
    if not path.exists():
        path.write_text("---\nlibrary_name: transformers\ntags: [dialog]\n---\n# Tiny\n\nBody.\n", encoding="utf-8")
    write_model_card(path, tiny.config(path.parent, **settings), [report], *facts)
    return ModelCard.load(path)


def test_metadata_contain_only_defined_metrics(tmp_path: Path) -> None:
    card = written(tmp_path / "README.md")
    found = {result.metric_type: result for result in card.data.eval_results}
    assert set(found) == {"original_joint_goal_accuracy", "augmented_joint_goal_accuracy", "pos_to_neg", "cm_all_rows"}
    assert found["original_joint_goal_accuracy"].metric_value == 0.5
    assert found["original_joint_goal_accuracy"].metric_name == "joint goal accuracy, original (any_of)"
    assert found["pos_to_neg"].dataset_name == "MultiWOZ 2.1 test"
    assert set(card.data.tags) == {"dialog", "dair", "consistency-training"}
    assert "model-index" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_metadata_name_the_task_and_the_data_sets_that_the_user_tags(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "t5", tiny.pairs("t5", 6))
    metrics = {**METRICS, "cm": 0.5, "cm_denominator": 40}
    for name in ("you/test-pairs", "Tiny test"):
        made.pair_results[name] = PairResult(name, "joint_goal_accuracy", "any_of", metrics)
    made.create_model_card(dataset=["you/pairs", "Tiny training"], dataset_tags="you/more")
    data = metadata_load(tmp_path / "README.md") or {}
    assert (data["pipeline_tag"], data["metrics"]) == ("text2text-generation", ["joint_goal_accuracy"])
    assert data["datasets"] == ["you/more"]  # "you/pairs" may be a folder
    results = model_index_to_eval_results(data["model-index"])[1]
    found = {(r.task_type, r.dataset_type, r.dataset_name) for r in results}
    kinds = {name: name.lower().replace(" ", "-") for name in ("you/test-pairs", "Tiny test")}
    assert found == {("text2text-generation", kind, name) for name, kind in kinds.items()}
    assert [r.metric_value for r in results if r.metric_type == "cm"] == [0.5, 0.5]


def test_tasks_of_models() -> None:
    words = BagOfWordsForSequenceClassification(BagOfWordsConfig(vocab_size=9))
    tasks = [_task_of(model) for model in (tiny.model("gpt2"), words, points.PointsModel(points.PointsConfig()))]
    assert tasks == ["text-generation", "text-classification", None]


def test_the_body_names_method_lambda_unit_and_intervals(tmp_path: Path) -> None:
    text = written(tmp_path / "README.md", dair_lambda=0.7, normalization="token").text
    for line in (
        "- method: `dair`",
        "- regularizer: `sq`",
        "- lambda: 0.7 (token: objective = losses / target tokens + lambda * R / pairs)",
        "- normalization: `token`",
        "| joint goal accuracy, original (any_of) | 0.5000 | 0.4000 to 0.6000 |",
        "| joint goal accuracy, augmented (any_of) | 0.2500 | - |",
    ):
        assert line in text.splitlines(), line
    assert "The consistency metric is 0 / 0: " in text
    assert "Body." in text


def test_a_second_run_replaces_the_section_of_the_first(tmp_path: Path) -> None:
    first = written(tmp_path / "README.md", dair_lambda=0.7).text
    second = written(tmp_path / "README.md", dair_lambda=0.9).text
    assert second.count("## Paired training (DAIR)") == first.count("## Paired training (DAIR)") == 1
    assert "lambda: 0.9" in second
    assert "lambda: 0.7" not in second


def test_the_trainer_writes_its_evaluations(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "gpt2", None, eval_dataset=tiny.pairs("gpt2", 4))
    made.evaluate_pairs(
        evaluator=PairEvaluator(lambda p, r: [True] * len(p), preset="any_of"), data_name="Tiny test", max_new_tokens=2
    )
    made.create_model_card()
    card = ModelCard.load(tmp_path / "README.md")
    assert {result.dataset_name for result in card.data.eval_results} == {"Tiny test"}
    assert "The consistency metric is 3 / 3: of the pairs with a correct original view" in card.text
    assert "3 of 4 rows have an augmented view" in card.text
    assert "it is 4 / 4, as in the paper's tables." in card.text


def test_an_objective_is_named_without_a_memory_address(tmp_path: Path) -> None:
    for objective, name in ((originals, "originals"), (GroupDRO(step_size=0.5), "GroupDRO(step_size=0.5)")):
        points.trainer(tmp_path, points.pairs(4), objective, method="da").create_model_card()
        text = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert f"- replaced by the objective: `{name}`" in text.splitlines()


def originals(outputs: PairOutputs, step: int) -> Tensor:
    """Return the mean loss of the original views."""
    return outputs.terms.original.mean()


def test_the_card_counts_training_rows_and_pairs(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "t5", tiny.pairs("t5", 6))  # rows 1 and 4 have no partner
    made.create_model_card(dataset=["First", "Second"])
    lines = (tmp_path / "README.md").read_text(encoding="utf-8").splitlines()
    assert "- training data: First, Second; 6 rows, of which 4 have an augmented view" in lines
    rows = tiny.pairs("t5", 6)
    for data in (rows.to_iterable_dataset(), rows.with_transform(lambda row: pytest.fail("made"))):
        made.train_dataset = data
        made.create_model_card()
        text = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert "- training data" not in text, "the pairs of a stream or a transform are not known"


def test_lambda_that_sets_itself_is_stated_with_its_last_value(tmp_path: Path) -> None:
    for latest, lines in ((0.03125, ["- lambda of the last step: 0.03125"]), (None, [])):
        facts = TrainingFacts(final_lambda=latest)
        text = written(tmp_path / "README.md", facts, dair_lambda="auto", lambda_target=3.0).text
        assert [line for line in text.splitlines() if "last step" in line] == lines
        assert "- lambda: auto, gradient share 3" in text


def test_a_baseline_is_not_called_dair(tmp_path: Path) -> None:
    for method, sentence in (("da", "Trained without a term on consistency"), ("dair", "Trained with [DAIR]")):
        text = written(tmp_path / "README.md", method=method).text
        assert ("lambda" in text) == (method == "dair")
        assert [line for line in text.splitlines() if line.startswith("Trained with")][0].startswith(sentence)


def test_placeholders_of_the_trainer_are_left_out_and_its_training_procedure_is_kept(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "t5", None)
    super(type(made), made).create_model_card()
    before = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert before.count("More information needed") == 3
    made.create_model_card()
    after = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "More information needed" not in after and "## Intended uses" not in after
    kept = before[before.index("## Training procedure") :].strip()
    assert kept in after


def test_a_model_from_a_folder_is_named_without_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "secret" / "base_7"
    tiny.model("t5", dtype=torch.float32).save_pretrained(folder)
    loaded = T5ForConditionalGeneration.from_pretrained(folder)
    tiny.trainer(tmp_path / "run", "t5", None, built=loaded).create_model_card()
    text = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "This model is a fine-tuned version of the local model `base_7` on" in " ".join(text.split())
    assert "- base model: `base_7`, a local folder" in text.splitlines()
    assert "secret" not in text and "trained from scratch" not in text


def test_adapters_are_described_and_loaded_onto_their_base(tmp_path: Path) -> None:
    base = tiny.model("gpt2", dtype=torch.float32)
    base.config._name_or_path = base.name_or_path = "you/base"
    adapted = get_peft_model(
        base, LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    facts = ModelFacts(adapted, tiny.tokenizer(), "you/tracker")
    # Two layers; c_attn maps 16 to 48, so that A is 2 x 16 and B is 48 x 2.
    trained = 2 * (2 * 16 + 48 * 2)
    total = sum(weight.numel() for weight in tiny.model("gpt2").parameters()) + trained
    lines = written(tmp_path / "README.md", None, facts).text.splitlines()
    for line in (
        "- base model: [you/base](https://huggingface.co/you/base)",
        "- class: `GPT2LMHeadModel`",
        "- adapter: LoRA, rank 2, alpha 8, on `c_attn`",
        f"- parameters: {total:,}, of which {trained} are trained",
    ):
        assert line in lines
    assert not any("adapters only" in line for line in _usage(facts, "folder"))


def test_a_class_of_no_package_has_no_code() -> None:
    class Local(points.PointsModel):
        pass

    (line,) = _usage(ModelFacts(Local(points.PointsConfig())), "out")
    assert Local.__qualname__ in line


@pytest.mark.parametrize("kind", ["vilt", "bert"])
def test_the_code_of_the_card_loads_adapters_with_a_new_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The base model has other classes than the adapters."""
    base, names = tmp_path / "base", ["one", "green", "two"]
    settings = ModelConfig(str(base), use_peft=True, lora_r=2)
    if kind == "vilt":
        vision_language.stored(vision_language.vilt, base)
        model, words = load_classifier(settings, names), load_processor(settings)
        inputs = {"pixel_values": torch.rand(1, 3, 32, 32), "input_ids": torch.tensor([[9, 10]])}
    else:
        saved_models.classifier(base)
        words = tiny.tokenizer()
        model, inputs = load_text_classifier(settings, words, names), {"input_ids": torch.tensor([[9, 10]])}
    args = tiny.config(tmp_path / "run")
    made = DAIRTrainer(model, args, processing_class=words, sample_loss="classification")
    made.save_model()
    made.create_model_card()
    code = (tmp_path / "run" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["model"].config.id2label == dict(enumerate(names))
    assert torch.equal(found["model"].eval()(**inputs).logits, model.eval()(**inputs).logits)
