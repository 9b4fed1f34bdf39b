"""Pixels that come as one long list of the patches of all images, laid out one row an image and back.

Models of the Qwen-VL kind cut every image into as many patches as its size gives, and their processors join those of a
batch: `pixel_values` `[sum of P_n, D]` beside `image_grid_thw` `[N, 3]`, whose products are the P_n. Batches of pairs
have one row a view, so the patches are padded to `[N, max P_n, D]`, and the model takes the padding off again.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PIXELS, GRID = "pixel_values", "image_grid_thw"


def one_row_an_image(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with the patches of each image in a row of their own, zeros behind them.

    Args:
        batch: What a processor gave for one image a text. Without `image_grid_thw` it is returned as it is.

    Returns:
        The batch, `pixel_values` `[N, max P_n, D]`.

    Example:
        >>> grids = torch.tensor([[1, 1, 2], [1, 1, 1]])
        >>> one_row_an_image({"pixel_values": torch.tensor([[1.0], [2.0], [3.0]]), "image_grid_thw": grids})[PIXELS]
        tensor([[[1.],
                 [2.]],
        <BLANKLINE>
                [[3.],
                 [0.]]])
    """
    if GRID not in batch:
        return batch
    patches = batch[PIXELS].split(batch[GRID].prod(-1).tolist())
    return batch | {PIXELS: pad_sequence(list(patches), batch_first=True)}


def take_padded_patches(model: Any) -> None:
    """Let a model take the layout of `one_row_an_image` beside its own; one of another kind is left as it is.

    Args:
        model: A transformers model. Its vision tower, the first module whose `forward` takes a `grid_thw`, takes the
            padding off.

    Example:
        >>> take_padded_patches(Qwen2VLForConditionalGeneration(config))  # doctest: +SKIP
    """
    # Not the whole model: `generate` asks for the features of the images by themselves, and adapters call the model's
    # `forward` directly, which passes hooks by.
    for module in model.modules():
        if "grid_thw" in inspect.signature(type(module).forward).parameters:
            module.register_forward_pre_hook(_without_padding, with_kwargs=True)
            return


def _without_padding(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    pixels = args[0] if args else named[PIXELS]
    if pixels.ndim == 3:
        exists = torch.arange(pixels.shape[1], device=pixels.device) < named["grid_thw"].prod(-1)[:, None]
        args, named = (pixels[exists], *args[1:]), {name: value for name, value in named.items() if name != PIXELS}
    return args, named
