"""Find and read the runs of a report: their flags, progress and learning curve.

Any run folder can be read, even of a run that is still training, was killed, or has damaged files.
"""

import ast
import json
import math
import os
import re
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from cleanba.evaluation.atari_scores import game_of
from cleanba.records.event_file import EVENTS, DamagedEvents, read_events
from cleanba.records.row import RECENT_GAMES, Row
from cleanba.records.run_folder import (
    ARGS,
    EVALUATION,
    MAX_COUNT,
    METRICS,
    DamagedRecord,
    is_number,
    read_record,
    sample_rows,
)
from cleanba.records.run_status import state_of
from cleanba.runtime.files import last_written, read_regular
from cleanba.runtime.messages import printable

# A run folder's name, which has what matters if args.json is lost.
RUN_NAME = re.compile(r"(?P<env_id>.+?)__(?P<exp_name>.+)__(?P<seed>\d+)__\d+")
MAX_ROWS = 120  # up to twice as many rows are read per run, evenly spaced: a curve has as many points
ATARI_FRAME_SKIP = 4  # where a run does not record it
EPISODE_RETURN, MEAN_RETURN, SPEED = "charts/episodic_return", "charts/avg_episodic_return", "charts/SPS"
IDLE_SECONDS = 300  # a TensorBoard run that has written nothing for so long is not running


class Curve(NamedTuple):
    """Mean return of recent episodes, at P points."""

    step: np.ndarray  # [P], increasing
    seconds: np.ndarray  # [P]
    value: np.ndarray  # [P]


EMPTY_CURVE = Curve(*(np.empty(0) for _ in Curve._fields))


class Run(NamedTuple):
    path: Path
    args: dict[str, Any]  # flags, as far as known
    about: dict[str, str]  # commit, hardware, layout, version of jax
    state: str  # finished, running, stopped, empty (no update yet) or damaged (flags or all rows are lost)
    step: int  # last step
    target: int | None  # step at which the run is scored: the requested one, or its own end
    batch: int  # steps per row
    frames: int  # per step
    seconds: float
    speed: float  # steps per second; NaN if unknown
    episodes: int | None  # finished; None if unknown
    curve: Curve
    damage: str = ""  # what is wrong with the files
    evaluation: float | None = None  # mean return of the finished run's saved model

    @property
    def env_id(self) -> str:
        return str(self.args.get("env_id", ""))

    @property
    def seed(self) -> Any:
        return self.args.get("seed")

    @property
    def is_complete(self) -> bool:
        """The run has reached its target, up to steps that do not fill a batch."""
        return self.target is not None and self.step + max(1, self.batch) > self.target

    @property
    def score(self) -> float:
        return float(self.curve.value[-1])


def as_text(value: Any) -> str:
    """Any value from a file, safe to print and to write into HTML and SVG."""
    if isinstance(value, float):
        value = f"{value:g}"
    elif not isinstance(value, str):
        value = json.dumps(value, default=str)
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "�", value)


def find_runs(roots: Iterable[Path], *, tensorboard: bool = True) -> tuple[list[Path], list[str]]:
    """All run folders at or below `roots`, each once, sorted, with or without those that have TensorBoard's
    files only; and the folders that could not be opened. Links are followed, but not to what is above."""
    found: list[Path] = []
    seen: set[str] = set()  # resolved paths
    errors: list[OSError] = []
    for root in roots:
        for folder, subfolders, files in os.walk(root, onerror=errors.append, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen or (folder != os.fspath(root) and _leads_up(folder, root)):
                subfolders.clear()  # a circular link, a root within another, or a link to the whole disk
                continue
            seen.add(real)
            events = tensorboard and any(name.startswith(EVENTS) for name in files)
            if events or {METRICS, ARGS} & set(files):
                found.append(Path(folder))
    return sorted(found), [printable(f"{error.filename}: {error.strerror}") for error in errors]


def _leads_up(folder: str, root: Path) -> bool:
    """Whether it is a link to a folder in which it is itself, or the root is."""
    if not os.path.islink(folder):
        return False
    real, *inside = (Path(os.path.realpath(path)) for path in (folder, os.path.dirname(folder), root))
    return any(path.is_relative_to(real) for path in inside)


def read_run(path: Path, steps: int | None = None) -> Run:
    """Read a run up to `steps`, or all of it. Never raises: a run that cannot be read is "damaged"."""
    try:
        if (path / METRICS).exists() or (path / ARGS).exists():
            return _read_cleanba(path, steps)
        return _read_tensorboard(path, steps)
    except Exception as error:  # one folder must not end the report of a thousand
        damage = printable(f"cannot be read ({type(error).__name__}: {error})")
        args = _args_from_name(path)
        return Run(path, args, {}, "damaged", 0, steps, 0, 1, 0.0, math.nan, None, EMPTY_CURVE, damage)


def _args_from_name(path: Path) -> dict[str, Any]:
    match = RUN_NAME.fullmatch(path.name)
    return match.groupdict() | {"seed": int(match["seed"])} if match else {}


def _int_or_zero(value: Any) -> int:
    """0 if it is not a number, as if it were missing."""
    return int(value) if is_number(value, MAX_COUNT) else 0


# -------------------------------------------------------------------------------------- Cleanba's run folders


def _read_cleanba(path: Path, steps: int | None) -> Run:
    record, record_damage = _read_record(path)
    rows, rows_damage = _read_rows(path, steps)
    last: dict[str, Any] = rows[-1] if rows else {}
    state = state_of(path, has_rows=bool(rows or steps))
    if record_damage or (rows_damage and not rows):
        state = "damaged"
    args, plan = record.get("args") or _args_from_name(path), record.get("plan", {})
    batch = _int_or_zero(plan.get("batch_size"))
    own_end = _int_or_zero(plan.get("updates")) * batch or _int_or_zero(args.get("total_timesteps"))
    curve_rows = [row for row in rows if MEAN_RETURN in row]
    columns = ("global_step", "seconds", MEAN_RETURN)
    return Run(
        path=path,
        args=args,
        about=_about(record),
        state=state,
        step=_int_or_zero(last.get("global_step")),
        target=steps or own_end or None,
        batch=batch,
        frames=_int_or_zero(record.get("env_options", {}).get("frame_skip")) or 1,
        seconds=float(last.get("seconds", 0.0)),
        # The first row after a start or a resume has none: that update compiles.
        speed=next((row[SPEED] for row in reversed(rows) if SPEED in row), math.nan),
        episodes=_int_or_zero(last["stats/games"]) if "stats/games" in last else None,
        curve=Curve(*(np.array([row[name] for row in curve_rows], np.float64) for name in columns)),
        damage="; ".join(filter(None, [record_damage, rows_damage])),
        evaluation=_read_evaluation(path) if state == "finished" and not steps else None,
    )


def _read_evaluation(path: Path) -> float | None:
    """None if there is none, or a damaged one."""
    try:
        score = json.loads(read_regular(path / EVALUATION))["scores"]["episodic_return"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return float(score) if is_number(score) else None


def _read_record(path: Path) -> tuple[dict[str, Any], str]:
    """The contents of args.json, and what is wrong with the file."""
    try:
        return read_record(path), ""
    except FileNotFoundError:
        return {}, f"no {ARGS}"
    except (OSError, DamagedRecord):
        return {}, f"{ARGS} is damaged"


def _read_rows(path: Path, steps: int | None) -> tuple[list[Row], str]:
    """A sample of the rows, and what is wrong with the file."""
    try:
        rows, damaged = sample_rows(path, MAX_ROWS, steps)
    except FileNotFoundError:
        return [], f"no {METRICS}"
    except OSError as error:
        return [], f"{METRICS} cannot be read ({error.strerror})"
    return rows, f"{METRICS} has damaged lines" if damaged else ""


def _about(record: dict[str, Any]) -> dict[str, str]:
    """A resumed run shows every value it had, in order: `a0-l0-d1 → a0-l1-d1`."""
    parts = [_about_part(part) for part in record.get("parts") or [record]]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: " → ".join(dict.fromkeys(part[name] for part in parts if name in part)) for name in names}


def _about_part(part: dict[str, Any]) -> dict[str, str]:
    code, machine = part.get("code", {}), part.get("machine", {})
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


class Point(NamedTuple):
    step: int
    seconds: float  # since the first event
    value: float


Scalars = dict[str, list[Point]]  # by tag


def _read_tensorboard(path: Path, steps: int | None) -> Run:
    """As CleanRL's scripts write them: a scalar per finished episode, and the flags as a table. Some also
    write a mean over fewer episodes, which is used only if there is nothing else."""
    files = sorted(file for file in path.iterdir() if file.name.startswith(EVENTS))
    args, scalars, damage = _read_event_files(files, steps)
    args = _args_from_name(path) | args
    episodes, speeds = scalars.get(EPISODE_RETURN, []), scalars.get(SPEED, [])
    curve = _curve_of_episodes(episodes) if episodes else _curve(scalars.get(MEAN_RETURN, []))
    if not len(curve.value) and not damage:
        damage = f"no {EPISODE_RETURN}; found {', '.join(sorted(scalars)[:4]) or 'nothing'}"
    run = Run(
        path=path,
        args=args,
        about={},
        state="stopped" if len(curve.value) else "damaged",
        step=max((point.step for points in scalars.values() for point in points), default=0),
        target=steps or _int_or_zero(args.get("total_timesteps")) or None,
        batch=speeds[-1].step - speeds[-2].step if len(speeds) > 1 else 0,
        frames=ATARI_FRAME_SKIP if game_of(str(args.get("env_id"))) else 1,
        seconds=max((points[-1].seconds for points in scalars.values() if points), default=0.0),
        speed=speeds[-1].value if speeds else math.nan,
        episodes=len(episodes) or None,
        curve=curve,
        damage=damage,
    )
    if run.state == "stopped" and run.is_complete and not steps:
        return run._replace(state="finished")
    if run.state == "stopped" and time.time() - last_written(files) < IDLE_SECONDS:
        return run._replace(state="running")
    return run


def _read_event_files(files: list[Path], steps: int | None) -> tuple[dict[str, Any], Scalars, str]:
    """Flags, scalars up to `steps`, and what is wrong with the files."""
    args: dict[str, Any] = {}
    scalars: Scalars = {}
    damage, first = "", None
    for file in files:
        try:
            for event in read_events(read_regular(file)):
                first = event.wall_time if first is None else first
                if event.session_log.status == SessionLog.START:  # resumed here: later points are void
                    scalars = {t: [p for p in ps if p.step < event.step] for t, ps in scalars.items()}
                for value in event.summary.value:
                    if value.tag.startswith("hyperparameters/text_summary"):
                        args |= _args_from_table(value.tensor.string_val)
                    elif steps is None or event.step <= steps:
                        point = Point(event.step, event.wall_time - first, _number(value))
                        if is_number(point.value) and is_number(point.seconds, MAX_COUNT):
                            scalars.setdefault(value.tag, []).append(point)
        except (OSError, DamagedEvents) as error:
            damage = printable(f"{file.name} is damaged ({error})")
    return args, scalars, damage


def _number(value: Summary.Value) -> float:
    """As torch or TensorFlow writes it; NaN if it is not a scalar."""
    if value.WhichOneof("value") == "simple_value":
        return value.simple_value
    tensor = value.tensor
    if tensor.tensor_content and tensor.dtype == 1:  # float32
        return struct.unpack_from("<f", tensor.tensor_content)[0]
    return next(iter([*tensor.float_val, *tensor.double_val]), math.nan)


def _args_from_table(text: Iterable[bytes]) -> dict[str, Any]:
    """From Markdown, `|param|value|`, a line per flag."""
    found: dict[str, Any] = {}
    for line in b"".join(text).decode(errors="replace").splitlines()[2:]:
        if match := re.fullmatch(r"\|(\w+)\|(.*)\|", line.strip()):
            try:
                found[match[1]] = ast.literal_eval(match[2])
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                found[match[1]] = match[2]
    return found


def _curve(points: list[Point]) -> Curve:
    """Sorted by step; of two points at the same step, the later counts."""
    by_step = {point.step: point for point in points}
    columns = zip(*(by_step[step] for step in sorted(by_step)), strict=True)
    step, seconds, value = (np.array(x, np.float64) for x in columns) if points else EMPTY_CURVE
    return Curve(step, np.maximum.accumulate(seconds), value)


def _curve_of_episodes(episodes: list[Point]) -> Curve:
    """A running mean over recent episodes, thinned out."""
    episodes = sorted(episodes, key=lambda episode: episode.step)
    total = np.concatenate([[0.0], np.cumsum([episode.value for episode in episodes])])
    stride = max(1, len(episodes) // MAX_ROWS)
    points = []
    for end in range(len(episodes), 0, -stride):
        start = max(0, end - RECENT_GAMES)
        points.append(episodes[end - 1]._replace(value=(total[end] - total[start]) / (end - start)))
    return _curve(points[::-1])
