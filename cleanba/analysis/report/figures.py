"""The figures of a report, as PNG and SVG, plain enough for a paper."""

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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter
from PIL import Image as Bitmap

from cleanba.analysis.report.aggregates import Aggregates, Band, Improvements
from cleanba.analysis.statistics import Estimate

# Okabe and Ito's palette for colour-blind readers; colours that print well as lines come first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (5, 1.5)), "dotted": (0, (1.5, 1.5))}
GREY = "#777777"  # for published scores
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
    "text.parse_math": False,  # names may contain dollar signs
    "svg.fonttype": "none",  # text stays text
    "figure.dpi": 160,  # of a PNG
}
LEGEND: Any = dict(columnspacing=1.2, handlelength=1.6, labelspacing=0.25, borderpad=0.2)
LEGEND_ROW = 0.19  # inches
ROW = 0.36  # inches, of a bar and the name above it
CHARACTER_WIDTH = 0.075  # inches, in a legend
MAX_LABEL = 45  # characters
NARROW, LARGE = (4.4, 2.85), (6.0, 3.5)  # inches; a phone shows a figure of up to 5 inches at a readable size
# A published score farther from the runs than this many times their own range is named with an arrow, not
# drawn as a line.
MAX_STRETCH = 1.0


class Look(NamedTuple):
    """Colour and dashes of a group or a published system, the same in all figures and on the page."""

    color: str
    dash: str

    @staticmethod
    def of_group(index: int) -> "Look":
        """When the colours repeat, the dashes change."""
        return Look(COLORS[index % len(COLORS)], list(DASHES)[index // len(COLORS) % len(DASHES)])

    @staticmethod
    def of_published(index: int) -> "Look":
        return Look(GREY, ("dashed", "dotted", "solid")[index % 3])

    def line(self, width: float) -> dict[str, Any]:
        return dict(color=self.color, linestyle=DASHES[self.dash], linewidth=width)


Looks = dict[str, Look]


Curve = tuple[np.ndarray, np.ndarray]  # x and y


class Panel(NamedTuple):
    """The learning curves of one game."""

    game: str
    bands: dict[str, Band]  # by group
    seeds: dict[str, list[Curve]]  # each complete run, of groups that have no mean curve
    short: dict[str, list[Curve]]  # incomplete runs, by group
    published: dict[str, tuple[float, float]]  # low and high of a range, or twice the same score

    @property
    def names(self) -> set[str]:
        return {*self.bands, *self.seeds, *self.short, *self.published}

    def ends(self) -> list[float]:
        """Where the lines of complete runs end."""
        means = [band.x[-1] for band in self.bands.values()]
        return means + [x[-1] for lines in self.seeds.values() for x, _ in lines]

    def longest(self) -> float:
        return max([*self.ends(), *(x[-1] for lines in self.short.values() for x, _ in lines)], default=0.0)


class Axis(NamedTuple):
    label: str
    unit: float  # that is shown as 1


STEPS = Axis("environment steps", 1)


def time_axis(longest: float) -> Axis:
    """Wall time in a unit that suits the longest run, in seconds."""
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * unit:
            return Axis(f"wall time, {name}", unit)
    return Axis("wall time, seconds", 1)


def save(figure: Figure, path: Path) -> str:
    """Write path.png and path.svg; returns the SVG. The same figure gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    opaque = Bitmap.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    opaque.save(
        f"{path}.png", compress_level=1, dpi=(figure.dpi, figure.dpi)
    )  # the default takes twice as long
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(f"{path}.svg", metadata={"Date": None})
    svg = round_coordinates(Path(f"{path}.svg").read_text(encoding="utf-8"))
    Path(f"{path}.svg").write_text(svg, encoding="utf-8")
    return svg


def round_coordinates(svg: str) -> str:
    """Cut coordinates to a hundredth of a point, for smaller files; texts are unchanged."""
    texts_or_numbers = re.compile(r"(<text.*?</text>|<!--.*?-->)|(\d\.\d\d)\d+", re.DOTALL)
    return texts_or_numbers.sub(lambda match: match[1] or match[2], svg)


@contextmanager
def styled() -> Iterator[None]:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # names in any script
        yield


def tick_label(x: float, _: int = 0) -> str:
    """500k and 1.5M, but 0.5 and not 500m."""
    return EngFormatter(sep="")(x) if abs(x) >= 1000 else f"{x:.6g}".replace("-", "\N{MINUS SIGN}")


def label(name: str) -> str:
    """A name, shortened if long. matplotlib would hide one that begins with _."""
    name = shorten(name, MAX_LABEL)
    return f" {name}" if name.startswith("_") else name


def shorten(name: str, most: int = MAX_LABEL // 2 - 1) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def legend_over(figure: Figure, looks: Looks, names: Iterable[str], *, top: float) -> float:
    """Add a legend whose upper edge is `top` inches below the figure's, and its height to the figure's.
    Returns this height in inches."""
    shown = [name for name in looks if name in names]
    if not shown:
        return 0.0
    labels = [label(name) for name in shown]
    width = 0.5 + CHARACTER_WIDTH * max(map(len, labels))
    columns = max(1, min(len(shown), int(figure.get_figwidth() / width)))
    height = LEGEND_ROW * math.ceil(len(shown) / columns)
    figure.set_figheight(figure.get_figheight() + height)
    lines = [Line2D([], [], **looks[name].line(1.6)) for name in shown]
    anchor = (0.0, 1 - top / figure.get_figheight())
    figure.legend(lines, labels, loc="upper left", bbox_to_anchor=anchor, ncols=columns, **LEGEND)
    return height


def figure_with_legend(
    size: tuple[float, float], looks: Looks, names: Iterable[str], *, top: float
) -> tuple[Figure, Axes]:
    """A figure of this `size` plus the height of the legend, and the axes below the legend."""
    figure = Figure(figsize=size)
    used = top + legend_over(figure, looks, names, top=top) + 0.05
    width, height = figure.get_size_inches()
    box = (0.62 / width, 0.47 / height, (width - 0.77) / width, (height - 0.47 - used) / height)
    return figure, figure.add_axes(box)


# ------------------------------------------------------------------------------------------ learning curves


def curves_of_game(panel: Panel, looks: Looks, axis: Axis, size: tuple[float, float] = NARROW) -> Figure:
    figure, axes = figure_with_legend(size, looks, panel.names, top=0.27)
    width, height = figure.get_size_inches()
    figure.text(0.015, 1 - 0.2 / height, label(panel.game), fontweight="bold", fontsize=10)
    draw_curves(axes, panel, looks, axis)
    # To place the labels by the widths of the ticks' texts would take as long as the curves.
    axes.xaxis.set_label_coords(0.5, 0.17 / height, figure.transFigure)
    axes.yaxis.set_label_coords(0.15 / width, 0.5, figure.transFigure)
    axes.set_xlabel(axis.label)
    axes.set_ylabel("return")
    return figure


def draw_curves(
    axes: Axes, panel: Panel, looks: Looks, axis: Axis, width: float = 1.5, ticks: int = 5
) -> None:
    for group, lines in panel.short.items():
        for x, y in lines:
            axes.plot(x / axis.unit, y, color=looks[group].color, linewidth=0.9, linestyle=(0, (1, 2)))
    for group, lines in panel.seeds.items():
        for x, y in lines:
            axes.plot(x / axis.unit, y, **looks[group].line(0.6 * width))
    for group, band in panel.bands.items():
        draw_band(axes, band._replace(x=band.x / axis.unit), looks[group], width=width, alpha=0.18)
    draw_published(axes, panel, looks, width)
    ends = panel.ends()
    axes.set_xlim(0, 1.04 * max(ends) / axis.unit if any(ends) else None)  # incomplete runs may be longer
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter(FuncFormatter(tick_label))
        side.set_major_locator(MaxNLocator(ticks))


def draw_band(axes: Axes, band: Band, look: Look, *, width: float = 1.6, alpha: float = 0.15) -> None:
    axes.fill_between(band.x, band.low, band.high, color=look.color, alpha=alpha, linewidth=0)
    axes.plot(band.x, band.mean, **look.line(width))


def draw_published(axes: Axes, panel: Panel, looks: Looks, width: float) -> None:
    """As lines, or as an area from the lowest to the highest. What is far from all runs would flatten their
    curves, so it is named at the edge instead."""
    low, high = axes.get_ylim()
    reach = MAX_STRETCH * (high - low)
    bottom, top = low - reach, high + reach
    if not (panel.bands or panel.seeds or panel.short):
        bottom, top = -math.inf, math.inf
    far: dict[bool, list[str]] = {True: [], False: []}  # above, below
    for name, (worst, best) in panel.published.items():
        if best < bottom or worst > top:
            score = f"{tick_label(worst)} to {tick_label(best)}" if best > worst else tick_label(best)
            far[worst > top].append(f"{'↑' if worst > top else '↓'} {score} {name}")
        elif best > worst:
            axes.axhspan(max(worst, bottom), min(best, top), color=looks[name].color, alpha=0.2, linewidth=0)
        else:
            axes.axhline(best, **looks[name].line(0.8 * width))
    for above, names in far.items():
        y, side = (0.98, "top") if above else (0.02, "bottom")
        text = "\n".join(names)
        axes.text(0.98, y, text, transform=axes.transAxes, ha="right", va=side, fontsize=6.5, color=GREY)


def overview(panels: Sequence[Panel], looks: Looks) -> Figure:
    """All games in one figure, over steps."""
    many = len(panels) > 12
    columns = min(len(panels), 6 if many else 3)
    rows = math.ceil(len(panels) / columns)
    cell = (1.75, 1.4) if many else (2.9, 2.3)
    figure = Figure(figsize=(cell[0] * columns, cell[1] * rows + 0.6))
    legend = legend_over(figure, looks, {name for panel in panels for name in panel.names}, top=0.03)
    width, height = figure.get_size_inches()
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(left=0.62 / width, right=0.99, wspace=0.28, hspace=0.55 if many else 0.38)
    figure.subplots_adjust(top=1 - (legend + 0.3) / height, bottom=0.45 / height)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_curves(axes, panel, looks, STEPS, width=1.2, ticks=3 if many else 4)
        axes.set_title(label(panel.game)[:30], fontsize=7.5 if many else 9, pad=3)
        axes.tick_params(labelsize=6 if many else 8, length=2, pad=2)
    figure.supxlabel(STEPS.label, fontsize=9, y=0.06 / height)
    figure.supylabel("return", fontsize=9, x=0.05 / width)
    return figure


# ----------------------------------------------------------------------------------------------- over games


def aggregates_figure(found: Aggregates, games: int, looks: Looks) -> Figure:
    """A panel per aggregate, a row per group: the estimate and its interval."""
    titles = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality gap": "Optimality gap"}
    figure = Figure(figsize=(5.2, 1.6 + 2 * ROW * len(found)), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, titles.items(), strict=True):
        for row, (who, estimates) in enumerate(found.items()):
            draw_estimate(axes, row, estimates[name], looks[who].color)
            write_row(axes, row, shorten(who.removesuffix(" (published)"), 38))
        axes.set_title(title)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.use_sticky_edges = False  # bars start at the low end of the interval, not at the axis
        axes.margins(x=0.12)
        show_rows(axes, len(found))
    figure.supxlabel(f"human-normalised score over {games} game{'s' * (games > 1)}", fontsize=9)
    return figure


def write_row(axes: Axes, row: int, text: str) -> None:
    """Above the row's bar: beside it, a long name would leave the bars no room."""
    place: Any = dict(transform=axes.get_yaxis_transform(), ha="left", va="bottom", fontsize=7.5)
    axes.text(0.0, row - 0.2, label(text), **place).set_in_layout(False)


def show_rows(axes: Axes, rows: int) -> None:
    axes.set_ylim(rows - 0.6, -0.75)  # the first on top
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def draw_estimate(axes: Axes, row: int, estimate: Estimate, color: str) -> None:
    value, low, high = estimate
    if high > low:
        axes.barh(row + 0.05, high - low, left=low, height=0.4, color=color, alpha=0.35, linewidth=0)
    axes.plot([value, value], [row - 0.15, row + 0.25], color=color, linewidth=2.2)


def profiles_figure(found: dict[str, Band], looks: Looks) -> Figure:
    figure, axes = figure_with_legend((4.8, 3.1), looks, found, top=0.05)
    for who, (x, value, low, high) in found.items():
        axes.fill_between(x, low, high, color=looks[who].color, alpha=0.15, linewidth=0, step="post")
        axes.plot(x, value, **looks[who].line(1.6), drawstyle="steps-post")
    axes.set_xlim(0, x[-1])  # the same for all
    axes.set_xlabel("human-normalised score τ")
    axes.set_ylabel("share of runs above τ")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return figure


def efficiency_figure(found: dict[str, Band], looks: Looks) -> Figure:
    figure, axes = figure_with_legend((4.8, 3.1), looks, found, top=0.05)
    for who, band in found.items():
        draw_band(axes, band, looks[who])
    axes.set_xlabel("frames")
    axes.set_ylabel("IQM of human-normalised scores")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(tick_label))
    return figure


def improvements_figure(found: Improvements, looks: Looks) -> Figure:
    """The probability that a run of one group scores higher than one of another, a row per pair."""
    figure = Figure(figsize=(5.2, 0.7 + ROW * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for row, ((a, b), (estimate, _)) in enumerate(found.items()):
        draw_estimate(axes, row, estimate, looks[a].color)
        write_row(axes, row, f"{shorten(a)} > {shorten(b)}")
    axes.axvline(0.5, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1)
    show_rows(axes, len(found))
    axes.set_xlabel("probability that a run of the first group scores higher")
    return figure
