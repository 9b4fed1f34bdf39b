"""Settings of the objective: method, regularizer, lambda and the weights of its terms."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.losses.custom_regularizer import CustomRegularizer
from dair_hf.losses.divergence import FEATURE_REGULARIZERS
from dair_hf.losses.objective import (
    LOSS_EPSILON,
    LOSS_REGULARIZERS,
    METHOD_WEIGHTS,
    METHODS,
    NORMALIZATIONS,
    REGULARIZED,
    TOKEN_METHODS,
    LossRegularizer,
)

REGULARIZERS = (*LOSS_REGULARIZERS, *FEATURE_REGULARIZERS)
AUTO = "auto"  # value of `dair_lambda`
LAMBDA_TARGET = 2.0
AUTO_WARMUP = 0.25  # share of the steps over which `dair_lambda="auto"` reaches its target
# Schedules of transformers that are functions of the step alone.
LAMBDA_SCHEDULES = (
    "constant",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
)
# Of fields that the command line reads as text.
if TYPE_CHECKING:
    Regularizer = str | CustomRegularizer | Callable[[Tensor, Tensor], Tensor]
    LambdaValue = float | str
else:
    Regularizer = LambdaValue = str


@dataclass
class ObjectiveConfig:
    """Fields of `DAIRConfig` that define the objective, and their checks."""

    method: str = field(
        default="dair",
        metadata={
            "help": "Objective: erm (original views only), da (mean of both views' losses) or dair (da + lambda * R), "
            "equations 1 to 4 of the paper. Baselines with adversarial partners: augmented (partners only), trades "
            "(originals + lambda * R, with regularizer kl), mart (with regularizer kl).",
            "choices": METHODS,
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
    lambda_target: float = field(
        default=LAMBDA_TARGET,
        metadata={
            "help": "For dair_lambda auto: size of the gradient of lambda R, > 0, as a multiple of that of the losses, "
            "both with respect to the roots of the losses of pairs. Without unit. Above 1 R outweighs the losses. "
            "Training lowers it while the model answers every input alike.",
        },
    )
    lambda_max: float = field(
        default=1e4,
        metadata={"help": "For dair_lambda auto: largest lambda, > 0, per pair, also with token normalization."},
    )
    lambda_scheduler_type: str = field(
        default="constant",
        metadata={
            "help": "Schedule by which lambda (with auto, its target) is multiplied after the warmup, as "
            f"lr_scheduler_type: {', '.join(LAMBDA_SCHEDULES)}.",
            "choices": LAMBDA_SCHEDULES,
        },
    )
    lambda_warmup_steps: float | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps over which lambda (with auto, its target) rises from 0, as warmup_steps: a number "
            f"of steps, or a share of all steps in [0, 1). None: {AUTO_WARMUP:g} with auto, else 0.",
        },
    )
    view_weights: list[float] | None = field(
        default=None,
        metadata={
            "help": "Weights of the losses of original and augmented view in a pair, each >= 0 and one > 0, for "
            "methods da and dair. None: 0.5 0.5. A row without a partner has weight 1.",
        },
    )
    stop_gradient: str | None = field(
        default=None,
        metadata={
            "help": "View through which R has no gradient: original (augmented views are drawn to their originals) or "
            "augmented. None: R acts on both.",
            "choices": (*VIEWS, None),
        },
    )
    normalization: str = field(
        default="pair",
        metadata={
            "help": "pair: sum of f over the rows / rows (the paper's formula); token: losses / target tokens + lambda "
            "* R / pairs (the authors' dialog code). Denominators are sums over the whole optimizer step.",
            "choices": NORMALIZATIONS,
        },
    )
    loss_epsilon: float = field(
        default=LOSS_EPSILON,
        metadata={"help": "Added to the losses inside both roots of R_sq, > 0, nats per row. Authors' code: 1e-7."},
    )

    def validate_objective(self) -> None:
        """Refuse invalid values and combinations of these fields."""
        self._convert_values()
        if not isinstance(self.regularizer, CustomRegularizer):
            require_choice("regularizer", self.regularizer, REGULARIZERS, "or a function (l, l~) -> R")
        if self.method in REGULARIZERS:
            raise DataError(
                f"method={self.method!r} is unknown; it is a regularizer: set regularizer={self.method!r} and one of "
                f"the methods {', '.join(METHODS)}, such as method='dair'"
            )
        require_choice("method", self.method, METHODS)
        require_choice("normalization", self.normalization, NORMALIZATIONS)
        require_choice("lambda_scheduler_type", self.lambda_scheduler_type, LAMBDA_SCHEDULES)
        if self.dair_lambda != AUTO:
            require_number("dair_lambda", self.dair_lambda, 0.0, "or 'auto'")
        for name in ("loss_epsilon", "lambda_target", "lambda_max"):
            require_number(name, getattr(self, name), math.ulp(0.0))
        self._check_method()

    def _convert_values(self) -> None:
        """Read lambda from text, as the command line gives it, and wrap a function as regularizer."""
        if isinstance(self.lambda_scheduler_type, Enum):
            self.lambda_scheduler_type = self.lambda_scheduler_type.value
        if isinstance(self.dair_lambda, str) and self.dair_lambda != AUTO:
            try:
                self.dair_lambda = float(self.dair_lambda)
            except ValueError:
                pass  # refused by `validate`
        if callable(self.regularizer) and not isinstance(self.regularizer, CustomRegularizer):
            self.regularizer = CustomRegularizer(self.regularizer)

    def _check_method(self) -> None:
        if self.method == "mart" and self.regularizer != "kl":
            raise DataError(
                f"method='mart' and regularizer={self.regularizer!r} cannot be combined: MART uses a weighted KL; "
                "set regularizer='kl'"
            )
        if self.normalization == "token" and self.method not in TOKEN_METHODS:
            raise DataError(
                f"method={self.method!r} and normalization='token' cannot be combined: token normalization is defined "
                f"for {', '.join(TOKEN_METHODS)} only; use normalization='pair'"
            )
        self._check_weights()

    def _check_weights(self) -> None:
        """Refuse weights of losses and of R that are out of range or cannot be combined."""
        weights, warmup = self.view_weights, self.lambda_warmup_steps
        if weights is not None:
            numbers = isinstance(weights, Sequence) and all(is_finite(weight) and weight >= 0 for weight in weights)
            if not numbers or len(weights) != 2 or not sum(weights) > 0:
                raise DataError(
                    f"view_weights={reprlib.repr(weights)} must be two finite numbers >= 0, of the original and of the "
                    "augmented view, not both 0"
                )
            if self.method not in TOKEN_METHODS:
                raise DataError(
                    f"method={self.method!r} and view_weights={weights} cannot be combined: the method has weights of "
                    f"its own, {METHOD_WEIGHTS[self.method][:2]}; leave view_weights unset, or use method='dair'"
                )
        if self.stop_gradient not in (None, *VIEWS):
            raise DataError(f"stop_gradient={self.stop_gradient!r} is unknown; use {' or '.join(VIEWS)}, or None")
        if self.stop_gradient is not None and self.method == "mart":
            raise DataError(
                f"method='mart' and stop_gradient={self.stop_gradient!r} cannot be combined: its two terms come from "
                "both views; leave stop_gradient unset"
            )
        if warmup is not None and not (is_finite(warmup) and warmup >= 0 and (warmup < 1 or warmup == int(warmup))):
            raise DataError(
                f"lambda_warmup_steps={reprlib.repr(warmup)} is out of range; give a whole number of steps, or a share "
                "of all steps in [0, 1)"
            )
        if self.dair_lambda == AUTO and self.method == "mart":
            raise DataError(
                "method='mart' and dair_lambda='auto' cannot be combined: its first term is no loss of a view; give "
                "dair_lambda a number"
            )

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


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a float can hold, neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_integer(value: Any) -> bool:
    """Return whether a value is an `int`, and neither True nor False; JSON cannot hold integers of numpy."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_choice(name: str, value: Any, choices: Sequence[str], alternative: str = "") -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise DataError(
            f"{name}={value!r} is unknown; use one of {', '.join([*choices, *filter(None, [alternative])])}"
        )


def require_number(name: str, value: Any, lowest: float, alternative: str = "") -> None:
    """Refuse a value that is no finite number, or less than `lowest` (0, or the smallest number above it)."""
    if not (is_finite(value) and lowest <= value):
        bound = ">= 0" if lowest == 0 else "> 0"
        also = f", {alternative}" if alternative else ""
        raise DataError(f"{name}={reprlib.repr(value)} is out of range; it must be a finite number {bound}{also}")
