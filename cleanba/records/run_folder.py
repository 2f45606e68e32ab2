"""The run folder: names of its files, and the only code that writes and reads them. Does not import jax.

args.json       flags, what was resolved from them, and where each part of the run was run
metrics.jsonl   a row per update; locked while the run is training
finished.json   the run has finished, with everything that was requested
evaluation.json returns of the saved model (evaluation/evaluate.py)
checkpoints/    the last few checkpoints (checkpoint.py)
events.out.…    TensorBoard's files (event_file.py)
"""

import fcntl
import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.records.row import Row
from cleanba.runtime.code_version import code_version
from cleanba.runtime.command import CleanExit
from cleanba.runtime.files import RetryingFile, atomic_write, file_name, open_to_read, read_regular
from cleanba.runtime.messages import say

ARGS, METRICS, FINISHED, EVALUATION = "args.json", "metrics.jsonl", "finished.json", "evaluation.json"
CHECKPOINTS = "checkpoints"
MAX_RETURN, MAX_COUNT = 1e30, 1e15  # larger ones in a file are damage
MAX_LEVELS = 64  # of groups within groups in args.json


# ------------------------------------------------------------------------------------------- the folder


def run_name(args: RunArgs) -> str:
    """The name of the run folder, without the time that is appended to it."""
    return file_name(f"{args.env_id}__{args.exp_name}__{args.seed}")


def make_run_dir(args: RunArgs) -> Path:
    now = int(time.time())
    for second in range(now, now + 60):  # runs started in the same second take the next free one
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
            raise UsageError(
                f"--runs-dir {args.runs_dir} or {name} cannot be written ({error.strerror})"
            ) from error
    raise UsageError(f"--runs-dir {args.runs_dir} already has sixty runs that started just now; wait")


def remake_run_dir(args: RunArgs, run_dir: Path) -> Path:
    """In the place of one that was deleted, or beside it if something else is there now."""
    try:
        run_dir.mkdir(parents=True)
        return run_dir
    except OSError:
        return make_run_dir(args)


def remove_if_empty(run_dir: Path) -> None:
    with suppress(OSError):  # it is not
        run_dir.rmdir()


def is_finished(run_dir: Path) -> bool:
    return (run_dir / FINISHED).exists()


def mark_finished(run_dir: Path, last_row: Row) -> None:
    row = {name: last_row[name] for name in ("global_step", "seconds")}
    try:
        atomic_write(run_dir / FINISHED, json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise CleanExit(f"{FINISHED} could not be written ({error.strerror})") from error


def mark_unfinished(run_dir: Path) -> None:
    (run_dir / FINISHED).unlink(missing_ok=True)


def checkpoint_path(run_dir: Path, update: int) -> Path:
    return run_dir / CHECKPOINTS / f"update-{update}.safetensors"


def checkpoint_updates(run_dir: Path) -> list[int]:
    """After which updates there is one, the newest first."""
    names = (path.name for path in (run_dir / CHECKPOINTS).glob("update-*"))
    found = (re.fullmatch(r"update-(0|[1-9]\d*)\.safetensors", name) for name in names)
    return sorted((int(match[1]) for match in found if match), reverse=True)


# --------------------------------------------------------------------------------------------- args.json


class DamagedRecord(UsageError):
    """args.json is not as a run writes it."""


def make_record(
    resolved: dict[str, Any], part: dict[str, Any], before: dict[str, Any] | None
) -> dict[str, Any]:
    """The flags, what was `resolved` from them, and the parts of the run, of which each resume adds one.
    `before` is the record of a resumed run."""
    part = part | {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "code": code_version()}
    before = before or {}
    return {
        **resolved,
        **{name: part[name] for name in ("layout", "code", "machine")},
        "run_id": before.get("run_id") or uuid4().hex,
        "begun_with_envs": before.get("begun_with_envs", resolved["args"]["local_num_envs"]),
        "parts": [*before.get("parts", []), part],
    }


def write_record(run_dir: Path, record: dict[str, Any]) -> None:
    atomic_write(run_dir / ARGS, json.dumps(record, indent=2).encode() + b"\n")


def read_record(run_dir: Path) -> dict[str, Any]:
    """args.json, with every group checked for its type. Raises OSError or DamagedRecord."""
    try:
        record = json.loads(read_regular(run_dir / ARGS))
    except (ValueError, RecursionError):
        record = None
    groups = ("args", "plan", "env_options", "code", "machine")
    if _has_dicts(record, groups) and "args" in record and not _is_deep(record):
        record = {"plan": {}, "env_options": {}, "parts": []} | record
        parts: Any = record["parts"]
        if isinstance(parts, list) and all(_has_dicts(part, ("sizes", "code", "machine")) for part in parts):
            return record
    raise DamagedRecord(f"{run_dir} has a damaged {ARGS}")


def _has_dicts(record: Any, names: tuple[str, ...]) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(name, {}), dict) for name in names)


def _is_deep(record: Any) -> bool:
    """Python reads more levels than it can print or send to another process."""
    level: list[Any] = [record]
    for _ in range(MAX_LEVELS):
        groups = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list))
        level = [x for group in groups for x in group]
    return bool(level)


# ----------------------------------------------------------------------------------------- metrics.jsonl


class InUse(UsageError):
    """Another process is training in this folder."""


class MetricsFile(RetryingFile):
    """Writes each row immediately, so that a run that dies leaves them all. The file is locked: a second
    process that opens it is refused."""

    def __init__(self, run_dir: Path):
        try:
            super().__init__(run_dir / METRICS)
        except OSError as error:
            raise UsageError(f"{run_dir / METRICS} cannot be written ({error.strerror})") from error
        try:
            is_ours = self.lock() and self.unshare()
        except OSError as error:
            self.close()
            why = f"has other hard links and cannot be copied ({error.strerror})"
            raise UsageError(f"{run_dir / METRICS} {why}") from error
        if not is_ours:
            self.close()
            raise InUse(f"{run_dir} is in use: another process is training there")

    def cut_after(self, update: int) -> int:
        """Keep only the rows up to this update. Returns the last step that had a row."""
        end = size = last_step = 0
        found = set()
        with open_to_read(self._path) as lines:
            for line in lines:
                end += len(line)
                row = parse_row(line)
                last_step = max(last_step, _count(row, "global_step"))
                if 0 < _count(row, "update") <= update:
                    size = end
                    found.add(row["update"])
        if missing := update - len(found):
            say(f"{self._path} is missing the rows of {missing} updates")
        self.cut(size)
        return last_step

    def write(self, row: Row) -> None:
        # JSON has no NaN.
        nulls = {name: None for name, x in row.items() if isinstance(x, float) and not math.isfinite(x)}
        self.append(json.dumps(row | nulls, allow_nan=False).encode() + b"\n")


def read_rows(run_dir: Path) -> Iterator[Row]:
    """Can be called during the run. A damaged or incomplete line gives an empty row."""
    with open_to_read(run_dir / METRICS) as lines:
        yield from map(parse_row, lines)


def rows_so_far(run_dir: Path) -> Iterator[Row]:
    """What a resumed run takes from the updates that are done: their numbers, as far as they are some."""
    rows = (row for row in read_rows(run_dir) if _count(row, "update") > 0 and _count(row, "global_step") > 0)
    yield from map(numbers, rows)


def numbers(row: Row) -> Row:
    return {name: value for name, value in row.items() if is_number(value)}


def parse_row(line: bytes) -> Row:
    """Empty if the line is damaged."""
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        if line.endswith(b"\n") and isinstance(row, dict):
            return row
    return {}


def _count(row: Row, name: str) -> int:
    """0 if it is missing, no whole number, or impossible."""
    value = row.get(name)
    return value if type(value) is int and value <= MAX_COUNT else 0


def sample_rows(run_dir: Path, max_rows: int, until_step: int | None) -> tuple[list[Row], bool]:
    """Up to twice `max_rows` rows of a curve, evenly spaced, always with the last intact one, and whether any
    line was damaged. A run resumed from an earlier checkpoint may have written an update twice: the later row
    counts."""
    *complete, _ = read_regular(run_dir / METRICS).split(b"\n")  # the last line may still be being written
    lines = [
        line + b"\n"
        for line in complete
        if not (line.find(b'"eval/', 0, 80) >= 0 and re.match(rb'{"global_step": *\d+, *"eval/', line))
    ]
    if until_step:
        steps = (re.search(rb'"global_step": *(\d+)', line) for line in lines)
        lines = [ln for ln, step in zip(lines, steps, strict=True) if not step or int(step[1]) <= until_step]
    damaged = False
    while lines and not _curve_row(lines[-1]):
        lines.pop()
        damaged = True
    stride = max(1, len(lines) // max_rows)
    rows: list[Row] = []
    for line in lines[(len(lines) - 1) % stride :: stride]:  # the last line is among them
        if not (row := _curve_row(line)):
            damaged = True
            continue
        while rows and rows[-1]["global_step"] >= row["global_step"]:
            rows.pop()
        rows.append(row)
    return rows, damaged


def _curve_row(line: bytes) -> Row:
    """Empty if the step or the time is missing, or something is no number that can be averaged."""
    row = parse_row(line)
    counts = [row.get("global_step"), row.get("seconds"), row.get("charts/SPS", 0)]
    if all(is_number(x, MAX_COUNT) for x in counts) and is_number(row.get("charts/avg_episodic_return", 0)):
        return row
    return {}


def is_number(value: Any, most: float = MAX_RETURN) -> bool:
    """Not NaN either, and no larger than any result that makes sense: its square can be summed, and drawn."""
    return isinstance(value, int | float) and abs(value) <= most


def is_locked(run_dir: Path) -> bool:
    """Whether a process is training in this folder."""
    try:
        with open_to_read(run_dir / METRICS) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
