"""Pixels that come as one long list of the parts of all images, laid out one row an image and back.

Batches of pairs have one row a view, so lists are padded to a row an image, and the model takes the padding off again:

- Models of the Qwen-VL kind cut every image into as many patches as its size gives: `pixel_values` `[sum of P_n, D]`
  beside `image_grid_thw` `[N, 3]`, whose products are the P_n, become `[N, max P_n, D]`.
- Models of the InternVL kind cut every image into tiles: `pixel_values` `[sum of T_n, C, H, W]` become
  `[N, max T_n, C, H, W]`. The T_n follow from the image tokens of each text, as many a tile.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dair_hf.errors import DataError

PIXELS, GRID, INPUT_IDS = "pixel_values", "image_grid_thw", "input_ids"
VISION_TOWER = "vision_tower"  # as transformers calls the vision model of those that take tiles


def one_row_an_image(batch: dict[str, Tensor], image_token_id: int | None = None) -> dict[str, Tensor]:
    """The batch with the patches or tiles of each image in a row of their own, padding behind them.

    Args:
        batch: What a processor gave for one image a text. Pixels that have a row an image are returned as they are.
        image_token_id: The token that stands for the image in the texts; None: the model has none, nor tiles.

    Returns:
        The batch; `pixel_values` are padded with zeros for patches, with NaN for tiles.

    Raises:
        DataError: The tiles cannot be told apart by the image tokens.

    Example:
        >>> grids = torch.tensor([[1, 1, 2], [1, 1, 1]])
        >>> one_row_an_image({"pixel_values": torch.tensor([[1.0], [2.0], [3.0]]), "image_grid_thw": grids})[PIXELS]
        tensor([[[1.],
                 [2.]],
        <BLANKLINE>
                [[3.],
                 [0.]]])
    """
    if GRID in batch:
        patches = batch[PIXELS].split(batch[GRID].prod(-1).tolist())
        return batch | {PIXELS: pad_sequence(list(patches), batch_first=True)}
    pixels = batch.get(PIXELS)
    if image_token_id is None or pixels is None or len(pixels) == len(batch[INPUT_IDS]):
        return batch
    tokens = (batch[INPUT_IDS] == image_token_id).sum(1)
    tiles = tokens * len(pixels) // tokens.sum().clamp(min=1)
    if int(tiles.sum()) != len(pixels) or (tokens * len(pixels) != tiles * tokens.sum()).any():
        raise DataError(
            f"{len(pixels)} tiles of {len(tokens)} images with {tokens.tolist()} image tokens: not as many tokens a "
            "tile; use a model whose processor gives each image a row, or as many tokens for each tile"
        )
    return batch | {PIXELS: pad_sequence(list(pixels.split(tiles.tolist())), batch_first=True, padding_value=torch.nan)}


def take_padded_patches(model: Any) -> None:
    """Let a model take the layouts of `one_row_an_image` beside its own; its outputs are the same.

    Args:
        model: A transformers model. Its vision tower, the first module whose `forward` takes a `grid_thw` or that is
            called `vision_tower`, takes the padding off.

    Example:
        >>> take_padded_patches(Qwen2VLForConditionalGeneration(config))  # doctest: +SKIP
    """
    # Not the whole model: `generate` asks for the features of the images by themselves, and adapters call the model's
    # `forward` directly, which passes hooks by.
    for name, module in model.named_modules():
        if "grid_thw" in inspect.signature(type(module).forward).parameters:
            module.register_forward_pre_hook(_without_padded_patches, with_kwargs=True)
            return
        if name.rpartition(".")[2] == VISION_TOWER:
            module.register_forward_pre_hook(_without_padded_tiles, with_kwargs=True)
            return


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _without_padded_patches(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    pixels = args[0] if args else named[PIXELS]
    if pixels.ndim != 3:
        return args, named
    exists = torch.arange(pixels.shape[1], device=pixels.device) < named["grid_thw"].prod(-1)[:, None]
    return _with_pixels(pixels[exists], args, named)


def _without_padded_tiles(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    pixels = args[0] if args else named[PIXELS]
    if pixels.ndim != 5:
        return args, named
    return _with_pixels(pixels[~pixels[:, :, 0, 0, 0].isnan()], args, named)


def _with_pixels(pixels: Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    return (pixels, *args[1:]), {name: value for name, value in named.items() if name != PIXELS}
