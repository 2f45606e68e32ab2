"""Learning curves of runs. Needs matplotlib (the extra `plot`)."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from cleanba.records.row import RECENT_GAMES
from cleanba.records.run_folder import is_number, read_rows
from cleanba.runtime.files import atomic_write
from cleanba.runtime.messages import printable

FORMATS = FigureCanvasBase.get_supported_filetypes()  # by suffix


@matplotlib.rc_context({"text.parse_math": False})  # names may contain dollar signs
def plot_runs(run_dirs: Sequence[Path], out: Path, labels: Sequence[str] | None = None) -> None:
    """Mean return of recently finished episodes over environment steps, one line per run."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for run_dir, label in zip(run_dirs, labels or [d.name for d in run_dirs], strict=True):
        points = [(r.get("global_step"), r.get("charts/avg_episodic_return")) for r in read_rows(run_dir)]
        known = np.array([point for point in points if all(map(is_number, point))]).reshape(-1, 2)
        steps, returns = known.T
        marker = "." if len(steps) < 3 else ""
        axes.plot(steps, returns, linewidth=1.5, marker=marker, label=printable(label))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500k, 1.5M
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"return (mean of the last {RECENT_GAMES} episodes)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="best")
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format=out.suffix[1:])
    atomic_write(out, image.getvalue())
