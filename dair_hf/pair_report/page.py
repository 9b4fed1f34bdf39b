"""Page of a pair report: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from dair_hf.errors import explained
from dair_hf.io.files import (
    FilePath,
    holds_json,
    read_bytes,
    require_output_file,
    require_writable_folder,
    write_json,
    write_text,
)
from dair_hf.pair_report.charts import charts_of
from dair_hf.pair_report.differences import Segment, mark_differences
from dair_hf.pair_report.report import (
    JSON_FILE,
    PAGE_FILE,
    PairReport,
    cm_text,
    is_report,
    number_text,
    pair_name,
    share_text,
)

MARK = b'<meta name="generator" content="dair_hf pair report">'  # in every page
SEGMENTS = {"same": "{}", "changed": "<mark>{}</mark>", "omitted": ' <span class="omitted">… {} …</span> '}


def require_report_libraries() -> None:
    """Raise a `DataError` if a library of the extra `report` is not installed."""
    with explained("a pair report needs the extra `report`: pip install plotly jinja2 pillow", ImportError):
        import jinja2  # noqa: F401
        import PIL  # noqa: F401
        import plotly.offline  # noqa: F401


def render_page(report: PairReport) -> str:
    """Return the page of a report.

    Scripts and styles are part of the page, and its content security policy forbids to load or run anything else. Texts
    of the data are escaped.
    """
    require_report_libraries()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    files = resources.files("dair_hf.pair_report")
    template, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    # A page within a script element must not contain its end.
    plotly = get_plotlyjs().replace("</script", "<\\/script")
    charts = charts_of(report)
    figures = {chart.name: json.loads(chart.figure.to_json()) for chart in charts}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"share": share_text, "number": number_text, "segments": _segments}
    return environment.from_string(template).render(
        report=report,
        summary=report.summary,
        subtitle=_subtitle_of(report),
        cm=cm_text,
        charts=charts,
        pairs=[_shown_pair(report, worst) for worst in report.worst],
        # "<" cannot begin a tag in JSON that spells it as an escape.
        figures=Markup(json.dumps(figures).replace("<", "\\u003c")),
        plotly=Markup(plotly),
        script=Markup(script),
        script_hashes=Markup(" ".join(f"'sha256-{_digest(source)}'" for source in (plotly, script))),
    )


def require_report_folder(folder: FilePath) -> None:
    """Refuse a folder that cannot be written, or holds other files of these names, before the model is run."""
    path = require_writable_folder(folder, "folder")
    for name, is_own in ((JSON_FILE, holds_json(is_report)), (PAGE_FILE, lambda file: MARK in read_bytes(file))):
        require_output_file(path / name, overwrite=True, is_own=is_own, remedy="name another folder")


def write_report(report: PairReport, folder: FilePath) -> Path:
    """Write `pair_report.json` and `pair_report.html` to a folder, and return the path of the page.

    Args:
        report: The report.
        folder: Folder, which is created. Files of an earlier report are replaced, but no others.
    """
    page = render_page(report)  # before anything is written
    require_report_folder(folder)
    write_json(Path(folder) / JSON_FILE, report.to_dict())
    return write_text(Path(folder) / PAGE_FILE, page)


def _subtitle_of(report: PairReport) -> str:
    """Describe what a report is about, in one line."""
    settings = report.settings
    parts = [str(settings["model"])] if "model" in settings else []
    if "method" in settings:
        method = str(settings["method"]).upper()
        if "dair_lambda" in settings:
            value = settings["dair_lambda"]
            size = "not set yet" if value is None else f"{value:g} per {settings['normalization']}"
            method += f" with R_{settings['regularizer']}, lambda {size}"
        parts.append(method)
    if settings.get("steps"):
        parts.append(f"{settings['steps']:,} steps")
    return " · ".join(parts)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _shown_pair(report: PairReport, worst: dict[str, Any]) -> dict[str, Any]:
    number = worst["number"]
    fields = list(worst["fields"])
    if "answer" in worst:
        fields.append({"name": "answer", "kind": "text", "correct": worst["correct"], **worst["answer"]})
    return {
        **{name: values[number] for name, values in report.pairs.items()},
        "number": number,
        "name": pair_name(report.pairs, number),
        "fields": [_shown_field(field) for field in fields],
    }


def _shown_field(field: dict[str, Any]) -> dict[str, Any]:
    if field["kind"] != "text":
        return field
    original, augmented = mark_differences(field["original"], field["augmented"])
    is_same = field["original"] == field["augmented"] and "correct" not in field
    return {"correct": None, **field, "original": original, "augmented": augmented, "same": is_same}


def _segments(segments: Sequence[Segment]) -> Any:
    """Return segments of a text as HTML."""
    from markupsafe import Markup, escape

    if not segments:
        return Markup('<span class="omitted">(empty)</span>')
    return Markup("").join(Markup(SEGMENTS[segment.kind]).format(escape(segment.text)) for segment in segments)
