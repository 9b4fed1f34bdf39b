"""Models of one's own that do not fit: one message each for their inputs, labels and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from dair_hf import DAIRConfig, DAIRTrainer, DataError, TensorPairs
from dair_hf.training.forward.model_call import call_model
from tests.fixtures import points

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


class Own(nn.Module):
    """A linear classifier, whose logits are returned in a form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(2, 2, dtype=torch.float64), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.layer(x))


class NeedsLabels(Own):
    def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        return self.form(self.layer(x))


class ComputesLoss(Own):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = self.layer(x)
        return SequenceClassifierOutput(loss=cross_entropy(logits, labels), logits=logits)  # type: ignore[arg-type]


def output(logits: Tensor) -> SequenceClassifierOutput:
    return SequenceClassifierOutput(logits=logits)


def train(folder: Path, model: nn.Module, as_rows: bool = False, **given: Any) -> DAIRTrainer:
    x, partners, labels = points.points(8)
    data: Any = TensorPairs({"x": x, "labels": labels.long()}, {"x": partners, "labels": labels.long()})
    if as_rows:
        data = points.rows_of(data)
    settings = {"max_steps": 1, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    args = DAIRConfig(str(folder), **settings)
    made = DAIRTrainer(model, args, train_dataset=data, **{"sample_loss": "classification", **given})
    made.train()
    return made


@pytest.mark.parametrize(
    ("model", "as_rows", "message"),
    [
        (
            Own(lambda logits: logits),
            False,
            "the forward of Own returned a Tensor without the attribute `logits`; re",
        ),
        (Own(lambda logits: {"logits": logits}), False, "the forward of Own returned a dict without the attribute"),
        (Own(lambda logits: (logits,)), False, "the forward of Own returned a tuple without the attribute"),
        (
            nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)),
            True,
            r"no column of the data is an input of Sequential, whose forward takes \['input'\]; name the columns like",
        ),
        (
            nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)),
            False,
            r"the forward of Sequential takes \['input'\], but the data has the columns \['x'\]; name the arguments",
        ),
        (NeedsLabels(output), False, "the forward of NeedsLabels needs labels, but is called without them"),
        (ComputesLoss(output), False, "the forward of ComputesLoss needs labels, .*: give labels the default None"),
    ],
)
def test_models_that_do_not_fit_are_refused(tmp_path: Path, model: nn.Module, as_rows: bool, message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}"):
        train(tmp_path, model, as_rows)


def test_a_sample_loss_of_ones_own_takes_any_outputs(tmp_path: Path) -> None:
    def from_tensor(outputs: Any, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels, reduction="none")

    assert train(tmp_path, Own(lambda logits: logits), sample_loss=from_tensor).state.global_step == 1


class Forgetful(Own):
    """Takes labels, but fails for another reason."""

    normalize: Any = None

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return output(self.normalize(self.layer(x)))


class Wrapped(Own):
    """Passes all columns on, one of which nothing takes."""

    def forward(self, **columns: Tensor) -> Any:
        return output(self.inner(**columns))

    def inner(self, mask: Tensor) -> Tensor:
        return mask


def test_missing_labels_are_not_blamed_for_other_errors(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        train(tmp_path, Forgetful(output))
    vit = ViTForImageClassification(ViTConfig(image_size=4, patch_size=2, **SIZES))
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        call_model(vit, {"head_mask": torch.ones(1)}, needs_logits=True)


def test_only_the_column_that_is_unknown_is_named() -> None:
    with pytest.raises(DataError, match=r"takes \['columns'\], but the data has .* \['mask', 'x'\]; .* drop 'x'$"):
        call_model(Wrapped(output), {"x": torch.ones(1), "mask": torch.ones(1)}, needs_logits=True)


def test_other_errors_of_a_model_are_left_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nonsense'"):
        train(tmp_path, Own(lambda logits: logits.nonsense))
