"""Pixels that processors return as one list of the parts of all images, padded to one row per image and back.

Batches of pairs have one row per view. So `one_row_per_image` pads the lists, and a hook in the model
(`take_padded_patches`) removes the padding:

- Models like Qwen-VL split every image into a number of patches that depends on its size: `pixel_values`
  `[sum of P_n, D]` with `image_grid_thw` `[N, 3]`, whose products are the P_n, become `[N, max P_n, D]`.
- Models like InternVL split every image into tiles: `pixel_values` `[sum of T_n, C, H, W]` become
  `[N, max T_n, C, H, W]`. The T_n follow from the image tokens of each text, since every tile has the same number.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dair_hf.errors import DataError

PIXELS, GRID, INPUT_IDS = "pixel_values", "image_grid_thw", "input_ids"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def one_row_per_image(batch: dict[str, Tensor], image_token_id: int | None = None) -> dict[str, Tensor]:
    """Return the batch with the patches or tiles of each image padded to a row."""
    if GRID in batch:
        patches = batch[PIXELS].split(batch[GRID].prod(-1).tolist())
        return batch | {PIXELS: pad_sequence(list(patches), batch_first=True)}
    pixels = batch.get(PIXELS)
    if image_token_id is None or pixels is None or len(pixels) == len(batch[INPUT_IDS]):
        return batch
    tokens = (batch[INPUT_IDS] == image_token_id).sum(1)
    tiles = tokens * len(pixels) // tokens.sum().clamp(min=1)
    if int(tiles.sum()) != len(pixels) or (tokens * len(pixels) != tiles * tokens.sum()).any():
        raise DataError(  # tiles would be dealt to the wrong images
            f"expected equally many image tokens for each of {len(pixels)} tiles, got {tokens.tolist()} for the images"
        )
    return batch | {PIXELS: pad_sequence(list(pixels.split(tiles.tolist())), batch_first=True, padding_value=torch.nan)}


def take_padded_patches(model: Any) -> None:
    """Make a model of transformers accept the layouts of `one_row_per_image` besides its own, with the same outputs.

    A hook on its vision tower, the first module whose `forward` takes a `grid_thw` or whose name is `vision_tower`,
    removes the padding.
    """
    # Not on the whole model: `generate` computes image features separately, and adapters call the `forward` of the
    # model directly, which skips hooks.
    for name, module in model.named_modules():
        takes_patches = "grid_thw" in inspect.signature(type(module).forward).parameters
        if takes_patches or name.rpartition(".")[2] == "vision_tower":
            hook = _without_padded_patches if takes_patches else _without_padded_tiles
            module.register_forward_pre_hook(hook, with_kwargs=True)
            return


def _without_padded_patches(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    pixels, others = _pixels_of(args, kwargs)
    if pixels.ndim == 3:
        is_patch = torch.arange(pixels.shape[1], device=pixels.device) < kwargs["grid_thw"].prod(-1)[:, None]
        pixels = pixels[is_patch]
    return (pixels, *args[1:]), others


def _without_padded_tiles(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    pixels, others = _pixels_of(args, kwargs)
    if pixels.ndim == 5:
        pixels = pixels[~pixels[:, :, 0, 0, 0].isnan()]
    return (pixels, *args[1:]), others


def _pixels_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    others = {name: value for name, value in kwargs.items() if name != PIXELS}
    return args[0] if args else kwargs[PIXELS], others
