"""Search for the lambda of each method on validation data, then one comparison on the test set."""

from typing import TYPE_CHECKING

from dair_hf.lazy import lazy_submodules

if TYPE_CHECKING:
    from dair_hf.experiments.search.final import evaluate_choices as evaluate_choices
    from dair_hf.experiments.search.final import search_or_compare as search_or_compare
    from dair_hf.experiments.search.grids import GRIDS as GRIDS
    from dair_hf.experiments.search.grids import SearchConfig as SearchConfig
    from dair_hf.experiments.search.grids import log_grid as log_grid
    from dair_hf.experiments.search.lambda_search import LambdaSearch as LambdaSearch

_HOMES = {
    "GRIDS": "dair_hf.experiments.search.grids",
    "LambdaSearch": "dair_hf.experiments.search.lambda_search",
    "SearchConfig": "dair_hf.experiments.search.grids",
    "evaluate_choices": "dair_hf.experiments.search.final",
    "log_grid": "dair_hf.experiments.search.grids",
    "search_or_compare": "dair_hf.experiments.search.final",
}
__all__ = [*_HOMES]

__getattr__ = lazy_submodules(__name__, _HOMES)
