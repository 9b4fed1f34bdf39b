"""Answers are those of each row alone, however rows are padded, encoded, broken off and dropped from their batch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from transformers import DataCollatorForSeq2Seq

from dair_hf import DataError
from dair_hf.errors import UndefinedMetricWarning
from dair_hf.evaluation.generation import STRIDE, ViewPredictor, pad_left, prompt_of, strip_generated
from dair_hf.evaluation.prediction import predict_in_stages
from dair_hf.evaluation.target_tokens import decoder_positions
from tests.fixtures import tiny


def test_the_prompt_ends_before_the_first_target() -> None:
    feature = {"input_ids": [5, 6, 7, 8], "attention_mask": [1, 1, 1, 1], "labels": [-100, -100, 7, 8], "note": "n"}
    assert prompt_of(feature) == {"input_ids": [5, 6], "attention_mask": [1, 1], "note": "n"}
    without = {"input_ids": [5, 6], "labels": [-100, -100]}
    assert prompt_of(without) == {"input_ids": [5, 6]}
    assert prompt_of({"input_ids": [5], "labels": [5]}) == {"input_ids": []}


def test_prompts_are_padded_on_the_left() -> None:
    found = pad_left([{"input_ids": [5]}, {"input_ids": [6, 7, 8]}, {"input_ids": []}], 9)
    assert found["input_ids"].tolist() == [[9, 9, 5], [6, 7, 8], [9, 9, 9]]
    assert found["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 0]]
    masked = [{"input_ids": [5, 6], "attention_mask": [0, 1]}, {"input_ids": [7, 8, 4]}]
    assert pad_left(masked, 9)["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]  # what a row masks stays masked
    with pytest.raises(DataError, match="prompt 0 has 1 input_ids and an attention_mask of 2"):
        pad_left([{"input_ids": [5], "attention_mask": [1, 1]}], 9)


def test_generated_ids_stop_at_the_first_end() -> None:
    tokens = torch.tensor([[3, 5, 6, 1, 7], [3, 5, 2, 8, 1], [3, 0, 5, 5, 5], [3, 5, 6, 7, 8]])
    assert strip_generated(tokens, 1, [1, 2], 0) == [[5, 6], [5], [], [5, 6, 7, 8]]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_padded_generation_of_a_decoder_only_model_is_the_unpadded_one_row_by_row(kind: str) -> None:
    model = tiny.model(kind).eval()
    data = tiny.pairs(kind, 9, partner=lambda row: False).select_columns(["input_ids", "attention_mask", "labels"])
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": 5})
    together = predictor(list(data))
    for row, found in zip(data, together, strict=True):
        prompt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100]
        ids = list(prompt)
        for _ in range(5):  # greedy decoding written out, without generate, cache or padding
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in (tiny.EOS, tiny.PAD):
                ids.pop()
                break
        assert found == ids[len(prompt) :]
    assert len({len(row["input_ids"]) for row in data}) > 1
    assert any(together)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_padded_generation_of_an_encoder_decoder_is_the_unpadded_one(kind: str) -> None:
    model = tiny.model(kind).eval()
    data = list(
        tiny.pairs(kind, 6, partner=lambda row: False).select_columns(["input_ids", "attention_mask", "labels"])
    )
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": 5})
    assert predictor(data) == [predictor([row])[0] for row in data]


@pytest.mark.parametrize("stages", [False, True])
def test_answers_end_at_the_last_position_whatever_they_are_batched_with(stages: bool) -> None:
    model = tiny.model("gpt2").eval()  # of 32 positions
    model.generation_config.eos_token_id = None
    lengths = [5, 30, 32, 30, 28]
    features = [{"input_ids": [4 + row] * length, "labels": [-100] * length} for row, length in enumerate(lengths)]
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": 12})
    found = staged(predictor, features, 5) if stages else predictor(features)
    for feature, answer in zip(features, found, strict=True):
        ids = list(feature["input_ids"])
        while len(ids) < min(len(feature["input_ids"]) + 12, 33):  # greedy decoding written out
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert tiny.PAD not in ids
        assert answer == ids[len(feature["input_ids"]) :]


@pytest.mark.parametrize(("kind", "expected"), [("bart", 32), ("llama", 40), ("t5", 40)])
def test_only_a_table_of_positions_ends_answers(kind: str, expected: int) -> None:
    model = tiny.model(kind).eval()
    model.generation_config.eos_token_id = None
    assert decoder_positions(model) == (32 if kind == "bart" else None)
    model.generation_config.suppress_tokens = [tiny.PAD]
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": 40})
    feature = {"input_ids": [5, 6], "labels": [-100, -100]}
    assert len(predictor([feature])[0]) == expected
    assert len(predictor.advance([feature], [[]], 40)[0][0]) == expected


def test_rows_that_fill_all_positions_are_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The logger of transformers hands nothing up.
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
        trainer.evaluate_pairs(longer, lambda predictions, gold: np.zeros(2, dtype=bool), n_bootstrap=0)
    assert "1 of 2 views reach beyond the 32 positions of GPT2LMHeadModel, where their answers end" in caplog.text


class Echo:
    """A decoder-only model that writes 5, 6 and the end token, and remembers what it was given."""

    config = SimpleNamespace(is_encoder_decoder=False)
    generation_config = SimpleNamespace(eos_token_id=[1, 7])

    def generate(self, **inputs: Any) -> torch.Tensor:
        self.given = inputs
        return torch.cat([inputs["input_ids"], torch.tensor([[5, 6, 7]] * len(inputs["input_ids"]))], dim=1)


def staged(predictor: ViewPredictor, features: list[Any], batch_size: int) -> list[list[int]]:
    """Answers of a predictor in stages; every batch of a stage must have begun alike."""

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        assert len({len(answer) for answer in begun}) == 1
        return predictor.advance([features[item] for item in items], begun, until)

    lengths = np.array([[item % 3 + 1, len(feature["input_ids"])] for item, feature in enumerate(features)])
    limit = predictor.generation["max_new_tokens"]
    return predict_in_stages(lengths, advance, limit, Accelerator(cpu=True), batch_size, show_progress=False)


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
@pytest.mark.parametrize(("limit", "stride"), [(1, 1), (2, 4), (3, 2), (9, 4), (16, 1), (16, 4), (16, STRIDE)])
def test_answers_in_stages_are_those_in_one_piece(
    kind: str, limit: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dair_hf.evaluation.prediction.MARGIN", 1)
    monkeypatch.setattr("dair_hf.evaluation.generation.STRIDE", stride)
    model = tiny.model(kind).eval()
    if kind == "bart":
        model.generation_config.forced_eos_token_id = 5  # the last token at the limit, and at no break before it
    rows = tiny.pairs(kind, 24, target_lengths=(1, 3), seed=4)
    features = [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows]
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    predictor = ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, {"max_new_tokens": limit}, 3)
    assert predictor.takes_stages
    assert predictor.encodes_apart(features[:1]) == (kind in ("t5", "bart"))
    whole = [predictor([feature])[0] for feature in features]
    assert staged(predictor, features, 5) == whole
    assert len({len(answer) for answer in whole}) > 1 or limit == 1 or kind == "bart"  # which never ends by itself
    if limit > 2:
        assert max(map(len, whole)) > 2  # taken up at least once
    if kind == "bart":
        assert {answer[-1] for answer in whole if len(answer) == limit} <= {5}


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
@pytest.mark.parametrize(
    "configured",
    [
        {"eos_token_id": [tiny.EOS, 9, 12, 17, 20]},  # answers of all lengths, from every model
        {"forced_bos_token_id": 6, "forced_eos_token_id": tiny.EOS},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [7, 8, 9, 10, 18]},
        {"bad_words_ids": [[7], [8, 9]]},
    ],
)
def test_what_the_model_is_configured_to_write_it_writes_in_stages(
    kind: str, configured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dair_hf.evaluation.prediction.MARGIN", 3)
    monkeypatch.setattr("dair_hf.evaluation.generation.STRIDE", 2)
    model = tiny.model(kind).eval()
    rows = tiny.pairs(kind, 24, target_lengths=(1, 3), seed=4)
    features = [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows]
    plain = [predictor_for(model, 12)([feature])[0] for feature in features]
    for name, value in configured.items():
        setattr(model.generation_config, name, value)
    predictor = predictor_for(model, 12)
    whole = [predictor([feature])[0] for feature in features]
    assert predictor.takes_stages
    assert staged(predictor, features, 7) == whole
    if {"repetition_penalty", "no_repeat_ngram_size", "suppress_tokens"} & set(configured):
        assert whole != plain
    if "eos_token_id" in configured:
        assert len({len(answer) for answer in whole}) > 1


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A T5 that writes answers of many lengths, and rows for it; ended answers leave every two tokens."""
    monkeypatch.setattr("dair_hf.evaluation.generation.STRIDE", 2)
    model = tiny.model("t5").eval()
    rows = tiny.pairs("t5", 24, target_lengths=(1, 3), seed=4)
    return model, [{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows]


def predictor_for(model: Any, limit: int = 16, encoder_rows: int | None = 3) -> ViewPredictor:
    settings = {"max_new_tokens": limit}
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    return ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, settings, encoder_rows)


def counted_calls(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the limit of every call of `generate` from now on."""
    calls: list[int] = []
    generate = model.generate

    def counted(**inputs: Any) -> Any:
        calls.append(inputs["max_new_tokens"])
        return generate(**inputs)

    monkeypatch.setattr(model, "generate", counted)
    return calls


def test_ended_answers_leave_their_batch(fitted: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of every step of the decoder: of those that go on, after each stride, and nothing computed twice."""
    model, features = fitted
    predictor = predictor_for(model)
    lengths = [len(predictor([feature])[0]) for feature in features]
    seen: list[tuple[int, int]] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    found = predictor.advance(features, [[]] * len(features), 12)
    assert [len(answer) for answer, _ in found] == [min(length, 12) for length in lengths]
    assert [ended for _, ended in found] == [length < 12 for length in lengths]
    expected: list[tuple[int, int]] = []
    for step in range(12):
        # Whoever has ended by the last multiple of the stride is gone; a stride ends early when nobody is left.
        going = sum(length >= step - step % 2 for length in lengths)
        if going and any(length >= step for length in lengths):
            expected.append((going, 1))
    assert seen == expected
    assert len({rows for rows, _ in seen}) > 1


@pytest.mark.parametrize("change", ["no cache", "other layers"])
def test_a_memory_that_cannot_be_cut_is_filled_again(
    fitted: tuple[Any, list[Any]], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = fitted
    expected = predictor_for(model).advance(features, [[]] * len(features), 12)
    if change == "no cache":
        model.generation_config.use_cache = False
    else:
        monkeypatch.setattr("dair_hf.evaluation.generation.DynamicLayer", SimpleNamespace)
    calls = counted_calls(model, monkeypatch)
    assert predictor_for(model).advance(features, [[]] * len(features), 12) == expected
    assert calls == [16, 14]  # the first stride, and then all the rest


def test_inputs_are_encoded_a_few_at_a_time_without_padding_of_longer_ones(fitted: tuple[Any, list[Any]]) -> None:
    model, features = fitted
    seen: list[tuple[int, int]] = []
    model.get_encoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    predictor_for(model, encoder_rows=5).advance(features, [[]] * len(features), 4)
    lengths = sorted((len(feature["input_ids"]) for feature in features), reverse=True)
    assert seen == [(len(lengths[start : start + 5]), lengths[start]) for start in range(0, 24, 5)]
    assert len({length for _, length in seen}) > 1


def test_a_generate_of_its_own_that_returns_tokens_and_never_stops_is_read_alike(
    fitted: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = fitted
    expected = predictor_for(model).advance(features, [[]] * len(features), 5)
    generate = model.generate

    def tokens(stopping_criteria: Any = None, return_dict_in_generate: bool = True, **inputs: Any) -> torch.Tensor:
        return generate(**inputs)

    monkeypatch.setattr(model, "generate", tokens)
    assert predictor_for(model).advance(features, [[]] * len(features), 5) == expected


def test_sharded_weights_are_run_in_one_call(fitted: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks whose answers end earlier must not call the model less often than the others."""
    model, features = fitted
    monkeypatch.setattr("dair_hf.evaluation.generation.is_fsdp_managed_module", lambda model: True)
    predictor = predictor_for(model)
    assert not predictor.encodes_apart(features)
    calls = counted_calls(model, monkeypatch)
    predictor.advance(features, [[]] * len(features), 12)
    assert calls == [16]


def test_other_inputs_than_tokens_are_encoded_by_the_model_and_once(
    fitted: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = fitted
    expected = predictor_for(model).advance(features, [[]] * len(features), 12)
    monkeypatch.setattr("dair_hf.evaluation.generation.ENCODER_INPUTS", {"input_ids"})
    calls = counted_calls(model, monkeypatch)
    assert predictor_for(model).advance(features, [[]] * len(features), 12) == expected
    assert calls == [16]


def test_answers_of_an_adapted_model_are_written_alike(
    fitted: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = fitted
    adapter = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=4, target_modules=["q", "v"], init_lora_weights=False)
    adapted = get_peft_model(model, adapter).eval()
    predictor = predictor_for(adapted)
    assert predictor.encodes_apart(features[:1])
    assert staged(predictor, features, 5) == [predictor([feature])[0] for feature in features]
    prompt = PromptTuningConfig(task_type=TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=2)
    assert not predictor_for(get_peft_model(tiny.model("t5"), prompt)).takes_stages


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 9},
        {"max_new_tokens": 9, "num_beams": 2},
        {"max_new_tokens": 9, "do_sample": True},
        {"max_new_tokens": 9, "min_new_tokens": 2},
        {"max_new_tokens": 9, "cache_implementation": "static"},
    ],
)
def test_whatever_is_not_greedy_goes_in_one_piece(settings: dict[str, Any]) -> None:
    collator = DataCollatorForSeq2Seq(tiny.tokenizer(), model=None)
    model = tiny.model("t5")
    assert not ViewPredictor(model, collator, Accelerator(cpu=True), True, tiny.PAD, settings).takes_stages
    for name, value, greedy in (
        ("num_beams", 3, 1),
        ("do_sample", True, False),
        ("encoder_no_repeat_ngram_size", 2, 0),
    ):
        model = tiny.model("t5")
        assert predictor_for(model).takes_stages
        setattr(model.generation_config, name, value)
        predictor = predictor_for(model)
        assert not predictor.takes_stages
        predictor.generation[name] = None  # says nothing
        assert not predictor.takes_stages
        predictor.generation[name] = greedy  # the call stands above the configuration
        assert predictor.takes_stages
    model = tiny.model("t5")
    model.generation_config.cache_implementation = "static"
    assert not predictor_for(model).takes_stages


def test_a_collator_says_what_else_a_model_is_given_to_generate() -> None:
    class Pictures:
        def __call__(self, views: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            raise AssertionError("a batch to train on has the targets in it")

        def prompts(self, views: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            seen.append([view["question"] for view in views])
            return {"input_ids": torch.tensor([[0, 3], [4, 3]]), "pixel_values": torch.ones(2, 3, 4, 4)}

    seen: list[list[str]] = []
    model = Echo()
    predictor = ViewPredictor(model, Pictures(), Accelerator(cpu=True), True, 0, {"max_new_tokens": 3})
    assert predictor([{"question": "a"}, {"question": "b"}]) == [[5, 6], [5, 6]]
    assert seen == [["a", "b"]]
    assert set(model.given) == {"input_ids", "pixel_values", "max_new_tokens"}


def test_without_generation_the_logits_are_the_prediction() -> None:
    torch.manual_seed(0)
    model = tiny.NormedClassifier(tiny.NormedConfig()).eval()
    features = [{"features": [1.0, 2.0, 3.0], "labels": 0}, {"features": [0.0, 0.0, 1.0], "labels": 1}]
    seen: list[set[str]] = []

    def stack(rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        seen.append(set(rows[0]))
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    found = ViewPredictor(model, stack, Accelerator(cpu=True), generates=False)(features)
    expected = model(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]])).logits.detach().numpy()
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-6)
    assert seen == [{"features", "labels"}]


def test_generation_without_a_padding_token_is_refused() -> None:
    message = (
        "neither the processing class nor the model's generation config has a pad_token_id; pass processing_class="
    )
    with pytest.raises(DataError, match=message):
        ViewPredictor(tiny.model("gpt2"), dict, Accelerator(cpu=True), generates=True)
