"""Batches of collators by hand and compared with the processor, and losses with the generation of the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from PIL import Image
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from dair_hf.losses.per_sample import causal_nll, seq2seq_nll
from dair_hf.vqa.inputs.processors import (
    ClassifierCollator,
    GeneratorCollator,
    VQACollator,
    _append_targets,
    _most_frequent,
    encode_questions,
)
from dair_hf.vqa.models.pretrained import take_padded_patches
from dair_hf.word_tokenizer import build_word_tokenizer
from tests.fixtures import vision_language as vl

# transformers' processor of PaliGemma makes a numpy array of a tensor in a way that numpy 2 advises against.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

END, PAD = vl.END, vl.PAD


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return vl.write_images(tmp_path_factory.mktemp("images"), 4)


def generator(name: str) -> tuple[Any, Any, GeneratorCollator]:
    model, processor = vl.made({**vl.DECODERS, **vl.ENCODER_DECODERS}[name])
    take_padded_patches(model)
    collator = GeneratorCollator.for_model(model, processor, prompt=vl.PROMPTS.get(name, "{question}"))
    return model, processor, collator


def test_classifier_batch(images: list[str]) -> None:
    model, processor = vl.made(vl.vilt)
    batch = ClassifierCollator.for_model(model, processor)(
        [
            {"image": images[0], "question": "how many ?", "answer_ids": [2], "answer_scores": [0.75]},
            {"image": images[1], "question": "red ?", "answer_ids": [0, 3], "answer_scores": [0.5, 0.25]},
        ]
    )
    opened = [Image.open(path).convert("RGB") for path in images[:2]]
    expected = processor(images=opened, text=["how many ?", "red ?"], padding=True, return_tensors="pt")
    assert (
        set(batch) == {*expected, "labels"} == {"input_ids", "attention_mask", "pixel_values", "pixel_mask", "labels"}
    )
    assert all(torch.equal(batch[name], values) for name, values in expected.items())
    assert batch["labels"].tolist() == [[0, 0, 0.75, 0], [0.5, 0, 0, 0.25]]
    assert batch["labels"].dtype == torch.float32
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["pixel_mask"].any()
    assert not torch.equal(batch["pixel_values"][0], batch["pixel_values"][1])


def test_long_questions_are_truncated(images: list[str]) -> None:
    model, processor = vl.made(vl.vilt)
    question = "how many circles are there what colour is the square ?"
    view = {"image": images[0], "question": question}
    ids = processor.tokenizer(question)["input_ids"]
    assert ClassifierCollator.for_model(model, processor)([view])["input_ids"].tolist() == [ids[:8]]
    assert ClassifierCollator(processor, 4, max_question_tokens=3)([view])["input_ids"].tolist() == [ids[:3]]
    assert ClassifierCollator(processor, 4)([view])["input_ids"].tolist() == [ids]
    processor.tokenizer.model_max_length = 5
    assert ClassifierCollator(processor, 4)([view])["input_ids"].tolist() == [ids[:5]]


def test_generator_batch_in_words(images: list[str]) -> None:
    _, processor, collator = generator("llava")
    batch = collator(
        [
            {"image": images[0], "question": "how many ?", "answers": ["two", "three", "two"]},
            {"image": images[1], "question": "what colour is the square ?", "answers": ["red"] * 10},
        ]
    )
    image_tokens = "<image> " * 4
    whole = [
        f"user : {image_tokens}how many ? assistant : two </s>" + " <pad>" * 3,
        f"user : {image_tokens}what colour is the square ? assistant : red </s>",
    ]
    assert processor.tokenizer.batch_decode(batch["input_ids"]) == whole
    targets = [processor.tokenizer.convert_ids_to_tokens(row[row != -100]) for row in batch["labels"]]
    assert targets == [["two", "</s>"], ["red", "</s>"]]
    assert torch.equal(batch["labels"][batch["labels"] != -100], batch["input_ids"][batch["labels"] != -100])
    assert batch["attention_mask"].sum(1).tolist() == [13, 16]


def test_templates_of_prompt_and_target(images: list[str]) -> None:
    _, processor, _ = generator("llava")
    view = {"image": images[0], "question": "{answer} ?", "answers": ["red {question}"]}
    collator = GeneratorCollator(processor, prompt="colour : {question}", target=": {answer} ?")
    words = processor.tokenizer.convert_ids_to_tokens(collator([view])["input_ids"][0])
    # Slots in questions and answers are not replaced; unknown words are one token each.
    turn = ["user", ":", *["<image>"] * 4, "colour", ":"]
    assert words[: len(turn)] == turn
    assert words[-len(": red { question } ? </s>".split()) :] == [":", "red", *["<unk>"] * 3, "?", "</s>"]
    processor.chat_template = None
    bare = GeneratorCollator(processor, prompt="<image> {question}")
    found = bare([view | {"question": "how many ?", "answers": ["two"]}])["input_ids"][0]
    assert processor.tokenizer.convert_ids_to_tokens(found) == [*["<image>"] * 4, "how", "many", "?", "two", "</s>"]


def test_bos_token_of_the_template_is_not_repeated(images: list[str]) -> None:
    _, processor, _ = generator("llava")
    processor.tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", None, [("<s>", vl.BOS)])
    view = {"image": images[0], "question": "how many ?", "answers": ["two"]}
    once = GeneratorCollator(processor)([view])["input_ids"][0]
    assert (once == vl.BOS).sum() == 1
    processor.chat_template = "<s>" + processor.chat_template
    assert torch.equal(GeneratorCollator(processor)([view])["input_ids"][0], once)


def test_rows_without_answer(images: list[str]) -> None:
    _, _, collator = generator("llava")
    view = {"image": images[0], "question": "how many ?"}
    with_one = collator([view | {"answers": []}, view | {"answers": ["two"]}])
    assert (with_one["labels"] != -100).sum(1).tolist() == [0, 2]
    assert "labels" not in collator([view])
    _, _, apart = generator("florence2")
    both = apart([view | {"answers": []}, view | {"answers": ["two"]}])
    assert both["labels"].tolist()[0] == [-100, -100]
    # A row that starts the decoder and has no target.
    assert both["decoder_input_ids"].tolist()[0] == [END, PAD]
    assert apart([view | {"answers": []}])["labels"].tolist() == [[-100]]


def generated(model: Any, inputs: dict[str, Any], words: range, length: int) -> tuple[list[int], list[float]]:
    """Generate ordinary words, and return their ids and -log p, both from `generate`."""
    size = model.get_output_embeddings().weight.shape[0]
    with torch.no_grad():
        found = model.generate(
            **inputs,
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            suppress_tokens=[token for token in range(size) if token not in words],
            output_logits=True,
            return_dict_in_generate=True,
        )
    ids = found.sequences[0, -length:].tolist()
    costs = []
    for token, logits in zip(ids, found.logits, strict=True):
        scores = logits[0].double().numpy()
        costs.append(float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[token]))
    return ids, costs


def losses_without_end(model: Any, batch: dict[str, torch.Tensor], decoder_only: bool) -> np.ndarray:
    """Return the loss of every row without its end token, which `generated` suppresses."""
    labels = batch.pop("labels")
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    labels = labels.masked_fill(labels == END, -100)
    with torch.no_grad():
        return (causal_nll if decoder_only else seq2seq_nll)(model(**batch), labels).numpy()


@pytest.mark.parametrize("name", [*vl.DECODERS, *vl.ENCODER_DECODERS])
def test_loss_of_a_padded_batch_equals_generation_row_by_row(name: str, images: list[str]) -> None:
    """Attention, positions and token types of a training batch equal those of generation."""
    model, processor, collator = generator(name)
    first = processor.tokenizer.convert_tokens_to_ids(vl.WORDS[0])
    words = range(first, first + len(vl.WORDS))
    views, costs, decoder_only = [], [], not model.config.is_encoder_decoder
    for row, (question, length) in enumerate([("how many circles are there ?", 3), ("red ?", 1), ("the square ?", 2)]):
        view = {"image": images[row], "question": question}
        inputs = collator.prompts([view]) if decoder_only else collator([view])
        ids, found = generated(model, inputs, words, length)
        views.append(view | {"answers": [processor.tokenizer.decode(ids)]})
        costs.append(found)
    losses = losses_without_end(model, collator(views), decoder_only)
    np.testing.assert_allclose(losses, [sum(found) for found in costs], rtol=1e-5, atol=1e-5)
    # Another image changes the loss.
    moved = losses_without_end(model, collator([view | {"image": images[3]} for view in views]), decoder_only)
    assert np.abs(moved - losses).max() > 1e-3


def test_most_frequent_answer() -> None:
    assert _most_frequent(["red", "blue", "blue"]) == "blue"
    assert _most_frequent(["red", "blue", "blue", "red"]) == "red"
    assert _most_frequent(["one"]) == "one"
    # "two" and "2" are one answer, and so are "a cat" and "cat"; the most frequent spelling wins.
    assert _most_frequent(["cat", "2", "two", "two", "cat"]) == "two"
    assert _most_frequent(["2", "dog", "A cat", "cat", "dog", "cat"]) == "cat"


PROMPTS = {
    "input_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
}


def test_other_token_columns_repeat_their_last_value() -> None:
    prompts = PROMPTS | {
        "mm_token_type_ids": torch.tensor([[1, 1, 0], [0, 0, 0]]),
        "cross_attention_mask": torch.tensor([[[1, 0], [1, 0], [1, 1]], [[0, 1], [0, 0], [0, 0]]]),
    }
    batch = _append_targets(prompts, [[9], [4, 3]], pad_token_id=0)
    assert batch["mm_token_type_ids"].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert batch["cross_attention_mask"].tolist() == [
        [[1, 0], [1, 0], [1, 1], [1, 1]],
        [[0, 1], [0, 1], [0, 1], [0, 0]],
    ]


class Numbers:
    """Image inputs that are numbers."""

    def __init__(self, model_input: str = "pixel_values") -> None:
        self.model_input = model_input

    def __call__(self, images: Sequence[Any]) -> Tensor:
        return torch.tensor(images, dtype=torch.float32).view(-1, 1, 1, 1)


def row(words: list[int], image: int, ids: list[int], scores: list[float], **more: Any) -> dict[str, Any]:
    return {"input_ids": words, "image": image, "answer_ids": ids, "answer_scores": scores, **more}


def collator(**settings: Any) -> VQACollator:
    return VQACollator(Numbers(), **{"num_answers": 4, **settings})


def test_a_batch_entry_by_entry() -> None:
    rows = [row([5, 6, 7], 1, [3, 0], [0.5, 0.25], question="ignored", answers=["a"] * 10), row([8], 2, [], [])]
    batch = collator()(rows)
    assert list(batch) == ["input_ids", "attention_mask", "pixel_values", "labels"]
    assert torch.equal(batch["input_ids"], torch.tensor([[5, 6, 7], [8, 0, 0]]))
    assert torch.equal(batch["attention_mask"], torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert torch.equal(batch["pixel_values"], torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
    assert torch.equal(batch["labels"], torch.tensor([[0.25, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]]))
    assert [batch[name].dtype for name in batch] == [torch.int64, torch.int64, torch.float32, torch.float32]


def test_padding_id_and_questions_without_words() -> None:
    batch = collator(pad_token_id=9)([row([], 1, [0], [1.0]), row([5, 0], 1, [0], [1.0])])
    assert torch.equal(batch["input_ids"], torch.tensor([[9, 9], [5, 0]]))
    assert torch.equal(batch["attention_mask"], torch.tensor([[0, 0], [1, 1]]))
    alone = collator()([row([], 1, [0], [1.0])])
    assert torch.equal(alone["input_ids"], torch.tensor([[0]]))
    assert torch.equal(alone["attention_mask"], torch.tensor([[0]]))


QUESTIONS = ["What is this?", "What's the man's hat?", "Is the man in the hat?", "how many hats?"]


def test_rows_get_ids() -> None:
    tokenizer = build_word_tokenizer(QUESTIONS)
    before = Hasher.hash(tokenizer)
    rows = Dataset.from_dict({"row_id": ["a", "b", "c", "d"], "question": ["What is it?", "?", None, "The hat"]})
    encoded = encode_questions(rows, tokenizer)
    assert encoded["input_ids"][:] == [[7, 5, 1], [1], None, [2, 4]]
    assert encoded.features["input_ids"].feature.dtype == "int32"
    assert encoded.column_names == ["row_id", "question", "input_ids"]
    without = rows.select([2]).cast_column("question", rows.features["question"])
    assert encode_questions(without, tokenizer)["input_ids"][:] == [None]
    assert Hasher.hash(tokenizer) == before  # unchanged, so that `Dataset.map` finds its cached result
