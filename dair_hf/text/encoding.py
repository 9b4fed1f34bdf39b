"""Encoding of texts to classify as token ids, for both views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dair_hf.data.view_columns import VIEW_PREFIXES


def plain_text(text: str) -> str:
    """Return a text as the tokenizer gets it: each `<br />` is a space, everything else is unchanged."""
    return text.replace("<br />", " ")


@dataclass(frozen=True)
class ClassifierEncoder:
    """Function for `Dataset.map(encoder, batched=True)` that tokenizes both views of paired rows.

    Adds `input_ids`, for two texts also `token_type_ids` if the tokenizer has them, and both with `augmented_`; None
    where there is no partner. Rows with too many tokens lose the end of their longer text. A row without words gets
    one unknown word, since a model needs one.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: tuple[str, ...]
    max_tokens: int = 512

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[list[int] | None]]:
        """Return the columns of a batch of rows."""
        columns: dict[str, list[list[int] | None]] = {}
        for view in VIEW_PREFIXES:
            if view + self.texts[0] in batch:
                encoded = self._encode([batch[view + name] for name in self.texts])
                columns |= {view + name: values for name, values in encoded.items()}
        return columns

    def _encode(self, texts: list[Sequence[str | None]]) -> dict[str, list[list[int] | None]]:
        names = ["input_ids"]
        if len(texts) == 2 and "token_type_ids" in self.tokenizer.model_input_names:
            names.append("token_type_ids")
        columns: dict[str, list[list[int] | None]] = {name: [None] * len(texts[0]) for name in names}
        present = [index for index, text in enumerate(texts[0]) if text is not None]
        if not present:
            return columns
        plain = [[plain_text(column[index] or "") for index in present] for column in texts]
        encoded = self.tokenizer(*plain, truncation=True, max_length=self.max_tokens)
        for name, values in columns.items():
            empty = [self.tokenizer.unk_token_id] if name == "input_ids" else [0]
            for index, ids in zip(present, encoded[name], strict=True):
                values[index] = ids or empty
        return columns
