"""Draw the learning curves of runs: python -m cleanrl_utils.plot_curve runs/A runs/B --out curves.png"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter


def plot_runs(run_dirs: Sequence[Path], out: Path, labels: Sequence[str] | None = None) -> None:
    """Mean return of recently finished games over environment steps, one line per run."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for run_dir, label in zip(run_dirs, labels or [d.name for d in run_dirs], strict=True):
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        rows = [row for row in rows if "charts/avg_episodic_return" in row]
        steps = [row["global_step"] for row in rows]
        returns = [row["charts/avg_episodic_return"] for row in rows]
        axes.plot(steps, returns, linewidth=1.5, marker="." if len(steps) < 3 else "", label=label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500k, 1.5M
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return (mean of the last 100 games)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="best")
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the learning curves of runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument(
        "--out", type=Path, default=Path("learning_curve.png"), help="default: learning_curve.png"
    )
    parser.add_argument("--labels", nargs="+", help="one per run; default: the folders' names")
    args = parser.parse_args()
    for run_dir in args.runs:
        if not (run_dir / "metrics.jsonl").is_file():
            parser.error(f"{run_dir} is not a run folder: it has no metrics.jsonl")
    if args.labels and len(args.labels) != len(args.runs):
        parser.error(f"--labels has {len(args.labels)} names for {len(args.runs)} runs; give one for each")
    try:
        plot_runs(args.runs, args.out, args.labels)
    except OSError as error:
        parser.error(f"--out {args.out} cannot be written: {error.strerror}")
    print(args.out)


if __name__ == "__main__":
    main()
