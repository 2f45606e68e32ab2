"""The figures of a report, each as PNG and SVG: plain enough for a paper."""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

from cleanrl_utils.report.compare import Band
from cleanrl_utils.statistics import Estimate

# Okabe and Ito's colours, which colour-blind people tell apart, those first that print well as lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (5, 1.5)), "dotted": (0, (1.5, 1.5))}
GREY = "#777777"  # published
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
    "text.parse_math": False,  # names may have dollar signs
    "svg.fonttype": "none",  # text stays text
    "savefig.dpi": 200,
}
LEGEND_ROW = 0.19  # inches
CHARACTER = 0.075  # inches, of a legend
LONGEST_LABEL = 45  # characters
STRETCH = 1.0  # of the runs' own range: a published score that is farther away is only named, with an arrow


class Look(NamedTuple):
    """Of a group or a published system, the same in all figures and on the page."""

    color: str
    dash: str

    @staticmethod
    def of_group(index: int) -> "Look":
        """When the colours begin again, the dashes differ."""
        return Look(COLORS[index % len(COLORS)], list(DASHES)[index // len(COLORS) % len(DASHES)])

    @staticmethod
    def of_published(index: int) -> "Look":
        return Look(GREY, ("dashed", "dotted", "solid")[index % 3])

    def line(self, width: float) -> dict[str, Any]:
        return dict(color=self.color, linestyle=DASHES[self.dash], linewidth=width)


Looks = dict[str, Look]


class Panel(NamedTuple):
    """The learning curves of one game."""

    game: str
    bands: dict[str, Band]  # by group
    short: dict[str, list[tuple[np.ndarray, np.ndarray]]]  # lines of runs that do not count
    published: dict[str, float]

    @property
    def names(self) -> set[str]:
        return {*self.bands, *self.short, *self.published}

    def longest(self) -> float:
        ends = [band.x[-1] for band in self.bands.values()]
        return max([*ends, *(x[-1] for lines in self.short.values() for x, _ in lines)], default=0.0)


class Axis(NamedTuple):
    label: str
    unit: float  # what is 1 on it


STEPS = Axis("environment steps", 1)


def time_axis(longest: float) -> Axis:
    """Wall time, in a unit that suits the longest run."""
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * unit:
            return Axis(f"wall time, {name}", unit)
    return Axis("wall time, seconds", 1)


def save(figure: Figure, path: Path) -> str:
    """As path.png and path.svg; returns the latter. The same figure gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{path}.png")
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(f"{path}.svg", metadata={"Date": None})
    svg = shorter(Path(f"{path}.svg").read_text(encoding="utf-8"))
    Path(f"{path}.svg").write_text(svg, encoding="utf-8")
    return svg


def shorter(svg: str) -> str:
    """Coordinates to a hundredth of a point; texts stay as they are."""
    texts_or_numbers = re.compile(r"(<text.*?</text>|<!--.*?-->)|(\d\.\d\d)\d+", re.DOTALL)
    return texts_or_numbers.sub(lambda match: match[1] or match[2], svg)


@contextmanager
def styled() -> Iterator[None]:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # names in any script
        yield


def round_number(x: float, _: int = 0) -> str:
    """500k and 1.5M, but 0.5 and not 500m."""
    return EngFormatter(sep="")(x) if abs(x) >= 1000 else f"{x:.6g}".replace("-", "\N{MINUS SIGN}")


def label(name: str) -> str:
    """As much of a name as there is room for. One that begins with _ would be hidden by matplotlib."""
    name = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
    return f" {name}" if name.startswith("_") else name


def legend_over(figure: Figure, looks: Looks, names: Iterable[str], *, top: float) -> float:
    """A legend whose upper edge is so many inches below the figure's; returns its height."""
    shown = [name for name in looks if name in names]
    if not shown:
        return 0.0
    labels = [label(name) for name in shown]
    width = 0.5 + CHARACTER * max(map(len, labels))
    columns = max(1, min(len(shown), int(figure.get_figwidth() / width)))
    figure.legend(
        [Line2D([], [], **looks[name].line(1.6)) for name in shown],
        labels,
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - top / figure.get_figheight()),
        ncols=columns,
        columnspacing=1.2,
        handlelength=1.6,
        labelspacing=0.25,
        borderpad=0.2,
    )
    return LEGEND_ROW * math.ceil(len(shown) / columns)


def axes_under_legend(size: tuple[float, float], looks: Looks, names: Iterable[str], *, top: float) -> Axes:
    """Of a figure that is as much higher than `size` as the legend needs."""
    width, height = size
    trial = Figure(figsize=size)
    whole = height + legend_over(trial, looks, names, top=top)
    figure = Figure(figsize=(width, whole))
    used = top + legend_over(figure, looks, names, top=top) + 0.05
    return figure.add_axes(
        (0.62 / width, 0.47 / whole, (width - 0.77) / width, (whole - 0.47 - used) / whole)
    )


# ------------------------------------------------------------------------------------------ learning curves


def curves_of_game(panel: Panel, looks: Looks, axis: Axis) -> Figure:
    axes = axes_under_legend((4.4, 2.85), looks, panel.names, top=0.27)
    figure = whole_of(axes)
    height = figure.get_figheight()
    figure.text(0.015, 1 - 0.2 / height, label(panel.game), fontweight="bold", fontsize=10)
    draw_curves(axes, panel, looks, axis)
    axes.set_xlabel(axis.label)
    axes.set_ylabel("return")
    return figure


def draw_curves(
    axes: Axes, panel: Panel, looks: Looks, axis: Axis, width: float = 1.5, ticks: int = 5
) -> None:
    for group, lines in panel.short.items():
        for x, y in lines:
            axes.plot(x / axis.unit, y, color=looks[group].color, linewidth=0.9, linestyle=(0, (1, 2)))
    for group, band in panel.bands.items():
        x = band.x / axis.unit
        axes.fill_between(x, band.low, band.high, color=looks[group].color, alpha=0.18, linewidth=0)
        axes.plot(x, band.mean, **looks[group].line(width))
    draw_published(axes, panel, looks, width)
    ends = [band.x[-1] / axis.unit for band in panel.bands.values()]
    axes.set_xlim(0, 1.04 * max(ends) if any(ends) else None)  # short runs may have gone on for longer
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter(FuncFormatter(round_number))
        side.set_major_locator(MaxNLocator(ticks))


def draw_published(axes: Axes, panel: Panel, looks: Looks, width: float) -> None:
    """A line; a score far from all runs would press them flat, so it is named at the edge instead."""
    low, high = axes.get_ylim()
    reach = STRETCH * (high - low)
    far: dict[bool, list[str]] = {True: [], False: []}  # above, below
    for name, score in panel.published.items():
        if not (panel.bands or panel.short) or low - reach <= score <= high + reach:
            axes.axhline(score, **looks[name].line(0.8 * width))
        else:
            far[score > high].append(f"{'↑' if score > high else '↓'} {round_number(score)} {name}")
    for above, names in far.items():
        y, side = (0.98, "top") if above else (0.02, "bottom")
        text = "\n".join(names)
        axes.text(0.98, y, text, transform=axes.transAxes, ha="right", va=side, fontsize=6.5, color=GREY)


def overview(panels: Sequence[Panel], looks: Looks) -> Figure:
    """All games in one figure, over steps."""
    many = len(panels) > 12
    columns = min(len(panels), 6 if many else 3)
    rows = math.ceil(len(panels) / columns)
    width, height = (1.75, 1.4) if many else (2.9, 2.3)
    names = {name for panel in panels for name in panel.names}
    legend = legend_over(Figure(figsize=(width * columns, 1)), looks, names, top=0)
    whole = height * rows + 0.6 + legend
    figure = Figure(figsize=(width * columns, whole))
    legend_over(figure, looks, names, top=0.03)
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.62 / (width * columns),
        right=0.99,
        top=1 - (legend + 0.3) / whole,
        bottom=0.45 / whole,
        wspace=0.28,
        hspace=0.55 if many else 0.38,
    )
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_curves(axes, panel, looks, STEPS, width=1.2, ticks=3 if many else 4)
        axes.set_title(label(panel.game)[:30], fontsize=7.5 if many else 9, pad=3)
        axes.tick_params(labelsize=6 if many else 8, length=2, pad=2)
    figure.supxlabel(STEPS.label, fontsize=9, y=0.06 / whole)
    figure.supylabel("return", fontsize=9, x=0.05 / (width * columns))
    return figure


# ----------------------------------------------------------------------------------------------- over games


def aggregates_figure(found: dict[str, dict[str, Estimate]], looks: Looks, games: int) -> Figure:
    """One panel for each aggregate, one row for each group: the estimate and its interval."""
    titles = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality gap": "Optimality gap"}
    longest = max(len(label(name)) for name in found)
    figure = Figure(figsize=(8 + CHARACTER * longest, 1.0 + 0.32 * len(found)), layout="constrained")
    panels = figure.subplots(1, len(titles), sharey=True)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for row, (who, estimates) in enumerate(found.items()):
            draw_estimate(axes, row, estimates[name], looks[who].color)
        axes.set_title(title)
        axes.set_yticks(range(len(found)), map(label, found))
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.use_sticky_edges = False  # bars begin at their lower end, not at the axis
        axes.margins(x=0.12, y=0.08)
    panels[0].invert_yaxis()
    figure.supxlabel(f"human-normalised score over {games} game{'s' * (games > 1)}", fontsize=9)
    return figure


def draw_estimate(axes: Axes, row: int, estimate: Estimate, color: str) -> None:
    value, low, high = estimate
    if high > low:
        axes.barh(row, high - low, left=low, height=0.6, color=color, alpha=0.35, linewidth=0)
    axes.plot([value, value], [row - 0.3, row + 0.3], color=color, linewidth=2.2)


def profiles_figure(thresholds: np.ndarray, found: dict[str, Any], looks: Looks) -> Figure:
    axes = axes_under_legend((5.4, 3.3), looks, found, top=0.05)
    for who, (value, low, high) in found.items():
        axes.fill_between(thresholds, low, high, color=looks[who].color, alpha=0.15, linewidth=0, step="post")
        axes.plot(thresholds, value, **looks[who].line(1.6), drawstyle="steps-post")
    axes.set_xlabel("human-normalised score τ")
    axes.set_ylabel("share of runs above τ")
    axes.set_xlim(0, thresholds[-1])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return whole_of(axes)


def efficiency_figure(found: dict[str, Band], looks: Looks) -> Figure:
    axes = axes_under_legend((5.4, 3.3), looks, found, top=0.05)
    for who, band in found.items():
        axes.fill_between(band.x, band.low, band.high, color=looks[who].color, alpha=0.15, linewidth=0)
        axes.plot(band.x, band.mean, **looks[who].line(1.6))
    axes.set_xlabel("frames")
    axes.set_ylabel("IQM of human-normalised scores")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(round_number))
    return whole_of(axes)


def improvements_figure(found: dict[tuple[str, str], tuple[Estimate, int]], looks: Looks) -> Figure:
    """How likely the group on the left is better than the one on the right."""
    longest = max(len(label(name)) for pair in found for name in pair)
    figure = Figure(figsize=(4.6 + 2 * CHARACTER * longest, 0.9 + 0.36 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for row, ((a, _), (estimate, _)) in enumerate(found.items()):
        draw_estimate(axes, row, estimate, looks[a].color)
    axes.axvline(0.5, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1)
    axes.set_yticks(range(len(found)), [label(a) for a, _ in found])
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(found)), [label(b) for _, b in found])
    for side in (axes, right):
        side.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("probability that a run of the group on the left scores higher")
    return figure


def whole_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure
    return figure
