"""Prompts that a decoder-only model reads once per distinct prefix, so that `generate` reads no history twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation import GenerationMode
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.losses.model_state import single_precision
from dair_hf.trees.attention import attention_inputs, has_full_attention, nodes_at_once
from dair_hf.trees.forest import cut_where_least_is_shared, pad_right, prefix_table, token_trees
from dair_hf.trees.tree_loss import probe_rows, require_exact_trees, rounding_error

logger = logging.get_logger(__name__)

GROWTH = 64  # tokens by which buffers of a cache grow
FLEX_NODES = 8192  # nodes of prompts in one forward with FlexAttention
RELATED = 16  # prompts that share fewer tokens with their neighbour in lexicographic order get a tree of their own
# Settings of `generate` that need another cache, or with which an answer depends on the padding of its batch, and the
# values that turn them off.
UNSUPPORTED_SETTINGS = {
    "num_return_sequences": (None, 1), "guidance_scale": (None, 1), "use_cache": (None, True),
    "cache_implementation": (None,), "prefill_chunk_size": (None,), "is_assistant": (None, False),
    "min_length": (None, 0), "forced_bos_token_id": (None,), "repetition_penalty": (None, 1),
    "encoder_repetition_penalty": (None, 1), "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0), "token_healing": (None, False),
}  # fmt: skip
SETTINGS_BESIDE = {"generation_config", "tokenizer"}  # arguments of `generate` that are no settings, but supported


Tokens = Sequence[int] | np.ndarray


class _GrowingLayer(DynamicLayer):
    """Keys and values of a layer, in buffers that have room for more tokens.

    `DynamicLayer` copies all tokens for each new one, which takes longer than attention itself in wide batches.
    """

    def __init__(self, rows: int, columns: int, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._buffers = [
            states.new_empty(rows, states.shape[0], columns + GROWTH, states.shape[2]) for states in (keys, values)
        ]
        self.keys, self.values = (buffer[:, :, :columns] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values `[R, heads, T, d]`, and return both for all tokens."""
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            grown = []
            for states in (self.keys, self.values):
                rows, heads, _, size = states.shape
                grown.append(states.new_empty(rows, heads, end + GROWTH, size))
                grown[-1][:, :, :length] = states
            self._buffers = grown
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def keep(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`, `[R']`, and drop those beyond; only rows that move are copied."""
        rows = rows.to(self.device)
        moved = (rows != torch.arange(len(rows), device=self.device)).nonzero()[:, 0]
        length = self.keys.shape[-2]
        for buffer in self._buffers:
            buffer[moved, :, :length] = buffer[rows[moved], :, :length]
        self._buffers = [buffer[: len(rows)] for buffer in self._buffers]
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


class PromptTrees:
    """Keys and values of the tokens of prompts, each distinct prefix of them computed once."""

    def __init__(self, model: Any, prompts: Sequence[Tokens]) -> None:
        ids, self._lengths = pad_right(prompts)
        limit = _node_limit(model)
        paths = token_trees(ids, self._lengths, _related(ids, self._lengths, limit), limit)
        self._nodes, self._trees_of_rows = paths.nodes, paths.trees_of_rows
        self._device = model.get_input_embeddings().weight.device
        self._config = model.config
        self._states: list[list[tuple[Tensor, Tensor]]] = []  # of every tree and layer, [heads, S, d] each
        for tree in paths.trees:
            inputs = attention_inputs(type(tree)(*(values.to(self._device) for values in tree)), model)
            outputs = model(**{**inputs, "use_cache": True, "logits_to_keep": 1})
            self._states.append([(layer.keys[0], layer.values[0]) for layer in outputs.past_key_values.layers])

    def cache(self, rows: np.ndarray, part: Sequence[int], columns: int) -> Cache:
        """Return a cache of all tokens of some prompts but the last one of each."""
        numbers = rows[list(part)]
        # Padding is never attended to, and repeats the first node.
        depths = np.arange(columns - 1) - (columns - self._lengths[numbers])[:, None]
        nodes = np.where(depths >= 0, np.take_along_axis(self._nodes[numbers], depths.clip(min=0), 1), 0)
        trees = self._trees_of_rows[numbers]
        layers = [_GrowingLayer(len(numbers), columns - 1, *states) for states in self._states[0]]
        for tree in np.unique(trees).tolist():
            places = np.flatnonzero(trees == tree)
            at, chosen = (torch.from_numpy(numbers).to(self._device) for numbers in (places, nodes[places]))
            for layer, states in zip(layers, self._states[tree], strict=True):
                for filled, source in zip((layer.keys, layer.values), states, strict=True):
                    # The layers of a model may be spread over several devices.
                    filled[at.to(source.device)] = source[:, chosen.to(source.device)].transpose(0, 1)
        return Cache(layers=layers)


def _node_limit(model: Any) -> int:
    """Return the number of nodes up to which prompts are read in one forward."""
    limit = nodes_at_once(model)
    return limit if isinstance(limit, int) else FLEX_NODES


def require_prefill(model: Any, config: GenerationConfig, arguments: Mapping[str, Any]) -> None:
    """Refuse models and settings with which `generate` cannot continue prompts from `PromptTrees`.

    Supported are decoder-only text models all of whose layers attend to all tokens, and greedy answers that do not
    depend on the padding or the order of batches.
    """
    objects = sorted(name for name in arguments if name not in SETTINGS_BESIDE and not hasattr(config, name))
    settings = [(name, getattr(config, name, None), off) for name, off in UNSUPPORTED_SETTINGS.items()]
    mode = config.get_generation_mode()
    reasons = {
        "it is not a decoder-only text model": (
            model.config.is_encoder_decoder or model.config.get_text_config() is not model.config
        ),
        "it has layers that do not attend to all tokens": not has_full_attention(model.config),
        f"generate is given {', '.join(objects)}": bool(objects),
        f"answers are generated by {mode.value}, not by greedy_search": mode != GenerationMode.GREEDY_SEARCH,
        "max_new_tokens is unset": config.max_new_tokens is None,
        # Answers that these have ended would not be padded, but go on.
        "stop_strings need an eos_token_id": config.stop_strings is not None and config.eos_token_id is None,
        **{f"the generation config has {name}={value!r}": value not in off for name, value, off in settings},
    }
    for reason, is_true in reasons.items():
        if is_true:
            raise DataError(f"{type(model).__name__}: {reason}")


def token_ids(prompt: Mapping[str, Any]) -> np.ndarray | None:
    """Return the token ids of a prompt, `[T]`; None if it is not plain text: empty, with a gap or with other inputs."""
    ids = torch.as_tensor(prompt["input_ids"]).cpu().numpy()
    mask = prompt.get("attention_mask")
    is_plain = ids.ndim == 1 and ids.size > 0 and set(prompt) <= {"input_ids", "attention_mask"}
    return ids if is_plain and (mask is None or (len(mask) == len(ids) and all(mask))) else None


def trees_are_exact(model: Any, longest: np.ndarray, pad_token_id: int, tokenizer: Any = None) -> bool:
    """Compare prompts that `generate` continues from a tree with separate prompts.

    The tree is made by `probe_rows`.
    """
    length = len(longest)
    if length < 2:
        return True  # nothing is shared
    ids = probe_rows(model, longest, length)
    length = ids.shape[1]
    require_exact_trees(model, ids)

    pair = torch.from_numpy(ids[[0, -1]]).to(model.get_input_embeddings().weight.device)
    mask = torch.ones_like(pair)
    pair[1] = pair[1].roll(1)  # without its last token, and with padding
    pair[1, 0], mask[1, 0] = pad_token_id, 0
    settings = GenerationConfig(
        max_new_tokens=1, num_beams=1, do_sample=False, use_cache=True, pad_token_id=pad_token_id,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip

    def logits(**cache: Any) -> Tensor:
        outputs = model.generate(
            input_ids=pair, attention_mask=mask, generation_config=settings, tokenizer=tokenizer, **cache
        )
        next_logits: Tensor = outputs.logits[0]
        return next_logits

    try:
        with single_precision(model, pair.device):
            expected = logits()
            cache = PromptTrees(model, [*ids[:-1], ids[-1, :-1]]).cache(np.array([0, len(ids) - 1]), range(2), length)
            difference = (logits(past_key_values=cache) - expected).abs().max().item()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model whose cache is of another kind raises anything
        reason = f"{type(error).__name__}: {error}"
    else:
        if difference <= rounding_error(model, expected):
            return True
        reason = f"logits differ by {difference:.2g}"
    logger.warning(
        f"{type(model).__name__} cannot continue prompts from prefix trees ({reason}); they are read one by one"
    )
    return False


def nodes_of_neighbours(prompts: Sequence[np.ndarray], model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Put prompts that begin alike next to each other, and count the nodes that each adds to their trees."""
    limit = _node_limit(model)
    # Big-endian bytes compare like numbers.
    keys = [prompt.astype(">u4").tobytes() for prompt in prompts]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
    nodes = np.empty((len(order), 2), dtype=np.int64)
    before, in_tree = prompts[order[0]][:0], 0
    for place, prompt in enumerate(prompts[number] for number in order):
        both = min(len(before), len(prompt))
        differs = np.flatnonzero(before[:both] != prompt[:both])
        shared = int(differs[0]) if len(differs) else both
        added = len(prompt) - shared
        if shared < RELATED or in_tree + added > limit:
            in_tree, added = 0, len(prompt)
        in_tree += added
        nodes[place] = added, len(prompt)
        before = prompt
    return order, nodes


def _related(ids: np.ndarray, lengths: np.ndarray, limit: int) -> np.ndarray:
    """Return the number of the tree of every row: neighbours in lexicographic order that begin alike, `limit` nodes."""
    table = prefix_table(ids, lengths, np.zeros(len(ids), dtype=np.int64))
    nodes = np.cumsum(table.new_nodes)
    starts = np.flatnonzero(table.shared < RELATED).tolist()
    groups = np.zeros(len(ids), dtype=np.int64)
    for first, last in zip(starts, [*starts[1:], len(ids)], strict=True):

        def size(start: int, end: int, first: int = first) -> int:
            start, end = first + start, first + end
            return int(nodes[end - 1] - nodes[start] + table.lengths[start])

        parts = cut_where_least_is_shared(table.shared[first:last], size, limit)
        groups[first + np.array([start for start, _ in parts])] = 1
    numbers = np.empty_like(groups)
    numbers[table.order] = np.cumsum(groups) - 1
    return numbers
