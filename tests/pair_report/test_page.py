"""The page: it loads nothing from elsewhere, runs nothing of the data, and is drawn from its JSON alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import SpaceCard

from dair_hf import DataError
from dair_hf.pair_report import page
from dair_hf.pair_report.page import _charts_of, _render_page, write_report
from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE, PairReport
from tests.fixtures.report_page import HOSTILE, Elements, small_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOADING = {"src", "srcset", "data", "action", "poster", "background"}


@pytest.fixture(scope="module")
def hostile_page() -> str:
    return _render_page(small_report(HOSTILE, HOSTILE))


def foreign_addresses(page: str) -> list[str]:
    """What the elements and styles of a page would load that is not part of it."""
    found = []
    for tag, attributes in Elements(page).elements:
        for name, value in attributes.items():
            loads = name in LOADING or (name == "href" and tag in ("link", "image", "use"))
            if loads and not (value or "").startswith("data:"):
                found.append(f"{tag} {name}={value}")
        if "http-equiv" in attributes and attributes["http-equiv"] == "refresh":
            found.append("refresh")
    for style in re.findall(r"<style>(.*?)</style>", page, re.DOTALL):
        found += re.findall(r"@import|url\([^)]*\)", style)
    return found


def test_nothing_is_loaded_from_elsewhere(hostile_page: str) -> None:
    assert foreign_addresses(hostile_page) == []
    (policy,) = [
        a["content"] for tag, a in Elements(hostile_page).elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data: blob:;")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_rule_sees_what_would_be_loaded() -> None:
    bad = ['<script src="https://a/b.js"></script>', '<link rel="stylesheet" href="a.css">', '<img src="//a/b.png">']
    assert [len(foreign_addresses(page)) for page in bad] == [1, 1, 1]
    assert foreign_addresses("<style>a { background: url(x.png) }</style>") == ["url(x.png)"]
    assert foreign_addresses('<a href="#pairs">x</a><img src="data:image/png;base64,x">') == []


def test_texts_of_the_data_are_shown_and_not_run(hostile_page: str) -> None:
    parsed = Elements(hostile_page)
    assert [tag for tag, _ in parsed.elements].count("script") == 3
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert parsed.text.count(HOSTILE) > 5
    assert "<script>document" not in hostile_page


def test_charts_read_names_of_the_data_as_text() -> None:
    """Plotly reads some HTML in labels: it gets it escaped."""
    figures = [json.loads(chart.figure.to_json()) for chart in _charts_of(small_report(HOSTILE))]
    texts = [text for figure in figures for text in strings_of(figure)]
    named = [text for text in texts if "script" in text]
    assert len(named) >= 3 and not [text for text in named if re.search(r"<(?!/?(b|br|extra)>)", text)]


def strings_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in strings_of(item)]


def test_page_names_the_charts_it_has_numbers_for() -> None:
    whole = {chart.name for chart in _charts_of(small_report())}
    assert whole == {"scatter", "losses", "consistency", "rho", "unlearned", "lambda", "weights", "group_0"}
    report = small_report()
    report.curves, report.losses = {}, []
    del report.pairs["weight_original"], report.pairs["weight_augmented"]
    assert [chart.name for chart in _charts_of(report)] == ["scatter"]


def test_json_holds_all_that_the_page_shows(tmp_path: Path) -> None:
    report = small_report()
    page = write_report(report, tmp_path / "new").read_text(encoding="utf-8")
    again = PairReport.read(tmp_path / "new" / JSON_FILE)
    assert again == report and _render_page(again) == page
    assert "book <mark>the lensfield</mark>" in page and "book <mark>narug</mark>" in page
    assert '<span class="right">(right)</span>' in page and '<span class="wrong">(wrong)</span>' in page
    assert "same <span" in page.replace("\n", "") and "(the same in both)" in page
    assert "3 values differ; the first 1 are shown." in page
    assert "<td>–</td><td>0 / 0</td>" in page, "an undefined CM"


def test_a_notebook_shows_a_picture_of_a_few_kilobytes() -> None:
    report = small_report(HOSTILE, HOSTILE)
    report.pairs = {name: values * 5000 for name, values in report.pairs.items()}
    picture = report._repr_html_()
    assert len(picture) < 8000 and len(repr(report)) < 1000
    elements = Elements(picture)
    assert HOSTILE in elements.text and "script" not in [tag for tag, _ in elements.elements]
    assert "cm -" in elements.text and "pairs 2" in elements.text
    report.pairs = {name: values[:2] for name, values in report.pairs.items()}
    _, others, worst = (a["d"] or "" for tag, a in Elements(report._repr_html_()).elements if tag == "path")
    # Losses 0.1 and 1.1 (shown), 0.9 and 0.9: roots on a scale that ends at the largest, y downwards.
    scale = 320 / 1.1**0.5
    expected = [(0.1**0.5 * scale, 0.0), (0.9**0.5 * scale, 320 - 0.9**0.5 * scale)]
    assert [(worst, others)] == [tuple(f"M{x:.0f} {y:.0f}h.01" for x, y in expected)]
    assert PairReport("empty")._repr_html_()
    report.pairs["loss_original"][0] = None
    assert f'd="{worst}"' not in report._repr_html_() and "nan" not in report._repr_html_()


def test_a_report_is_a_static_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_render_page", lambda report: "page")
    write_report(small_report(title='A "title": 1'), tmp_path)
    data = SpaceCard.load(tmp_path / "README.md").data
    assert (data.title, data.sdk) == ('A "title": 1', "static") and (tmp_path / str(data.app_file)).exists()
    (tmp_path / "README.md").write_text("a model card")
    (tmp_path / PAGE_FILE).write_bytes(page.MARK)
    write_report(small_report(), tmp_path)
    assert (tmp_path / "README.md").read_text() == "a model card"


def test_foreign_files_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_render_page", lambda report: "page")
    for name in (PAGE_FILE, JSON_FILE):
        (tmp_path / name).write_text("{}")
        with pytest.raises(DataError, match=name):
            write_report(small_report(), tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()


def test_a_file_without_a_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"format": "another"}')
    with pytest.raises(DataError, match=r"a\.json"):
        PairReport.read(tmp_path / "a.json")


def test_sample_of_many_pairs_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_POINTS", 8)
    report = small_report()
    report.pairs = {name: values * 20 for name, values in report.pairs.items()}
    report.curves, report.losses, shown = {}, [], len(report.worst)
    charts = [_charts_of(report)[0] for _ in range(2)]
    assert charts[0].figure == charts[1].figure
    assert sum(len(trace.x) for trace in charts[0].figure.data) == 8 > shown
    assert "8 of" in charts[0].note


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_a_browser_draws_every_chart_without_an_error(tmp_path: Path) -> None:
    report = small_report(HOSTILE, "Pairs")
    page = write_report(report, tmp_path)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'user'}"]
    shown = subprocess.run(
        [
            str(BROWSER),
            *flags,
            "--enable-logging=stderr",
            "--v=0",
            "--virtual-time-budget=8000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert [line for line in shown.stderr.splitlines() if ":CONSOLE" in line] == []
    assert shown.stdout.count('class="main-svg"') >= len(_charts_of(report))
    assert Elements(shown.stdout).text.count("Pairs") and "<title>Pairs</title>" in shown.stdout, "no text has been run"
