"""Charts of a pair report, as figures of plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dair_hf.pair_report.report import PairReport, pair_name, share_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Colors that people who see no red or green can tell apart (Okabe and Ito).
ORIGINAL, AUGMENTED, ACCENT, QUIET, INK, GRID = "#0072b2", "#d55e00", "#009e73", "#9aa5b1", "#1f2933", "#e4e7eb"
MAX_POINTS = 4000  # of the scatter plot; more make an SVG slow
MAX_CURVE_POINTS = 2000
TICKS = (0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 40, 80, 150, 300, 600, 1200, 2500, 5000, 10_000)
MAX_TICKS = 8
MAX_LABEL = 32  # characters of the name of a group on an axis
BAR_HEIGHT = 34  # pixels per group


@dataclass(frozen=True)
class Chart:
    """A chart with its heading and the sentence that says how to read it."""

    name: str
    heading: str
    figure: Figure
    note: str


def charts_of(report: PairReport) -> list[Chart]:
    """Return the charts for which a report has numbers, in the order of the page."""
    charts = [scatter_of_losses(report)] if report.pairs.get("loss_original") else []
    charts += curve_charts(report)
    if report.pairs.get("weight_original"):
        charts.append(gradient_weight_chart(report))
    charts += [group_chart(number, by_group) for number, by_group in enumerate(report.losses) if by_group["groups"]]
    return charts


def scatter_of_losses(report: PairReport) -> Chart:
    """Draw l against l~ on axes of roots, with the line of agreement and the shown pairs in color."""
    pairs, count = report.pairs, len(report.pairs["row_id"])
    shown = min(len(report.worst), count)
    rest = sample_of(shown, count, MAX_POINTS - shown)
    roots = np.sqrt(np.maximum([pairs["loss_original"], pairs["loss_augmented"]], 0.0))
    top = float(roots.max()) * 1.05 or 1.0
    figure = _figure(height=520)
    figure.add_scatter(
        x=[0, top], y=[0, top], mode="lines", line={"color": INK, "width": 1}, hoverinfo="skip", showlegend=False
    )
    for name, color, size, chosen in (
        ("other pairs", QUIET, 5, rest),
        ("pairs shown below", AUGMENTED, 7, list(range(shown))),
    ):
        figure.add_scatter(
            x=[round(float(value), 5) for value in roots[0, chosen]],
            y=[round(float(value), 5) for value in roots[1, chosen]],
            mode="markers",
            name=name,
            marker={"color": color, "size": size, "opacity": 0.65, "line": {"width": 0}},
            customdata=[_hover(pairs, number) for number in chosen],
            meta="pairs" if color == AUGMENTED else "",
            hovertemplate="%{customdata}<extra></extra>",
        )
    ticks = _ticks(top)
    axis = {"tickvals": [value**0.5 for value in ticks], "ticktext": [f"{value:g}" for value in ticks]}
    figure.update_xaxes(**axis, range=[-0.02 * top, top], title="loss of the original, nats per row")
    figure.update_yaxes(**axis, range=[-0.02 * top, top], title="loss of the partner, nats per row", scaleanchor="x")
    figure.update_xaxes(constrain="domain", constraintoward="left")
    figure.update_yaxes(constrain="domain")
    drawn = len(rest) + shown
    sampled = f" {drawn:,} of {count:,} pairs are drawn: the worst and a sample of the others." if drawn < count else ""
    note = (
        "One point per pair, losses by the final model. On the line both views have the same loss. The axes are spaced "
        "by roots, so that the distance from the line is the root of R (over √2). Click a colored point to see its "
        "pair."
    )
    return Chart("scatter", "Losses of the two views", figure, note + sampled)


def sample_of(start: int, count: int, size: int) -> list[int]:
    """Return at most `size` numbers from `start` to `count - 1`, at random but always the same."""
    if count - start <= size:
        return list(range(start, count))
    chosen: list[int] = np.sort(np.random.default_rng(0).choice(np.arange(start, count), size, False)).tolist()
    return chosen


def curve_charts(report: PairReport) -> list[Chart]:
    """Draw what the trainer logged: losses, R, rho, share unlearned, lambda, share of the gradient."""
    views = [("loss_original", "original", ORIGINAL), ("loss_augmented", "partner", AUGMENTED)]
    share = [("gradient_share", "reached", ORIGINAL), ("lambda_target", "target", QUIET)]
    # With another target, `lambda_target` does not belong beside the share of the gradient.
    share = share if "gradient_share" in report.curves else []
    drawn = [
        _curves(
            report,
            "losses",
            "Losses during training",
            views,
            "nats per row",
            "Means since the last log. Training fits both views when both curves fall together.",
        ),
        _curves(
            report,
            "consistency",
            "Consistency R during training",
            [("consistency", "R", ORIGINAL)],
            "nats per pair",
            "Mean of R over the pairs since the last log. It rises where the model learns one view before the other, "
            "and falls again where it learns both.",
        ),
        _curves(
            report,
            "rho",
            "Inconsistency rho during training",
            [("inconsistency", "rho", ORIGINAL)],
            "rho",
            "rho = E[R] / E[(l + l~) / 2]. With R_sq or R_l1 it is 0 if both views of every pair have the same loss, "
            "and 2 if one of them has none; with R_kl or R_js it may be larger. R_sq and R_l1 grow with the losses, "
            "rho does not.",
        ),
        _curves(
            report,
            "unlearned",
            "Share unlearned during training",
            [("unlearned_share", "share", ORIGINAL)],
            "share of the pairs",
            "Pairs whose easier view is pushed away from its target (a gradient weight below 0). A share that stays "
            "near 1 means that lambda is too large.",
        ),
        _curves(
            report,
            "lambda",
            "Lambda during training",
            [("dair_lambda", "lambda", ORIGINAL)],
            f"lambda per {report.settings.get('normalization', 'pair')}",
            "Weight of R.",
            log=True,
        ),
        _curves(
            report,
            "gradient_share",
            "Share of the gradient during training",
            share,
            "ratio of norms",
            "Norm of the gradient of lambda R over that of the mean loss.",
        ),
    ]
    return [chart for chart in drawn if chart is not None]


def gradient_weight_chart(report: PairReport) -> Chart:
    """Draw a histogram of the gradient weights of the easier views."""
    weights = np.minimum(report.pairs["weight_original"], report.pairs["weight_augmented"]).astype(float)
    low = max(float(np.quantile(weights, 0.005)), -20.0)
    edges = np.linspace(min(low, 0.0), 0.5, 61)
    counts, _ = np.histogram(weights.clip(edges[0], edges[-1]), edges)
    figure = _figure(height=300)
    middle = (edges[:-1] + edges[1:]) / 2
    figure.add_bar(
        x=middle.round(5).tolist(),
        y=counts.tolist(),
        width=float(edges[1] - edges[0]) * 0.9,
        marker={"color": [AUGMENTED if value < 0 else ORIGINAL for value in middle]},
        hovertemplate="about %{x:.3f}: %{y} pairs<extra></extra>",
        showlegend=False,
    )
    figure.add_shape(type="line", x0=0, x1=0, y0=0, y1=1, yref="paper", line={"color": INK, "width": 1})
    figure.update_xaxes(title="gradient weight of the easier view")
    figure.update_yaxes(title="pairs")
    note = (
        "The gradient of a pair is c grad l + c~ grad l~; shown is the smaller of c and c~ at the last lambda. 0.5: "
        f"both views count alike. Below 0 the easier view is unlearned, {share_text((weights < 0).mean())} of the "
        "pairs. The first bar holds all weights below it."
    )
    return Chart("weights", "Gradient weights", figure, note)


def group_chart(number: int, by_group: dict[str, Any]) -> Chart:
    """Draw the mean losses of both views by group."""
    groups = by_group["groups"][::-1]  # the first at the top
    names = [_axis_label(group["name"], group["pairs"]) for group in groups]
    positions = list(range(len(groups)))
    figure = _figure(height=110 + BAR_HEIGHT * max(2, len(groups)))
    for key, name, color, shift in (
        ("loss_augmented", "partner", AUGMENTED, -0.18),
        ("loss_original", "original", ORIGINAL, 0.18),
    ):
        figure.add_bar(
            x=[group[key] for group in groups],
            y=[position + shift for position in positions],
            orientation="h",
            width=0.34,
            name=name,
            marker={"color": color},
            customdata=[[escape(str(group["name"])), group["pairs"], group["inconsistency"]] for group in groups],
            hovertemplate="%{customdata[0]}, %{customdata[1]} pairs: %{x:.4g} nats per row<br>rho %{customdata[2]:.3f}"
            + f"<extra>{name}</extra>",
        )
    figure.update_layout(legend={"traceorder": "reversed"})
    figure.update_yaxes(
        tickvals=positions, ticktext=names, showgrid=False, automargin=True, range=[-0.6, len(groups) - 0.4]
    )
    figure.update_xaxes(title="mean loss, nats per row", rangemode="tozero")
    note = (
        "Mean losses of the pairs of each group, with their number in brackets. Look at groups in which one view is "
        "much harder than the other: there the augmentation, or its label, may be wrong."
    )
    if any(group["name"] for group in groups) and by_group["name"] == "slot that changes":
        note += " A pair is in the group of every slot whose value differs between its two states."
    return Chart(f"group_{number}", f"Losses by {by_group['name']}", figure, note)


def _curves(
    report: PairReport,
    name: str,
    heading: str,
    series: Sequence[tuple[str, str, str]],
    unit: str,
    note: str,
    log: bool = False,
) -> Chart | None:
    known = [(key, label, color) for key, label, color in series if len(report.curves.get(key, {}).get("step", ())) > 1]
    if not known:
        return None
    figure = _figure(height=280)
    for key, label, color in known:
        curve = report.curves[key]
        every = -(-len(curve["step"]) // MAX_CURVE_POINTS)
        figure.add_scatter(
            x=curve["step"][::every],
            y=curve["value"][::every],
            mode="lines",
            name=label,
            line={"color": color, "width": 2},
            showlegend=len(known) > 1,
            hovertemplate=f"step %{{x}}: %{{y:.4g}}<extra>{label}</extra>",
        )
    values = [value for key, *_ in known for value in report.curves[key]["value"] if value is not None]
    is_log = log and min(values) > 0 and max(values) > 20 * min(values)
    figure.update_yaxes(title=unit, type="log" if is_log else "linear", rangemode="normal" if is_log else "tozero")
    figure.update_xaxes(title="optimizer step")
    return Chart(name, heading, figure, note)


def _figure(height: int) -> Figure:
    import plotly.graph_objects as go

    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": QUIET, "ticks": "outside", "tickcolor": QUIET}
    return go.Figure(
        layout={
            "template": {"layout": {"xaxis": axis, "yaxis": axis}},
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 28, "b": 52},
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "hoverlabel": {"align": "left", "bgcolor": "white", "bordercolor": QUIET},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "bargap": 0.2,
        }
    )


def _hover(pairs: dict[str, list[Any]], number: int) -> str:
    """Return the text shown over a point; plotly reads it as HTML."""
    left, right = (pairs[column][number] for column in ("loss_original", "loss_augmented"))
    return (
        f"<b>{escape(pair_name(pairs, number))}</b>, rank {number + 1}<br>original {left:.4g}, partner {right:.4g} nats"
        f"<br>score {pairs['score'][number]:.4g}"
    )


def _axis_label(name: Any, pairs: int) -> str:
    text = str(name)
    short = text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
    return f"{escape(short)} ({pairs:,}) "


def _ticks(top: float) -> list[float]:
    """Return losses for the ticks of an axis of roots that ends at `top`, at distances that keep their labels apart."""
    ticks: list[float] = [0]
    for value in TICKS[1:]:
        if value**0.5 <= top and value**0.5 - ticks[-1] ** 0.5 >= top / MAX_TICKS:
            ticks.append(value)
    return ticks
