"""Settings of the objective: method, regularizer, lambda and the weights of its terms."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.losses.custom_regularizer import CustomRegularizer
from dair_hf.losses.divergence import FEATURE_REGULARIZERS
from dair_hf.losses.objective import (
    LOSS_EPSILON,
    LOSS_REGULARIZERS,
    METHOD_WEIGHTS,
    REGULARIZED,
    TOKEN_METHODS,
    LossRegularizer,
)
from dair_hf.settings import NonNegative, Positive

REGULARIZERS = (*LOSS_REGULARIZERS, *FEATURE_REGULARIZERS)
AUTO = "auto"  # value of `dair_lambda`
AUTO_WARMUP = 0.25  # share of the steps over which `dair_lambda="auto"` reaches its target
UNSET: tuple[Any, ...] = (None, 0, [], {}, "")  # 0 equals False
NOT_MART = tuple(name for name in METHOD_WEIGHTS if name != "mart")
# Fields that the command line reads as text.
if TYPE_CHECKING:
    Regularizer = str | CustomRegularizer | Callable[[Tensor, Tensor], Tensor]
    LambdaValue = float | str
else:
    Regularizer = LambdaValue = str


@dataclass
class ObjectiveConfig:
    """Fields of `DAIRConfig` that define the objective."""

    method: Literal["erm", "da", "dair", "augmented", "trades", "mart"] = field(
        default="dair",
        metadata={
            "help": "Objective: erm (original views only), da (mean of both views' losses) or dair (da + lambda * R), "
            "equations 1 to 4 of the paper. Baselines with adversarial partners: augmented (partners only), trades "
            "(originals + lambda * R, with regularizer kl), mart (with regularizer kl).",
        },
    )
    regularizer: Regularizer = field(
        default="sq",
        metadata={
            "help": "R: "
            + "".join(f"{name} ({regularizer.text}), " for name, regularizer in LOSS_REGULARIZERS.items())
            + f"{' or '.join(FEATURE_REGULARIZERS)} (divergence of the output distributions). In Python also a "
            "function (l, l~) -> R of the losses of pairs, each [B], in nats per row.",
            "choices": REGULARIZERS,
        },
    )
    dair_lambda: LambdaValue = field(
        default=0.5,
        metadata={
            "help": "Weight of R, >= 0, in the unit of `normalization`: lambda_pair = lambda_token * target "
            "tokens / (2 * pairs), where the factor is the mean target length if every row has one partner. The paper "
            "uses 0.5 in token units for dialogues. auto: chosen at every step so that the gradient of lambda R has "
            "lambda_target times the size of the gradient of the losses.",
        },
    )
    lambda_target: Positive = field(
        default=2.0,
        metadata={
            "help": "For dair_lambda auto: size of the gradient of lambda R as a multiple of the losses' gradient, "
            "both with respect to the roots of the losses of pairs. Without unit. Above 1 R outweighs the losses. "
            "Training lowers it while the model answers every input alike.",
        },
    )
    lambda_warmup_steps: NonNegative | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps over which lambda (with auto, its target) rises from 0, as in warmup_steps: a "
            f"number of steps, or a share of all steps in [0, 1). None: {AUTO_WARMUP:g} with auto, else 0.",
        },
    )
    view_weights: list[NonNegative] | None = field(
        default=None,
        metadata={
            "help": "Weights of the losses of original and augmented view in a pair, each >= 0 and one > 0, for "
            "methods da and dair. None: 0.5 0.5. A row without a partner has weight 1.",
        },
    )
    normalization: Literal["pair", "token"] = field(
        default="pair",
        metadata={
            "help": "pair: sum of f over the rows / rows (the paper's formula); token: losses / target tokens + lambda "
            "* R / pairs (the authors' dialog code). Denominators are sums over the whole optimizer step.",
        },
    )
    loss_epsilon: Positive = field(
        default=LOSS_EPSILON,
        metadata={"help": "Added to the losses inside both roots of R_sq, > 0, nats per row. Authors' code: 1e-7."},
    )

    def _read_objective(self) -> None:
        """Parse a lambda given as text on the command line, and wrap a function as regularizer."""
        if isinstance(self.dair_lambda, str) and self.dair_lambda != AUTO:
            with contextlib.suppress(ValueError):  # refused by `check_fields`
                self.dair_lambda = float(self.dair_lambda)
        if callable(self.regularizer) and not isinstance(self.regularizer, CustomRegularizer):
            self.regularizer = CustomRegularizer(self.regularizer)

    def _check_objective(self) -> None:
        """Refuse combinations of settings that contradict each other or have no effect."""
        if not isinstance(self.regularizer, CustomRegularizer) and self.regularizer not in REGULARIZERS:
            expected = f"one of {', '.join(REGULARIZERS)} or a function (l, l~) -> R"
            raise DataError(f"regularizer={self.regularizer!r}: expected {expected}")
        weights = self.view_weights
        if weights is not None:
            if len(weights) != 2 or not any(weights):
                raise DataError(f"view_weights={weights}: expected one for each of the two views, not both 0")
            self._require("view_weights, since the others have their own", method=TOKEN_METHODS)
        if self.method == "mart":
            self._require("method mart, which weights a KL of both views", regularizer=("kl",))
        if self.dair_lambda == AUTO:
            self._require("dair_lambda auto, which needs a loss of each view", method=NOT_MART)
        if self.normalization == "token":
            self._require("normalization token", method=TOKEN_METHODS)

    def _require(self, setting: str, **accepted: tuple[Any, ...]) -> None:
        """Refuse values of other fields that cannot be combined with a setting."""
        for name, values in accepted.items():
            if (value := getattr(self, name)) not in values:
                expected = "it unset" if values is UNSET else " or ".join(map(str, values))
                raise DataError(f"{name}={value}: expected {expected} with {setting}")

    @property
    def uses_partners(self) -> bool:
        """True if the objective uses augmented views."""
        return self.method != "erm"

    @property
    def uses_regularizer(self) -> bool:
        """True if the objective contains lambda R."""
        return self.method in REGULARIZED

    @property
    def uses_features(self) -> bool:
        """True if R compares output distributions instead of losses."""
        return self.uses_regularizer and self.regularizer in FEATURE_REGULARIZERS

    @property
    def compares_losses(self) -> bool:
        """True if R is a function of the losses of both views, whether the method trains it or not."""
        return self.regularizer not in FEATURE_REGULARIZERS

    @property
    def loss_regularizer(self) -> LossRegularizer | None:
        """R as a function of the losses; None if it compares output distributions."""
        if isinstance(self.regularizer, CustomRegularizer):
            return self.regularizer.as_regularizer()
        return LOSS_REGULARIZERS.get(str(self.regularizer))

    @property
    def pair_weights(self) -> tuple[float, float]:
        """Weights w, w~ of the two losses of a pair in the objective."""
        if self.view_weights is not None and self.method in ("da", "dair"):
            return self.view_weights[0], self.view_weights[1]
        return METHOD_WEIGHTS[self.method][:2]

    def lambda_warmup(self, num_training_steps: int) -> int:
        """Return the number of steps over which lambda rises from 0."""
        steps = self.lambda_warmup_steps
        if steps is None:
            steps = AUTO_WARMUP if self.dair_lambda == AUTO else 0
        return int(steps) if steps >= 1 else math.ceil(num_training_steps * steps)

    @property
    def lambda_text(self) -> str:
        """Lambda in words: a number, or auto with its target."""
        if isinstance(self.dair_lambda, str):
            return f"{self.dair_lambda}, gradient share {self.lambda_target:g}"
        return f"{self.dair_lambda:g}"

    @property
    def lambda_unit(self) -> str:
        """Unit of `dair_lambda`, in words."""
        if self.normalization == "pair":
            return "per pair: objective = sum of f / rows"
        return "token: objective = losses / target tokens + lambda * R / pairs"
