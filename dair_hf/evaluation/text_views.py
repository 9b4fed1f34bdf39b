"""Views of paired texts that another program answers: their prompts, and the expected answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np

from dair_hf.data.texts.chat import ASSISTANT, messages_to_learn
from dair_hf.data.texts.forms import CLASSES, GENERATED, TEXT_PAIR, TOOLS, TextForm, form_of, name_of, tools_of, view_of
from dair_hf.data.view_columns import partner_numbers, view_prefix
from dair_hf.errors import DataError
from dair_hf.evaluation.views import PairIndex, PairViews


class TextViews(PairViews):
    """Views of paired texts, M in all, for a program that answers texts.

    Args:
        pairs: Rows of texts, as `pairs_from_jsonl` returns them.

    Attributes:
        form: Their form.
        prompts: `row_id`, `view` (0: the original, p: partner number p) and `prompt` of each view, M of them. A prompt
            is a text, or the messages before the last turn of the assistant; `tools` and `text_pair` may stand with it.
        references: Expected answers, M texts: the completion, the target, the label, or the last turn of the assistant.

    Raises:
        DataError: The rows have no form of text, or several; two have one `row_id`; an expected answer is not a text.
    """

    def __init__(self, pairs: datasets.Dataset) -> None:
        self.dataset, columns = pairs.with_format(None), pairs.column_names
        generates = not {*CLASSES.needed} <= {*columns} or any({*form.needed} <= {*columns} for form in GENERATED)
        self.form = form_of(columns, generates, "another program")
        views = range(1 + max(partner_numbers(columns), default=0))
        kind = pairs.features.get(str(self.form.target))
        rows = [
            [_prompt_of(row, self.form, view, number, kind) for view in views]
            for number, row in enumerate(self.dataset)
        ]
        PairIndex.__init__(self, np.array([[view is not None for view in row[1:]] for row in rows], dtype=bool))
        self.require_unique_rows()
        of_views, ids = self.flatten(*zip(*rows, strict=True)), self.flatten(*[self.row_ids] * len(views))
        named = zip(ids, self.variants.tolist(), of_views, strict=True)
        self.prompts = [{"row_id": row_id, "view": view} | prompt for row_id, view, (prompt, _) in named]
        self.references = [answer for _, answer in of_views]


def _prompt_of(
    row: Mapping[str, Any], form: TextForm, view: int, number: int, kind: Any
) -> tuple[dict[str, Any], str] | None:
    """Return the prompt of a view with what belongs to it, and the expected answer; None for an absent partner."""
    where, prefix = name_of(row, number), view_prefix(view)
    content = view_of(row, form, view, where)
    if content is None:
        return None
    prompt: Any = content[form.inputs[0]]
    answer: Any = form.text_of(content.get(str(form.target)), kind)
    if isinstance(prompt, list):
        messages, _ = messages_to_learn(content, form, where, prefix)
        last = max(place for place, message in enumerate(messages) if message["role"] == ASSISTANT)
        prompt, answer = messages[:last], messages[last].get("content")
        if not isinstance(answer, str):  # refused before the other program answers for hours
            raise DataError(f"{where}: expected a text as the last turn of the {ASSISTANT}, got {messages[last]!r:.80}")
    others = {TEXT_PAIR: content.get(TEXT_PAIR), TOOLS: tools_of(row, prefix, where)}
    return {"prompt": prompt} | {name: value for name, value in others.items() if value is not None}, answer
