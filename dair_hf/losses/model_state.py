"""State of a model and of the random numbers that a forward outside training must not change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

HALVES = (torch.float16, torch.bfloat16)


def fork_rng(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context that restores the random state of the CPU and of `device` on exit."""
    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices, device_type=device.type)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put a model into evaluation mode; on exit, the mode of each module and the random state are as before."""
    # Sets the flags directly, since `train()` and `eval()` of a module may have side effects.
    training = [module for module in model.modules() if module.training]
    with fork_rng(device):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


@contextlib.contextmanager
def single_precision(model: Any, device: torch.device) -> Iterator[None]:
    """Run a model in float32 (float64 stays), without autocast and TF32.

    Weights in half precision are converted one module at a time, so that the memory of one is enough.
    """
    halves: dict[nn.Parameter, Tensor] = {}

    def convert(module: nn.Module, args: Any) -> None:
        for weight in module.parameters(recurse=False):
            if weight.dtype in HALVES:
                halves[weight] = weight.data
                weight.data = weight.data.float()

    def restore(module: nn.Module, *args: Any) -> None:
        for weight in module.parameters(recurse=False):
            weight.data = halves.pop(weight, weight.data)

    hooks: list[Any] = []
    for module in model.modules():
        if any(weight.dtype in HALVES for weight in module.parameters(recurse=False)):
            hooks += [module.register_forward_pre_hook(convert), module.register_forward_hook(restore, prepend=True)]
    matmul, of_engine = torch.backends.cuda.matmul, vars(model).get("forward")
    precision, matmul.fp32_precision = matmul.fp32_precision, "ieee"
    try:
        # `accelerate` puts autocast into the forward of the model.
        model.forward = vars(model).get("_original_forward", model.forward)
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        del model.forward
        if of_engine is not None:
            model.forward = of_engine
        matmul.fp32_precision = precision
        for hook in hooks:
            hook.remove()
        for weight, values in halves.items():
            weight.data = values


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Leave out the attention of cuDNN, which plans every new size for a tenth of a second."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
