"""Target tokens: affixes of targets, and labels that generation cannot produce."""

from __future__ import annotations

import logging
import threading
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
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutput

from dair_hf import DataError, PairEvaluator
from dair_hf.evaluation.generation_settings import end_tokens
from dair_hf.evaluation.target_tokens import (
    MAX_POSITIONS,
    Mismatch,
    TargetAffixes,
    added_tokens,
    check_targets,
    find_mismatches,
    forced_tokens,
    target_affixes,
)
from tests.dialog.test_overfit import END, LANGUAGE, PAD, START, build, tokenizer
from tests.fixtures import tiny

FAMILIES = ["bart", "mbart", "mbart50", "t5", "pegasus", "gpt2", "llama", "qwen2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_tokens_are_at_the_start_of_any_answer(family: str) -> None:
    model = build(family).eval()
    source = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]]), "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    written = model.generate(**source, max_new_tokens=4, num_beams=1, do_sample=False)
    answers = written[:, 1 if model.config.is_encoder_decoder else 3 :].tolist()
    forced = forced_tokens(model)
    assert forced == {"bart": (START,), "mbart50": (LANGUAGE,)}.get(family, ())
    assert all(tuple(answer[: len(forced)]) == forced for answer in answers)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("bart", ((START,), (END,))),
        ("mbart", ((START,), (END, LANGUAGE))),  # its first decoder input is its last label
        ("mbart50", ((LANGUAGE,), (END,))),
        ("t5", ((START,), (END,))),  # of this tokenizer; T5's own adds none
        ("gpt2", ((), (END,))),
        ("qwen2", ((), (END,))),
    ],
)
def test_affixes_by_hand(family: str, expected: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    model = build(family)
    affixes = target_affixes(model, tokenizer())
    assert affixes == TargetAffixes(*expected)
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
    assert target_affixes(build("t5"), translator) == TargetAffixes((LANGUAGE,), (END,))
    assert target_affixes(build("bart"), translator) == TargetAffixes((START,), (END,))  # forced


def test_targets_end_with_a_token_that_ends_generation() -> None:
    model, known = build("gpt2"), tokenizer()
    model.generation_config.eos_token_id = [7, 9]
    assert end_tokens(model.generation_config) == {7, 9}
    assert target_affixes(model, known).end == (END,)  # added by the Trainer to those of the model
    known.eos_token = None
    assert target_affixes(model, known).end == (7,)
    model.generation_config.eos_token_id = None
    with pytest.raises(DataError, match=r"has no end token, .* and the model has none; set tokenizer\.eos_token"):
        target_affixes(model, known)


def test_a_decoder_start_that_training_cannot_have_is_refused() -> None:
    model = build("bart")
    model.config.decoder_start_token_id = 9
    with pytest.raises(DataError, match=r"starts the decoder of Bart\w+ with token 9, generation with token 2; set"):
        target_affixes(model, tokenizer())
    model.generation_config.decoder_start_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(DataError, match=r"no token to start the decoder with; set model\.generation_config"):
        target_affixes(model, tokenizer())


@pytest.mark.parametrize(
    ("settings", "target", "expected"),
    [
        ({}, [9, 10, 9, END], None),
        ({"forced_bos_token_id": START}, [9, END], (0, 9, START)),
        ({"forced_bos_token_id": START}, [START, 9, END], None),
        ({"suppress_tokens": [10]}, [9, 10, END], (1, 10, 0)),
        ({"begin_suppress_tokens": [10]}, [9, 10, END], None),
        ({"begin_suppress_tokens": [9]}, [9, 10, END], (0, 9, 0)),
        ({"bad_words_ids": [[9, 10]]}, [9, 10, END], (1, 10, 0)),
        ({"no_repeat_ngram_size": 2}, [9, 10, 9, 10, END], (3, 10, 0)),
        ({"min_new_tokens": 3}, [9, END], (1, END, 0)),
        ({"min_new_tokens": 2}, [9, 10, END], None),
        ({"repetition_penalty": 5.0}, [9, 9, 9, END], None),  # a high score outweighs the penalty
        ({"num_beams": 4, "do_sample": True, "max_new_tokens": 1, "top_k": 3}, [9, 10, 9, END], None),
        ({}, [9, END, 10, 11], None),  # tokens after the end are ignored
        ({"eos_token_id": [11, END]}, [9, 11], None),
        ({}, [9, 10], None),  # truncated targets need no end
    ],
)
def test_targets_that_generation_cannot_produce(settings: dict[str, Any], target: list[int], expected: Any) -> None:
    model = build("bart")
    model.generation_config.forced_bos_token_id = None
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    found = find_mismatches(model, [[]], [target])
    assert found == ([] if expected is None else [Mismatch(0, *expected)])
    if "num_beams" not in settings and "eos_token_id" not in settings:  # arguments of the call count, too
        assert find_mismatches(build("t5"), [[]], [target], {**settings, "num_beams": 2, "max_length": 3}) == found
        whole = {"generation_config": GenerationConfig(**settings)}  # T5's own start and end tokens still count
        assert find_mismatches(build("t5"), [[]], [target], whole) == found


def test_start_and_end_tokens_are_those_of_the_call() -> None:
    model = build("t5")
    assert find_mismatches(model, [[]], [[9, 10, 11]], {"min_new_tokens": 3}) == []
    # A call that ends answers with token 10 ends them there, and cannot do so before three tokens.
    ends_with_10 = {"min_new_tokens": 3, "eos_token_id": 10}
    assert find_mismatches(model, [[]], [[9, 10, 11]], ends_with_10) == [Mismatch(0, 1, 10, 0)]
    started = {"generation_config": GenerationConfig(decoder_start_token_id=END)}
    assert find_mismatches(model, [[]], [[9, END]], started) == [Mismatch(0, -1, PAD, END)]


def test_prompts_of_decoder_only_models_count() -> None:
    model = build("llama")
    prompts, targets = [[5, 9, 10], [6]], [[9, 10, END], [9, 10, END]]
    assert find_mismatches(model, prompts, targets) == []
    assert find_mismatches(model, prompts, targets, {"no_repeat_ngram_size": 2}) == [Mismatch(0, 1, 10, 0)]
    # Tokens are forced at the first position of a sequence, which belongs to the prompt.
    assert find_mismatches(model, prompts[:1], targets[:1], {"forced_bos_token_id": 7}) == []
    assert find_mismatches(model, [], []) == []


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


def test_mismatches_at_critical_positions_equal_those_of_generation() -> None:
    draws = np.random.default_rng(0)
    refused = 0
    for _ in range(120):
        prompt = draws.integers(3, 16, size=draws.integers(1, 4)).tolist()
        target = [*draws.integers(3, 16, size=draws.integers(0, 12)).tolist(), END]
        two = (draws.permutation(13)[:4] + 3).reshape(2, 2).tolist()
        every: dict[str, Any] = {
            "suppress_tokens": two[0],
            "begin_suppress_tokens": two[1],
            "bad_words_ids": [two[0], two[1][:1]],
            "sequence_bias": [[two[1], -float("inf")], [two[0], 1e9]],
            "no_repeat_ngram_size": int(draws.integers(1, 4)),
            "min_length": int(draws.integers(1, 12)),
            "min_new_tokens": int(draws.integers(1, 12)),
            "forced_bos_token_id": two[1][0],
            "repetition_penalty": 3.0,
        }
        settings = {name: every[name] for name in draws.choice([*every], size=2, replace=False).tolist()}
        model, certain = build("gpt2"), Certain(prompt, target)
        model.config.vocab_size = 16
        certain.generation_config.update(eos_token_id=END, pad_token_id=0, max_new_tokens=len(target) + 16, **settings)
        model.generation_config.eos_token_id = END
        (written,) = certain.generate(torch.tensor([prompt]), use_cache=False).tolist()
        answer = written[len(prompt) :]
        place = next((place for place, token in enumerate(target) if answer[place] != token), None)
        expected = [] if place is None else [Mismatch(0, place, target[place], answer[place])]
        assert find_mismatches(model, [prompt], [target], settings) == expected, settings
        refused += place is not None
    assert 20 < refused < 100


def test_long_targets_of_a_large_vocabulary_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    apply = LogitsProcessorList.__call__

    def counted(self: Any, input_ids: Tensor, scores: Tensor, **settings: Any) -> Any:
        calls.append(input_ids.shape[1])
        return apply(self, input_ids, scores, **settings)

    monkeypatch.setattr(LogitsProcessorList, "__call__", counted)
    model = build("llama")
    model.config.vocab_size = 152_000
    target = [*range(1000, 3000), END]
    assert find_mismatches(model, [[5]] * 4, [target] * 4) == []
    assert calls == []  # settings of an ordinary language model forbid nothing
    rules = {"no_repeat_ngram_size": 3, "min_new_tokens": 2001, "suppress_tokens": [7], "repetition_penalty": 1.1}
    assert find_mismatches(model, [[5]] * 4, [target] * 4, rules) == [Mismatch(row, 2000, END, 0) for row in range(4)]
    assert calls[0] == 1
    assert calls[-1] == 2001
    assert len(calls) < 5
    calls.clear()
    many = {"bad_words_ids": [[token, 9] for token in range(1000, 3000)]}
    assert find_mismatches(model, [[5]], [target], many) == []
    assert len(calls) <= MAX_POSITIONS + 2


class OneByOne(LogitsProcessor):
    """Forbids token 10 from its third call on, and counts its calls."""

    def __init__(self, held: Any = None) -> None:
        self.asked = 0
        self.held = held

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.asked += 1
        if self.asked > 2:
            scores[:, 10] = -float("inf")
        return scores


def test_custom_functions_are_copied() -> None:
    model = build("llama")
    rule, target = OneByOne(), [10, 10, 10, END]
    given = {"logits_processor": LogitsProcessorList([rule])}
    for _ in range(2):
        assert find_mismatches(model, [[5]], [target], given) == [Mismatch(0, 2, 10, 0)]
    assert rule.asked == 0
    locked = OneByOne(threading.Lock())  # cannot be copied, so it is ignored
    assert find_mismatches(model, [[5]], [target], {"logits_processor": LogitsProcessorList([locked])}) == []
    assert locked.asked == 0
    allowed = {"prefix_allowed_tokens_fn": lambda batch_id, ids: [10] if len(ids) < 3 else [9, END]}
    assert find_mismatches(model, [[5]], [target], allowed) == [Mismatch(0, 2, 10, min(9, END))]


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
    with pytest.raises(
        DataError,
        match=r"cannot generate 3 of 3 checked rows: at position 0 it generates token 0 instead of the label 9, .*"
        r"tokenize targets with tokenizer\(text_target=\.\.\.\)",
    ):
        tiny.trainer(tmp_path, "", data, built=build("bart"), **settings).train()
    whole = rows(*[tokenizer()(text_target=text)["input_ids"] for text in ("inn1 | inn2", "inn2")])
    tiny.trainer(tmp_path, "", whole, built=build("bart"), **settings).train()
    with pytest.raises(DataError, match="starts the decoder of MBart.* with token 2, generation with token 3"):
        tiny.trainer(tmp_path, "", data, built=build("mbart"), **settings).train()


def test_other_labels_are_accepted_without_generated_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    data = rows([9, 10, END], [10, END], [9, END])
    settings = {"method": "erm", "sample_loss": "seq2seq", "max_steps": 1}
    loss_only = tiny.trainer(tmp_path, "", data, built=build("bart"), predict_with_generate=False, **settings)
    loss_only.train()
    said = [record.getMessage() for record in caplog.records if "dair_hf.evaluation.target_tokens" in record.name]
    assert len(said) == 1
    assert "cannot generate 3 of 3 checked rows: at position 0" in said[0]
    answering = tiny.trainer(tmp_path, "", data, built=build("bart"), **settings)
    is_correct = lambda predictions, gold: np.zeros(len(gold), dtype=bool)  # noqa: E731
    with pytest.raises(DataError, match=r"if no answers are to be generated, set predict_with_generate=False"):
        answering.evaluate_pairs(data, is_correct, intervals=False)
    # Answers that are not compared with the labels.
    other = data.add_column("gold", ["a", "b", "c"]).add_column("augmented_gold", ["a", "b", "c"])
    assert answering.evaluate_pairs(other, PairEvaluator(is_correct, references="gold"), intervals=False)["rows"] == 3
    assert len(answering.predict(data).predictions) == 3


def test_labels_that_generation_can_produce_in_part_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The logger of transformers does not propagate by default.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model, data = build("t5"), rows([9, 10, END], [10, END])
    trainer = tiny.trainer(tmp_path, "", data, built=model, method="erm", sample_loss="seq2seq", max_steps=1)
    model.generation_config.suppress_tokens = [10]

    def said() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "dair_hf" in record.name]
        caplog.clear()
        return found

    trainer.train()
    (message,) = said()
    assert "cannot generate 2 of 2 checked rows: at position 0 it generates token 0 instead of the label 10" in message
    is_correct = lambda predictions, gold: np.zeros(len(gold), dtype=bool)  # noqa: E731
    trainer.evaluate_pairs(data, is_correct, intervals=False)
    assert said() == [message.replace("2 of 2", "4 of 4")]  # views, not rows
    model.generation_config.suppress_tokens = None
    trainer.evaluate_pairs(data, is_correct, intervals=False)
    assert said() == []
    with pytest.raises(DataError, match="cannot generate 4 of 4 checked rows: at position 0 it generates token 7"):
        trainer.evaluate_pairs(data, is_correct, intervals=False, forced_bos_token_id=7)
    model.generation_config.max_new_tokens = 2
    trainer.evaluate_pairs(data, is_correct, intervals=False)
    (message,) = said()
    assert message.startswith(
        "answers end after max_new_tokens=2, but targets have up to 3 tokens; give evaluate_pairs"
    )
    trainer.evaluate_pairs(data, is_correct, intervals=False, max_new_tokens=3)
    assert said() == []


def test_models_that_do_not_generate_and_labels_without_tokens_are_not_checked() -> None:
    check_targets(SimpleNamespace(), {"labels": [[1]]}, refuse=True)
    check_targets(SimpleNamespace(generation_config=None), {"labels": [[1]]}, refuse=True)
    model = build("bart")
    for labels in ([[-100, -100]], [], [[99999]], [[-5]], [3], [[[3]]]):
        check_targets(model, {"labels": labels, "input_ids": [[5]] * len(labels)}, refuse=True)
    check_targets(model, [{"input_ids": [5]}], refuse=True)
    # A decoder-only model that is trained on whole sequences has no prompt.
    check_targets(build("gpt2"), [{"input_ids": [5, 6], "labels": [5, 6]}], {"suppress_tokens": [6]}, refuse=True)
