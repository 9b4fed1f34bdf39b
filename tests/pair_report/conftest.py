"""A page without charts, for tests of the report behind it."""

from __future__ import annotations

import pytest

from dair_hf.pair_report import page


@pytest.fixture
def plain_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts take most of the time of a report on a few pairs."""
    monkeypatch.setattr(page, "_render_page", lambda report: page.MARK.decode())
