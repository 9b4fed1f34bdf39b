"""Dialog rows as model columns: history and belief text in token ids, for both views, newest turns kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dair_hf.dialog.data import DialogConfig
from dair_hf.dialog.state import state_from_row, target_text
from dair_hf.dialog.text import history_to_text
from dair_hf.errors import DataError
from dair_hf.sample_losses import IGNORE_INDEX

VIEWS = ("", "augmented_")
CAUSAL_PROMPT = " <belief>"


@dataclass(frozen=True)
class DialogEncoder:
    """Tokenise paired dialog rows with `Dataset.map(encoder, batched=True)`.

    The source is the history, the target the cumulative belief state (its preferred alternatives). A source that is too
    long loses its oldest tokens, never the newest turn; a target that is too long loses its end. Encoder-decoder models
    get source and target apart; decoder-only models (`causal`) get one sequence, the prompt masked in the labels.

    Args:
        tokenizer: Any tokenizer.
        max_source_tokens: Longest source, special tokens included.
        max_target_tokens: Longest target, end token included.
        causal: Whether the model is decoder-only.

    Raises:
        DataError: A limit leaves no room for a token, or the tokenizer has no end token.

    Example:
        >>> rows.map(DialogEncoder(tokenizer), batched=True)  # doctest: +SKIP
    """

    tokenizer: PreTrainedTokenizerBase
    max_source_tokens: int = 448
    max_target_tokens: int = 256
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ("max_source_tokens", "max_target_tokens"):
            if getattr(self, name) < 8:
                raise DataError(f"{name}={getattr(self, name)} leaves no room for a dialogue; use at least 8")
        if self.tokenizer.eos_token_id is None:
            raise DataError(
                f"{type(self.tokenizer).__name__} has no end token, which a target ends with; set eos_token"
            )

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limits: DialogConfig
    ) -> DialogEncoder:
        """The encoder of a model's kind, with the limits of an experiment."""
        causal = not model.config.is_encoder_decoder
        return cls(tokenizer, limits.max_source_tokens, limits.max_target_tokens, causal)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[list[int] | None]]:
        """Model columns of a batch of rows; None in all augmented columns where there is no partner."""
        columns: dict[str, list[list[int] | None]] = {}
        for prefix in VIEWS:
            if prefix + "history" in batch:
                encoded = self._encode(batch[prefix + "history"], batch[prefix + "state"])
                columns |= {prefix + name: values for name, values in encoded.items()}
        return columns

    def _encode(self, histories: Sequence[Any], states: Sequence[Any]) -> dict[str, list[list[int] | None]]:
        present = [index for index, history in enumerate(histories) if history is not None]
        sources = self._tokens([history_to_text(histories[i]) for i in present], [states[i] for i in present])
        columns: dict[str, list[list[int] | None]] = {
            name: [None] * len(histories) for name in ("input_ids", "attention_mask", "labels")
        }
        for index, (input_ids, labels) in zip(present, sources, strict=True):
            columns["input_ids"][index] = input_ids
            columns["attention_mask"][index] = [1] * len(input_ids)
            columns["labels"][index] = labels
        return columns

    def _tokens(self, sources: list[str], states: list[Any]) -> list[tuple[list[int], list[int]]]:
        if not sources:
            return []
        targets = [target_text(state_from_row(state)) for state in states]
        end = self.tokenizer.eos_token_id
        target_ids = [
            [*ids[: self.max_target_tokens - 1], end]
            for ids in self._ids([" " + t if self.causal else t for t in targets])
        ]
        if self.causal:
            prompts = self._ids([source + CAUSAL_PROMPT for source in sources])
            kept = [ids[-self.max_source_tokens :] for ids in prompts]
            return [
                (prompt + target, [IGNORE_INDEX] * len(prompt) + target)
                for prompt, target in zip(kept, target_ids, strict=True)
            ]
        left, right = self._special_tokens()
        room = self.max_source_tokens - len(left) - len(right)
        return [
            (left + source[-room:] + right, target)
            for source, target in zip(self._ids(sources), target_ids, strict=True)
        ]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False, verbose=False).input_ids

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a source, such as BART's `<s>` and `</s>`."""
        probe = self.tokenizer("a", add_special_tokens=False).input_ids
        whole = self.tokenizer("a").input_ids
        start = next(i for i in range(len(whole)) if whole[i : i + len(probe)] == probe)
        return whole[:start], whole[start + len(probe) :]
