"""Comparison of prefix trees with separate rows, before the first step: what is not exact is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor

from dair_hf.data.batch_layout import view_mask
from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.model_state import evaluation_mode
from dair_hf.trees.attention import attention_inputs
from dair_hf.trees.forest import build_forest

INPUTS = {"input_ids", "attention_mask", LABELS}
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}  # layers of transformers compute in float32 in part
PROBE_TOKENS = 1024
HALF_TOLERANCE = 3e-2  # bfloat16, float16 and TF32


def require_exact_trees(model: Any, batch: Mapping[str, Any]) -> None:
    """Compare the logits of some rows of a batch, run as a tree, with those of separate rows.

    Args:
        model: The model, possibly wrapped by an engine.
        batch: A batch of `PairCollator` on the device of the model; the longest row and those after it are
            compared, at least two, up to 1,024 tokens.

    Raises:
        DataError: The batch has other inputs than text, or the logits differ, or the model takes no masks of trees.
    """
    base: Any = extract_model_from_parallel(model)
    columns = {name for name, values in batch.items() if isinstance(values, Tensor) and values.ndim > 2}
    if unknown := sorted(columns - INPUTS):
        raise DataError(
            f"share_prefixes: the batch has the inputs {unknown} besides {sorted(INPUTS)}, which may differ between "
            "rows that share a prefix; leave share_prefixes unset, or remove these columns"
        )
    mask = view_mask(batch).cpu()
    ids = batch["input_ids"].cpu()
    lengths = batch["attention_mask"].cpu().sum(-1) * mask if "attention_mask" in batch else mask * ids.shape[-1]
    first = int(lengths.amax(1).argmax())
    order = torch.arange(first, first + len(mask)) % len(mask)
    fitting = int((lengths.sum(1)[order].cumsum(0) <= PROBE_TOKENS).sum())
    rows = sorted(order[: max(fitting, 2)].tolist())
    few = {name: batch[name][rows].cpu() for name in INPUTS & set(batch)}
    few["view_mask"] = mask[rows]
    device = batch["input_ids"].device
    forest = build_forest(few, ["one tree"] * len(rows)).to(device)
    (tree,), (targets,) = forest.trees, forest.targets
    with torch.no_grad(), evaluation_mode(base, device), _types_of_logits(base) as types:
        try:
            logits = base(**attention_inputs(tree, base)).logits[0].index_select(0, targets.nodes)
        except DataError:
            raise
        except Exception as error:
            raise _refusal(base, f"it cannot run a tree ({type(error).__name__}: {error})") from error
        expected = _logits_of_rows(base, few, device)
    largest = expected.abs().max().item() if len(expected) else 0.0
    difference = (logits.float() - expected.float()).abs().max().item() if len(expected) else 0.0
    if not difference <= rounding_error(expected, {expected.dtype, *types}):
        raise _refusal(base, f"its logits differ by {difference:.2g} (largest logit {largest:.2g}) from those of rows")


def rounding_error(logits: Tensor, types: Collection[torch.dtype]) -> float:
    """Return the largest difference from these logits that rounding explains, in a model that computes in `types`."""
    largest = logits.abs().max().item() if len(logits) else 0.0
    if torch.float32 in types and torch.backends.cuda.matmul.fp32_precision == "tf32":
        return HALF_TOLERANCE * largest
    return max(TOLERANCES.get(dtype, HALF_TOLERANCE) for dtype in types) * largest


@contextmanager
def _types_of_logits(model: Any) -> Iterator[set[torch.dtype]]:
    """Collect the types in which logits are computed; engines convert those of mixed precision to float32."""
    types: set[torch.dtype] = set()
    projection = model.get_output_embeddings()
    if projection is None:
        yield types
        return
    hook = projection.register_forward_hook(lambda module, inputs, logits: types.add(logits.dtype))
    try:
        yield types
    finally:
        hook.remove()


def _logits_of_rows(model: Any, few: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """Return the logits that predict the targets, `[M, vocabulary]`, in the order of the views."""
    parts = []
    for row, view in np.argwhere(few["view_mask"].numpy()).tolist():
        mask = few["attention_mask"][row, view].bool() if "attention_mask" in few else slice(None)
        ids, labels = few["input_ids"][row, view][mask], few[LABELS][row, view][mask]
        logits = model(input_ids=ids[None].to(device)).logits[0, :-1]
        parts.append(logits[(labels[1:] != -100).to(device)])
    return torch.cat(parts)


def _refusal(model: Any, reason: str) -> DataError:
    return DataError(
        f"share_prefixes and {type(model).__name__} cannot be combined: {reason}. Models whose attention depends on "
        "position alone are supported, but no recurrent ones and no other biases; leave share_prefixes unset"
    )
