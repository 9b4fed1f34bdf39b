"""Comparison of prefix trees with separate rows, before the first step: what is not exact is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor

from dair_hf.data.batch_layout import view_mask
from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.model_state import evaluation_mode, single_precision
from dair_hf.trees.attention import DENSE_NODES, text_config
from dair_hf.trees.forest import FOREST, TokenTree, token_trees
from dair_hf.trees.tree_loss import logits_of_nodes

INPUTS = {"input_ids", "attention_mask", LABELS}
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}  # layers of transformers compute in float32 in part
QUANTIZED = 3e-2  # quantized layers round to half precision
SMALLEST_DEPTH = 32  # tokens of the longest row of a probe
SMALLEST_BRANCH = 16  # tokens of a branch of a probe
SHORT_ROW = 64  # tokens of the shortest row of a probe, at most


def require_exact_training(model: Any, batch: Mapping[str, Any], longest_row: int = 0) -> None:
    """Compare a tree of the tokens of a batch with separate rows; it is at least as large as the trees of the batch."""
    columns = {name for name, values in batch.items() if isinstance(values, Tensor) and values.ndim > 2}
    if unknown := sorted(columns - INPUTS):
        raise DataError(
            f"share_prefixes: the batch has the inputs {unknown} besides {sorted(INPUTS)}, which may differ between "
            "rows that share a prefix; leave share_prefixes unset, or remove these columns"
        )
    exists = view_mask(batch)
    ids, mask = batch["input_ids"][exists], batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask[exists]
    trees = batch[FOREST].trees if FOREST in batch else ()
    depth = max(longest_row, int(mask.sum(1).amax()) if len(mask) else 0)
    nodes = max([DENSE_NODES, *(len(tree.ends) for tree in trees)])
    require_exact_trees(model, probe_rows(model, ids[mask.bool()].cpu().numpy(), depth, nodes))


def probe_rows(model: Any, tokens: np.ndarray, depth: int, nodes: int = DENSE_NODES) -> np.ndarray:
    """Return rows whose tree has the given size: one row of the tokens, and branches from its middle, `[R, T]`.

    Rows have at least 32 tokens as far as the positions of the model allow, so that there always are branches.

    Args:
        model: The model, possibly wrapped by an engine.
        tokens: Token ids of the data, `[N]`; those of branches are drawn from them.
        depth: Number of tokens of a row.
        nodes: Number of nodes, not counting what branches happen to share.
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
    """Compare the logits of rows in a tree with those of separate rows, in float32 whatever the model trains in.

    The first row, that with the last node, and the beginning of the first are compared: attention that counts nodes
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
    with torch.no_grad(), evaluation_mode(base, device), single_precision(base, device):
        try:
            logits = logits_of_nodes(base, tree, nodes)
        except (DataError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise _refusal(base, f"it cannot run a tree ({type(error).__name__}: {error})") from error
        separate = [torch.from_numpy(rows[row : row + 1, :length]).to(device) for row, length in compared]
        expected = torch.cat([base(input_ids=ids).logits[0] for ids in separate])
    largest = expected.abs().max().item()
    difference = (logits - expected).abs().max().item()
    if not difference <= rounding_error(base, expected):
        raise _refusal(base, f"its logits differ by {difference:.2g} (largest logit {largest:.2g}) from those of rows")


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


def _refusal(model: Any, reason: str) -> DataError:
    return DataError(
        f"share_prefixes and {type(model).__name__} cannot be combined: {reason}. Attention must depend on the content "
        "and position of tokens alone, without recurrence, biases of position, rotary frequencies that depend on the "
        "longest row of a forward, or masks of limited size; leave share_prefixes unset"
    )
