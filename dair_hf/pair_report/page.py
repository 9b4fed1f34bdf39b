"""Page of a pair report: one HTML file that loads nothing from elsewhere, with charts drawn by plotly.express."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from huggingface_hub import SpaceCardData

from dair_hf.errors import explained
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.io.files import (
    FilePath,
    read_json,
    require_output_file,
    write_json,
    write_text,
)
from dair_hf.pair_report.contents import mark_differences
from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE, PairReport, is_report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MARK = b'<meta name="generator" content="dair_hf pair report">'  # in every page
SEGMENTS = {"same": "{}", "changed": "<mark>{}</mark>", "omitted": ' <span class="omitted">… {} …</span> '}
# Colors that people with red-green color blindness can tell apart (Okabe and Ito).
BLUE, ORANGE, QUIET = "#0072b2", "#d55e00", "#9aa5b1"
OTHERS, SHOWN = "other pairs", "pairs shown below"
COLORS = {"original": BLUE, "partner": ORANGE, "target": QUIET, OTHERS: QUIET, SHOWN: ORANGE, "unlearned": ORANGE}
STYLE: dict[str, Any] = {"template": "simple_white", "color_discrete_map": COLORS, "color_discrete_sequence": [BLUE]}
MAX_POINTS = 4000  # of the scatter plot; more make an SVG slow
MAX_CURVE_POINTS = 2000
MAX_LABEL = 32  # characters of the name of a group on an axis
# Name, heading, logged values with their labels (drawn if the first was logged), unit, and how to read the chart.
CURVES = (
    (
        "losses",
        "Losses during training",
        {"loss_original": "original", "loss_augmented": "partner"},
        "nats per row",
        "Means since the last log. Training fits both views when both curves fall together.",
    ),
    (
        "consistency",
        "Consistency R during training",
        {"consistency": "R"},
        "nats per pair",
        "Mean of R over the pairs since the last log. It rises where the model learns one view before the other, and "
        "falls again where it learns both.",
    ),
    (
        "rho",
        "Inconsistency rho during training",
        {"inconsistency": "rho"},
        "rho",
        "rho = E[R] / E[(l + l~) / 2]. With R_sq or R_l1 it is 0 if both views of every pair have the same loss, and "
        "2 if one of them has none; with R_kl or R_js it may be larger. R_sq and R_l1 grow with the losses, rho does "
        "not.",
    ),
    (
        "unlearned",
        "Share unlearned during training",
        {"unlearned_share": "share"},
        "share of the pairs",
        "Pairs whose easier view is pushed away from its target (a gradient weight below 0). A share that stays near "
        "1 means that lambda is too large.",
    ),
    ("lambda", "Lambda during training", {"dair_lambda": "lambda"}, "lambda per {normalization}", "Weight of R."),
    (
        "gradient_share",
        "Share of the gradient during training",
        {"gradient_share": "reached", "lambda_target": "target"},
        "ratio of norms",
        "Norm of the gradient of lambda R, divided by the norm of the gradient of the mean loss.",
    ),
)


def require_report_libraries() -> None:
    """Raise a `DataError` if a library of the extra `report` is not installed."""
    with explained("a pair report needs the extra `report`: pip install plotly jinja2 pillow", ImportError):
        import jinja2  # noqa: F401
        import PIL  # noqa: F401
        import plotly.offline  # noqa: F401


def _render_page(report: PairReport) -> str:
    """Return the page of a report; its content security policy forbids to load or run anything else."""
    require_report_libraries()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    files = resources.files("dair_hf.pair_report")
    template, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    # A page within a script element must not contain its end.
    plotly = get_plotlyjs().replace("</script", "<\\/script")
    charts = _charts_of(report)
    figures = {chart.name: json.loads(chart.figure.to_json()) for chart in charts}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"share": _share_text, "number": _number_text, "segments": _segments}
    return environment.from_string(template).render(
        report=report,
        summary=report.summary,
        subtitle=_subtitle_of(report),
        cm=_cm_text,
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
    path = Path(folder)
    with explained(f"folder={str(folder)!r}: cannot write there", OSError):
        existing = path.resolve()
        while not existing.exists():
            existing = existing.parent
        tempfile.TemporaryFile(dir=existing).close()
    marks = {JSON_FILE: lambda file: is_report(read_json(file)), PAGE_FILE: lambda file: MARK in file.read_bytes()}
    for name, is_own in marks.items():
        require_output_file(path / name, overwrite=True, is_own=is_own, remedy="name another folder")


def write_report(report: PairReport, folder: FilePath) -> Path:
    """Write the page, its JSON, and the card of a static Space if there is no `README.md`; return the page's path."""
    page = _render_page(report)  # before anything is written
    require_report_folder(folder)
    write_json(Path(folder) / JSON_FILE, report.to_dict())
    if not (card := Path(folder) / "README.md").exists():  # a model has its card there
        data = SpaceCardData(title=report.title, sdk="static", app_file=PAGE_FILE, tags=["dair"])
        write_text(card, f"---\n{data}\n---\n\nPair report of dair_hf. The data are in `{JSON_FILE}`.\n")
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
        "name": _pair_name(report.pairs, number),
        "fields": [_shown_field(field) for field in fields],
    }


def _shown_field(field: dict[str, Any]) -> dict[str, Any]:
    if field["kind"] != "text":
        return field
    original, augmented = mark_differences(field["original"], field["augmented"])
    is_same = field["original"] == field["augmented"] and "correct" not in field
    return {"correct": None, **field, "original": original, "augmented": augmented, "same": is_same}


def _segments(segments: Sequence[Any]) -> Any:
    """Return segments of a text as HTML."""
    from markupsafe import Markup, escape

    if not segments:
        return Markup('<span class="omitted">(empty)</span>')
    return Markup("").join(Markup(SEGMENTS[segment.kind]).format(escape(segment.text)) for segment in segments)


def _pair_name(pairs: dict[str, list[Any]], number: int) -> str:
    """Return the words for a pair: its `row_id`, and the number of its partner if it is not the first."""
    partner = pairs["partner"][number]
    return str(pairs["row_id"][number]) + (f", partner {partner}" if partner > 1 else "")


def _share_text(value: float | None) -> str:
    """Write a share in percent."""
    return "–" if value is None or value != value else f"{value:.1%}".replace("%", " %")


def _cm_text(metrics: dict[str, Any]) -> str:
    """Write CM in percent, if it is over enough pairs."""
    return _share_text(None if has_few_pairs(metrics, "cm") else metrics["cm"])


def _number_text(value: float | None) -> str:
    """Write a number with three digits."""
    return "–" if value is None or value != value else f"{value:.3g}"


class _Chart(NamedTuple):
    """A chart with its heading and the sentence that says how to read it."""

    name: str
    heading: str
    figure: Figure
    note: str


def _charts_of(report: PairReport) -> list[_Chart]:
    """Return the charts for which a report has numbers, in the order of the page."""
    charts = [_scatter_of_losses(report)] if report.pairs.get("loss_original") else []
    charts += filter(None, (_curve_chart(report, *curve) for curve in CURVES))
    if report.pairs.get("weight_original"):
        charts.append(_gradient_weight_chart(report))
    charts += [_group_chart(number, by_group) for number, by_group in enumerate(report.losses) if by_group["groups"]]
    for chart in charts:
        chart.figure.update_layout(
            margin={"l": 64, "r": 16, "t": 28, "b": 52},
            legend={"title": None, "orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            showlegend=len({trace.name for trace in chart.figure.data}) > 1,
        )
    return charts


def _scatter_of_losses(report: PairReport) -> _Chart:
    """Draw l against l~ on axes of roots, with the line of agreement and the shown pairs in color."""
    import plotly.express as px

    frame = pd.DataFrame(report.pairs)
    count = len(frame)
    shown = min(len(report.worst), count)
    others = frame.iloc[shown:]
    others = others.sample(min(len(others), max(0, MAX_POINTS - shown)), random_state=0).sort_index()
    drawn = pd.concat([others, frame.iloc[:shown]])
    points = pd.DataFrame(
        {
            "x": drawn["loss_original"].clip(lower=0) ** 0.5,
            "y": drawn["loss_augmented"].clip(lower=0) ** 0.5,
            "kind": [SHOWN if number < shown else OTHERS for number in drawn.index],
            # plotly reads the texts over a point as HTML
            "name": [f"{escape(_pair_name(report.pairs, number))}, rank {number + 1}" for number in drawn.index],
            "original, nats": drawn["loss_original"],
            "partner, nats": drawn["loss_augmented"],
            "score": drawn["score"],
        }
    )
    values = ["original, nats", "partner, nats", "score"]
    hover = {"x": False, "y": False, "kind": False, **dict.fromkeys(values, ":.4g")}
    figure = px.scatter(
        points, x="x", y="y", color="kind", hover_name="name", hover_data=hover, height=520, opacity=0.65, **STYLE
    )
    figure.update_traces(meta="pairs", selector={"name": SHOWN})  # the script of the page follows clicks on these
    top = float(points[["x", "y"]].max().max()) * 1.05 or 1.0
    figure.add_shape(type="line", x0=0, y0=0, x1=top, y1=top, line={"width": 1})
    ticks = np.linspace(0, top, 8)
    axis = {"tickvals": ticks, "ticktext": [f"{tick**2:.2g}" for tick in ticks], "range": [-0.02 * top, top]}
    figure.update_xaxes(**axis, title="loss of the original, nats per row", constrain="domain")
    figure.update_yaxes(**axis, title="loss of the partner, nats per row", constrain="domain", scaleanchor="x")
    sampled = f" {len(drawn):,} of {count:,} pairs are drawn: the worst and a sample of the others."
    note = (
        "One point per pair, losses by the final model. On the line both views have the same loss. The axes are spaced "
        "by roots, so that the distance from the line is the root of R (over √2). Click a colored point to see its "
        "pair."
    )
    return _Chart("scatter", "Losses of the two views", figure, note + (sampled if len(drawn) < count else ""))


def _curve_chart(
    report: PairReport, name: str, heading: str, series: dict[str, str], unit: str, note: str
) -> _Chart | None:
    """Draw what the trainer logged; None if it logged the first of the values at most once."""
    import plotly.express as px

    known = {key: label for key, label in series.items() if len(report.curves.get(key, {}).get("step", ())) > 1}
    if next(iter(series)) not in known:
        return None
    curves = [pd.DataFrame(report.curves[key]).assign(curve=label) for key, label in known.items()]
    frame = pd.concat([curve.iloc[:: -(-len(curve) // MAX_CURVE_POINTS)] for curve in curves])
    unit = unit.format(normalization=report.settings.get("normalization", "pair"))
    labels = {"step": "optimizer step", "value": unit}
    figure = px.line(frame, x="step", y="value", color="curve", labels=labels, height=280, **STYLE)
    figure.update_yaxes(rangemode="tozero")
    return _Chart(name, heading, figure, note)


def _gradient_weight_chart(report: PairReport) -> _Chart:
    """Draw a histogram of the gradient weights of the easier views."""
    import plotly.express as px

    weights = np.minimum(report.pairs["weight_original"], report.pairs["weight_augmented"]).astype(float)
    low = max(float(np.quantile(weights, 0.005)), -20.0)
    edges = np.linspace(min(low, 0.0), 0.5, 61)
    counts, _ = np.histogram(weights.clip(edges[0], edges[-1]), edges)
    middle = (edges[:-1] + edges[1:]) / 2
    frame = pd.DataFrame({"weight": middle, "pairs": counts, "kind": np.where(middle < 0, "unlearned", "learned")})
    labels = {"weight": "gradient weight of the easier view"}
    figure = px.bar(frame, x="weight", y="pairs", color="kind", labels=labels, height=300, **STYLE)
    figure.add_vline(x=0, line_width=1)
    note = (
        "The gradient of a pair is c grad l + c~ grad l~; shown is the smaller of c and c~ at the last lambda. 0.5: "
        f"both views count equally. Below 0 the easier view is unlearned, {_share_text((weights < 0).mean())} of the "
        "pairs. The first bar holds all weights below it."
    )
    return _Chart("weights", "Gradient weights", figure, note)


def _group_chart(number: int, by_group: dict[str, Any]) -> _Chart:
    """Draw the mean losses of both views by group."""
    import plotly.express as px

    groups = pd.DataFrame(by_group["groups"])
    names = [escape(str(name)) for name in groups["name"]]
    frame = pd.concat(
        pd.DataFrame(
            {"at": groups.index, "group": names, "view": view, "loss": groups[key], "pairs": groups["pairs"],
             "rho": groups["inconsistency"]}
        )
        for view, key in (("original", "loss_original"), ("partner", "loss_augmented"))
    )  # fmt: skip
    figure = px.bar(
        frame,
        x="loss",
        y="at",
        color="view",
        barmode="group",
        orientation="h",
        hover_name="group",
        hover_data={"at": False, "loss": ":.4g", "rho": ":.3f", "pairs": True},
        labels={"loss": "mean loss, nats per row", "at": ""},
        height=110 + 34 * max(2, len(groups)),
        **STYLE,
    )
    short = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in map(str, groups["name"])]
    texts = [f"{escape(name)} ({pairs:,}) " for name, pairs in zip(short, groups["pairs"], strict=True)]
    figure.update_yaxes(tickvals=groups.index, ticktext=texts, automargin=True, autorange="reversed")
    note = (
        "Mean losses of the pairs of each group, with their number in brackets. Look at groups in which one view is "
        "much harder than the other: there the augmentation, or its label, may be wrong."
    )
    if by_group["name"] == "slot that changes":
        note += " A pair is in the group of every slot whose value differs between its two states."
    return _Chart(f"group_{number}", f"Losses by {by_group['name']}", figure, note)
