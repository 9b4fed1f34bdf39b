"""Linear regression, its losses and its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from dair_hf.evaluation.answers import absolute_errors
from dair_hf.settings import Settings

MODEL_TYPE = "dair_linear_regression"
TILT = -2.0  # of term, in 1 / units of the loss; a negative tilt plays down outliers
_LOSS_NAMES = {"l2": "squared", "huber": "huber", "term": "squared"}


class LinearRegressionConfig(PreTrainedConfig):
    """Configuration of a `LinearRegression`: number of features, standard deviation of initial weights and bias."""

    model_type = MODEL_TYPE
    num_features: int = 1
    initializer_range: float = 0.01


class LinearRegression(PreTrainedModel):
    """Linear model `f(x) = W x + b`, initialized from `N(0, 0.01^2)` as in the released code.

    Example:
        >>> import torch
        >>> LinearRegression(LinearRegressionConfig(num_features=3))(torch.zeros(2, 3)).logits.shape
        torch.Size([2, 1])
    """

    config_class = LinearRegressionConfig
    main_input_name = "features"

    def __init__(self, config: LinearRegressionConfig) -> None:
        super().__init__(config)
        self.linear = nn.Linear(config.num_features, 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            nn.init.normal_(module.bias, std=self.config.initializer_range)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Return predictions `[N, 1]` as `logits`, and with `labels` `[N]` their mean squared error as `loss`."""
        predictions = self.linear(features)
        loss = None if labels is None else (predictions[:, 0] - labels).square().mean()
        return SequenceClassifierOutput(loss=loss, logits=predictions)


AutoConfig.register(MODEL_TYPE, LinearRegressionConfig, exist_ok=True)
AutoModel.register(LinearRegressionConfig, LinearRegression, exist_ok=True)


@dataclass
class RobustLossConfig(Settings):
    """Loss of a robust regression."""

    loss: Literal["l2", "huber", "term"] = field(
        default="l2",
        metadata={"help": "l2: squared error; huber: Huber loss with delta 1; term: tilted loss of squared errors."},
    )
    consistency: Literal["sample", "batch"] = field(
        default="sample",
        metadata={
            "help": "R of DAIR. sample (paper): mean of R over pairs; batch (as released for huber and term): R of the "
            "aggregated losses of both views."
        },
    )

    @property
    def sample_loss(self) -> str:
        """Name of the per-row loss for the trainer."""
        return _LOSS_NAMES[self.loss]

    @property
    def aggregate(self) -> Callable[[Tensor], Tensor] | None:
        """Function that aggregates the losses of a batch; None for the mean of the trainer's own objective."""
        if self.loss == "term":
            return partial(_tilted_loss, tilt=TILT)
        return torch.mean if self.consistency == "batch" else None


def _tilted_loss(losses: Tensor, tilt: float) -> Tensor:
    """Compute `T(l) = (1 / t) log mean_i exp(t l_i)`, between the smallest (t -> -inf) and the largest loss (t -> inf).

    `d T / d l_i = exp(t l_i) / sum_j exp(t l_j)`: a negative tilt reduces the weight of rows with large losses. For
    nonnegative losses and `t < 0` the result is nonnegative in floating point, too: the mean is over numbers up to 1,
    `exp(t l_i - max_j t l_j)`, so its logarithm is never positive.

    Source: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021, equation (2).
    """
    exponents = tilt * losses
    largest = exponents.detach().amax()
    return (largest + torch.exp(exponents - largest).mean().log()) / tilt


def rmse(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Compute `sqrt(mean_i (f(x_i) - y_i)^2)`, the metric of the paper.

    Args:
        predictions: N predictions, each a number or `[1]`.
        references: N targets.

    Returns:
        The root mean squared error, in units of the target.

    Example:
        >>> rmse([[1.0], [5.0]], [1.0, 2.0])
        2.1213203435596424
    """
    return float(np.sqrt(np.mean(np.square(absolute_errors(predictions, references)))))
