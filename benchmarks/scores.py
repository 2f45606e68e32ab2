"""Time to score: how many steps and seconds a training needs until its returns reach given thresholds.

    python benchmarks/scores.py --games Pong-v5:18 Breakout-v5:300,400 --seeds 1 2 3 --steps 3000000 \\
        --presets fast=cleanba/cleanba_ppo_atari_fast.py "ppo=cleanba/cleanba_ppo.py --atari-preset impala" \\
        --minutes 9 --out runs/scores

Each preset, game and seed is one run. After --minutes the current one is stopped with a checkpoint, and the
same call continues there. Seconds count from the start of the command, over all its pieces: with each start,
and with what a piece did after its last row. --minutes 0 starts nothing and only writes the results. With
--stop-when-reached a run is complete, and stopped, once it has reached all thresholds of its game.

A score is the mean return of the last 100 games, and counts once there are 100. In --out: results.json,
results.md (tables for RESULTS.md), curves.png, and a folder for each run. Exit codes: 0 all runs are
complete, 75 some are not (start it again), 1 a run failed, 2 bad input.

Where only steps matter, start several calls side by side, with other seeds and the same --out, and one with
all seeds and --minutes 0 in the end.
"""

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from cleanba.config.errors import UsageError
from cleanba.records.row import RECENT_GAMES, Row
from cleanba.records.run_folder import ARGS, METRICS, is_finished, read_record, read_rows
from cleanba.runtime.command import PREEMPTED, command, need_extra
from cleanba.runtime.files import atomic_write, file_name
from cleanba.runtime.messages import say

RETURN = "charts/avg_episodic_return"

REPO = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.2
GRACE_SECONDS = 120  # for a run to write its checkpoint
MINUTES = (1, 2, 5, 9)  # after which the scores are listed
MAX_POINTS = 500  # of a curve in results.json
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")  # Okabe and Ito


class Game(NamedTuple):
    env_id: str
    thresholds: tuple[float, ...]

    @staticmethod
    def parse(text: str) -> "Game":
        env_id, _, numbers = text.partition(":")
        try:
            return Game(env_id, tuple(float(number) for number in numbers.split(",")))
        except ValueError:
            raise UsageError(
                f"--games {text} has no thresholds; give e.g. {env_id}:18 or {env_id}:0,18"
            ) from None


class Preset(NamedTuple):
    name: str
    command: tuple[str, ...]  # a script and its flags

    @staticmethod
    def parse(text: str) -> "Preset":
        name, _, rest = text.partition("=")
        words = tuple(shlex.split(rest))
        if not words or not (REPO / words[0]).is_file():
            raise UsageError(
                f"--presets {text} is not NAME=SCRIPT FLAGS; give e.g. ppo=cleanba/cleanba_ppo.py"
            )
        return Preset(name, words)


class Piece(NamedTuple):
    """One start of a run's command. Times are those of the clock on the wall."""

    started: float
    ended: float
    opened: float | None = None  # when its run folder was there: its rows count seconds from then on
    from_update: int = 0  # the last update of the pieces before


class Point(NamedTuple):
    step: int
    seconds: float  # since the start of the command, over all pieces
    score: float
    games: int  # finished so far


# ------------------------------------------------------------------------------------------------ running


class ScoredRun:
    """One preset, game and seed, with a folder for its run folder, pieces.json and its output."""

    def __init__(
        self,
        out: Path,
        preset: Preset,
        game: Game,
        seed: int,
        steps: int,
        *,
        stop_when_reached: bool = False,
    ):
        self.preset, self.game, self.seed = preset, game, seed
        self.stop_when_reached = stop_when_reached
        self.folder = out / file_name(f"{preset.name}__{game.env_id}__{seed}")
        self.command = [*preset.command, f"--env-id={game.env_id}", f"--seed={seed}"]
        self.command += [f"--total-timesteps={steps}"]
        self.pieces = self._read_pieces()

    @property
    def name(self) -> str:
        return f"{self.preset.name}, {self.game.env_id}, seed {self.seed}"

    @property
    def run_dir(self) -> Path | None:
        """The newest one: a piece that was stopped before its first update leaves nothing to resume."""
        found = [path.parent for path in self.folder.glob(f"*/{METRICS}")]
        return max(found, key=lambda path: int(path.name.rsplit("__", 1)[1]), default=None)

    @property
    def is_complete(self) -> bool:
        if self.run_dir is None:
            return False
        return is_finished(self.run_dir) or (self.stop_when_reached and self._has_reached_all())

    def _has_reached_all(self) -> bool:
        best, rows = max(self.game.thresholds, default=math.inf), self.rows()
        scores = [row.get(RETURN) for row in rows if row.get("stats/games", 0) >= RECENT_GAMES]
        return any(score is not None and score >= best for score in scores)

    def _read_pieces(self) -> list[Piece]:
        path = self.folder / "pieces.json"
        if not path.exists():
            return []
        record = json.loads(path.read_text())
        if record["command"] != self.command:
            begun = f"{self.folder} was begun as {shlex.join(record['command'])}"
            raise UsageError(f"{begun}; give another --out, or the preset another name")
        pieces = [Piece(*piece) for piece in record["pieces"]]
        return [*pieces[:-1], self._complete(pieces[-1])]

    def _save_pieces(self) -> None:
        record = {"command": self.command, "pieces": self.pieces}
        atomic_write(self.folder / "pieces.json", json.dumps(record, indent=2).encode() + b"\n")

    def _complete(self, piece: Piece) -> Piece:
        """What its run folder says of the last piece, also if this script was killed meanwhile."""
        if piece.opened or not self.run_dir:
            return piece
        opened, last_row = ((self.run_dir / name).stat().st_mtime for name in (ARGS, METRICS))
        if opened < piece.started:  # it was stopped before it came so far
            return piece
        from_update = read_record(self.run_dir)["parts"][-1]["from_update"]
        return Piece(piece.started, max(piece.ended, last_row), opened, from_update)

    def train(self, until: float) -> int:
        """Start or continue it, until time.monotonic() is `until`. Returns its exit code."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pieces.append(Piece(started := time.time(), started))
        self._save_pieces()
        resume = ["--resume=auto", f"--runs-dir={self.folder.resolve()}"]
        with (self.folder / "output").open("a") as output:
            process = subprocess.Popen(
                [sys.executable, *self.command, *resume], cwd=REPO, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            while process.poll() is None and time.monotonic() < until:
                if self.stop_when_reached and self._has_reached_all():
                    break
                time.sleep(POLL_SECONDS)
        finally:
            stop(process)
            self.pieces[-1] = self._complete(Piece(started, time.time()))
            self._save_pieces()
        return process.returncode

    # -------------------------------------------------------------------------------------- its results

    def rows(self) -> list[Row]:
        """Of its updates; not of its evaluation."""
        return [row for row in read_rows(self.run_dir) if "update" in row] if self.run_dir else []

    def points(self, rows: Sequence[Row]) -> list[Point]:
        clock = TotalClock(self.pieces, {row["update"]: row["seconds"] for row in rows})
        return [
            Point(
                row["global_step"],
                clock.seconds(row["update"], row["seconds"]),
                row[RETURN],
                row["stats/games"],
            )
            for row in rows
            if row.get(RETURN) is not None
        ]

    def result(self) -> dict[str, Any]:
        rows = self.rows()
        points = self.points(rows)
        reached = {f"{x:g}": first_at(points, x) for x in self.game.thresholds}
        return {
            "preset": self.preset.name,
            "game": self.game.env_id,
            "seed": self.seed,
            "command": self.command,
            "complete": self.is_complete,
            "pieces": len(self.pieces),
            "steps_per_second": median(row["charts/SPS_update"] for row in rows) if rows else 0.0,
            "reached": {x: point and [point.step, point.seconds] for x, point in reached.items()},
            "after_minutes": {str(m): score_after(points, 60 * m) for m in MINUTES},
            "final": list(points[-1]) if points else None,
            "curve": points[:: math.ceil(len(points) / MAX_POINTS) or 1] + points[-1:],
        }


def stop(process: "subprocess.Popen[bytes]") -> None:
    """It writes a checkpoint and exits with code 75, unless it has ended already."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    finally:
        process.kill()
        process.wait()


class TotalClock:
    """From the seconds of a row, which leave out how long each piece took to start and to stop, to seconds
    since the first start, without the time between pieces."""

    def __init__(self, pieces: Sequence[Piece], seconds_of: dict[int, float]):
        self._opened: list[tuple[int, float]] = []  # update after which an offset holds, and that offset
        earlier = 0.0
        for piece in pieces:
            if piece.opened is not None:
                offset = earlier + piece.opened - piece.started - seconds_of.get(piece.from_update, 0.0)
                self._opened.append((piece.from_update, offset))
            earlier += piece.ended - piece.started

    def seconds(self, update: int, seconds: float) -> float:
        """The last piece that can have made the update has made it: others before it were lost."""
        return seconds + next(offset for after, offset in reversed(self._opened) if after < update)


def first_at(points: Sequence[Point], threshold: float) -> Point | None:
    counted = (point for point in points if point.games >= RECENT_GAMES)
    return next((point for point in counted if point.score >= threshold), None)


def score_after(points: Sequence[Point], seconds: float) -> float | None:
    """None if the run has not lasted that long."""
    before = [point for point in points if point.seconds <= seconds]
    return before[-1].score if before and points[-1].seconds > seconds else None


# ----------------------------------------------------------------------------------------- all of them


def train_all(runs: Sequence[ScoredRun], minutes: float) -> int:
    """Returns the exit code."""
    until = time.monotonic() + 60 * minutes
    failed = False
    for run in runs:
        if run.is_complete or time.monotonic() >= until:
            continue
        say(f"{run.name}: {'continues' if run.pieces else 'starts'}, output in {run.folder / 'output'}")
        code = run.train(until)
        failed |= code not in (0, PREEMPTED)
        say(f"{run.name}: {'stopped' if code == PREEMPTED else f'ended with exit code {code}'}")
    if failed:
        return 1
    return 0 if all(run.is_complete for run in runs) else PREEMPTED


# ---------------------------------------------------------------------------------------------- results


def tables(results: Sequence[dict[str, Any]]) -> str:
    return "\n".join([*time_table(results), "", *minutes_table(results), "", *final_table(results), ""])


def groups(results: Sequence[dict[str, Any]]) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """The seeds of each game and preset, with what their lines begin with."""
    for game, preset in dict.fromkeys((one["game"], one["preset"]) for one in results):
        yield [game, preset], [one for one in results if (one["game"], one["preset"]) == (game, preset)]


def time_table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| game | preset | score | seeds | steps: median (range) | seconds: median (range) |"
    yield "|---|---|---:|---:|---:|---:|"
    for names, seeds in groups(results):
        for threshold in seeds[0]["reached"]:
            reached = [one["reached"][threshold] or [math.inf, math.inf] for one in seeds]
            count = sum(math.isfinite(step) for step, _ in reached)
            steps, seconds = (spread([one[i] for one in reached]) for i in (0, 1))
            yield line(*names, threshold, f"{count} of {len(seeds)}", steps, seconds)


def minutes_table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"| game | preset | {' | '.join(f'{m} min' for m in MINUTES)} |"
    yield f"|---|---|{'---:|' * len(MINUTES)}"
    for names, seeds in groups(results):
        yield line(*names, *(scores([one["after_minutes"][str(m)] for one in seeds]) for m in MINUTES))


def final_table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| game | preset | seed | steps | steps/s of an update | seconds | score at the end | pieces |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for names, seeds in groups(results):
        for one in seeds:
            step, seconds, score, _ = one["final"] or (0, 0.0, None, 0)
            ending = scores([score]) + ("" if one["complete"] else " (not complete)")
            rates = [f"{step:,}", f"{one['steps_per_second']:,.0f}", f"{seconds:,.0f}"]
            yield line(*names, one["seed"], *rates, ending, one["pieces"])


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def spread(values: Sequence[float]) -> str:
    """What is not reached is more than anything else."""
    middle, low, high = (
        f"{x:,.0f}" if x < math.inf else "–" for x in (median(values), min(values), max(values))
    )
    return f"{middle} ({low} to {high})" if len(values) > 1 else middle


def scores(values: Sequence[float | None]) -> str:
    return ", ".join("–" if value is None else f"{value:,.1f}" for value in values)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """A line per seed, a colour per preset; over steps and over seconds, one row per game."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    games, presets = (list(dict.fromkeys(one[name] for one in results)) for name in ("game", "preset"))
    figure = Figure(figsize=(9, 3 * len(games)), layout="constrained")
    grid = figure.subplots(len(games), 2, squeeze=False, sharey="row")
    for one in results:
        for axes, column in zip(grid[games.index(one["game"])], (0, 1), strict=True):
            color = COLORS[presets.index(one["preset"]) % len(COLORS)]
            label = one["preset"] if one["seed"] == results[0]["seed"] else None
            steps_or_seconds = [point[column] for point in one["curve"]]
            axes.plot(steps_or_seconds, [point[2] for point in one["curve"]], color=color, label=label)
    for game, (over_steps, over_seconds) in zip(games, grid, strict=True):
        over_steps.set(title=game, xlabel="environment steps", ylabel=f"mean of {RECENT_GAMES} games")
        over_steps.xaxis.set_major_formatter(EngFormatter(sep=""))
        over_seconds.set(xlabel="seconds since the start of the command")
        over_steps.legend(frameon=False)
    figure.savefig(path, dpi=150)


def write_results(runs: Sequence[ScoredRun], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results = [run.result() for run in runs]
    atomic_write(out / "results.json", json.dumps(results, indent=1).encode() + b"\n")
    atomic_write(out / "results.md", tables(results).encode())
    plot(results, out / "curves.png")
    print(tables(results))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", nargs="+", required=True, help="each with its thresholds: Pong-v5:0,18")
    parser.add_argument("--presets", nargs="+", required=True, help="each with a name: NAME=SCRIPT FLAGS")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, required=True, help="of each run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of this call; default: no limit")
    parser.add_argument("--stop-when-reached", action="store_true", help="stop a run at its last threshold")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and the results")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    with command(resumable=True):
        args = parse(argv)
        need_extra("curves.png", "matplotlib", "plot")
        games, presets = [Game.parse(x) for x in args.games], [Preset.parse(x) for x in args.presets]
        runs = [
            ScoredRun(args.out, preset, game, seed, args.steps, stop_when_reached=args.stop_when_reached)
            for seed in args.seeds  # the first of everything, then the second
            for game in games
            for preset in presets
        ]
        code = train_all(runs, args.minutes)
        write_results(runs, args.out)
        sys.exit(code)


if __name__ == "__main__":
    main()
