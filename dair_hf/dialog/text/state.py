"""Belief states of dialog rows: as slots with alternatives, and as training targets (`belief_text`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dair_hf.metrics.state.belief_text import state_to_text
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.matching import compare_states
from dair_hf.metrics.state.normalizers import normalize

State = dict[str, list[str]]


def target_text(state: Mapping[str, Sequence[str]], preset: str = "any_of", *, lower_case: bool = False) -> str:
    """Write a state as the training target: for each slot the shortest answer that a preset scores as right.

    That is the first alternative that the preset accepts by itself, else all alternatives, else no answer: `mwzeval`
    removes a gold "dontcare", so that any value is wrong. Values are normalized if the preset accepts only normalized
    ones. A slot that the preset does not compare is written like any other. If every answer is wrong, which happens
    with `lower_case` and values with capitals, the first alternative is written; the `Ceiling` of an audit counts such
    targets.

    Args:
        state: Slot -> alternatives.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        lower_case: Write the values in lower case.

    Returns:
        One line of text; the empty string for the empty state.

    Raises:
        DataError: Unknown preset.

    Example:
        >>> target_text({"hotel-area": ["centre", "center"], "hotel-name": []})
        'hotel-area = centre'
        >>> target_text({"hotel-area": ["centre", "center"]}, "parlai_v22")
        'hotel-area = centre | center'
    """
    written = {slot: _written(slot, tuple(values), preset, lower_case) for slot, values in state.items()}
    return state_to_text({slot: values for slot, values in written.items() if values})


@lru_cache(maxsize=1 << 16)
def _written(slot: str, alternatives: tuple[str, ...], preset: str, lower_case: bool) -> tuple[str, ...]:
    """Return the shortest prediction that scores as correct: one alternative, all, or none; otherwise the first."""
    _, convention = resolve_convention(preset)
    # Some evaluators normalize the gold values only, so that nothing but the normalized value is right.
    normalized = tuple(normalize(convention.normalizer, slot, value) for value in alternatives)
    spelled = [
        tuple(value.lower() for value in values) if lower_case else values for values in (alternatives, normalized)
    ]
    answers = [answer for values in spelled for answer in (*((value,) for value in values), values)]
    for answer in (*answers, ()):
        if compare_states({slot: answer}, {slot: alternatives}, convention).score >= 1.0:
            return answer
    return spelled[0][:1]


def state_from_row(column: Iterable[Mapping[str, Any]]) -> State:
    """Convert the column `state` of a row into slot -> alternatives.

    Example:
        >>> state_from_row([{"slot": "hotel-area", "values": ["east"]}])
        {'hotel-area': ['east']}
    """
    return {entry["slot"]: list(entry["values"]) for entry in column}
