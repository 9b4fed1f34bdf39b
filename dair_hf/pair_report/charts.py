"""Charts of a pair report, drawn by plotly.express."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from dair_hf.pair_report.report import PairReport, pair_name, share_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

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


class Chart(NamedTuple):
    """A chart with its heading and the sentence that says how to read it."""

    name: str
    heading: str
    figure: Figure
    note: str


def charts_of(report: PairReport) -> list[Chart]:
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


def _scatter_of_losses(report: PairReport) -> Chart:
    """Draw l against l~ on axes of roots, with the line of agreement and the shown pairs in color."""
    import plotly.express as px

    pairs, count = report.pairs, len(report.pairs["row_id"])
    shown = min(len(report.worst), count)
    numbers = [*_sample_of(shown, count, MAX_POINTS - shown), *range(shown)]
    frame = pd.DataFrame(pairs).iloc[numbers]
    losses = frame[["loss_original", "loss_augmented"]].clip(lower=0)
    roots = (
        losses.pow(0.5)
        .set_axis(["x", "y"], axis=1)
        .assign(
            kind=[SHOWN if number < shown else OTHERS for number in numbers],
            # plotly reads the texts over a point as HTML
            name=[f"{escape(pair_name(pairs, number))}, rank {number + 1}" for number in numbers],
            **{
                "original, nats": frame["loss_original"],
                "partner, nats": frame["loss_augmented"],
                "score": frame["score"],
            },
        )
    )
    values = ["original, nats", "partner, nats", "score"]
    hover = {"x": False, "y": False, "kind": False, **dict.fromkeys(values, ":.4g")}
    figure = px.scatter(
        roots, x="x", y="y", color="kind", hover_name="name", hover_data=hover, height=520, opacity=0.65, **STYLE
    )
    figure.update_traces(meta="pairs", selector={"name": SHOWN})  # the script of the page follows clicks on these
    top = float(roots[["x", "y"]].max().max()) * 1.05 or 1.0
    figure.add_shape(type="line", x0=0, y0=0, x1=top, y1=top, line={"width": 1})
    ticks = np.linspace(0, top, 8)
    axis = {"tickvals": ticks, "ticktext": [f"{tick**2:.2g}" for tick in ticks], "range": [-0.02 * top, top]}
    figure.update_xaxes(**axis, title="loss of the original, nats per row", constrain="domain")
    figure.update_yaxes(**axis, title="loss of the partner, nats per row", constrain="domain", scaleanchor="x")
    drawn = len(numbers)
    sampled = f" {drawn:,} of {count:,} pairs are drawn: the worst and a sample of the others." if drawn < count else ""
    note = (
        "One point per pair, losses by the final model. On the line both views have the same loss. The axes are spaced "
        "by roots, so that the distance from the line is the root of R (over √2). Click a colored point to see its "
        "pair."
    )
    return Chart("scatter", "Losses of the two views", figure, note + sampled)


def _sample_of(start: int, count: int, size: int) -> list[int]:
    """Return at most `size` numbers from `start` to `count - 1`, at random but always the same."""
    if count - start <= size:
        return list(range(start, count))
    chosen: list[int] = np.sort(np.random.default_rng(0).choice(np.arange(start, count), size, False)).tolist()
    return chosen


def _curve_chart(
    report: PairReport, name: str, heading: str, series: dict[str, str], unit: str, note: str
) -> Chart | None:
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
    return Chart(name, heading, figure, note)


def _gradient_weight_chart(report: PairReport) -> Chart:
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
        f"both views count equally. Below 0 the easier view is unlearned, {share_text((weights < 0).mean())} of the "
        "pairs. The first bar holds all weights below it."
    )
    return Chart("weights", "Gradient weights", figure, note)


def _group_chart(number: int, by_group: dict[str, Any]) -> Chart:
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
    return Chart(f"group_{number}", f"Losses by {by_group['name']}", figure, note)
