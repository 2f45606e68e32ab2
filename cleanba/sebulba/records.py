"""What a run leaves: its folder, a row per update, a curve and a summary."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cleanba.sebulba.actor import Collected
from cleanba.sebulba.algorithm import Params
from cleanba.sebulba.args import BatchPlan, RunArgs, UsageError, file_name
from cleanba.sebulba.envs import EnvSpec, Episode
from cleanba.sebulba.evaluate import Evaluation
from cleanba.sebulba.metrics import RECENT_GAMES, Row, data_digest, joint_digest, params_digest
from cleanba.sebulba.model import Model
from cleanba.sebulba.networks import resolve_network
from cleanba.sebulba.terminal import clock
from cleanba.sebulba.topology import Topology


class Outcome(NamedTuple):
    run_dir: Path
    model: Model
    last_row: Row
    saved: Path | None = None  # the model's file, if it was asked for
    evaluation: Evaluation | None = None  # if it was asked for and did not fail


class Learned(NamedTuple):
    """What the learner tells the main thread about one update."""

    update: int  # from 0
    params: Params  # a copy
    collected: list[Collected]  # their rollouts are used up
    losses: dict[str, float]
    seconds: dict[str, float]  # where the time went
    finished: float  # time.perf_counter()


class Report(NamedTuple):
    """What one process has to say of an update. It travels as JSON, where tuples become lists."""

    update: int
    games: list[Episode]  # that ended in it
    actor_seconds: list[dict[str, float]]  # of each actor
    params_digest: str
    data_digest: str

    @staticmethod
    def of(news: Learned) -> "Report":
        return Report(
            update=news.update,
            games=[game for c in news.collected for game in c.episodes],
            actor_seconds=[c.seconds for c in news.collected],
            params_digest=params_digest(jax.device_get(news.params)),
            data_digest=data_digest((c.env_id, c.transitions) for c in news.collected),
        )


class Rows:
    """Makes the row of each update. Steps per second leave the first update, with its compilation, out."""

    def __init__(self, plan: BatchPlan, learning_rate: Callable[[int], float]):
        self._plan = plan
        self._learning_rate = learning_rate
        self._started = self._previous = time.perf_counter()
        self._first: float | None = None
        self._recent: list[Episode] = []
        self._games = 0

    def make(self, news: Learned, reports: list[Report]) -> Row:
        """`reports` has one of each process, in order."""
        check_agreement(reports)
        batch = self._plan.batch_size
        seconds = news.finished - self._previous
        self._previous = news.finished
        row: Row = {
            "update": news.update + 1,
            "global_step": (news.update + 1) * batch,
            "seconds": news.finished - self._started,
            "charts/learning_rate": self._learning_rate(news.update),
            "charts/SPS_update": batch / seconds,
        }
        if self._first is None:
            self._first = news.finished
        else:
            row["charts/SPS"] = news.update * batch / (news.finished - self._first)
        finished = [Episode(*game) for report in reports for game in report.games]
        most = max(RECENT_GAMES, len(finished))  # of many processes that end many games, all of them
        self._recent = [*self._recent, *finished][-most:]
        self._games += len(finished)
        if self._recent:
            row["charts/avg_episodic_return"] = float(np.mean([g.episodic_return for g in self._recent]))
            row["charts/avg_episodic_length"] = float(np.mean([g.length for g in self._recent]))
        row |= {f"losses/{name}": value for name, value in news.losses.items()}
        row["stats/games"] = self._games
        row["stats/update_seconds"] = seconds
        row |= {f"stats/learner_{name}_seconds": value for name, value in news.seconds.items()}
        actors = [seconds for report in reports for seconds in report.actor_seconds]
        for name in actors[0]:
            row[f"stats/actor_{name}_seconds"] = float(np.mean([seconds[name] for seconds in actors]))
        row["params_digest"] = reports[0].params_digest
        row["data_digest"] = joint_digest(report.data_digest for report in reports)
        return row


def check_agreement(reports: list[Report]) -> None:
    """All processes compute the same params from the same sums, bit for bit. If not, better to know."""
    for process, report in enumerate(reports):
        if (report.update, report.params_digest) != (reports[0].update, reports[0].params_digest):
            raise RuntimeError(
                f"process {process} has other params than process 0 after update {reports[0].update + 1}"
            )


def make_run_dir(args: RunArgs) -> Path:
    now = int(time.time())
    for second in range(now, now + 60):  # runs that start in the same second take the next free one
        name = file_name(f"{args.env_id}__{args.exp_name}__{args.seed}__{second}")
        run_dir = Path(args.runs_dir) / name
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            run_dir.mkdir()
            return run_dir
        except FileExistsError:
            if not run_dir.parent.is_dir():
                raise UsageError(f"--runs-dir {args.runs_dir} is not a folder; give another") from None
        except OSError as error:
            why = error.strerror
            raise UsageError(f"--runs-dir {args.runs_dir} or {name} cannot be written ({why})") from error
    raise UsageError(f"--runs-dir {args.runs_dir} already holds sixty runs that started just now; wait")


def write_args(
    run_dir: Path, args: RunArgs, topology: Topology, plan: BatchPlan, env: EnvSpec
) -> dict[str, Any]:
    """args.json: the flags, what was resolved from them, and what runs where."""
    record = {
        "args": vars(args),
        "code": code_version(),
        "layout": str(topology),
        "plan": plan._asdict(),
        "network": resolve_network(args, env),
        "env_options": env.options,
        "machine": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "envpool")},
            "actor_devices": topology.actor_devices()[0].device_kind,
            "learner_devices": topology.learner_devices()[0].device_kind,
            "cores": len(os.sched_getaffinity(0)),
        },
    }
    (run_dir / "args.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def code_version() -> dict[str, Any]:
    """Of an installed package its version, of a git checkout the commit and whether it was changed."""
    code: dict[str, Any] = {}
    with suppress(PackageNotFoundError):
        code["version"] = version("cleanba")
    with suppress(OSError, subprocess.SubprocessError):
        _git("ls-files", "--error-unmatch", __file__)  # it may be installed inside another project's checkout
        code["commit"] = _git("rev-parse", "HEAD")
        code["changed"] = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return code


def _git(*command: str) -> str:
    here = Path(__file__).parent
    return subprocess.run(
        ["git", *command], cwd=here, check=True, capture_output=True, text=True, timeout=10
    ).stdout.strip()


def draw_curve(outcome: Outcome) -> None:
    """learning_curve.png, where matplotlib is installed (the extra `plot`) and a game has finished."""
    try:
        from cleanrl_utils.plot_curve import plot_runs
    except ModuleNotFoundError:
        return
    if outcome.last_row["stats/games"]:
        plot_runs([outcome.run_dir], outcome.run_dir / "learning_curve.png")


def summary(outcome: Outcome) -> str:
    row = outcome.last_row
    speed = row.get("charts/SPS", row["charts/SPS_update"])
    games = min(row["stats/games"], RECENT_GAMES)
    returns = (
        f"return {row['charts/avg_episodic_return']:.2f} (last {games} games)"
        if games
        else "no game finished"
    )
    lines = [
        f"done: {row['global_step']:,} steps in {clock(row['seconds'])}, {speed:,.0f} steps/s "
        f"after the first update, {returns}"
    ]
    if outcome.evaluation:
        lines.append(f"evaluation: {outcome.evaluation}")
    lines.append(f"everything is in {outcome.run_dir}")
    if outcome.saved:
        lines.append(f"cleanba eval {outcome.run_dir} plays with the model")
    return "\n".join(lines)
