"""Target tokens: affixes of targets, and labels that generation cannot produce."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BatchEncoding,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutput

from dair_hf import DataError, PairEvaluator
from dair_hf.evaluation.generation_settings import end_tokens
from dair_hf.evaluation.target_tokens import _TargetAffixes, added_tokens, check_targets, target_affixes
from tests.dialog.test_overfit import END, LANGUAGE, START, build, tokenizer
from tests.fixtures import tiny


@pytest.mark.parametrize(("family", "forced"), [("bart", (START,)), ("mbart50", (LANGUAGE,)), ("t5", ())])
def test_targets_begin_as_every_answer_does(family: str, forced: tuple[int, ...]) -> None:
    model = build(family).eval()
    source = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]]), "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    written = model.generate(**source, max_new_tokens=4, num_beams=1, do_sample=False)
    assert all(tuple(answer[1 : 1 + len(forced)]) == forced for answer in written.tolist())
    assert not forced or target_affixes(model, tokenizer()).start == forced


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("bart", ((START,), (END,))),
        ("mbart", ((START,), (END, LANGUAGE))),  # its first decoder input is its last label
        ("mbart50", ((LANGUAGE,), (END,))),
        ("t5", ((START,), (END,))),  # of this tokenizer; T5's own adds none
        ("gpt2", ((), (END,))),
    ],
)
def test_affixes_by_hand(family: str, expected: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    model = build(family)
    affixes = target_affixes(model, tokenizer())
    assert affixes == _TargetAffixes(*expected)
    if model.config.is_encoder_decoder:
        first = model.prepare_decoder_input_ids_from_labels(torch.tensor([[*affixes.start, 9, *affixes.end]]))[0, 0]
        assert first == model.generation_config.decoder_start_token_id


class Translator(PreTrainedTokenizerFast):
    """Tokenizer that encodes targets differently from sources, as for translation."""

    def __call__(self, text: Any = None, text_target: Any = None, **settings: Any) -> BatchEncoding:
        if text_target is None:
            return super().__call__(text, **settings)
        found = super().__call__(text_target, add_special_tokens=False, **settings)
        marks = [1, *([0] * len(found["input_ids"])), 1]
        return BatchEncoding({"input_ids": [LANGUAGE, *found["input_ids"], END], "special_tokens_mask": marks})


def test_the_target_encoding_of_the_tokenizer_is_used_without_forced_tokens() -> None:
    known = tokenizer()
    translator = Translator(tokenizer_object=known.backend_tokenizer, eos_token="</s>", pad_token="<pad>")
    assert (added_tokens(translator), added_tokens(translator, text_target=True)) == (
        ((START,), (END,)),
        ((LANGUAGE,), (END,)),
    )
    assert target_affixes(build("t5"), translator) == _TargetAffixes((LANGUAGE,), (END,))
    assert target_affixes(build("bart"), translator) == _TargetAffixes((START,), (END,))  # forced


def test_targets_end_with_a_token_that_ends_generation() -> None:
    model, known = build("gpt2"), tokenizer()
    model.generation_config.eos_token_id = [7, 9]
    assert end_tokens(model.generation_config) == {7, 9}
    assert target_affixes(model, known).end == (END,)  # added by the Trainer to those of the model
    known.eos_token = None
    assert target_affixes(model, known).end == (7,)
    model.generation_config.eos_token_id = None
    with pytest.raises(DataError, match="eos_token"):
        target_affixes(model, known)


def test_a_decoder_start_that_training_cannot_have_is_refused() -> None:
    model = build("bart")
    model.config.decoder_start_token_id = 9
    with pytest.raises(DataError, match="token 9, generation with 2; set decoder_start_token_id"):
        target_affixes(model, tokenizer())
    model.generation_config.decoder_start_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(DataError, match="generation with None"):
        target_affixes(model, tokenizer())


def conflict(
    model: Any, prompt: list[int], target: list[int], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> int | None:
    """Return the position of the first token that generation will not produce."""
    caplog.clear()
    check_targets(model, [{"input_ids": [*prompt, *target], "labels": [-100] * len(prompt) + target}], settings)
    said = [record.getMessage() for record in caplog.records if "cannot generate" in record.getMessage()]
    if not said:
        return None
    place = re.search(r"at position (\d+)", said[0])
    return -1 if place is None else int(place[1])


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Log of transformers, which does not propagate by default."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return caplog


@pytest.mark.parametrize(
    ("settings", "target", "expected"),
    [
        ({}, [9, 10, 9, END], None),
        ({"forced_bos_token_id": START}, [9, END], 0),
        ({"begin_suppress_tokens": [9]}, [9, 10, END], 0),
        ({"min_length": 4}, [9, 10, END], 2),
        ({"repetition_penalty": 5.0}, [9, 9, 9, END], None),  # a high score outweighs the penalty
        ({"num_beams": 4, "do_sample": True, "max_new_tokens": 1, "top_k": 3}, [9, 10, 9, END], None),
        ({"suppress_tokens": [10]}, [9, END, 10, 11], None),  # tokens after the end are ignored
        ({"eos_token_id": [11, END]}, [9, 11], None),
        ({}, [9, 10], None),  # truncated targets need no end
    ],
)
def test_targets_that_generation_cannot_produce(
    settings: dict[str, Any], target: list[int], expected: int | None, said: pytest.LogCaptureFixture
) -> None:
    model = build("bart")
    model.generation_config.forced_bos_token_id = None
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    assert conflict(model, [], target, {}, said) == expected
    if "num_beams" not in settings and "eos_token_id" not in settings:  # arguments of the call count, too
        assert conflict(build("t5"), [], target, {**settings, "num_beams": 2, "max_length": 3}, said) == expected
        whole = {"generation_config": GenerationConfig(**settings)}  # T5's own start and end tokens still count
        assert conflict(build("t5"), [], target, whole, said) == expected


def test_start_and_end_tokens_are_those_of_the_call(said: pytest.LogCaptureFixture) -> None:
    model = build("t5")
    assert conflict(model, [], [9, 10, 11], {"min_new_tokens": 3}, said) is None
    # A call that ends answers with token 10 ends them there, and cannot do so before three tokens.
    assert conflict(model, [], [9, 10, 11], {"min_new_tokens": 3, "eos_token_id": 10}, said) == 1
    started = {"generation_config": GenerationConfig(decoder_start_token_id=END)}
    assert conflict(model, [], [9, END], started, said) == -1


class Certain(PreTrainedModel, GenerationMixin):
    """Model that is certain of a given target at each step."""

    config_class = PreTrainedConfig

    def __init__(self, prompt: list[int], target: list[int]) -> None:
        super().__init__(PreTrainedConfig(vocab_size=16))
        self.anchor = nn.Parameter(torch.zeros(()))
        self.ids = torch.tensor([*prompt, *target, *target[-1:] * 16])

    def prepare_inputs_for_generation(self, input_ids: Tensor, **settings: Any) -> dict[str, Tensor]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **settings: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=1e4 * nn.functional.one_hot(self.ids[input_ids.shape[1]], 16)[None, None].float())


def test_conflicts_are_those_of_generation(said: pytest.LogCaptureFixture) -> None:
    draws = np.random.default_rng(0)
    refused = 0
    model = build("gpt2")
    model.generation_config.eos_token_id = END
    for _ in range(40):
        prompt = draws.integers(3, 16, size=draws.integers(1, 4)).tolist()
        target = [*draws.integers(3, 16, size=draws.integers(0, 12)).tolist(), END]
        two = (draws.permutation(13)[:4] + 3).reshape(2, 2).tolist()
        every: dict[str, Any] = {
            "suppress_tokens": two[0],
            "begin_suppress_tokens": two[1],
            "no_repeat_ngram_size": int(draws.integers(1, 4)),
            "min_length": int(draws.integers(1, 12)),
            "min_new_tokens": int(draws.integers(1, 12)),
            "forced_bos_token_id": two[1][0],
            "repetition_penalty": 3.0,
        }
        settings = {name: every[name] for name in draws.choice([*every], size=2, replace=False).tolist()}
        certain = Certain(prompt, target)
        certain.generation_config.update(eos_token_id=END, pad_token_id=0, max_new_tokens=len(target) + 16, **settings)
        (written,) = certain.generate(torch.tensor([prompt]), use_cache=False).tolist()
        answer = written[len(prompt) :]
        place = next((place for place, token in enumerate(target) if answer[place] != token), None)
        assert conflict(model, prompt, target, settings, said) == place, settings
        refused += place is not None
    assert 8 < refused < 32


def rows(*targets: list[int]) -> datasets.Dataset:
    columns = {
        "input_ids": [[5, 6, 7]] * len(targets),
        "attention_mask": [[1, 1, 1]] * len(targets),
        "labels": list(targets),
    }
    return datasets.Dataset.from_dict(columns | {f"augmented_{name}": values for name, values in columns.items()})


def test_labels_with_another_start_than_generation_are_refused(tmp_path: Path) -> None:
    data = rows([9, 10, END], [10, END], [9, END])
    settings = {"method": "erm", "sample_loss": "seq2seq", "max_steps": 1}
    with pytest.raises(DataError, match=r"cannot generate 3 of 3 checked rows: .*forced_bos_token_id is 0"):
        tiny.trainer(tmp_path, "", data, built=build("bart"), **settings).train()
    whole = rows(*[tokenizer()(text_target=text)["input_ids"] for text in ("inn1 | inn2", "inn2")])
    tiny.trainer(tmp_path, "", whole, built=build("bart"), **settings).train()
    with pytest.raises(DataError, match="starts the decoder of MBart.* with token 2, generation with 3"):
        tiny.trainer(tmp_path, "", data, built=build("mbart"), **settings).train()


def none_right(predictions: list[Any], references: list[Any]) -> Any:
    return np.zeros(len(references), dtype=bool)


def test_other_labels_are_accepted_without_generated_answers(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    data = rows([9, 10, END], [10, END], [9, END])
    settings = {"method": "erm", "sample_loss": "seq2seq", "max_steps": 1}
    tiny.trainer(tmp_path, "", data, built=build("bart"), predict_with_generate=False, **settings).train()
    warned = [record.getMessage() for record in said.records if "cannot generate 3 of 3" in record.getMessage()]
    assert len(warned) == 1
    answering = tiny.trainer(tmp_path, "", data, built=build("bart"), **settings)
    with pytest.raises(DataError, match="predict_with_generate=False"):
        answering.evaluate_pairs(data, none_right, intervals=False)
    # Answers that are not compared with the labels.
    other = data.add_column("gold", ["a", "b", "c"]).add_column("augmented_gold", ["a", "b", "c"])
    assert answering.evaluate_pairs(other, PairEvaluator(none_right, references="gold"), intervals=False)["rows"] == 3
    assert len(answering.predict(data).predictions) == 3


def test_labels_that_generation_can_produce_in_part_are_warned_of(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    model, data = build("t5"), rows([9, 10, END], [10, END])
    trainer = tiny.trainer(tmp_path, "", data, built=model, method="erm", sample_loss="seq2seq", max_steps=1)
    model.generation_config.suppress_tokens = [10]

    def warned() -> list[str]:
        found = [record.getMessage() for record in said.records if "dair_hf" in record.name]
        said.clear()
        return found

    trainer.train()
    assert ["cannot generate 2 of 2" in message for message in warned()] == [True]
    trainer.evaluate_pairs(data, none_right, intervals=False)
    assert ["cannot generate 4 of 4" in message for message in warned()] == [True]  # views, not rows
    model.generation_config.suppress_tokens = None
    trainer.evaluate_pairs(data, none_right, intervals=False)
    assert warned() == []
    with pytest.raises(DataError, match="cannot generate 4 of 4"):
        trainer.evaluate_pairs(data, none_right, intervals=False, forced_bos_token_id=7)
    model.generation_config.max_new_tokens = 2
    trainer.evaluate_pairs(data, none_right, intervals=False)
    assert ["max_new_tokens=2" in message for message in warned()] == [True]
    trainer.evaluate_pairs(data, none_right, intervals=False, max_new_tokens=3)
    assert warned() == []


def test_models_that_do_not_generate_and_labels_without_tokens_are_not_checked() -> None:
    check_targets(SimpleNamespace(), {"labels": [[1]]}, refuse=True)
    check_targets(SimpleNamespace(generation_config=None), {"labels": [[1]]}, refuse=True)
    model = build("bart")
    for labels in ([[-100, -100]], [], [3], [[[3]]]):
        check_targets(model, {"labels": labels, "input_ids": [[5]] * len(labels)}, refuse=True)
    check_targets(model, [{"input_ids": [5]}], refuse=True)
    # A decoder-only model that is trained on whole sequences has no prompt.
    check_targets(build("gpt2"), [{"input_ids": [5, 6], "labels": [5, 6]}], {"suppress_tokens": [6]}, refuse=True)
