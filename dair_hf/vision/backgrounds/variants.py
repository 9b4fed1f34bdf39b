"""The eight variants of a picture with a foreground, and what a classifier's accuracy on them says (paper, section 8).

They are those of ImageNet-9 (Xiao et al. 2020, "Noise or Signal"). A classifier that looks at foregrounds keeps its
accuracy under other backgrounds and has none where nothing but a background is left.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, ratios_with_intervals
from dair_hf.vision.correctness import is_correct

ORIGINAL, MIXED_RAND, MIXED_SAME, MIXED_NEXT = "original", "mixed_rand", "mixed_same", "mixed_next"
ONLY_BG_B, ONLY_BG_T, NO_FG, ONLY_FG = "only_bg_b", "only_bg_t", "no_fg", "only_fg"
MIXED = (MIXED_RAND, MIXED_SAME, MIXED_NEXT)
CLASSES = 9
CM = ("cm", "cm_numerator", "cm_denominator", "both_correct")


class Variant(NamedTuple):
    """A variant, as a column of a table.

    Attributes:
        title: Heading, as in the paper.
        shows: What is to be seen.
        higher_is_better: Whether a good classifier's accuracy is high; low is good where nothing is left of the
            foreground, and the label can be guessed from the background only.
    """

    title: str
    shows: str
    higher_is_better: bool = True

    @property
    def heading(self) -> str:
        """The title with an arrow down where lower is better.

        Example:
            >>> VARIANTS["only_bg_b"].heading, VARIANTS["no_fg"].heading
            ('BG-B ↓', 'No-FG')
        """
        return self.title if self.higher_is_better else f"{self.title} ↓"


# In the order of the paper's table, each under the name of its folder in the public data. No-FG has no arrow there: the
# outline of what was cut out still shows.
VARIANTS = {
    ORIGINAL: Variant("Original", "the picture as it is"),
    MIXED_RAND: Variant("M-Rand", "its foreground on the background of a picture of any class"),
    MIXED_SAME: Variant("M-Same", "its foreground on the background of a picture of its class"),
    MIXED_NEXT: Variant("M-Next", "its foreground on the background of a picture of the next class"),
    ONLY_BG_B: Variant("BG-B", "the picture with the box around its foreground black", higher_is_better=False),
    ONLY_BG_T: Variant("BG-T", "the picture with background in place of its foreground", higher_is_better=False),
    NO_FG: Variant("No-FG", "the picture with its foreground cut out, black"),
    ONLY_FG: Variant("Only-FG", "its foreground on black"),
}


def evaluate_variants(
    evaluate_pairs: Callable[..., Any], tests: Mapping[str, Any], data_name: str = "ImageNet-9", n_bootstrap: int = 1000
) -> dict[str, float | int]:
    """Judge a classifier on every variant; each picture is predicted once.

    Args:
        evaluate_pairs: `DAIRTrainer.evaluate_pairs` of its trainer.
        tests: Variant -> its rows, without partners: the same foregrounds in the same order for all variants.
        data_name: Name of the data in the model card.
        n_bootstrap: Resamples of the intervals; 0 leaves them out.

    Returns:
        As `variant_metrics`.

    Raises:
        DataError: As `variant_metrics`, or rows have partners.

    Example:
        >>> evaluate_variants(trainer.evaluate_pairs, tests)["accuracy_only_bg_b"]  # doctest: +SKIP
        0.172
    """
    require_variants(tests)
    correct: dict[str, NDArray[np.bool_]] = {}
    for variant, rows in tests.items():

        def judge(predictions: Sequence[Any], references: Sequence[int], variant: str = variant) -> NDArray[np.bool_]:
            correct[variant] = is_correct(predictions, references)
            return correct[variant]

        with warnings.catch_warnings():
            # A variant alone has no pairs; CM is taken between two of them.
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            evaluate_pairs(rows, judge, n_bootstrap=0, data_name=f"{data_name}, {variant}")
        if len(correct[variant]) != len(rows):
            raise DataError(
                f"{variant}: {len(correct[variant])} views of {len(rows)} rows were judged; give rows without partners"
            )
    return variant_metrics(correct, n_bootstrap=n_bootstrap)


def variant_metrics(
    correct: Mapping[str, ArrayLike], *, n_bootstrap: int = 1000, seed: int = 0
) -> dict[str, float | int]:
    """Accuracy on each variant, the gap between mixed backgrounds, and CM between originals and mixed backgrounds.

    With `H_v` the correctness on variant v, `cm = P(H_mixed_rand = 1 | H_original = 1)`, and the background gap of Xiao
    et al. is `accuracy(mixed_same) - accuracy(mixed_rand)`: what a background of the right class is worth.

    Args:
        correct: Variant -> `[N]` bool, H of each foreground in the same order; all variants, or some of them.
        n_bootstrap: Resamples of the intervals; 0 leaves them out.
        seed: Seed of the resampling.

    Returns:
        `rows`; `accuracy_<variant>` in [0, 1], and where their variants are given `background_gap` in [-1, 1] and
        `cm` and `both_correct`, each with `<key>_low` and `<key>_high`; `cm_numerator` and `cm_denominator`.

    Raises:
        DataError: No variant, an unknown one, different numbers of rows, or values other than 0 and 1.

    Example:
        >>> found = variant_metrics(
        ...     {"original": [1, 1, 0, 1], "mixed_rand": [1, 0, 0, 0], "mixed_same": [1, 1, 0, 0]}, n_bootstrap=0
        ... )
        >>> {key: round(value, 4) for key, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
        {'rows': 4, 'accuracy_original': 0.75, 'accuracy_mixed_rand': 0.25, 'accuracy_mixed_same': 0.5,
         'background_gap': 0.25, 'cm_numerator': 1, 'cm_denominator': 3, 'cm': 0.3333, 'both_correct': 0.25}
    """
    require_variants(correct)
    right = {variant: as_correct(values, variant).astype(np.float64) for variant, values in correct.items()}
    if len({len(values) for values in right.values()}) > 1:
        found = ", ".join(f"{variant} {len(values)}" for variant, values in right.items())
        raise DataError(f"variants: numbers of values differ ({found}); give one for each foreground, [N] for all")
    rows = next(iter(right.values()))
    ratios = {f"accuracy_{variant}": (values, np.ones_like(rows)) for variant, values in right.items()}
    if MIXED_SAME in right and MIXED_RAND in right:
        ratios["background_gap"] = (right[MIXED_SAME] - right[MIXED_RAND], np.ones_like(rows))
    metrics: dict[str, float | int] = {"rows": len(rows)}
    metrics |= ratios_with_intervals(ratios, n_bootstrap=n_bootstrap, seed=seed)
    if ORIGINAL in right and MIXED_RAND in right:
        pairs = correctness_metrics(correct[ORIGINAL], correct[MIXED_RAND], n_bootstrap=n_bootstrap, seed=seed)
        metrics |= {key: value for key, value in pairs.items() if key.removesuffix("_low").removesuffix("_high") in CM}
    return metrics


def require_variants(names: Collection[str]) -> None:
    """Refuse names that are no variants.

    Raises:
        DataError: One is unknown, or there is none.
    """
    if not names:
        raise DataError(f"variants: none given; give some of {', '.join(VARIANTS)}")
    if unknown := [name for name in names if name not in VARIANTS]:
        raise DataError(f"variants: {', '.join(unknown)} unknown; use some of {', '.join(VARIANTS)}")
