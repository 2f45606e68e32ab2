"""The figure of `cleanba bench`: the speed of the parts, and how the training spends its time."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, PercentFormatter

# Okabe and Ito's palette, which is safe for colour-blind readers, and greys for lost time.
BLUE, ORANGE, GREEN, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7"
DARK, LIGHT = "#555555", "#CCCCCC"
PART_COLORS = {"ceiling": GREEN, "environments": GREEN, "training": BLUE}  # the others: SKY
TIME_COLORS = {
    "environment": GREEN,
    "inference": SKY,
    "waiting for the device": ORANGE,
    "learning": BLUE,
    "handing over": PURPLE,
    "Python": DARK,
    "waiting": LIGHT,
}
MAX_BAR = 1.6  # ceilings: longer bars say nothing more
MIN_LABELLED_SHARE = 0.05  # a smaller one has no room for its number


def plot_bench(record: dict[str, Any], out: Path) -> None:
    figure = Figure(figsize=(9, 5.8), layout=ConstrainedLayoutEngine(hspace=0.06))
    speeds, times = figure.subplots(2, 1, height_ratios=[6, 2.4])
    figure.suptitle(record["title"], x=0.01, ha="left", fontweight="bold")
    verdict = record["bottleneck"].replace("`", "")
    speeds.set_title("\n".join(textwrap.wrap(verdict, 92)), loc="left", fontsize="medium", pad=12)
    draw_speeds(speeds, record["parts"])
    draw_times(times, {"actors": record["actor_time"], "learner": record["learner_time"]})
    for axes in (speeds, times):
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(out, dpi=150)


def draw_speeds(axes: Axes, parts: dict[str, Any]) -> None:
    """One bar per part, with a line over the interquartile range. A bar that is cut off ends in an arrow."""
    ceiling = parts["ceiling"]["steps_per_second"]
    end = MAX_BAR * ceiling
    axes.axvline(ceiling, color="black", linewidth=1, linestyle=(0, (4, 3)))
    for row, (name, part) in enumerate(parts.items()):
        rate = part["steps_per_second"]
        text = f"{rate:,.0f}" + (f"  ({rate / ceiling:,.0%})" if name != "ceiling" else "")
        axes.barh(row, min(rate, end), color=PART_COLORS.get(name, SKY), height=0.62)
        if rate > 0.7 * end:
            arrow = "  →" if rate > end else ""
            axes.text(min(rate, end) * 0.985, row, text + arrow, ha="right", va="center")
            continue
        low, high = np.percentile(part["rates"], [25, 75])
        axes.plot([low, high], [row, row], color="black", linewidth=1.2)
        label = axes.text(max(rate, high) + 0.015 * end, row, text, va="center")
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # hides the dashed line
    axes.set_yticks(range(len(parts)), [part["label"] for part in parts.values()])
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500k, 1.5M
    axes.set_xlabel("environment steps per second (dashed: the ceiling)")


def draw_times(axes: Axes, threads: dict[str, dict[str, float]]) -> None:
    """One bar of shares per kind of thread."""
    labels = {
        "queueing": "waiting for the device",
        "handover": "handing over",
        "publishing": "handing over",
        "python": "Python",
    }
    drawn: dict[str, Any] = {}
    for row, shares in enumerate(threads.values()):
        left = 0.0
        by_label = {labels.get(name, name): share for name, share in shares.items()}
        for label, color in TIME_COLORS.items():
            share = by_label.get(label, 0.0)
            bar = axes.barh(row, share, left=left, color=color, height=0.62, edgecolor="white", linewidth=0.8)
            drawn.setdefault(label, bar)
            if share >= MIN_LABELLED_SHARE:
                middle = left + share / 2
                ink = "white" if color in (BLUE, DARK) else "black"
                axes.text(middle, row, f"{share:.0%}", ha="center", va="center", color=ink)
            left += share
    axes.set_yticks(range(len(threads)), list(threads))
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("time of the training")
    place: Any = dict(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=len(drawn))
    sizes: Any = dict(fontsize="small", handlelength=1, handleheight=1, columnspacing=1.2)
    axes.legend(drawn.values(), drawn.keys(), frameon=False, **place, **sizes)
