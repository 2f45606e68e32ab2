"""The outcome of a run, its learning curve and its summary."""

import shlex
from pathlib import Path
from typing import NamedTuple

from cleanba.algorithms import ALGORITHMS
from cleanba.evaluation.evaluate import Evaluation
from cleanba.evaluation.model import Model
from cleanba.records.row import RECENT_GAMES, Row
from cleanba.runtime.command import has_module
from cleanba.runtime.messages import clock
from cleanba.runtime.profiler import PROFILE, profile_summary


class Outcome(NamedTuple):
    run_dir: Path
    model: Model
    last_row: Row
    saved: Path | None = None  # the model file, if requested
    evaluation: Evaluation | None = None  # if requested and successful


def draw_curve(outcome: Outcome) -> None:
    """Write learning_curve.png, if matplotlib is installed (the extra `plot`) and an episode has finished."""
    if outcome.last_row["stats/games"] and has_module("matplotlib"):
        from cleanba.records.plot import plot_runs

        plot_runs([outcome.run_dir], outcome.run_dir / "learning_curve.png")


def summary(outcome: Outcome) -> str:
    row = outcome.last_row
    speed = row.get("charts/SPS", row["charts/SPS_update"])
    returns = "no episode finished"
    if episodes := min(row["stats/games"], RECENT_GAMES):
        returns = f"return {row['charts/avg_episodic_return']:.2f} (last {episodes} episodes)"
    steps = f"{row['global_step']:,} steps in {clock(row['seconds'])}"
    lines = [f"done: {steps}, {speed:,.0f} steps/s after the first update, {returns}"]
    if outcome.evaluation:
        lines.append(f"evaluation: {outcome.evaluation}")
    if profile := profile_summary(outcome.run_dir / PROFILE):
        lines.append(profile)
    lines.append(f"everything is in {outcome.run_dir}")
    if outcome.saved:
        name, env_id = outcome.model.algorithm_name, outcome.model.env.env_id
        flags = "" if name in ALGORITHMS else f" --algorithm {name}"
        flags += f" --env-id {env_id}" if ":" in env_id else ""  # its module is imported only if it is named
        options = outcome.model.args.env_options
        flags += f" --env-options {shlex.quote(options)}" if options != "{}" else ""
        lines.append(f"cleanba eval {outcome.run_dir}{flags} evaluates the model")
    return "\n".join(lines)
