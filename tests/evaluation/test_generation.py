"""Generated answers do not depend on padding, batches and encoding of other rows."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from transformers import DataCollatorForSeq2Seq, GenerationConfig

from dair_hf import DataError
from dair_hf.errors import UndefinedMetricWarning
from dair_hf.evaluation.generation import AnswerGenerator, _pad_left, _strip_generated, _with_limit
from dair_hf.evaluation.generation_settings import decoder_positions, effective_config
from tests.fixtures import tiny

CPU = torch.device("cpu")


def generator_for(model: Any, limit: int = 16, encoder_rows: int = 3, **settings: Any) -> AnswerGenerator:
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    return AnswerGenerator(model, collator, CPU, tiny.PAD, {"max_new_tokens": limit, **settings}, encoder_rows)


def test_prompts_are_padded_on_the_left() -> None:
    found = _pad_left([{"input_ids": [5]}, {"input_ids": [6, 7, 8]}, {"input_ids": []}], 9)
    assert found["input_ids"].tolist() == [[9, 9, 5], [6, 7, 8], [9, 9, 9]]
    assert found["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 0]]
    masked = [{"input_ids": [5, 6], "attention_mask": [0, 1]}, {"input_ids": [7, 8, 4]}]
    assert _pad_left(masked, 9)["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]  # masked tokens stay masked


def test_answers_end_before_the_first_end_token_and_not_at_padding_within() -> None:
    tokens = torch.tensor([[3, 5, 6, 1, 7], [3, 5, 2, 8, 1], [3, 5, 6, 7, 8]])
    assert _strip_generated(tokens, 1, [1, 2], 0) == [[5, 6], [5], [5, 6, 7, 8]]
    tokens = torch.tensor([[3, 0, 5, 0, 6], [3, 5, 0, 6, 1], [3, 5, 6, 0, 0], [3, 0, 0, 0, 0]])
    assert _strip_generated(tokens, 1, [1], 0) == [[0, 5, 0, 6], [5, 0, 6], [5, 6], []]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_padded_generation_of_a_decoder_only_model_equals_unpadded_generation(kind: str) -> None:
    model = tiny.model(kind).eval()
    data = tiny.pairs(kind, 9, partner=lambda row: False).select_columns(["input_ids", "attention_mask", "labels"])
    predictor = generator_for(model, 5)
    together = predictor(list(data))
    for row, found in zip(data, together, strict=True):
        prompt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100]
        ids = list(prompt)
        for _ in range(5):  # greedy decoding without generate, cache or padding
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tiny.EOS:
                ids.pop()
                break
        while len(ids) > len(prompt) and ids[-1] == tiny.PAD:
            ids.pop()
        assert found == ids[len(prompt) :]
    assert len({len(row["input_ids"]) for row in data}) > 1
    assert any(together)


def test_answers_end_at_the_last_position_in_any_batch() -> None:
    model = tiny.model("gpt2").eval()  # with 32 positions
    model.generation_config.eos_token_id = None
    lengths = [5, 30, 32, 30, 28]
    features = [{"input_ids": [4 + row] * length, "labels": [-100] * length} for row, length in enumerate(lengths)]
    predictor = generator_for(model, 12)
    found = predictor(features)
    for feature, answer in zip(features, found, strict=True):
        ids = list(feature["input_ids"])
        while len(ids) < min(len(feature["input_ids"]) + 12, 33):  # greedy decoding by hand
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert tiny.PAD not in ids
        assert answer == ids[len(feature["input_ids"]) :]


@pytest.mark.parametrize(("kind", "expected"), [("bart", 32), ("llama", 40), ("t5", 40)])
def test_only_position_embeddings_limit_answers(kind: str, expected: int) -> None:
    model = tiny.model(kind).eval()
    model.generation_config.eos_token_id = None
    assert decoder_positions(model) == (32 if kind == "bart" else None)
    model.generation_config.suppress_tokens = [tiny.PAD]
    predictor = generator_for(model, 40)
    feature = {"input_ids": [5, 6], "labels": [-100, -100]}
    assert len(predictor([feature])[0]) == expected


def test_rows_that_fill_all_positions_are_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The logger of transformers does not propagate by default.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    rows = {"input_ids": [[5] * 32, [6] * 20], "attention_mask": [[1] * 32, [1] * 20]}
    rows["labels"] = [[-100] * 16 + [5] * 16, [-100] * 16 + [6] * 4]
    data = datasets.Dataset.from_dict(rows)
    trainer = tiny.trainer(tmp_path, "", data, built=tiny.model("gpt2"), method="erm", sample_loss="causal")
    assert len(trainer.predict(data).predictions) == 2  # the longest target plus 8 would be too long
    assert "positions" not in caplog.text
    longer = data.map(lambda row: {name: [*values, *values[-1:]] for name, values in row.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        trainer.evaluate_pairs(longer, lambda predictions, gold: np.zeros(2, dtype=bool), intervals=False)
    assert "1 of 2 views reach beyond the 32 positions of GPT2LMHeadModel, where their answers end" in caplog.text


@pytest.mark.parametrize(("kind", "last"), [("gpt2", 33), ("bart", 32)])
def test_max_length_ends_at_the_last_position(tmp_path: Path, kind: str, last: int) -> None:
    built = tiny.model(kind)
    built.generation_config.eos_token_id = None
    built.generation_config.suppress_tokens = [tiny.PAD]
    labels = [-100] * 16 + [5] * 4 if kind == "gpt2" else [5, 6, 7]
    data = datasets.Dataset.from_dict({"input_ids": [[5] * 20], "attention_mask": [[1] * 20], "labels": [labels]})
    trainer = tiny.trainer(tmp_path, "", data, built=built, method="erm")
    answers = trainer.predict(data, max_length=60).predictions
    prompt = 16 if kind == "gpt2" else 1
    assert int((answers[0] != -100).sum()) == last - prompt


def answers_of(trainer: Any, data: datasets.Dataset, **gen_kwargs: Any) -> list[Any]:
    """Return the answers to all views, as the evaluator gets them."""
    answers: list[Any] = []

    def correct(predictions: list[Any], references: list[Any]) -> list[bool]:
        answers.extend(predictions)
        return [True] * len(predictions)

    trainer.evaluate_pairs(data, correct, intervals=False, **gen_kwargs)
    return answers


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_end_tokens_of_a_call_end_answers_as_those_of_the_model_do(tmp_path: Path, kind: str) -> None:
    data, built = tiny.pairs(kind, 6), tiny.model(kind)
    trainer = tiny.trainer(tmp_path, kind, None, built=built)
    free = answers_of(trainer, data, max_new_tokens=6)
    end = next(answer.split()[1] for answer in free if len(answer.split()) > 1)
    stop = int(end.removeprefix("w"))
    by_keyword = answers_of(trainer, data, max_new_tokens=6, eos_token_id=stop)
    by_config = answers_of(trainer, data, generation_config=GenerationConfig(max_new_tokens=6, eos_token_id=stop))
    built.generation_config.eos_token_id = stop
    configured = answers_of(trainer, data, max_new_tokens=6)
    assert by_keyword == by_config == configured != free
    assert all(end not in answer.split() for answer in configured)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_length_of_answers_is_the_first_that_is_given(tmp_path: Path, kind: str) -> None:
    built, data = tiny.model(kind), tiny.pairs(kind, 1)
    built.generation_config.eos_token_id, built.generation_config.suppress_tokens = None, [tiny.PAD, tiny.EOS]
    trainer = tiny.trainer(tmp_path, kind, None, built=built, processing_class=None)
    labels = data[0]["labels"]
    prompt = 1 if kind == "t5" else labels.count(-100)

    def length(**gen_kwargs: Any) -> int:
        return len(answers_of(trainer, data, **gen_kwargs)[0])

    assert length() == sum(label != -100 for label in data[0]["augmented_labels"]) + 8
    built.generation_config.max_new_tokens = 7
    assert length() == 7
    trainer.args.generation_max_length = prompt + 6
    assert length() == 6
    assert length(generation_config=GenerationConfig(max_length=prompt + 5)) == 5
    assert length(generation_config=GenerationConfig(max_length=prompt + 5), max_length=prompt + 4) == 4
    assert length(generation_config=GenerationConfig(max_new_tokens=3), max_length=prompt + 4) == 3
    assert length(generation_config=GenerationConfig(max_new_tokens=3), max_new_tokens=2) == 2
    with pytest.raises(ValueError, match="max_new_tokens"):
        length(max_length=prompt)


def test_beams_of_a_call_reduce_the_rows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"input_ids": [4 + row, 9], "attention_mask": [1, 1], "labels": [5, tiny.EOS]} for row in range(4)]
    partners = [{f"augmented_{name}": values for name, values in row.items()} for row in rows]
    data = datasets.Dataset.from_list([row | partner for row, partner in zip(rows, partners, strict=True)])
    built, batches = tiny.model("t5"), []
    trainer = tiny.trainer(tmp_path, "t5", None, built=built, generation_batch_size=8)
    generate = built.generate

    def noted(**given: Any) -> Any:
        batches.append(len(given["attention_mask"]))
        return generate(**given)

    monkeypatch.setattr(built, "generate", noted)
    of_config = {"generation_config": GenerationConfig(num_beams=4)}
    for given, expected in (({}, 8), ({"num_beams": 4}, 2), (of_config, 2)):
        batches.clear()
        answers_of(trainer, data, max_new_tokens=2, **given)
        assert batches == [expected] * (8 // expected)


@pytest.mark.parametrize("kind", ["bart", "llama"])
@pytest.mark.parametrize(
    "configured",
    [
        {"eos_token_id": [tiny.EOS, 9, 12, 17, 20]},  # answers of different lengths from every model
        {"forced_bos_token_id": 6, "forced_eos_token_id": tiny.EOS},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2, "suppress_tokens": [tiny.PAD]},  # it would count the padding of a prompt
        {"bad_words_ids": [[7], [8, 9]]},
        {"num_beams": 2},
    ],
)
def test_answers_of_a_batch_are_those_of_its_rows(kind: str, configured: dict[str, Any]) -> None:
    model = tiny.model(kind).eval()
    rows = tiny.pairs(kind, 7, target_lengths=(1, 3), seed=4)
    features = [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows]
    plain = generator_for(model, 8)(features)
    for name, value in configured.items():
        setattr(model.generation_config, name, value)
    generator = generator_for(model, 8)
    assert generator.encodes_first(features[:1]) == (kind == "bart")
    whole = generator(features)
    assert whole == [generator([feature])[0] for feature in features]
    if {"repetition_penalty", "no_repeat_ngram_size", "suppress_tokens"} & set(configured):
        assert whole != plain
    if "eos_token_id" in configured:
        assert len({len(answer) for answer in whole}) > 1


@pytest.fixture
def fitted() -> tuple[Any, list[Any]]:
    """Return a T5 that generates answers of many lengths, and rows for it."""
    model = tiny.model("t5").eval()
    rows = tiny.pairs("t5", 11, target_lengths=(1, 3), seed=4)
    return model, [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows]


def tiny_inputs(features: list[Any]) -> dict[str, torch.Tensor]:
    """Return inputs of an encoder, padded on the right."""
    batch = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)([dict(feature) for feature in features])
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def encoder_shapes(model: Any) -> list[tuple[int, int]]:
    """Return a list that records the shapes of later batches of the encoder."""
    shapes: list[tuple[int, int]] = []
    model.get_encoder().register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_inputs_are_encoded_a_few_at_a_time_without_padding_of_longer_ones(fitted: tuple[Any, list[Any]]) -> None:
    model, features = fitted
    shapes = encoder_shapes(model)
    generator_for(model, 4, encoder_rows=5)(features)
    lengths = sorted((len(feature["input_ids"]) for feature in features), reverse=True)
    assert shapes == [(len(lengths[start : start + 5]), lengths[start]) for start in range(0, 11, 5)]
    assert len({length for _, length in shapes}) > 1


def test_answers_of_an_adapted_model_are_the_same(fitted: tuple[Any, list[Any]]) -> None:
    model, features = fitted
    adapter = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=4, target_modules=["q", "v"], init_lora_weights=False)
    generator = generator_for(get_peft_model(model, adapter).eval())
    assert generator.encodes_first(features[:1])
    assert generator(features) == [generator([feature])[0] for feature in features]


def test_the_encoder_is_not_run_apart_if_answers_depend_on_the_batch_or_the_tokens(
    fitted: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharded weights, learned prompts, experts with a capacity, and settings that read the input tokens."""
    model, features = fitted
    assert generator_for(model).encodes_first(features)
    prompt = PromptTuningConfig(task_type=TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=2)
    assert not generator_for(get_peft_model(tiny.model("t5"), prompt)).encodes_first(features)
    for name, value, neutral in (("encoder_no_repeat_ngram_size", 1, 0), ("encoder_repetition_penalty", 1.5, 1.0)):
        configured = tiny.model("t5").eval()
        setattr(configured.generation_config, name, value)
        generator = generator_for(configured)
        assert not generator.encodes_first(features)
        expected = configured.generate(**tiny_inputs(features), max_new_tokens=16)
        assert generator(features) == _strip_generated(expected, 1, [tiny.EOS], tiny.PAD)
        # The call overrides the configuration.
        assert generator_for(configured, **{name: neutral}).encodes_first(features)
    model.config.expert_capacity = 4
    assert not generator_for(model).encodes_first(features)
    del model.config.expert_capacity
    assert not generator_for(model).encodes_first([{**feature, "token_type_ids": [0]} for feature in features[:1]])
    monkeypatch.setattr("dair_hf.evaluation.generation.is_fsdp_managed_module", lambda model: True)
    generator = generator_for(model)
    assert not generator.encodes_first(features)
    shapes = encoder_shapes(model)
    generator(features)
    assert [rows for rows, _ in shapes] == [11]


def test_calls_that_would_mix_up_answers_are_refused() -> None:
    with pytest.raises(DataError, match="pad_token_id"):
        AnswerGenerator(tiny.model("gpt2"), dict, CPU, None, {}, 2)
    with pytest.raises(DataError, match="num_return_sequences"):
        effective_config(tiny.model("bart"), {"num_beams": 2, "num_return_sequences": 2})


COMPARED = ("num_beams", "eos_token_id", "forced_bos_token_id", "no_repeat_ngram_size", "max_new_tokens")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_beams": 3, "eos_token_id": [5, 7]},
        {"forced_bos_token_id": None, "max_new_tokens": 2},
        {"generation_config": GenerationConfig(no_repeat_ngram_size=2), "max_new_tokens": 5},
        {"generation_config": GenerationConfig(eos_token_id=9), "eos_token_id": None},
    ],
)
def test_the_effective_config_is_that_of_generate(arguments: dict[str, Any]) -> None:
    def used_config(model: Any, input_ids: torch.Tensor, generation_config: GenerationConfig, **kwargs: Any) -> Any:
        return generation_config

    model = tiny.model("gpt2")
    model.generation_config.update(num_beams=1, forced_bos_token_id=6, no_repeat_ngram_size=3, max_length=30)
    before = copy.deepcopy(arguments)
    found = effective_config(model, arguments)
    used = model.generate(torch.tensor([[5]]), custom_generate=used_config, **arguments)
    assert {name: getattr(found, name) for name in COMPARED} == {name: getattr(used, name) for name in COMPARED}
    assert (model.generation_config.num_beams, model.generation_config.forced_bos_token_id) == (1, 6)
    assert str(arguments) == str(before)


def test_a_limit_replaces_both_lengths_where_they_are_given() -> None:
    config = GenerationConfig(max_length=9, num_beams=2)
    found = _with_limit({"generation_config": config, "max_new_tokens": 7, "streamer": "s"}, 4)
    assert set(found) == {"generation_config", "streamer"}
    limited = found["generation_config"]
    assert (limited.max_new_tokens, limited.max_length, limited.num_beams) == (4, None, 2)
    assert (config.max_new_tokens, config.max_length) == (None, 9)
    assert _with_limit({"max_length": 9, "num_beams": 2}, None) == {"num_beams": 2}
