"""Views behind one another in one long row, without padding, for attention that keeps them apart by their positions."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dair_hf.errors import DataError

# Their kernels take the ends of the packed sequences; every other attention would build a mask of all by all positions.
ATTENTION_FOR_PACKING = ("flash_attention_2", "flash_attention_3", "flex_attention")


def pack(inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Padded rows as one row of their tokens.

    Args:
        inputs: `input_ids` and `attention_mask`, `[N, T]`, and nothing else.

    Returns:
        `input_ids` and `position_ids`, `[1, S]`, positions beginning at 0 in each row (which is how a model knows where
        one ends), and where the tokens stood, `[N, T]` bool.

    Raises:
        DataError: Other columns than these two.

    Example:
        >>> from torch import tensor
        >>> pack({"input_ids": tensor([[5, 6], [7, 0]]), "attention_mask": tensor([[1, 1], [1, 0]])})[0]
        {'input_ids': tensor([[5, 6, 7]]), 'position_ids': tensor([[0, 1, 0]])}
    """
    if set(inputs) != {"input_ids", "attention_mask"}:
        raise DataError(
            f"pair_packing=True packs input_ids and attention_mask, and found {sorted(inputs)}; set pair_packing=False"
        )
    mask = inputs["attention_mask"].bool()
    places = mask.flatten().nonzero()[:, 0]
    columns = {"input_ids": inputs["input_ids"], "position_ids": mask.cumsum(1) - 1}
    return {name: values.flatten().index_select(0, places)[None] for name, values in columns.items()}, mask


def unpack(values: Tensor, mask: Tensor) -> Tensor:
    """What a model made of a packed row, where the tokens stood: `[1, S, ...]` to `[N, T, ...]`, 0 at the padding.

    Example:
        >>> from torch import tensor
        >>> unpack(tensor([[1.0, 2.0, 3.0]]), tensor([[True, True], [True, False]]))
        tensor([[1., 2.],
                [3., 0.]])
    """
    places = mask.flatten().nonzero()[:, 0]
    laid_out = values.new_zeros(mask.numel(), *values.shape[2:]).index_copy(0, places, values[0])
    return laid_out.unflatten(0, mask.shape)
