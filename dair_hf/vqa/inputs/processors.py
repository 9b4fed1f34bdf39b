"""Collators for current models, which bring a processor of their own for images and text.

`ClassifierCollator` is for models that choose among fixed answers (ViLT), `GeneratorCollator` for those that write the
answer (LLaVA, Idefics3, PaliGemma, Gemma 3, Qwen-VL, Florence-2, ...). Both take single views; `PairCollator` wraps
them. They read the columns that their attribute `columns` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.metrics.vqa.answers import normalize_answer
from dair_hf.vqa.answers import ANSWERS
from dair_hf.vqa.inputs.collator import ATTENTION_MASK, IMAGE, INPUT_IDS
from dair_hf.vqa.inputs.continuation import prompts_with_targets
from dair_hf.vqa.inputs.patches import one_row_an_image
from dair_hf.vqa.inputs.processor_inputs import LoadImage, pictures, processor_inputs
from dair_hf.vqa.inputs.questions import QUESTION
from dair_hf.vqa.inputs.targets import ANSWER_IDS, ANSWER_SCORES, View, column, soft_targets
from dair_hf.vqa.readers.images import load_image as load_file

QUESTION_SLOT, ANSWER_SLOT = "{question}", "{answer}"
NO_LIMIT = 1_000_000  # a tokenizer that knows of no longest text says something astronomic


class ClassifierCollator:
    """Collates views for a model that chooses among fixed answers and brings a processor, such as ViLT.

    The question is encoded by the processor, whatever `input_ids` the rows have. Labels are the soft targets of the
    sample loss `soft_score`; rows without the column `answer_ids` (test questions) give a batch without labels.

    Args:
        processor: The model's own: an image processor and a tokenizer.
        num_answers: Answers that the model chooses among.
        load_image: What stands in the image column (a path) -> `[H, W, 3]` uint8 RGB.
        max_question_tokens: Longest question, special tokens included; a longer one loses its end. None: what the
            tokenizer says, if it says anything.

    Raises:
        DataError: A row lacks a column or has an answer id outside the vocabulary, or the processor refuses the batch.

    Example:
        >>> collator = ClassifierCollator.for_model(model, processor)  # doctest: +SKIP
        >>> row = {"image": "a.jpg", "question": "How many?", "answer_ids": [3], "answer_scores": [1.0]}
        >>> {name: list(values.shape) for name, values in collator([row]).items()}  # doctest: +SKIP
        {'input_ids': [1, 5], 'attention_mask': [1, 5], 'pixel_values': [1, 3, 384, 512], 'pixel_mask': [1, 384, 512],
        'labels': [1, 3129]}
    """

    columns = (IMAGE, QUESTION, ANSWER_IDS, ANSWER_SCORES)

    def __init__(
        self,
        processor: Any,
        num_answers: int,
        load_image: LoadImage = load_file,
        max_question_tokens: int | None = None,
    ) -> None:
        self.processor = processor
        self.num_answers = num_answers
        self.load_image = load_image
        if max_question_tokens is None and processor.tokenizer.model_max_length < NO_LIMIT:
            max_question_tokens = processor.tokenizer.model_max_length
        self.max_question_tokens = max_question_tokens

    @classmethod
    def for_model(cls, model: Any, processor: Any, load_image: LoadImage = load_file) -> ClassifierCollator:
        """The collator of a model.

        Args:
            model: Says how many answers there are and how long a question may be.
            processor: The model's own.
            load_image: As in the class.
        """
        longest = getattr(model.config, "max_position_embeddings", None)
        return cls(processor, model.config.num_labels, load_image, longest)

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views.

        Args:
            views: Rows with `image` and `question`, and to train also `answer_ids` and `answer_scores`.

        Returns:
            What the processor makes of images and questions, and `labels` `[N, num_answers]` float32.
        """
        cut = self.max_question_tokens
        batch = processor_inputs(
            self.processor,
            pictures(column(views, IMAGE), self.load_image),
            column(views, QUESTION),
            truncation=cut is not None,
            **({} if cut is None else {"max_length": cut}),
        )
        if (labels := soft_targets(views, self.num_answers)) is not None:
            batch[LABELS] = labels
        return batch


class GeneratorCollator:
    """Collates views for a vision-language model that writes its answer.

    The target is the most frequent of a row's answers (`most_frequent`) and the end token. A decoder-only model
    (`causal`, sample loss "causal") gets image, prompt and target as one sequence with -100 on the prompt in the
    labels; an encoder-decoder (sample loss "seq2seq") gets the target apart. A row whose list of answers is empty has
    no target; rows without the column `answers` give a batch without labels.

    Prompt and target are encoded apart and joined, so that at generation (`prompts`) the model reads exactly the tokens
    it was trained with. Models of the Qwen-VL and InternVL kinds take these batches after
    `patches.take_padded_patches`, as those of `pretrained.load_generator` do.

    Args:
        processor: The model's own: an image processor and a tokenizer.
        load_image: What stands in the image column (a path) -> `[H, W, 3]` uint8 RGB.
        prompt: What the model is asked; holds `{question}`. If the processor has a chat template this is the user's
            turn, which the template puts the image before. Without one it is everything before the answer, with the
            model's image token where it wants it: "<image>Question: {question} Answer:".
        target: What the model shall write; holds `{answer}`. A space before it matters to most tokenizers: none after
            a chat template or a line break, one (" {answer}") after a colon.
        causal: Whether the model is decoder-only.
        decoder_start_token_id: For an encoder-decoder that cannot itself shift labels to decoder inputs, the token that
            these begin with; None: it can.

    Raises:
        DataError: A template without its slot, a tokenizer without end or padding token, a row that lacks a column, or
            a batch that the processor refuses.

    Example:
        >>> collator = GeneratorCollator.for_model(model, processor)  # doctest: +SKIP
        >>> row = {"image": "a.jpg", "question": "How many?", "answers": ["2", "two", "2"]}
        >>> batch = collator([row])  # doctest: +SKIP
        >>> batch["labels"]  # the tokens of the prompt, then "2" and the end token  # doctest: +SKIP
        tensor([[-100, -100, -100, -100, -100,   29,    2]])
    """

    columns = (IMAGE, QUESTION, ANSWERS)

    def __init__(
        self,
        processor: Any,
        load_image: LoadImage = load_file,
        prompt: str = QUESTION_SLOT,
        target: str = ANSWER_SLOT,
        causal: bool = True,
        decoder_start_token_id: int | None = None,
    ) -> None:
        for name, template, slot in (("prompt", prompt, QUESTION_SLOT), ("target", target, ANSWER_SLOT)):
            if slot not in template:
                raise DataError(f"{name}={template!r} does not hold {slot}, which is replaced in every row")
        for name in ("eos_token", "pad_token"):
            if getattr(processor.tokenizer, name) is None:
                raise DataError(f"the tokenizer of {type(processor).__name__} has no {name}; set tokenizer.{name}")
        self.processor = processor
        self.load_image = load_image
        self.prompt = prompt
        self.target = target
        self.causal = causal
        self.decoder_start_token_id = decoder_start_token_id

    @classmethod
    def for_model(
        cls,
        model: Any,
        processor: Any,
        load_image: LoadImage = load_file,
        prompt: str = QUESTION_SLOT,
        target: str = ANSWER_SLOT,
    ) -> GeneratorCollator:
        """The collator of a model's kind.

        Args:
            model: Says whether it is decoder-only, and how its decoder begins.
            processor: The model's own.
            load_image: As in the class.
            prompt: As in the class.
            target: As in the class.
        """
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        causal, start = not inner.config.is_encoder_decoder, None
        if not causal and not hasattr(inner, "prepare_decoder_input_ids_from_labels"):
            told = inner.generation_config  # `generate` begins with the same
            start = told.bos_token_id if told.decoder_start_token_id is None else told.decoder_start_token_id
        return cls(processor, load_image, prompt, target, causal, start)

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views.

        Args:
            views: Rows with `image` and `question`, and to train also `answers`, a list of texts.

        Returns:
            What the processor makes of images and prompts, padded on the right, and `labels` `[N, T]` int64: for a
            decoder-only model as long as `input_ids`, which then hold the targets too.
        """
        batch = self._prompts(views, "right")
        if not any(ANSWERS in view for view in views):
            return batch
        targets = self._targets(column(views, ANSWERS))
        if self.causal:
            self._check_open(batch)
            return prompts_with_targets(batch, targets, self.processor.tokenizer.pad_token_id)
        labels = _padded(targets, IGNORE_INDEX)
        batch[LABELS] = labels
        if self.decoder_start_token_id is not None:
            starts = [[self.decoder_start_token_id, *target[:-1]] for target in targets]
            batch["decoder_input_ids"] = _padded(starts, self.processor.tokenizer.pad_token_id)
        return batch

    def prompts(self, views: Sequence[View]) -> dict[str, Tensor]:
        """What a decoder-only model is given at generation: image and prompt, padded on the left.

        Args:
            views: Rows with `image` and `question`.

        Returns:
            What the processor makes of them.
        """
        return self._prompts(views, "left")

    def _prompts(self, views: Sequence[View], padding_side: str) -> dict[str, Tensor]:
        tokenizer = self.processor.tokenizer
        texts = [self.prompt.replace(QUESTION_SLOT, question) for question in column(views, QUESTION)]
        if getattr(self.processor, "chat_template", None):
            texts = self.processor.apply_chat_template([_turn(text) for text in texts], add_generation_prompt=True)
        # Where a chat template has written the first special token, the tokenizer would write it once more.
        written = tokenizer.bos_token is not None and texts[0].startswith(tokenizer.bos_token)
        batch = processor_inputs(
            self.processor,
            [[picture] for picture in pictures(column(views, IMAGE), self.load_image)],
            texts,
            padding_side=padding_side,
            **({"add_special_tokens": False} if written else {}),
        )
        batch.pop(LABELS, None)  # PaliGemma's processor has labels to offer, without any target
        return one_row_an_image(batch, getattr(self.processor, "image_token_id", None))

    def _targets(self, answers: list[Sequence[str]]) -> list[list[int]]:
        """Ids of the target of every row, the end token included; none where there is no answer."""
        texts = [self.target.replace(ANSWER_SLOT, most_frequent(found)) if len(found) else "" for found in answers]
        encoded = self.processor.tokenizer(texts, add_special_tokens=False)[INPUT_IDS]
        end = self.processor.tokenizer.eos_token_id
        return [[*ids, end] if len(found) else [] for ids, found in zip(encoded, answers, strict=True)]

    def _check_open(self, prompts: dict[str, Tensor]) -> None:
        last = prompts[INPUT_IDS].gather(1, prompts[ATTENTION_MASK].sum(1, keepdim=True) - 1)
        if (last == self.processor.tokenizer.eos_token_id).any():
            raise DataError(
                f"{type(self.processor).__name__} ends its prompts with the end token, after which a decoder-only "
                "model writes no answer; turn that off in its tokenizer, or pass causal=False for an encoder-decoder"
            )


def most_frequent(answers: Sequence[str]) -> str:
    """The answer that most annotators gave, normalised as in the official evaluation, in their most usual spelling.

    Ties are for what was given first.

    Args:
        answers: One or more.

    Example:
        >>> most_frequent(["a dog", "two", "dog", "2", "Dog", "dog", "2"])
        'dog'
    """
    meanings = [normalize_answer(answer) for answer in answers]
    meaning = Counter(meanings).most_common(1)[0][0]
    spellings = [answer for answer, found in zip(answers, meanings, strict=True) if found == meaning]
    return Counter(spellings).most_common(1)[0][0]


def _turn(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]


def _padded(rows: list[list[int]], value: int) -> Tensor:
    width = max(1, *map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])
