"""Consistency term that the user gives as a function of the losses of pairs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.losses.objective import LossRegularizer


class CustomRegularizer:
    """A user's R, a function `(l, l~) -> R` of the losses of pairs.

    Pickle saves a function by its module and name, so it loses a lambda, and a function of another script's main
    module. The training arguments of such a checkpoint can still be read: only calling R raises an error.

    Args:
        function: `(original, augmented) -> [B]`, nats per row, differentiable in both.

    Example:
        >>> squared = CustomRegularizer(lambda original, augmented: (original - augmented) ** 2)
        >>> squared(torch.tensor([4.0]), torch.tensor([1.0]))
        tensor([9.])
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, original: Tensor, augmented: Tensor) -> Tensor:
        """Return R of every pair, `[B]`."""
        values = self._values(original, augmented)
        if torch.is_grad_enabled() and not values.requires_grad and (original.requires_grad or augmented.requires_grad):
            raise DataError(f"regularizer={self!r}: expected R with a gradient, or it would train nothing")
        return values

    def _values(self, original: Tensor, augmented: Tensor) -> Tensor:
        values = self.function(original, augmented)
        if not isinstance(values, Tensor) or values.shape != original.shape:  # it would be broadcast to all pairs
            found = list(values.shape) if isinstance(values, Tensor) else repr(values)
            raise DataError(f"regularizer={self!r}: expected R of every pair, [{len(original)}], got {found}")
        return values

    def slopes(self, original: Tensor, augmented: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(dR/dl, dR/dl~)`, each `[B]`, by automatic differentiation."""
        with torch.enable_grad():
            losses = original.detach().requires_grad_(), augmented.detach().requires_grad_()
            values = self._values(*losses)
            if not values.requires_grad:
                return torch.zeros_like(original), torch.zeros_like(augmented)
            slopes = torch.autograd.grad(values.sum(), losses, allow_unused=True, materialize_grads=True)
        return slopes[0], slopes[1]

    def as_regularizer(self) -> LossRegularizer:
        """Return the function in the form of the built-in regularizers."""
        return LossRegularizer(
            lambda original, augmented, epsilon: self(original, augmented),
            lambda original, augmented, epsilon: self.slopes(original, augmented),
            repr(self),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomRegularizer) and other.function == self.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))

    def __copy__(self) -> CustomRegularizer:
        return self

    def __deepcopy__(self, memo: Any) -> CustomRegularizer:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickled = pickle.dumps(self.function)
        except (AttributeError, TypeError, pickle.PicklingError):
            return CustomRegularizer, (_Missing(repr(self)),)
        # As bytes, so that a name that is not found does not stop the reading of everything around it.
        return _unpickled, (pickled, repr(self))


def _unpickled(pickled: bytes, name: str) -> CustomRegularizer:
    try:
        return CustomRegularizer(pickle.loads(pickled))
    except (AttributeError, ImportError):
        return CustomRegularizer(_Missing(name))


class _Missing:
    """Stands for a function that could not be pickled, or is not found where it was."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, original: Tensor, augmented: Tensor) -> Tensor:
        raise DataError(f"regularizer={self.__qualname__} was not saved with the training arguments; pass it again")
