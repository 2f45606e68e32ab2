"""What a run leaves: its folder, a row per update, a curve and a summary."""

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cleanba.sebulba.actor import DIGESTED, Collected
from cleanba.sebulba.args import BatchPlan, RunArgs, UsageError, file_name
from cleanba.sebulba.checkpoint import Checkpoint
from cleanba.sebulba.command import Ended
from cleanba.sebulba.determinism import circumstances
from cleanba.sebulba.envs import EnvSpec, Episode
from cleanba.sebulba.evaluate import Evaluation
from cleanba.sebulba.files import write_whole
from cleanba.sebulba.learner import LearnerState, local_part
from cleanba.sebulba.metrics import RECENT_GAMES, Row, data_digest, digest, joint_digest, params_sums
from cleanba.sebulba.model import Model
from cleanba.sebulba.networks import resolve_network
from cleanba.sebulba.profile import PROFILE, in_words
from cleanba.sebulba.terminal import clock
from cleanba.sebulba.topology import Topology

FINISHED = "finished.json"  # in the folder of a run that has come to its end, with all that was asked for


class Outcome(NamedTuple):
    run_dir: Path
    model: Model
    last_row: Row
    saved: Path | None = None  # the model's file, if it was asked for
    evaluation: Evaluation | None = None  # if it was asked for and did not fail


class Learned(NamedTuple):
    """What the learner tells the main thread about one update."""

    update: int  # from 0
    state: LearnerState  # after it
    collected: list[Collected]  # their rollouts are used up
    losses: dict[str, float]
    seconds: dict[str, float]  # where the time went
    finished: float  # time.perf_counter()


class Report(NamedTuple):
    """What one process has to say of an update. It travels as JSON, where tuples become lists."""

    update: int
    games: list[Episode]  # that ended in it
    actor_seconds: list[dict[str, float]]  # of each actor
    lags: list[int]  # of its transitions
    params_digest: str
    data_digest: str
    digest_seconds: float  # that these two took

    @staticmethod
    def of(news: Learned) -> "Report":
        start = time.perf_counter()
        of_params = params_sums(local_part(news.state.params))  # on the device, meanwhile
        of_data = data_digest((c.env_id, c.transitions) for c in news.collected)
        of_params = digest(jax.device_get(of_params))
        return Report(
            update=news.update,
            games=[game for c in news.collected for game in c.episodes],
            actor_seconds=[c.seconds for c in news.collected],
            lags=sorted(set().union(*(c.lags for c in news.collected))),
            params_digest=of_params,
            data_digest=of_data,
            digest_seconds=time.perf_counter() - start,
        )


class Rows:
    """Makes the row of each update. Steps per second leave the first update, with its compilation, out; of a
    resumed run they are of this part. Its seconds and games go on from where it was, in `resumed`."""

    def __init__(
        self, plan: BatchPlan, learning_rate: Callable[[int], float], resumed: Checkpoint | None = None
    ):
        self._plan = plan
        self._learning_rate = learning_rate
        self._previous = time.perf_counter()
        self._started = self._previous - (resumed.row["seconds"] if resumed else 0)
        self._first: tuple[int, float] | None = None  # update, and when it was finished
        self.recent: list[Episode] = resumed.recent if resumed else []
        self._games = resumed.row["stats/games"] if resumed else 0

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
            self._first = (news.update, news.finished)
        else:
            row["charts/SPS"] = (news.update - self._first[0]) * batch / (news.finished - self._first[1])
        finished = [Episode(*game) for report in reports for game in report.games]
        most = max(RECENT_GAMES, len(finished))  # of many processes that end many games, all of them
        self.recent = [*self.recent, *finished][-most:]
        self._games += len(finished)
        if self.recent:
            row["charts/avg_episodic_return"] = float(np.mean([g.episodic_return for g in self.recent]))
            row["charts/avg_episodic_length"] = float(np.mean([g.length for g in self.recent]))
        row |= {f"losses/{name}": value for name, value in news.losses.items()}
        row["stats/games"] = self._games
        row["stats/update_seconds"] = seconds
        row |= {f"stats/learner_{name}_seconds": value for name, value in news.seconds.items()}
        actors = [seconds for report in reports for seconds in report.actor_seconds]
        for name in sorted(set().union(*actors)):  # not every actor has to wait in every update
            row[f"stats/actor_{name}_seconds"] = float(np.mean([s.get(name, 0.0) for s in actors]))
        row["stats/digest_seconds"] = reports[0].digest_seconds
        lags = [lag for report in reports for lag in report.lags]
        row |= {"stats/policy_lag_min": min(lags), "stats/policy_lag_max": max(lags)}
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


def run_name(args: RunArgs) -> str:
    """Of its folder, which has the time behind it."""
    return file_name(f"{args.env_id}__{args.exp_name}__{args.seed}")


def make_run_dir(args: RunArgs) -> Path:
    now = int(time.time())
    for second in range(now, now + 60):  # runs that start in the same second take the next free one
        name = f"{run_name(args)}__{second}"
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


def is_finished(run_dir: Path) -> bool:
    return (run_dir / FINISHED).exists()


def mark_finished(outcome: Outcome) -> None:
    row = {name: outcome.last_row[name] for name in ("global_step", "seconds")}
    try:
        write_whole(outcome.run_dir / FINISHED, json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise Ended(f"{FINISHED} could not be written ({error.strerror})") from error


def mark_unfinished(run_dir: Path) -> None:
    (run_dir / FINISHED).unlink(missing_ok=True)


def write_args(
    run_dir: Path,
    args: RunArgs,
    topology: Topology,
    plan: BatchPlan,
    env: EnvSpec,
    *,
    update: int = 0,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """args.json: the flags, what was resolved from them, and what runs where. A run that goes on after an
    `update` has another part, behind those of the record it had `before`."""
    part = {
        "from_update": update,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "layout": str(topology),
        "sizes": {name: getattr(plan, name) for name in ("inference_batch", "chunks", "chunk_rows")},
        "code": code_version(),
        "machine": circumstances(topology),
    }
    record = {
        "args": vars(args),
        "plan": plan._asdict(),
        "network": resolve_network(args, env),
        "env_options": env.options,
        "digested": DIGESTED,
        **{name: part[name] for name in ("layout", "code", "machine")},
        "begun_with_envs": (before or {}).get("begun_with_envs", args.local_num_envs),  # per actor thread
        "parts": [*(before or {}).get("parts", []), part],
    }
    try:
        write_whole(run_dir / "args.json", json.dumps(record, indent=2).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"{run_dir} cannot be written ({error.strerror})") from error
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
    if profile := in_words(outcome.run_dir / PROFILE):
        lines.append(profile)
    lines.append(f"everything is in {outcome.run_dir}")
    if outcome.saved:
        lines.append(f"cleanba eval {outcome.run_dir} plays with the model")
    return "\n".join(lines)
