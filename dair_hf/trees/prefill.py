"""Prompts that a decoder-only model reads once per distinct prefix, so that `generate` reads no history twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicLayer

from dair_hf.trees.attention import attention_inputs, has_full_attention, nodes_at_once
from dair_hf.trees.forest import prefix_table, token_trees
from dair_hf.trees.verification import require_exact_trees

ROOM = 32  # tokens by which buffers of a cache grow
RELATED = 16  # prompts that share fewer tokens with their neighbour in lexicographic order get a tree of their own
# Settings of `generate` that need a cache of their own, and the values that turn them off.
OWN_CACHE = {
    "num_beams": (None, 1), "num_return_sequences": (None, 1), "guidance_scale": (None, 1), "use_cache": (None, True),
    "cache_implementation": (None,), "prompt_lookup_num_tokens": (None,), "prefill_chunk_size": (None,),
}  # fmt: skip


class GrowingLayer(DynamicLayer):
    """Keys and values of a layer in buffers with room for more tokens.

    `DynamicLayer` copies all tokens for each new one, which takes longer than attention itself in wide batches.

    Args:
        rows: Number of rows, R.
        columns: Number of tokens that the layer holds already, to be filled.
        keys: Keys whose heads, size, type and device these have, `[heads, S, d]`.
        values: Values, likewise.
    """

    def __init__(self, rows: int, columns: int, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._buffers = [
            states.new_zeros(rows, states.shape[0], columns + ROOM, states.shape[2]) for states in (keys, values)
        ]
        self.keys, self.values = (buffer[:, :, :columns] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values `[R, heads, T, d]`, and return those of all tokens."""
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        for number, states in enumerate((key_states, value_states)):
            if end > self._buffers[number].shape[-2]:
                more = states.new_zeros(*states.shape[:2], end - length + ROOM, states.shape[3])
                self._buffers[number] = torch.cat([self._buffers[number][:, :, :length], more], dim=-2)
            self._buffers[number][:, :, length:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values


class PromptTrees:
    """Keys and values of the tokens of prompts, each distinct prefix of them computed once.

    Args:
        model: A decoder-only model for which `can_prefill` is true, in evaluation mode.
        prompts: Token ids of N prompts, none empty.

    Example:
        >>> trees = PromptTrees(model, [[5, 6, 7], [5, 6, 8]])  # doctest: +SKIP
        >>> trees.cache(np.arange(2), [1, 0], columns=3).get_seq_length()  # doctest: +SKIP
        2
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        ids, self._lengths = _padded(prompts)
        paths = token_trees(ids, self._lengths, _related(ids, self._lengths), nodes_at_once(model))
        self._nodes, self._trees_of_rows = paths.nodes, paths.trees_of_rows
        self._device = model.get_input_embeddings().weight.device
        self._config = model.config
        self._states: list[list[tuple[Tensor, Tensor]]] = []  # of every tree and layer, [heads, S, d] each
        for tree in paths.trees:
            inputs = attention_inputs(type(tree)(*(values.to(self._device) for values in tree)), model)
            outputs = model(**{**inputs, "use_cache": True, "logits_to_keep": 1})
            self._states.append([(layer.keys[0], layer.values[0]) for layer in outputs.past_key_values.layers])

    def cache(self, rows: np.ndarray, part: Sequence[int], columns: int) -> Cache:
        """Return a cache of all tokens of some prompts but the last one of each.

        Args:
            rows: Numbers of prompts.
            part: Which of these, R of them.
            columns: Number of tokens to which the prompts are padded on the left, T.

        Returns:
            Keys and values `[R, heads, T - 1, d]` per layer.
        """
        numbers = rows[list(part)]
        # Padding is never attended to, and repeats the first node.
        depths = np.arange(columns - 1) - (columns - self._lengths[numbers])[:, None]
        nodes = np.where(depths >= 0, np.take_along_axis(self._nodes[numbers], depths.clip(min=0), 1), 0)
        trees = self._trees_of_rows[numbers]
        layers = [GrowingLayer(len(numbers), columns - 1, *states) for states in self._states[0]]
        for tree in np.unique(trees).tolist():
            places = np.flatnonzero(trees == tree)
            at, chosen = self._on_device(places), self._on_device(nodes[places])
            for layer, states in zip(layers, self._states[tree], strict=True):
                for filled, source in zip((layer.keys, layer.values), states, strict=True):
                    filled[at] = source[:, chosen].transpose(0, 1)
        return Cache(layers=layers)

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


def can_prefill(model: Any, prompts: Sequence[Mapping[str, Any]], config: GenerationConfig) -> bool:
    """Return whether `PromptTrees` serve these prompts.

    It takes a decoder-only model all of whose layers see all tokens, text without gaps, and a strategy of generation
    that continues one cache per prompt: no beams, for example.
    """
    return (
        not model.config.is_encoder_decoder
        and has_full_attention(model.config)
        and all(set(prompt) <= {"input_ids", "attention_mask"} and len(prompt["input_ids"]) for prompt in prompts)
        and all(all(prompt.get("attention_mask", ())) for prompt in prompts)
        and all(getattr(config, name, None) in off for name, off in OWN_CACHE.items())
    )


def require_exact_prompts(model: Any, prompts: Sequence[Sequence[int]]) -> None:
    """Compare the logits of two prompts in a tree with those of separate rows.

    Raises:
        DataError: They differ, as `require_exact_trees` says.
    """
    ids, lengths = _padded(prompts[:2])
    mask = torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None])
    tokens = torch.from_numpy(ids)
    views = {"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.where(mask, -100)}
    batch = {name: values[:, None].to(model.device) for name, values in views.items()}
    require_exact_trees(model, {**batch, "view_mask": torch.ones(len(ids), 1, dtype=torch.bool)})


def lexicographic_order(prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return prompt numbers in an order in which those that begin alike are neighbours, `[N]`.

    Example:
        >>> lexicographic_order([[5, 7], [6], [5, 6]]).tolist()
        [2, 0, 1]
    """
    return np.array(sorted(range(len(prompts)), key=lambda number: list(prompts[number])), dtype=np.int64)


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids padded on the right with 0, `[N, T]`, and lengths `[N]`."""
    lengths = np.array([len(prompt) for prompt in prompts])
    ids = np.zeros((len(prompts), lengths.max()), dtype=np.int64)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = np.concatenate([np.asarray(prompt) for prompt in prompts])
    return ids, lengths


def _related(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the number of the group of every row: neighbours in lexicographic order that begin alike."""
    table = prefix_table(ids, lengths, np.zeros(len(ids), dtype=np.int64))
    groups = np.empty(len(ids), dtype=np.int64)
    groups[table.order] = np.cumsum(table.shared < RELATED)
    return groups - 1
