"""Linear regression as a `transformers` model."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

MODEL_TYPE = "dair_linear_regression"


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
