"""Generated data, for demos and tests without downloads: dialogues in the format of MultiWOZ, and pairs of requests."""

from typing import TYPE_CHECKING

from dair_hf.lazy import lazy_submodules

if TYPE_CHECKING:
    from dair_hf.dialog.demo.dialogs import example_pairs as example_pairs
    from dair_hf.dialog.demo.dialogs import generate_dialogs as generate_dialogs
    from dair_hf.dialog.demo.names import make_names as make_names

_HOMES = {
    "example_pairs": "dair_hf.dialog.demo.dialogs",
    "generate_dialogs": "dair_hf.dialog.demo.dialogs",
    "make_names": "dair_hf.dialog.demo.names",
}
__all__ = [*_HOMES]

__getattr__ = lazy_submodules(__name__, _HOMES)
