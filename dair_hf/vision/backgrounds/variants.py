"""Eight variants of an image with a foreground, and evaluation of a classifier on them (paper, section 8).

The variants come from ImageNet-9 (Xiao et al. 2020, "Noise or Signal"). A classifier that relies on foregrounds
keeps its accuracy on other backgrounds and loses it on backgrounds alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.evaluation.answers import same_classes
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, ratios_with_intervals

ORIGINAL, MIXED_RAND, MIXED_SAME, MIXED_NEXT = "original", "mixed_rand", "mixed_same", "mixed_next"
ONLY_BG_B, ONLY_BG_T, NO_FG, ONLY_FG = "only_bg_b", "only_bg_t", "no_fg", "only_fg"
MIXED = (MIXED_RAND, MIXED_SAME, MIXED_NEXT)
CLASSES = 9
CM = ("cm", "cm_numerator", "cm_denominator", "both_correct")


class Variant(NamedTuple):
    """Column of a table."""

    title: str
    higher_is_better: bool = True

    @property
    def heading(self) -> str:
        """Title, with a down arrow if lower is better."""
        return self.title if self.higher_is_better else f"{self.title} ↓"


# In the order of the paper's table, by the name of the folder in the public data. No-FG has no arrow there, because the
# outline of the foreground is visible.
VARIANTS = {
    ORIGINAL: Variant("Original"),
    MIXED_RAND: Variant("M-Rand"),  # its foreground on the background of an image of any class
    MIXED_SAME: Variant("M-Same"),  # on the background of an image of its class
    MIXED_NEXT: Variant("M-Next"),  # on the background of an image of the next class
    ONLY_BG_B: Variant("BG-B", higher_is_better=False),  # the box around its foreground is black
    ONLY_BG_T: Variant("BG-T", higher_is_better=False),  # background in place of its foreground
    NO_FG: Variant("No-FG"),  # its foreground is black
    ONLY_FG: Variant("Only-FG"),  # its foreground on black
}


def evaluate_variants(
    evaluate_pairs: Callable[..., Any], tests: Mapping[str, Any], data_name: str = "ImageNet-9", intervals: bool = True
) -> dict[str, float | int]:
    """Evaluate a classifier on every variant; each image is predicted once.

    Args:
        evaluate_pairs: `DAIRTrainer.evaluate_pairs` of its trainer.
        tests: Variant -> its rows, without partners, with the same foregrounds in the same order.
        intervals: Whether to compute intervals.

    Returns:
        As `_variant_metrics`.

    Raises:
        DataError: Rows have partners.

    Example:
        >>> evaluate_variants(trainer.evaluate_pairs, tests)["accuracy_only_bg_b"]  # doctest: +SKIP
        0.172
    """
    correct: dict[str, NDArray[np.bool_]] = {}
    for variant, rows in tests.items():

        def record_correct(
            predictions: Sequence[Any], references: Sequence[int], variant: str = variant
        ) -> NDArray[np.bool_]:
            correct[variant] = same_classes(predictions, references)
            return correct[variant]

        with warnings.catch_warnings():
            # A single variant has no pairs; CM compares two variants.
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            evaluate_pairs(rows, record_correct, intervals=False, data_name=f"{data_name}, {variant}")
        if len(correct[variant]) != len(rows):
            raise DataError(f"{variant}: expected rows without partners, got {len(correct[variant])} of {len(rows)}")
    return _variant_metrics(correct, intervals=intervals)


def _variant_metrics(correct: Mapping[str, ArrayLike], *, intervals: bool = True) -> dict[str, float | int]:
    """Compute accuracy on each variant, the background gap, and CM between originals and mixed backgrounds.

    With correctness `H_v` on variant v, `cm = P(H_mixed_rand = 1 | H_original = 1)`. The background gap of Xiao et al.
    is `accuracy(mixed_same) - accuracy(mixed_rand)`, the gain from a background of the right class.
    """
    values = {variant: as_correct(rows, variant).astype(np.float64) for variant, rows in correct.items()}
    ones = np.ones_like(next(iter(values.values())))
    ratios = {f"accuracy_{variant}": (rows, ones) for variant, rows in values.items()}
    if MIXED_SAME in values and MIXED_RAND in values:
        ratios["background_gap"] = (values[MIXED_SAME] - values[MIXED_RAND], ones)
    metrics: dict[str, float | int] = {"rows": len(ones)}
    metrics |= ratios_with_intervals(ratios, intervals=intervals)
    if ORIGINAL in values and MIXED_RAND in values:
        pairs = correctness_metrics(correct[ORIGINAL], correct[MIXED_RAND], intervals=intervals)
        metrics |= {key: value for key, value in pairs.items() if key.removesuffix("_low").removesuffix("_high") in CM}
    return metrics
