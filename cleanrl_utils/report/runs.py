"""Runs as a report sees them: what they were, how far they have come, and their learning curve.

Whatever is in a run's folder, it makes a `Run`: it may be under way, cut off or damaged.
"""

import ast
import fcntl
import json
import math
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from cleanrl_utils.atari_scores import game_of

METRICS, ARGS, FINISHED = "metrics.jsonl", "args.json", "finished.json"  # of a Cleanba run
EVENTS = "events.out.tfevents."  # so begin the names of TensorBoard's files
FOLDER = re.compile(
    r"(?P<env_id>.+?)__(?P<exp_name>.+)__(?P<seed>\d+)__\d+"
)  # a name, if nothing else is left
RECENT_GAMES = 100  # a score is the mean return of so many games
MOST_ROWS = 200  # of a run are read, or up to twice as many, evenly spread: a curve needs no more
ATARI_FRAMES = 4  # that an action lasts, where a run does not say
QUIET_SECONDS = 300  # after which a TensorBoard run that writes nothing is not taken for running


class Curve(NamedTuple):
    """Mean return of the last games, at P points."""

    step: np.ndarray  # [P], rising
    seconds: np.ndarray  # [P]
    value: np.ndarray  # [P]


NO_CURVE = Curve(*(np.empty(0) for _ in Curve._fields))


class Run(NamedTuple):
    path: Path
    args: dict[str, Any]  # its flags, as far as they are known
    about: dict[str, str]  # code, hardware, layout
    state: (
        str  # finished, running, stopped, empty (no update yet) or damaged (its flags or all rows are lost)
    )
    step: int  # the last one
    target: int | None  # the step at which it counts: its own end, or one that was asked for
    batch: int  # steps from one row to the next
    frames: int  # per step
    seconds: float
    speed: float  # steps per second; NaN: not known
    games: int | None  # that have ended; None: not known
    curve: Curve
    damage: str = ""  # what is wrong with its files

    @property
    def env_id(self) -> str:
        return str(self.args.get("env_id", ""))

    @property
    def seed(self) -> Any:
        return self.args.get("seed")

    @property
    def is_complete(self) -> bool:
        """It has come to its target, up to the steps that do not fill a batch."""
        return self.target is not None and self.step + max(1, self.batch) > self.target

    @property
    def score(self) -> float:
        return float(self.curve.value[-1])


def find_runs(places: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Run folders among and below these, each once, sorted; and what could not be looked into."""
    found: dict[Path, Path] = {}  # by where they really are
    seen: set[str] = set()
    failed: list[str] = []

    def fail(error: OSError) -> None:
        failed.append(f"{error.filename}: {error.strerror}")

    for place in places:
        for folder, inside, files in os.walk(place, onerror=fail, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                inside.clear()  # a link in a circle, or a place within another
                continue
            seen.add(real)
            if {METRICS, ARGS} & set(files) or any(name.startswith(EVENTS) for name in files):
                found[Path(real)] = Path(folder)
    return sorted(found.values()), failed


def read_run(path: Path, steps: int | None = None) -> Run:
    """What came after so many `steps` is not read."""
    try:
        if (path / METRICS).exists() or (path / ARGS).exists():
            return _read_cleanba(path, steps)
        return _read_tensorboard(path, steps)
    except Exception as error:  # one folder must not end the report of a thousand
        damage = f"cannot be read ({type(error).__name__}: {error})"
        known = _args_of_name(path)
        return Run(path, known, {}, "damaged", 0, steps, 0, 1, 0.0, math.nan, None, NO_CURVE, damage)


def _args_of_name(path: Path) -> dict[str, Any]:
    match = FOLDER.fullmatch(path.name)
    return match.groupdict() | {"seed": int(match["seed"])} if match else {}


def _whole(value: Any) -> int:
    """0 where it is no number: as if it were not there."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


# ------------------------------------------------------------------------------------- Cleanba's own folders


def _read_cleanba(path: Path, steps: int | None) -> Run:
    record, damage = _read_record(path)
    rows, cut = _read_rows(path / METRICS, steps)
    last: dict[str, Any] = rows[-1] if rows else {}
    state = "stopped" if rows or steps else "empty"
    if (path / FINISHED).exists():
        state = "finished"
    elif _is_locked(path / METRICS):
        state = "running"
    if damage or (cut and not rows):
        state = "damaged"
    args, plan = record.get("args") or _args_of_name(path), record.get("plan", {})
    batch = _whole(plan.get("batch_size"))
    own_end = _whole(plan.get("updates")) * batch or _whole(args.get("total_timesteps"))
    played = [row for row in rows if "charts/avg_episodic_return" in row]
    columns = ("global_step", "seconds", "charts/avg_episodic_return")
    return Run(
        path=path,
        args=args,
        about=_about(record),
        state=state,
        step=_whole(last.get("global_step")),
        target=steps or own_end or None,
        batch=batch,
        frames=_whole(record.get("env_options", {}).get("frame_skip")) or 1,
        seconds=float(last.get("seconds", 0.0)),
        # A part of a run has none after its first update, which compiles.
        speed=next((row["charts/SPS"] for row in reversed(rows) if "charts/SPS" in row), math.nan),
        games=_whole(last["stats/games"]) if "stats/games" in last else None,
        curve=Curve(*(np.array([row[name] for row in played], np.float64) for name in columns)),
        damage="; ".join(filter(None, [damage, cut])),
    )


def _read_record(path: Path) -> tuple[dict[str, Any], str]:
    """args.json, and what is wrong with it."""
    try:
        record = json.loads((path / ARGS).read_text())
        groups = ("args", "plan", "env_options", "code", "machine")
        if "args" in record and all(isinstance(record.get(name, {}), dict) for name in groups):
            return record, ""
    except FileNotFoundError:
        return {}, f"no {ARGS}"
    except (OSError, ValueError, RecursionError, TypeError, AttributeError):
        pass
    return {}, f"{ARGS} is damaged"


def _read_rows(path: Path, steps: int | None) -> tuple[list[dict[str, Any]], str]:
    """Some rows, always with the last good one, and what is wrong with the file. A run that has gone on from
    an earlier checkpoint may have written an update twice: the later one counts."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], f"no {METRICS}"
    except OSError as error:
        return [], f"{METRICS} cannot be read ({error.strerror})"
    lines = lines[:-1]  # what follows the last line break is not complete yet, or nothing
    if steps:
        found = (re.search(rb'"global_step": *(\d+)', line) for line in lines)
        lines = [line for line, step in zip(lines, found, strict=True) if not step or int(step[1]) <= steps]
    bad = False
    while lines and not _row(lines[-1]):
        lines.pop()
        bad = True
    stride = max(1, len(lines) // MOST_ROWS)
    rows: list[dict[str, Any]] = []
    for line in lines[(len(lines) - 1) % stride :: stride]:  # so that the last one is in
        if not (row := _row(line)):
            bad = True
            continue
        while rows and rows[-1]["global_step"] >= row["global_step"]:
            rows.pop()
        rows.append(row)
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
    """Of all parts of a run that was resumed, if they differ."""
    parts = record.get("parts")
    parts = [p for p in parts if isinstance(p, dict)] if isinstance(parts, list) else []
    told = [_about_part(part) for part in parts or [record]]
    names = dict.fromkeys(name for part in told for name in part)
    return {name: " → ".join(dict.fromkeys(part[name] for part in told if name in part)) for name in names}


def _about_part(part: dict[str, Any]) -> dict[str, str]:
    code, machine = (x if isinstance(x, dict) else {} for x in (part.get("code"), part.get("machine")))
    commit = str(code.get("commit", ""))[:10] + "+" * bool(code.get("changed"))
    devices = [str(machine.get(name) or "cpu") for name in ("actor_devices", "learner_devices")]
    hardware = [device for device in dict.fromkeys(devices) if device != "cpu"]
    if machine.get("cores"):
        hardware.append(f"{machine['cores']} × {machine.get('cpu', 'CPU')}")
    about = {
        "commit": commit or str(code.get("version", "")),
        "hardware": ", ".join(hardware),
        "layout": str(part.get("layout", "")),
        "jax": str(machine.get("jax", "")),
    }
    return {name: text for name, text in about.items() if text}


# ----------------------------------------------------------------------------- TensorBoard's event files

PER_GAME, MEAN, SPEED = "charts/episodic_return", "charts/avg_episodic_return", "charts/SPS"


class Point(NamedTuple):
    step: int
    seconds: float  # since the first event
    value: float


def _read_tensorboard(path: Path, steps: int | None) -> Run:
    """As CleanRL's scripts leave them: a scalar for each game that ends, and the flags as a table. Some write
    a mean over fewer games, too; it is used only where there is nothing else."""
    files = sorted(file for file in path.iterdir() if file.name.startswith(EVENTS))
    args = _args_of_name(path)
    scalars: dict[str, list[Point]] = {}  # by tag
    damage, first = "", None
    for file in files:
        try:
            for event in _events(file.read_bytes()):
                first = event.wall_time if first is None else first
                if event.session_log.status == SessionLog.START:  # goes on from here, what came after is void
                    scalars = {t: [p for p in ps if p.step < event.step] for t, ps in scalars.items()}
                for value in event.summary.value:
                    if value.tag.startswith("hyperparameters/text_summary"):
                        args |= _args_of_table(value.tensor.string_val)
                    elif steps is None or event.step <= steps:
                        point = Point(event.step, event.wall_time - first, _number(value))
                        if math.isfinite(point.value):
                            scalars.setdefault(value.tag, []).append(point)
        except (OSError, _Damaged) as error:
            damage = f"{file.name} is damaged ({error})"
    games, speeds = scalars.get(PER_GAME, []), scalars.get(SPEED, [])
    curve = _curve_of_games(games) if games else _curve(scalars.get(MEAN, []))
    if not len(curve.value) and not damage:
        damage = f"no {PER_GAME}, but {', '.join(sorted(scalars)[:4]) or 'nothing'}"
    ends = [point.step for points in scalars.values() for point in points]
    run = Run(
        path=path,
        args=args,
        about={},
        state="stopped" if len(curve.value) else "damaged",
        step=max(ends, default=0),
        target=steps or _whole(args.get("total_timesteps")) or None,
        batch=speeds[-1].step - speeds[-2].step if len(speeds) > 1 else 0,
        frames=ATARI_FRAMES if game_of(str(args.get("env_id"))) else 1,
        seconds=max((points[-1].seconds for points in scalars.values() if points), default=0.0),
        speed=speeds[-1].value if speeds else math.nan,
        games=len(games) or None,
        curve=curve,
        damage=damage,
    )
    if run.state == "stopped" and run.is_complete and not steps:
        return run._replace(state="finished")
    if run.state == "stopped" and time.time() - max(f.stat().st_mtime for f in files) < QUIET_SECONDS:
        return run._replace(state="running")
    return run


class _Damaged(Exception):
    pass


def _events(data: bytes) -> Iterator[Event]:
    """Records: length, its checksum, the event, its checksum. The last may still be under way."""
    at = 0
    while at + 12 <= len(data):
        length, checksum = struct.unpack_from("<QI", data, at)
        crc = crc32c(data[at : at + 8])
        if checksum != ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF:
            raise _Damaged(f"no record at byte {at}")
        if at + 16 + length > len(data):
            return
        try:
            yield Event.FromString(data[at + 12 : at + 12 + length])
        except Exception as error:  # protobuf's own
            raise _Damaged(f"no event at byte {at}") from error
        at += 16 + length


def _number(value: Summary.Value) -> float:
    """As torch writes it, or as TensorFlow does; NaN where it is no scalar."""
    if value.WhichOneof("value") == "simple_value":
        return value.simple_value
    tensor = value.tensor
    if tensor.tensor_content and tensor.dtype == 1:  # float32
        return struct.unpack_from("<f", tensor.tensor_content)[0]
    return next(iter([*tensor.float_val, *tensor.double_val]), math.nan)


def _args_of_table(text: Iterable[bytes]) -> dict[str, Any]:
    """Of `|param|value|`, a line for each flag."""
    found: dict[str, Any] = {}
    for line in b"".join(text).decode(errors="replace").splitlines()[2:]:
        if match := re.fullmatch(r"\|(\w+)\|(.*)\|", line.strip()):
            try:
                found[match[1]] = ast.literal_eval(match[2])
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                found[match[1]] = match[2]
    return found


def _curve(points: list[Point]) -> Curve:
    """In the order of the steps; of a step that comes twice the later."""
    by_step = {point.step: point for point in points}
    columns = zip(*(by_step[step] for step in sorted(by_step)), strict=True)
    step, seconds, value = (np.array(x, np.float64) for x in columns) if points else NO_CURVE
    return Curve(step, np.maximum.accumulate(seconds), value)


def _curve_of_games(games: list[Point]) -> Curve:
    """Means over the last games, thinned out."""
    games = sorted(games, key=lambda game: game.step)
    total = np.concatenate([[0.0], np.cumsum([game.value for game in games])])
    stride = max(1, len(games) // MOST_ROWS)
    points = []
    for end in range(len(games), 0, -stride):
        start = max(0, end - RECENT_GAMES)
        points.append(games[end - 1]._replace(value=(total[end] - total[start]) / (end - start)))
    return _curve(points[::-1])
