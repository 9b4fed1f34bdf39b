"""Losses of rows from forwards over their prefix trees, compared with separate rows before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from dair_hf.data.batch_layout import view_mask
from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.model_state import evaluation_mode, single_precision
from dair_hf.losses.per_sample import full_precision
from dair_hf.losses.target_logits import logits_at
from dair_hf.trees.attention import DENSE_NODES, attention_inputs, text_config
from dair_hf.trees.forest import FOREST, Forest, TokenTree, token_trees

INPUTS = {"input_ids", "attention_mask", LABELS}
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}  # layers of transformers compute in float32 in part
QUANTIZED = 3e-2  # quantized layers round to half precision
SMALLEST_DEPTH = 32  # tokens of the longest row of a probe
SMALLEST_BRANCH = 16  # tokens of a branch of a probe
SHORT_ROW = 64  # tokens of the shortest row of a probe, at most


class TreeLosses(NamedTuple):
    """Losses of the views of a batch, `[N]` with `N = B * V`, and what the terms of pairs need besides."""

    losses: Tensor
    logits: Tensor | None  # of the targets, [M, vocabulary]
    positions: np.ndarray  # [N]
    outputs: Any
    losses_at_scale: Callable[[Tensor], Tensor]
    logits_of: np.ndarray  # row of `logits` that predicts label t + 1 of a view, [N, T]; -1 if there is none


class TreeForward:
    """Runs a decoder-only model on the prefix trees of batches: `(model, batch) -> losses`.

    The first batch compares a tree with separate rows, and refuses a model for which they differ.
    """

    def __init__(self, chunked: ChunkedLoss | None = None) -> None:
        self.chunked = chunked
        self.longest_row = 0  # tokens of the longest row of the data, if known
        self._verified_length: int | None = None  # longest row at that time

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> TreeLosses | None:
        """Return the losses of all views in the batch; None for a batch without trees."""
        if FOREST not in batch:
            return None
        mask, forest = view_mask(batch), batch[FOREST]
        if self._verified_length is None or self._verified_length < self.longest_row:
            _require_exact_training(model, batch, self.longest_row)
            self._verified_length = self.longest_row
        losses, logits, labels, numbers = self._run(model, forest.to(mask.device))
        width = mask.shape[1]

        def losses_at_scale(scale: Tensor) -> Tensor:
            assert logits is not None
            scaled = losses * 0 + _sum_by_view(_nll(logits * scale, labels), numbers, len(losses))
            return scaled.view(forest.shape)[:, :width].flatten()

        return TreeLosses(
            losses.view(forest.shape)[:, :width].flatten(),
            logits,
            np.arange(mask.numel()),
            SimpleNamespace(logits=logits),
            losses_at_scale,
            forest.target_numbers(batch[LABELS].shape[-1]),
        )

    def positions(self, batch: Mapping[str, Any]) -> np.ndarray | None:
        """Return the number of tokens of all views and of nodes, `[2]`; None for a batch without trees."""
        forest = batch.get(FOREST)
        return None if forest is None else np.array([forest.tokens, forest.nodes])

    def _run(self, model: nn.Module, forest: Forest) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return losses of views `[B * V]`, logits of targets `[M, vocabulary]`, and labels and views of targets."""
        token_losses, logits = [], []
        for tree, targets in zip(forest.trees, forest.targets, strict=True):
            inputs = attention_inputs(tree, model, forest.sequences, forest.is_sparse)
            if self.chunked is not None:
                token_losses.append(self.chunked.token_losses(model, inputs, targets.nodes, targets.labels)[1])
            else:
                logits.append(logits_at(model, inputs, targets.nodes))
                token_losses.append(_nll(logits[-1], targets.labels))
        labels = torch.cat([targets.labels for targets in forest.targets])
        numbers = torch.cat([targets.views for targets in forest.targets])
        losses = _sum_by_view(torch.cat(token_losses), numbers, forest.shape[0] * forest.shape[1])
        return losses, torch.cat(logits) if logits else None, labels, numbers


def _sum_by_view(token_losses: Tensor, numbers: Tensor, views: int) -> Tensor:
    return token_losses.new_zeros(views).index_add(0, numbers, token_losses)


def _nll(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(full_precision(logits), labels, reduction="none")


# ---- comparison with separate rows ----


def _require_exact_training(model: Any, batch: Mapping[str, Any], longest_row: int = 0) -> None:
    """Compare a tree of the tokens of a batch with separate rows; it is at least as large as the trees of the batch."""
    columns = {name for name, values in batch.items() if isinstance(values, Tensor) and values.ndim > 2}
    if unknown := sorted(columns - INPUTS):
        raise DataError(f"share_prefixes: expected no inputs besides {sorted(INPUTS)}, got {unknown}")
    exists = view_mask(batch)
    ids, mask = batch["input_ids"][exists], batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask[exists]
    depth = max(longest_row, int(mask.sum(1).amax()) if len(mask) else 0)
    forest = batch[FOREST]
    sizes = () if forest.is_sparse else (len(tree.ends) // forest.sequences for tree in forest.trees)
    nodes = max([DENSE_NODES, *sizes])
    require_exact_trees(model, probe_rows(model, ids[mask.bool()].cpu().numpy(), depth, nodes))


def probe_rows(model: Any, tokens: np.ndarray, depth: int, nodes: int = DENSE_NODES) -> np.ndarray:
    """Return rows whose tree has the given size: one row of the tokens, and branches from its middle, `[R, T]`.

    Rows have at least 32 tokens as far as the positions of the model allow, so that there always are branches, whose
    tokens are drawn from the given ones.
    """
    positions = getattr(text_config(model), "max_position_embeddings", None) or SMALLEST_DEPTH
    depth = max(depth, min(SMALLEST_DEPTH, positions))
    branch = min(max(nodes - depth, SMALLEST_BRANCH), depth // 2)
    if len(np.unique(tokens)) < 2:
        tokens = np.union1d(tokens, [0, 1])  # attention to equal tokens has no effect
    rows = np.tile(np.resize(tokens, depth), (1 + max((nodes - depth) // branch, 1), 1))
    rows[1:, depth - branch :] = np.random.default_rng(0).choice(np.unique(tokens), (len(rows) - 1, branch))
    return rows


def require_exact_trees(model: Any, rows: np.ndarray) -> None:
    """Compare the logits of rows in a tree with the logits of separate rows, always in float32 or more.

    The first row, the row with the last node, and the beginning of the first are compared: attention that counts nodes
    differs for the second, and positions that depend on the longest row of a forward for the third.
    """
    base: Any = extract_model_from_parallel(model, keep_torch_compile=False)
    device = base.get_input_embeddings().weight.device
    count, depth = rows.shape
    paths = token_trees(rows, np.full(count, depth), np.zeros(count, dtype=np.int64), None)
    tree = TokenTree(*(values.to(device) for values in paths.trees[0]))
    short = min(SHORT_ROW, depth // 2, _original_length(text_config(base)))
    compared = [(0, depth), (int(paths.nodes[:, -1].argmax()), depth), (0, short)]
    nodes = torch.from_numpy(np.concatenate([paths.nodes[row, :length] for row, length in compared])).to(device)
    problem = ""
    with torch.no_grad(), evaluation_mode(base, device), single_precision(base, device):
        try:
            logits = logits_at(base, attention_inputs(tree, base), nodes)
        except (DataError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a model that takes no mask of a tree raises anything
            logits, problem = None, f"it cannot run a tree ({type(error).__name__}: {error})"
        if logits is not None:
            separate = [torch.from_numpy(rows[row : row + 1, :length]).to(device) for row, length in compared]
            expected = torch.cat([base(input_ids=ids).logits[0] for ids in separate])
            difference = (logits - expected).abs().max().item()
            if not difference <= rounding_error(base, expected):
                problem = f"its logits differ by {difference:.2g} from separate rows"
    if problem:
        raise DataError(
            f"share_prefixes and {type(base).__name__} cannot be combined: {problem}. Attention must depend on the "
            "content and position of tokens alone, without recurrence, biases of position, rotary frequencies that "
            "depend on the longest row of a forward, or masks of limited size; leave share_prefixes unset"
        )


def _original_length(config: Any) -> int:
    """Return the length beyond which rotary frequencies may change with the length of a row."""
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = [values for values in rope.values() if isinstance(values, Mapping)]
    lengths = [values.get("original_max_position_embeddings") for values in (vars(config), rope, *of_layers)]
    return min((length for length in lengths if length), default=SHORT_ROW)


def rounding_error(model: Any, logits: Tensor) -> float:
    """Return the largest difference from these logits that rounding explains, in `single_precision`."""
    tolerance = QUANTIZED if getattr(model, "is_quantized", False) else TOLERANCES.get(logits.dtype, QUANTIZED)
    return tolerance * logits.abs().max().item()
