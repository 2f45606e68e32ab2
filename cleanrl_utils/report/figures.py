"""The figures of a report, each as PNG and SVG: plain enough for a paper."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from cleanrl_utils.report.compare import Band
from cleanrl_utils.statistics import Estimate

# Okabe and Ito's colours, which colour-blind people tell apart, those first that print well as lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))  # when the colours begin again
GREY = "#777777"  # published
PUBLISHED_DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",  # text stays text
    "savefig.dpi": 200,
}


class Look(NamedTuple):
    """Of a group or a published system, the same in all figures and on the page."""

    color: str
    dash: Any

    @staticmethod
    def of_group(index: int) -> "Look":
        return Look(COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)])

    @staticmethod
    def of_published(index: int) -> "Look":
        return Look(GREY, PUBLISHED_DASHES[index % len(PUBLISHED_DASHES)])


Looks = dict[str, Look]


class Panel(NamedTuple):
    """The learning curves of one game."""

    game: str
    bands: dict[str, Band]  # by group
    short: dict[str, list[tuple[np.ndarray, np.ndarray]]]  # lines of runs that do not count
    published: dict[str, float]


class Axis(NamedTuple):
    name: str  # of the files
    label: str
    unit: float  # what is 1 on it


STEPS = Axis("steps", "environment steps", 1)


def time_axis(longest: float) -> Axis:
    """Wall time, in a unit that suits the longest run."""
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * unit:
            return Axis("time", f"wall time, {name}", unit)
    return Axis("time", "wall time, seconds", 1)


def save(figure: Figure, path: Path) -> str:
    """As path.png and path.svg; returns the latter. The same figure gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{path}.png")
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(f"{path}.svg", metadata={"Date": None})
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", Path(f"{path}.svg").read_text())  # a hundredth of a point will do
    Path(f"{path}.svg").write_text(svg)
    return svg


@contextmanager
def styled() -> Iterator[None]:
    with matplotlib.rc_context(STYLE):
        yield


# ------------------------------------------------------------------------------------------ learning curves


def curves_of_game(panel: Panel, looks: Looks, axis: Axis) -> Figure:
    figure = Figure(figsize=(4.4, 3.1))
    legend = legend_rows(figure, looks, [*panel.bands, *panel.short, *panel.published])
    top = 0.90 - 0.065 * legend
    axes = figure.add_axes((0.135, 0.15, 0.835, top - 0.15))
    figure.text(0.02, 0.925, panel.game, fontweight="bold", fontsize=10)
    draw_curves(axes, panel, looks, axis)
    axes.set_xlabel(axis.label)
    axes.set_ylabel("return")
    return figure


def legend_rows(figure: Figure, looks: Looks, names: Sequence[str]) -> int:
    """A legend over the axes, in as many columns as there is room for; returns its rows."""
    shown = [name for name in looks if name in names]
    if not shown:
        return 0
    columns = max(1, min(len(shown), int(64 / (max(map(len, shown)) + 6))))
    lines = [Line2D([], [], color=looks[n].color, linestyle=looks[n].dash, linewidth=1.6) for n in shown]
    figure.legend(
        lines,
        shown,
        loc="upper left",
        bbox_to_anchor=(0.005, 0.925),
        ncols=columns,
        columnspacing=1.2,
        handlelength=1.6,
        labelspacing=0.25,
        borderpad=0.2,
    )
    return math.ceil(len(shown) / columns)


def draw_curves(axes: Axes, panel: Panel, looks: Looks, axis: Axis, width: float = 1.5) -> None:
    for name, score in panel.published.items():
        axes.axhline(score, color=looks[name].color, linestyle=looks[name].dash, linewidth=0.8 * width)
    for group, lines in panel.short.items():
        for x, y in lines:
            axes.plot(x / axis.unit, y, color=looks[group].color, linewidth=0.9, linestyle=(0, (1, 2)))
    for group, band in panel.bands.items():
        x = band.x / axis.unit
        axes.fill_between(x, band.low, band.high, color=looks[group].color, alpha=0.18, linewidth=0)
        axes.plot(x, band.mean, color=looks[group].color, linestyle=looks[group].dash, linewidth=width)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500k, 1.5M
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def overview(panels: Sequence[Panel], looks: Looks, axis: Axis) -> Figure:
    """All games in one figure."""
    columns = min(len(panels), 3 if len(panels) <= 12 else 6)
    rows = math.ceil(len(panels) / columns)
    width = 2.9 if columns <= 3 else 1.75
    height = 0.78 * width
    figure = Figure(figsize=(width * columns, height * rows + 0.55))
    grid = figure.subplots(rows, columns, squeeze=False)
    edge = 0.55 / (height * rows + 0.55)
    figure.subplots_adjust(
        left=0.62 / (width * columns),
        right=0.995,
        top=1 - edge,
        bottom=0.42 / (height * rows + 0.55),
        wspace=0.28,
        hspace=0.55 if columns > 3 else 0.38,
    )
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_curves(axes, panel, looks, axis, width=1.2)
        axes.set_title(panel.game, fontsize=7.5 if columns > 3 else 9, pad=3)
        axes.tick_params(labelsize=6 if columns > 3 else 8, length=2, pad=2)
        for side in (axes.xaxis, axes.yaxis):
            side.set_major_locator(MaxNLocator(3 if columns > 3 else 4))
    figure.supxlabel(axis.label, fontsize=9, y=0.06 / (height * rows + 0.55))
    figure.supylabel("return", fontsize=9, x=0.05 / (width * columns))
    shown = [name for name in looks if any(name in p.bands or name in p.published for p in panels)]
    lines = [Line2D([], [], color=looks[n].color, linestyle=looks[n].dash, linewidth=1.6) for n in shown]
    figure.legend(lines, shown, loc="upper center", ncols=max(1, len(shown)), fontsize=9, handlelength=1.6)
    return figure


# ----------------------------------------------------------------------------------------------- over games


def aggregates_figure(found: dict[str, dict[str, Estimate]], looks: Looks) -> Figure:
    """One panel for each aggregate, one row for each group: the estimate and its interval."""
    titles = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality gap": "Optimality gap"}
    figure = Figure(figsize=(9, 1.0 + 0.32 * len(found)), layout="constrained")
    panels = figure.subplots(1, len(titles), sharey=True)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for row, (who, estimates) in enumerate(found.items()):
            value, low, high = estimates[name]
            color = looks[who].color
            if high > low:
                axes.barh(row, high - low, left=low, height=0.6, color=color, alpha=0.35, linewidth=0)
            axes.plot([value, value], [row - 0.3, row + 0.3], color=color, linewidth=2.2)
        axes.set_title(title)
        axes.set_yticks(range(len(found)), list(found))
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.use_sticky_edges = False  # bars begin at their lower end, not at the axis
        axes.margins(x=0.12, y=0.08)
    panels[0].invert_yaxis()
    figure.supxlabel("human-normalised score", fontsize=9)
    return figure


def profiles_figure(thresholds: np.ndarray, found: dict[str, Any], looks: Looks) -> Figure:
    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for who, (value, low, high) in found.items():
        look = looks[who]
        axes.fill_between(thresholds, low, high, color=look.color, alpha=0.15, linewidth=0, step="post")
        axes.plot(
            thresholds,
            value,
            color=look.color,
            linestyle=look.dash,
            linewidth=1.6,
            label=who,
            drawstyle="steps-post",
        )
    axes.set_xlabel("human-normalised score τ")
    axes.set_ylabel("share of runs above τ")
    axes.set_xlim(0, thresholds[-1])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(loc="upper right")
    return figure


def efficiency_figure(found: dict[str, Band], looks: Looks) -> Figure:
    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for who, band in found.items():
        look = looks[who]
        axes.fill_between(band.x, band.low, band.high, color=look.color, alpha=0.15, linewidth=0)
        axes.plot(band.x, band.mean, color=look.color, linestyle=look.dash, linewidth=1.6, label=who)
    axes.set_xlabel("frames")
    axes.set_ylabel("IQM of human-normalised scores")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(loc="upper left")
    return figure


def improvements_figure(found: dict[tuple[str, str], tuple[Estimate, int]], looks: Looks) -> Figure:
    """How likely the group on the left is better than the one on the right."""
    figure = Figure(figsize=(6.4, 0.9 + 0.36 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for row, ((a, _), (estimate, _)) in enumerate(found.items()):
        value, low, high = estimate
        axes.barh(row, high - low, left=low, height=0.55, color=looks[a].color, alpha=0.35, linewidth=0)
        axes.plot([value, value], [row - 0.28, row + 0.28], color=looks[a].color, linewidth=2.2)
    axes.axvline(0.5, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1)
    axes.set_yticks(range(len(found)), [a for a, _ in found])
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(found)), [b for _, b in found])
    for side in (axes, right):
        side.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("probability that a run of the group on the left scores higher")
    return figure
