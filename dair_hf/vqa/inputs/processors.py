"""Batches of questions and images, for SAAA and for pretrained models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.metrics.vqa.answers import normalize_answer
from dair_hf.vqa.answers import ANSWER_IDS, ANSWER_SCORES, ANSWERS
from dair_hf.vqa.models.pretrained import one_row_per_image
from dair_hf.vqa.readers.images import load_image

IMAGE = "image"
QUESTION = "question"
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
View = Mapping[str, Any]
QUESTION_SLOT, ANSWER_SLOT = "{question}", "{answer}"
TOKEN_TYPES = "token_type_ids"


def encode_questions(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Add the word ids of every question: `input_ids`, a list of int32.

    Args:
        rows: Rows or edits with the column `question`.
        tokenizer: Tokenizer from `build_word_tokenizer`.

    Returns:
        The rows with `input_ids`, truncated to `tokenizer.model_max_length`; None if the question is None. A question
        without words ("???") becomes one unknown word, since a recurrent network needs at least one.

    Example:
        >>> from dair_hf.word_tokenizer import build_word_tokenizer
        >>> tokenizer = build_word_tokenizer(["what is it"], min_count=1)
        >>> encode_questions(Dataset.from_dict({"question": ["Is it?", "?"]}), tokenizer)["input_ids"][:]
        [[2, 3], [1]]
    """
    features = Features({**rows.features, INPUT_IDS: List(Value("int32"))})
    return rows.map(
        _encode_batch, batched=True, fn_kwargs={"tokenizer": tokenizer}, features=features, desc="Encoding questions"
    )


def _encode_batch(batch: Mapping[str, Sequence[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    questions = batch[QUESTION]
    texts = [question for question in questions if question is not None]
    # Truncated here: `truncation=True` would change the state of the tokenizer and so the fingerprint of `Dataset.map`.
    ids = iter(tokenizer(texts, return_attention_mask=False)[INPUT_IDS] if texts else [])
    limit, unknown = tokenizer.model_max_length, [tokenizer.unk_token_id]
    return {INPUT_IDS: [None if question is None else next(ids)[:limit] or unknown for question in questions]}


class VQACollator:
    """Collates single views of encoded VQA rows; `PairCollator` wraps it for pairs.

    It reads only the columns in its attribute `columns`. If all answers of a row are outside the vocabulary, its labels
    are zeros, which the soft-score loss ignores. Rows without the column `answer_ids` (test questions) give a batch
    without labels.

    Args:
        images: `Pixels`, a `FeatureCache`, or your own function from N entries of the image column to `[N, ...]`, with
            the name of the model input as `model_input`.
        num_answers: Size of the answer vocabulary.
        pad_token_id: Padding id of the questions.

    Example:
        >>> from dair_hf.vqa.inputs.features import Pixels
        >>> black = lambda path: np.zeros((8, 8, 3), dtype=np.uint8)
        >>> collator = VQACollator(Pixels(black, size=4), num_answers=4)
        >>> batch = collator([
        ...     {"input_ids": [5, 6], "image": "a.png", "answer_ids": [2], "answer_scores": [1.0]},
        ...     {"input_ids": [7], "image": "b.png", "answer_ids": [0, 3], "answer_scores": [0.25, 0.5]},
        ... ])
        >>> batch["input_ids"]
        tensor([[5, 6],
                [7, 0]])
        >>> batch["attention_mask"]
        tensor([[1, 1],
                [1, 0]])
        >>> batch["labels"]
        tensor([[0.0000, 0.0000, 1.0000, 0.0000],
                [0.2500, 0.0000, 0.0000, 0.5000]])
        >>> batch["pixel_values"].shape
        torch.Size([2, 3, 4, 4])
    """

    columns = (INPUT_IDS, IMAGE, ANSWER_IDS, ANSWER_SCORES)

    def __init__(self, images: Any, num_answers: int, pad_token_id: int = 0) -> None:
        self.images = images
        self.num_answers = num_answers
        self.pad_token_id = pad_token_id

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views."""
        questions = [view[INPUT_IDS] for view in views]
        lengths = np.array([len(question) for question in questions])
        mask = np.arange(max(1, lengths.max())) < lengths[:, None]
        input_ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        input_ids[mask] = np.concatenate(questions)
        return {
            INPUT_IDS: torch.from_numpy(input_ids),
            ATTENTION_MASK: torch.from_numpy(mask.astype(np.int64)),
            self.images.model_input: self.images([view[IMAGE] for view in views]),
            **_soft_targets(views, self.num_answers),
        }


def _soft_targets(views: Sequence[View], num_answers: int) -> dict[str, Tensor]:
    """Return the labels of the sample loss `soft_score`, the scores of all answers; none if no view has answers."""
    if not any(ANSWER_IDS in view for view in views):
        return {}
    answers = [view[ANSWER_IDS] for view in views]
    classes = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in answers])
    rows = np.repeat(np.arange(len(answers)), [len(ids) for ids in answers])
    labels = np.zeros((len(answers), num_answers), dtype=np.float32)
    labels[rows, classes] = np.concatenate([view[ANSWER_SCORES] for view in views])
    return {LABELS: torch.from_numpy(labels)}


class ClassifierCollator:
    """Collates views for a model such as ViLT, which has a processor and chooses among fixed answers.

    The processor encodes the question; `input_ids` of the rows are ignored. Labels are the soft targets of the sample
    loss `soft_score`. Rows without the column `answer_ids` (test questions) give a batch without labels.

    Args:
        processor: Processor of the model, with an image processor and a tokenizer.
        num_answers: Size of the answer vocabulary.
        max_question_tokens: Questions are truncated to this many tokens. None: the limit of the tokenizer, if any.
    """

    columns = (IMAGE, QUESTION, ANSWER_IDS, ANSWER_SCORES)

    def __init__(self, processor: Any, num_answers: int, max_question_tokens: int | None = None) -> None:
        self.processor = processor
        self.num_answers = num_answers
        self.max_question_tokens = max_question_tokens

    @classmethod
    def for_model(cls, model: Any, processor: Any) -> ClassifierCollator:
        """Return the collator of a model, whose configuration gives `num_answers` and `max_question_tokens`."""
        return cls(processor, model.config.num_labels, getattr(model.config, "max_position_embeddings", None))

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views."""
        batch = self.processor(
            images=[_open(view) for view in views],
            text=[view[QUESTION] for view in views],
            padding=True,
            return_tensors="pt",
            truncation=True,
            max_length=self.max_question_tokens,
        )
        return {**batch, **_soft_targets(views, self.num_answers)}


class GeneratorCollator:
    """Collates views for a vision-language model that generates its answer.

    The target is the most frequent answer of a row (`_most_frequent`) and the end token. A decoder-only model
    (`causal`, sample loss "causal") gets image, prompt and target as one sequence, with labels -100 on the prompt. An
    encoder-decoder (sample loss "seq2seq") gets the target as separate labels. A row with an empty list of answers has
    no target; rows without the column `answers` give a batch without labels.

    Prompt and target are encoded separately and joined, so that generation from `prompts` starts from exactly the
    tokens of training. Models like Qwen-VL and InternVL take these batches after `patches.take_padded_patches`, which
    `pretrained.load_generator` applies.

    Args:
        processor: Processor of the model, with an image processor and a tokenizer.
        prompt: Template with `{question}`. If the processor has a chat template, this is the turn of the user, and the
            chat template inserts the image before it. Otherwise it is the whole text before the answer, with the image
            token of the model: "<image>Question: {question} Answer:".
        target: Template with `{answer}`. Most tokenizers distinguish a leading space: use none after a chat template
            or a line break, and one (" {answer}") after a colon.
        causal: Whether the model is decoder-only.
        decoder_start_token_id: First decoder token of an encoder-decoder that cannot shift labels itself, else None.

    Raises:
        DataError: A template lacks its slot, or the tokenizer ends prompts with the end token.
    """

    columns = (IMAGE, QUESTION, ANSWERS)

    def __init__(
        self,
        processor: Any,
        prompt: str = QUESTION_SLOT,
        target: str = ANSWER_SLOT,
        causal: bool = True,
        decoder_start_token_id: int | None = None,
    ) -> None:
        for name, template, slot in (("prompt", prompt, QUESTION_SLOT), ("target", target, ANSWER_SLOT)):
            if slot not in template:  # all rows would have the same text
                raise DataError(f"{name}: expected a template with {slot}, got {template!r}")
        self.processor = processor
        self.prompt = prompt
        self.target = target
        self.causal = causal
        self.decoder_start_token_id = decoder_start_token_id

    @classmethod
    def for_model(
        cls, model: Any, processor: Any, prompt: str = QUESTION_SLOT, target: str = ANSWER_SLOT
    ) -> GeneratorCollator:
        """Return the collator of a model, which determines `causal` and `decoder_start_token_id`."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        causal, start = not base.config.is_encoder_decoder, None
        if not causal and not hasattr(base, "prepare_decoder_input_ids_from_labels"):
            config = base.generation_config  # `generate` starts with the same token
            start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
        return cls(processor, prompt, target, causal, start)

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views."""
        batch = self._prompts(views, "right")
        if not any(ANSWERS in view for view in views):
            return batch
        targets = self._targets([view[ANSWERS] for view in views])
        if self.causal:
            last = batch[INPUT_IDS].gather(1, batch[ATTENTION_MASK].sum(1, keepdim=True) - 1)
            if (last == self.processor.tokenizer.eos_token_id).any():  # a decoder-only model answers nothing after it
                raise DataError(f"{type(self.processor).__name__}: expected prompts that do not end with the end token")
            return _append_targets(batch, targets, self.processor.tokenizer.pad_token_id)
        batch[LABELS] = _padded(targets, IGNORE_INDEX)
        if self.decoder_start_token_id is not None:
            shifted = [[self.decoder_start_token_id, *target[:-1]] for target in targets]
            batch["decoder_input_ids"] = _padded(shifted, self.processor.tokenizer.pad_token_id)
        return batch

    def prompts(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Return the generation inputs of a decoder-only model: images and prompts, padded on the left."""
        return self._prompts(views, "left")

    def _prompts(self, views: Sequence[View], padding_side: str) -> dict[str, Tensor]:
        tokenizer = self.processor.tokenizer
        texts = [self.prompt.replace(QUESTION_SLOT, view[QUESTION]) for view in views]
        if getattr(self.processor, "chat_template", None):
            texts = self.processor.apply_chat_template([_user_turn(text) for text in texts], add_generation_prompt=True)
        # If the chat template has written the first special token, the tokenizer must not add it again.
        has_bos = tokenizer.bos_token is not None and texts[0].startswith(tokenizer.bos_token)
        batch = self.processor(
            images=[[_open(view)] for view in views],
            text=texts,
            padding=True,
            return_tensors="pt",
            padding_side=padding_side,
            **({"add_special_tokens": False} if has_bos else {}),
        )
        batch.pop(LABELS, None)  # the processor of PaliGemma returns labels even without targets
        return one_row_per_image(dict(batch), getattr(self.processor, "image_token_id", None))

    def _targets(self, answers: list[Sequence[str]]) -> list[list[int]]:
        """Return the target ids of every row with the end token; empty if a row has no answer."""
        texts = [self.target.replace(ANSWER_SLOT, _most_frequent(row)) if len(row) else "" for row in answers]
        encoded = self.processor.tokenizer(texts, add_special_tokens=False)[INPUT_IDS]
        end = self.processor.tokenizer.eos_token_id
        return [[*ids, end] if len(row) else [] for ids, row in zip(encoded, answers, strict=True)]


def _open(view: View) -> Image.Image:
    # As a Pillow image, because the channels of an array with three rows could be its first or last axis.
    return Image.fromarray(load_image(view[IMAGE]))


def _append_targets(
    prompts: Mapping[str, Tensor], targets: Sequence[Sequence[int]], pad_token_id: int
) -> dict[str, Tensor]:
    """Append targets to prompts for a decoder-only model, with labels on the targets only.

    Other columns with one value per token are extended by their value at the last token of the prompt, which is text
    after the image. PaliGemma is an exception: its `token_type_ids` are 0 on image and prompt and 1 on the target,
    whereas Gemma 3 has 1 on the image and 0 on text. Prompts without any 1 are taken for PaliGemma's.
    """
    starts = prompts[ATTENTION_MASK].sum(1)
    ends = starts + torch.tensor([len(target) for target in targets])
    positions = torch.arange(int(ends.max()))
    is_target = (positions >= starts[:, None]) & (positions < ends[:, None])
    batch = {
        name: _extended(name, values, starts, is_target) if _is_per_token(name, values, prompts) else values
        for name, values in prompts.items()
    }
    ids = torch.tensor([token for target in targets for token in target], dtype=torch.long)
    is_padding = positions >= ends[:, None]
    batch[INPUT_IDS] = batch[INPUT_IDS].masked_fill(is_padding, pad_token_id).masked_scatter(is_target, ids)
    batch[LABELS] = torch.full(is_target.shape, IGNORE_INDEX).masked_scatter(is_target, ids)
    return batch


def _most_frequent(answers: Sequence[str]) -> str:
    """Return the most frequent normalized answer in its most frequent spelling; ties go to the first."""
    normalized = [normalize_answer(answer) for answer in answers]
    winner = Counter(normalized).most_common(1)[0][0]
    spellings = [answer for answer, key in zip(answers, normalized, strict=True) if key == winner]
    return Counter(spellings).most_common(1)[0][0]


def _is_per_token(name: str, values: Tensor, prompts: Mapping[str, Tensor]) -> bool:
    # By name as well, since a prompt may have as many tokens as pixels have channels.
    return values.shape[:2] == prompts[INPUT_IDS].shape and not name.startswith("pixel")


def _extended(name: str, values: Tensor, starts: Tensor, is_target: Tensor) -> Tensor:
    last = values[torch.arange(len(starts)), starts - 1]
    if name == TOKEN_TYPES and not values.any():
        last = torch.ones_like(last)
    width = is_target.shape[1]
    extended = values.new_zeros((len(values), width, *values.shape[2:]))
    common = min(width, values.shape[1])
    extended[:, :common] = values[:, :common]
    mask = is_target.view(*is_target.shape, *[1] * (values.ndim - 2))
    return torch.where(mask, last[:, None], extended)


def _user_turn(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]


def _padded(rows: list[list[int]], value: int) -> Tensor:
    width = max(1, *map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])
