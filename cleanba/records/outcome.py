"""The outcome of a run, its learning curve and its summary."""

import json
import shlex
from pathlib import Path
from typing import NamedTuple

from cleanba.algorithms import ALGORITHMS
from cleanba.envs.gymnasium_envs import factory_of, is_own
from cleanba.evaluation.evaluate import Evaluation
from cleanba.evaluation.model import Model
from cleanba.records.row import RECENT_GAMES, Row
from cleanba.runtime.command import has_module
from cleanba.runtime.messages import clock
from cleanba.runtime.profiler import PROFILE, profile_summary

VIDEO = "replay.mp4"  # in the run's folder, of its evaluation


class Outcome(NamedTuple):
    run_dir: Path
    model: Model
    last_row: Row
    saved: Path | None = None  # the model file, if requested
    evaluation: Evaluation | None = None  # if requested and successful
    stopped: bool = False  # by `on_update`, before the end: it can be resumed


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
    steps = f"{row['global_step']:,} steps in {clock(row['seconds'])} of training, with compiling"
    lines = [f"done: {steps}; {speed:,.0f} steps/s after the first update, {returns}"]
    if outcome.evaluation:
        lines.append(f"evaluation: {outcome.evaluation}")
    if profile := profile_summary(outcome.run_dir / PROFILE):
        lines.append(profile)
    lines.append(f"everything is in {outcome.run_dir}")
    if (video := outcome.run_dir / VIDEO).exists():
        lines.append(f"video: {video}")
    if outcome.saved:
        lines.append(f"{_evaluate_again(outcome)} evaluates the model")
    return "\n".join(lines)


def _evaluate_again(outcome: Outcome) -> str:
    """The command; or, for an environment that only a script knows, the call."""
    name, env_id = outcome.model.algorithm_name, outcome.model.env.env_id
    options = outcome.model.args.env_options
    if outcome.model.env.backend == "gymnasium" and is_own(env_id):
        given = "" if name in ALGORITHMS else f', algorithm="{name}"'
        if factory := factory_of(env_id):
            given += f", make_env={factory}"  # which takes the options of the training
        elif options != "{}":
            given += f", env_options={json.loads(options)}"
        return f'cleanba.evaluate("{outcome.run_dir}"{given})'
    flags = "" if name in ALGORITHMS else f" --algorithm {shlex.quote(name)}"
    flags += f" --env-id {env_id}" if ":" in env_id else ""  # its module is imported only if it is named
    flags += f" --env-options {shlex.quote(options)}" if options != "{}" else ""
    return f"cleanba eval {outcome.run_dir}{flags}"
