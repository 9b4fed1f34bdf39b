"""Call of the model: named inputs without labels, and outputs with logits."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError


def call_model(model: nn.Module, inputs: Mapping[str, Tensor], needs_logits: bool) -> Any:
    """Return the outputs of a model."""
    try:
        outputs = model(**inputs)
    except (AttributeError, TypeError) as error:
        complaint = _complaint(model, inputs, error)
        if complaint is None:
            raise
        raise DataError(complaint) from error
    if needs_logits and not isinstance(getattr(outputs, "logits", None), Tensor):
        raise DataError(
            f"the forward of {_name(model)} returned a {type(outputs).__name__} without the attribute `logits`; return "
            "transformers.modeling_outputs.SequenceClassifierOutput(logits=...) or another object with logits, or pass "
            "sample_loss as a callable (outputs, labels) -> [rows]"
        )
    return outputs


def require_inputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Refuse a batch without an input of the model.

    Raises:
        DataError: There is none; the message names the arguments of the model.
    """
    if not inputs:
        raise DataError(
            f"no column of the data is an input of {_name(model)}, whose forward takes {_arguments(model)}; name the "
            "columns like these arguments, or the arguments of a forward of your own like the columns"
        )


def _complaint(model: nn.Module, inputs: Mapping[str, Tensor], error: Exception) -> str | None:
    """Return why a model of one's own could not be called, or None if the error is another one."""
    arguments, text = _arguments(model), str(error)
    unknown = re.search(r"unexpected keyword argument '(\w+)'", text)
    if unknown is not None and unknown[1] in set(inputs).difference(arguments):
        return (
            f"the forward of {_name(model)} takes {arguments}, but the data has the columns {sorted(inputs)}; name the "
            f"arguments of forward like the columns, or drop {unknown[1]!r}"
        )
    is_missing = "missing" in text and f"'{LABELS}'" in text
    if LABELS in arguments and (is_missing or ("None" in text and _names_labels(error))):
        return (
            f"the forward of {_name(model)} needs labels, but is called without them, since the losses of rows are "
            f"computed by sample_loss: give {LABELS} the default None, and return the logits without a loss then "
            f"({text[:200]})"
        )
    return None


def _names_labels(error: Exception) -> bool:
    """Return whether an error arose in a line that names the labels, so that their absence can be its cause."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(re.search(rf"\b{LABELS}\b", frame.line or "") for frame in frames)


def _arguments(model: nn.Module) -> list[str]:
    return list(inspect.signature(_unwrapped(model).forward).parameters)


def _name(model: nn.Module) -> str:
    return type(_unwrapped(model)).__name__


def _unwrapped(model: Any) -> nn.Module:
    model = getattr(model, "module", model) if type(model).__module__.startswith("torch.") else model
    model = getattr(model, "_orig_mod", model)
    assert isinstance(model, nn.Module)
    return model
