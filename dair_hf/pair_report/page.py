"""Page of a pair report: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import (
    FilePath,
    holds_json,
    require_generated,
    require_output_file,
    require_writable_folder,
    write_generated,
    write_json,
)
from dair_hf.io.folders import sole_writer
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
from dair_hf.pair_report.scores import WORST_SHARE

MARK = '<meta name="generator" content="dair_hf pair report">'  # in every page


class Tile(NamedTuple):
    """Figure at the top of the page."""

    name: str
    value: str
    note: str


def require_report_libraries() -> None:
    """Raise a `DataError` if plotly or jinja2, which are optional (extra `report`), is not installed."""
    try:
        import jinja2  # noqa: F401
        import plotly.offline  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"a pair report needs plotly and jinja2 ({error}); install them: pip install plotly jinja2"
        ) from error


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
    sections = [("losses", "Losses"), ("correctness", "Right and wrong"), ("pairs", "The pairs that never agree")]
    return environment.from_string(template).render(
        report=report,
        subtitle=subtitle_of(report),
        sections=[section for section in sections if report.correctness or section[0] != "correctness"],
        tiles=tiles_of(report.summary),
        charts=charts,
        ranking=ranking_of(report.summary, len(report.worst)),
        pairs=[_shown_pair(report, worst) for worst in report.worst],
        # "<" cannot begin a tag in JSON that spells it as an escape.
        figures=Markup(json.dumps(figures).replace("<", "\\u003c")),
        plotly=Markup(plotly),
        script=Markup(script),
        script_hashes=Markup(" ".join(f"'sha256-{_digest(source)}'" for source in (plotly, script))),
        share=share_text,
        cm=cm_text,
        number=number_text,
        segments=_segments,
        verdict=_verdict,
    )


def require_report_folder(folder: FilePath) -> None:
    """Refuse a folder that cannot take a report, before the model is run.

    Raises:
        DataError: The folder cannot be written, or holds other files of these names.
    """
    path = require_writable_folder(folder, "folder")
    require_output_file(path / JSON_FILE, overwrite=True, is_own=holds_json(is_report), remedy="name another folder")
    require_generated(path / PAGE_FILE, MARK)


def write_report(report: PairReport, folder: FilePath) -> Path:
    """Write `pair_report.json` and `pair_report.html` to a folder, and return the path of the page.

    Args:
        report: The report.
        folder: Folder, which is created. Files of an earlier report are replaced.

    Raises:
        DataError: The folder cannot be written or holds other files of these names, or plotly or jinja2 is not
            installed.
    """
    page = render_page(report)  # before anything is written
    with sole_writer(folder):
        require_report_folder(folder)
        path = write_generated(Path(folder) / PAGE_FILE, page, MARK)
        write_json(Path(folder) / JSON_FILE, report.to_dict())
    return path


def subtitle_of(report: PairReport) -> str:
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


def tiles_of(summary: dict[str, Any]) -> list[Tile]:
    """Return the figures at the top of the page."""
    tiles = [
        Tile("pairs", f"{summary['pairs']:,}", f"of {summary['rows']:,} rows"),
        Tile("loss of the originals", number_text(summary["loss_original"]), "nats per row, mean"),
        Tile("loss of the partners", number_text(summary["loss_augmented"]), "nats per row, mean"),
        Tile("R", number_text(summary["consistency"]), "nats per pair, mean"),
        Tile("rho", number_text(summary["inconsistency"]), "0 to 2; 0: views agree"),
        Tile("worst 5 %", share_text(summary["share_of_worst"]), "of all scores"),
    ]
    if "unlearned_share" in summary:
        tiles.append(Tile("unlearned", share_text(summary["unlearned_share"]), "of the pairs"))
    if "cm" in summary:
        of = f"{summary['cm_numerator']} of {summary['cm_denominator']} right originals"
        tiles.append(Tile("CM", cm_text(summary), of))
        tiles.append(Tile("both right", share_text(summary["both_correct"]), "of the pairs"))
    return tiles


def ranking_of(summary: dict[str, Any], shown: int) -> str:
    """Say how the pairs are ranked, and how to read the list."""
    steps = summary["steps_per_pair"]
    by = "R = (√l − √l~)² of the final model"
    if steps:
        by = (
            "(mean of √l − √l~)² over training and the final model. Training saw a pair "
            f"{steps:.1f} times on average; the score is large if the same view was the harder one all along, and "
            "small if the two took turns. Texts and images are those of the last epoch"
        )
    held = f"The worst {100 * WORST_SHARE:g} % of the pairs hold {share_text(summary['share_of_worst'])} of all scores."
    return (
        f"The {shown} worst of {summary['pairs']:,} pairs, by {by}. Differing words are marked. Look for a partner "
        "whose label does not fit: a name that is new in the input and old in the target, an image that is no longer "
        f"what its label says. {held}"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _shown_pair(report: PairReport, worst: dict[str, Any]) -> dict[str, Any]:
    number, pairs = worst["number"], report.pairs
    shown: dict[str, Any] = {
        **{name: pairs[name][number] for name in ("score", "loss_original", "loss_augmented")},
        "number": number,
        "row_id": pair_name(pairs, number),
        "weights": None,
        "fields": [_shown_field(field) for field in worst["fields"]],
    }
    if "weight_original" in pairs:
        weights = (pairs[name][number] for name in ("weight_original", "weight_augmented"))
        shown["weights"] = " and ".join(f"{weight:.2f}" for weight in weights)
    if "answer" in worst:
        answer = {"name": "answer", "kind": "text", "correct": worst["correct"], **worst["answer"]}
        shown["fields"].append(_shown_field(answer))
    return shown


def _shown_field(field: dict[str, Any]) -> dict[str, Any]:
    if field["kind"] != "text":
        return field
    original, augmented = mark_differences(field["original"], field["augmented"])
    is_same = field["original"] == field["augmented"] and "correct" not in field
    return {**field, "original": original, "augmented": augmented, "same": is_same}


def _segments(segments: Sequence[Segment]) -> Any:
    """Return segments of a text as HTML."""
    from markupsafe import Markup, escape

    tags = {"same": "{}", "changed": "<mark>{}</mark>", "omitted": ' <span class="omitted">… {} …</span> '}
    if not segments:
        return Markup('<span class="omitted">(empty)</span>')
    return Markup("").join(Markup(tags[segment.kind]).format(escape(segment.text)) for segment in segments)


def _verdict(field: dict[str, Any], view: int) -> Any:
    """Return whether an answer is right, as HTML."""
    from markupsafe import Markup

    if "correct" not in field:
        return ""
    word = "right" if field["correct"][view] else "wrong"
    return Markup(' <span class="{0}">({0})</span>').format(word)
