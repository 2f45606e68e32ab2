"""Runs as a report sees them: what they were, how far they have come, and their learning curve.

Nothing here raises because of what is in a run's folder: it may be running, cut off or damaged.
"""

import ast
import fcntl
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event

from cleanrl_utils.atari_scores import game_of

METRICS, ARGS, FINISHED = "metrics.jsonl", "args.json", "finished.json"  # of a Cleanba run
EVENTS = "events.out.tfevents.*"  # of TensorBoard
FOLDER = re.compile(
    r"(?P<env_id>.+?)__(?P<exp_name>.+)__(?P<seed>\d+)__\d+"
)  # its name, if nothing else is left
RECENT_GAMES = 100  # a score is the mean return of so many games
MOST_ROWS = 200  # of a run are read, or up to twice as many, evenly spread: a curve needs no more
ATARI_FRAMES = 4  # that an action lasts, where a run does not say


class Curve(NamedTuple):
    """Mean return of the last games, at P points."""

    step: np.ndarray  # [P], rising
    seconds: np.ndarray  # [P]
    value: np.ndarray  # [P]

    def until(self, step: int) -> "Curve":
        return Curve(*(x[self.step <= step] for x in self))


class Run(NamedTuple):
    path: Path
    args: dict[str, Any]  # its flags, as far as they are known
    about: dict[str, str]  # code, hardware, layout
    state: str  # finished, running, stopped, empty (no update yet) or damaged
    step: int  # the last one
    target: int  # at which it ends; 0: not known
    batch: int  # steps between two rows
    frames: int  # per step
    seconds: float
    speed: float  # steps per second; NaN: not known
    games: int | None  # that have ended; None: not known
    curve: Curve
    damage: str  # what is wrong with its files; "": nothing

    @property
    def env_id(self) -> str:
        return str(self.args.get("env_id", "unknown"))

    @property
    def seed(self) -> Any:
        return self.args.get("seed")

    @property
    def is_complete(self) -> bool:
        """It went to the end of its steps, so that its score can be compared."""
        if self.state in ("empty", "damaged") or not len(self.curve.value):
            return False
        at_the_end = self.target > 0 and self.step + self.batch > self.target
        return self.state == "finished" or at_the_end

    @property
    def score(self) -> float:
        return float(self.curve.value[-1])

    def until(self, step: int) -> "Run":
        """As it was after so many steps, as if it should have ended there."""
        state = "stopped" if self.state == "finished" and self.step + self.batch <= step else self.state
        if step >= self.step:
            return self._replace(target=step, state=state)
        curve = self.curve.until(step)
        seconds = float(curve.seconds[-1]) if len(curve.seconds) else 0.0
        return self._replace(step=step, target=step, state=state, seconds=seconds, games=None, curve=curve)


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Run folders among and below these, each once, sorted."""
    found: set[Path] = set()
    for place in places:
        for name in (METRICS, ARGS, EVENTS):
            found |= {path.parent for path in place.rglob(name)}
    return sorted(found)


def read_run(path: Path) -> Run:
    if (path / METRICS).exists() or (path / ARGS).exists():
        return _read_cleanba(path)
    return _read_tensorboard(path)


# ------------------------------------------------------------------------------------- Cleanba's own folders


def _read_cleanba(path: Path) -> Run:
    record, damage = _read_record(path)
    rows, cut = _read_rows(path / METRICS)
    damage = "; ".join(filter(None, [damage, cut]))
    last: dict[str, Any] = rows[-1] if rows else {}
    args, plan = record.get("args", {}) or _args_of_name(path), record.get("plan", {})
    if not rows:
        state = "running" if _is_locked(path / METRICS) else "empty"
    elif (path / FINISHED).exists():
        state = "finished"
    else:
        state = "running" if _is_locked(path / METRICS) else "stopped"
    if damage and (not record or not rows):
        state = "damaged"
    batch = int(plan.get("batch_size", 0))
    played = [row for row in rows if "charts/avg_episodic_return" in row]
    columns = ("global_step", "seconds", "charts/avg_episodic_return")
    return Run(
        path=path,
        args=args,
        about=_about(record),
        state=state,
        step=int(last.get("global_step", 0)),
        target=int(plan.get("updates", 0)) * batch or int(args.get("total_timesteps") or 0),
        batch=batch,
        frames=int(record.get("env_options", {}).get("frame_skip", 1)),
        seconds=float(last.get("seconds", 0.0)),
        speed=float(last.get("charts/SPS", last.get("charts/SPS_update", np.nan))),
        games=last.get("stats/games"),
        curve=Curve(*(np.array([row[name] for row in played], np.float64) for name in columns)),
        damage=damage,
    )


def _read_record(path: Path) -> tuple[dict[str, Any], str]:
    """args.json, and what is wrong with it."""
    try:
        record = json.loads((path / ARGS).read_text())
        groups = ("args", "plan", "env_options", "code", "machine")
        if all(isinstance(record.get(name, {}), dict) for name in groups) and "args" in record:
            return record, ""
    except FileNotFoundError:
        return {}, f"no {ARGS}"
    except (OSError, ValueError, RecursionError, AttributeError):
        pass
    return {}, f"{ARGS} is damaged"


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Some rows, always with the last good one, and what is wrong with the file. A run that has gone on from
    an earlier checkpoint may have written an update twice: the later one counts."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], f"no {METRICS}"
    except OSError as error:
        return [], f"{METRICS} cannot be read ({error.strerror})"
    lines = lines[:-1]  # what follows the last line break is not complete yet, or nothing
    stride = max(1, len(lines) // MOST_ROWS)
    rows: list[dict[str, Any]] = []
    bad = 0
    for index in range((len(lines) - 1) % stride, len(lines), stride):  # so that the last one is in
        row = _row(lines[index])
        bad += not row
        while row and rows and rows[-1]["global_step"] >= row["global_step"]:
            rows.pop()
        rows += [row] if row else []
    while lines and not _row(lines[-1]):  # the last one that is good
        lines.pop()
    if lines and rows and (last := _row(lines[-1]))["global_step"] > rows[-1]["global_step"]:
        rows.append(last)
    return rows, f"{METRICS} has damaged lines" if bad else ""


def _row(line: bytes) -> dict[str, Any]:
    """Empty if the line is damaged."""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        row = json.loads(line)
        numbers = [row[name] for name in ("global_step", "seconds")]
        numbers += [row[name] for name in ("charts/avg_episodic_return", "charts/SPS") if name in row]
        if all(map(math.isfinite, numbers)):
            return row
    return {}


def _is_locked(path: Path) -> bool:
    """A run has its metrics locked while it goes on."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _about(record: dict[str, Any]) -> dict[str, str]:
    code, machine = record.get("code", {}), record.get("machine", {})
    commit = str(code.get("commit", ""))[:10] + ("+" if code.get("changed") else "")
    devices = [machine.get(name) for name in ("actor_devices", "learner_devices")]
    cores = f"{machine['cores']} × {machine.get('cpu', 'CPU')}" if machine.get("cores") else ""
    hardware = [str(d) for d in dict.fromkeys(devices) if d and d != "cpu"] + [cores] * bool(cores)
    about = {
        "commit": commit or str(code.get("version", "")),
        "hardware": ", ".join(hardware),
        "layout": str(record.get("layout", "")),
        "jax": str(machine.get("jax", "")),
    }
    return {name: text for name, text in about.items() if text}


def _args_of_name(path: Path) -> dict[str, Any]:
    match = FOLDER.fullmatch(path.name)
    return match.groupdict() | {"seed": int(match["seed"])} if match else {}


# ----------------------------------------------------------------------------- TensorBoard's event files


def _read_tensorboard(path: Path) -> Run:
    """As CleanRL's scripts leave them: a scalar for each game that ends, and the flags as a table."""
    scalars: dict[str, list[tuple[int, float, float]]] = {}  # by tag: step, wall time, value
    args = _args_of_name(path)
    damage, first = "", None
    for file in sorted(path.glob(EVENTS)):
        try:
            for event in _events(file.read_bytes()):
                first = event.wall_time if first is None else first
                for value in event.summary.value:
                    if value.tag.startswith("hyperparameters/text_summary"):
                        args |= _args_of_table(value.tensor.string_val)
                    elif value.tag in ("charts/avg_episodic_return", "charts/episodic_return", "charts/SPS"):
                        point = (event.step, event.wall_time - first, _number(value))
                        scalars.setdefault(value.tag, []).append(point)
        except (OSError, DecodeError, _Damaged) as error:
            damage = f"{file.name} is damaged: {error}"
    means = scalars.get("charts/avg_episodic_return")
    games = scalars.get("charts/episodic_return", [])
    curve = _curve(means) if means else _curve_of_games(games)
    step = max((point[0] for points in scalars.values() for point in points), default=0)
    target = int(args.get("total_timesteps") or 0)
    speeds = scalars.get("charts/SPS")
    # The last step that is told is that of the last game that ended, or of the last update.
    reached = target and step >= 0.98 * target
    state = "empty" if not len(curve.value) else "finished" if reached else "stopped"
    return Run(
        path=path,
        args=args,
        about={},
        state="damaged" if damage and state == "empty" else state,
        step=target if reached else step,
        target=target,
        batch=int(args.get("batch_size") or 0),
        frames=ATARI_FRAMES if game_of(str(args.get("env_id"))) else 1,
        seconds=float(curve.seconds[-1]) if len(curve.seconds) else 0.0,
        speed=speeds[-1][2] if speeds else np.nan,
        games=len(games) if games else None,
        curve=curve,
        damage=damage,
    )


class _Damaged(Exception):
    pass


def _events(data: bytes) -> Iterator[Event]:
    """Records: length, its checksum, the event, its checksum. The last may still be under way."""
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > 2**31:
            raise _Damaged(f"no record at byte {at}")
        if at + 16 + length > len(data):
            return
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length


def _number(value: Any) -> float:
    """As torch writes it, or as TensorFlow does."""
    return value.tensor.float_val[0] if value.tensor.float_val else value.simple_value


def _args_of_table(text: Iterable[bytes]) -> dict[str, Any]:
    """Of `|param|value|`, a line for each flag."""
    found: dict[str, Any] = {}
    for line in b"".join(text).decode(errors="replace").splitlines()[2:]:
        if match := re.fullmatch(r"\|(\w+)\|(.*)\|", line.strip()):
            try:
                found[match[1]] = ast.literal_eval(match[2])
            except (ValueError, SyntaxError):
                found[match[1]] = match[2]
    return found


def _curve(points: list[tuple[int, float, float]]) -> Curve:
    """In the order of the steps; of a step that comes twice the later."""
    by_step = {step: (seconds, value) for step, seconds, value in points if np.isfinite(value)}
    steps = sorted(by_step)
    seconds = np.maximum.accumulate([by_step[s][0] for s in steps]) if steps else np.empty(0)
    return Curve(np.array(steps, np.float64), seconds, np.array([by_step[s][1] for s in steps], np.float64))


def _curve_of_games(games: list[tuple[int, float, float]]) -> Curve:
    """Means over the last games, thinned out."""
    games = sorted((g for g in games if np.isfinite(g[2])), key=lambda game: game[0])
    total = np.concatenate([[0.0], np.cumsum([value for _, _, value in games])])
    stride = max(1, len(games) // MOST_ROWS)
    points = []
    for end in range(len(games), 0, -stride):
        start = max(0, end - RECENT_GAMES)
        step, seconds, _ = games[end - 1]
        points.append((step, seconds, (total[end] - total[start]) / (end - start)))
    return _curve(points[::-1])
