"""Encoding of dialog rows as model columns: token ids of history and belief text, for both views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dair_hf.data.view_columns import columns_of_views
from dair_hf.dialog.config import DialogConfig, Tokens
from dair_hf.dialog.rows import history_to_text, state_from_row, target_text
from dair_hf.errors import DataError
from dair_hf.evaluation.target_tokens import added_tokens, target_affixes
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.settings import check_fields

CAUSAL_PROMPT = " <belief>"


@dataclass(frozen=True)
class DialogEncoder:
    """Function for `Dataset.map(encoder, batched=True)` that tokenizes paired dialog rows.

    The source is the history, the target the belief state (see `target_text`). Long sources lose their oldest
    tokens, long targets their end. Encoder-decoder models get source and target separately. Decoder-only models get
    one sequence, whose prompt is masked in the labels.

    Args:
        tokenizer: Any tokenizer.
        max_source_tokens: Maximum length of the source, with special tokens.
        max_target_tokens: Maximum length of the target, with special tokens.
        causal: Whether the model is decoder-only.
        target_start: Token ids before each target (see `target_tokens.target_affixes`).
        target_end: Token ids behind each target. Default: the tokenizer's end token.
        preset: Preset of the joint goal accuracy, for which targets are written.
        lower_case: Lower-case histories and states.
        views: Prefixes of the views to encode. None: all that the rows have.

    Raises:
        DataError: A limit is too small, the tokenizer has no end token, or the preset is unknown.

    Example:
        >>> rows.map(DialogEncoder(tokenizer), batched=True)  # doctest: +SKIP
    """

    tokenizer: PreTrainedTokenizerBase
    max_source_tokens: Tokens = 512
    max_target_tokens: Tokens = 256
    causal: bool = False
    target_start: tuple[int, ...] = ()
    target_end: tuple[int, ...] | None = None
    preset: str = "any_of"
    lower_case: bool = False
    views: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.target_end is None:
            if self.tokenizer.eos_token_id is None:
                # Generation would never end.
                raise DataError(f"{type(self.tokenizer).__name__}: expected an end token for the targets, got none")
            object.__setattr__(self, "target_end", (self.tokenizer.eos_token_id,))
        resolve_convention(self.preset)

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: DialogConfig
    ) -> DialogEncoder:
        """Return the encoder for a model with the settings of an experiment; refuse one with too few positions."""
        causal = not model.config.is_encoder_decoder
        source, target = config.max_source_tokens, config.max_target_tokens
        longest = source + target if causal else max(source, target)
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and longest > positions:
            raise DataError(
                f"max_source_tokens={source} and max_target_tokens={target}: expected at most {positions} positions of "
                f"{type(model).__name__}{', for both together' if causal else ''}"
            )
        affixes = target_affixes(model, tokenizer)
        return cls(tokenizer, source, target, causal, *affixes, config.preset, config.lower_case)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[list[int] | None]]:
        """Return the model columns of a batch of rows; the augmented ones are None for rows without partner."""
        columns: dict[str, list[list[int] | None]] = {}
        present = [name.removesuffix("history") for name in columns_of_views("history", batch).values()]
        for prefix in present if self.views is None else self.views:
            if prefix in present:
                encoded = self._encode(batch[prefix + "history"], batch[prefix + "state"])
                columns |= {prefix + name: values for name, values in encoded.items()}
        return columns

    def _encode(self, histories: Sequence[Any], states: Sequence[Any]) -> dict[str, list[list[int] | None]]:
        present = [index for index, history in enumerate(histories) if history is not None]
        encoded = self._tokens(
            [self.source(histories[i]) for i in present], [self.target(state_from_row(states[i])) for i in present]
        )
        columns: dict[str, list[list[int] | None]] = {
            name: [None] * len(histories) for name in ("input_ids", "attention_mask", "labels")
        }
        for index, (input_ids, labels) in zip(present, encoded, strict=True):
            columns["input_ids"][index] = input_ids
            columns["attention_mask"][index] = [1] * len(input_ids)
            columns["labels"][index] = labels
        return columns

    def source(self, history: Sequence[Mapping[str, str]]) -> str:
        """Return a history as the text for the model, before truncation."""
        text = history_to_text(history)
        return text.lower() if self.lower_case else text

    def target(self, state: Mapping[str, Sequence[str]]) -> str:
        """Return a state as the target text, before truncation."""
        return target_text(state, self.preset, lower_case=self.lower_case)

    def _tokens(self, sources: list[str], targets: list[str]) -> list[tuple[list[int], list[int]]]:
        if not sources:
            return []
        end = self.target_end or ()
        room = self.max_target_tokens - len(self.target_start) - len(end)
        target_ids = [
            [*self.target_start, *ids[:room], *end]
            for ids in self._ids([" " + t if self.causal else t for t in targets])
        ]
        left, right = added_tokens(self.tokenizer)
        if self.causal:
            right = ()
            sources = [source + CAUSAL_PROMPT for source in sources]
        room = self.max_source_tokens - len(left) - len(right)
        source_ids = [[*left, *ids[-room:], *right] for ids in self._ids(sources)]
        if not self.causal:
            return list(zip(source_ids, target_ids, strict=True))
        return [
            (prompt + target, [IGNORE_INDEX] * len(prompt) + target)
            for prompt, target in zip(source_ids, target_ids, strict=True)
        ]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
