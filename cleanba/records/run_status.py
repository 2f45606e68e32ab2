"""What became of a run, and how it goes on: from its folder alone, without jax, and also while it trains."""

import json
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cleanba.algorithms import ALGORITHMS
from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology
from cleanba.records.row import Row
from cleanba.records.run_folder import (
    MAX_COUNT,
    METRICS,
    checkpoint_updates,
    is_finished,
    is_locked,
    is_number,
    numbers,
    parse_row,
    read_record,
)
from cleanba.runtime.files import open_to_read, read_regular

TAIL = 2**16  # bytes at the end of metrics.jsonl, in which the last complete row is

State = Literal["finished", "running", "stopped", "empty", "damaged"]


class RunStatus(NamedTuple):
    folder: Path
    state: State  # empty: no update yet; damaged: args.json is lost
    record: dict[str, Any]  # args.json; empty if that is lost
    last: Row  # the numbers of the last update; empty before the first
    checkpoint: int | None  # update of the newest one
    evaluation: dict[str, float]  # scores of the evaluation after the training; empty without one

    @property
    def flags(self) -> dict[str, Any]:
        return self.record.get("args", {})

    @property
    def algorithm(self) -> str:
        return algorithm_of(self.record)

    @property
    def episodic_return(self) -> float | None:
        """Mean over the last episodes of the training; None if none has finished."""
        return self.last.get("charts/avg_episodic_return")

    @property
    def can_resume(self) -> bool:
        """A finished run can too, with more --total-timesteps."""
        return self.state in ("stopped", "finished") and self.checkpoint is not None and bool(self.record)

    @property
    def resumes_at(self) -> int | None:
        """Steps at the newest checkpoint. Rows after it are lost; there are some if the run was killed."""
        size = self.record.get("plan", {}).get("batch_size")
        return self.checkpoint * size if self.checkpoint and is_number(size, MAX_COUNT) else None

    @property
    def resume_command(self) -> str | None:
        """The command that continues a stopped run; None if there is nothing to continue, or no way to."""
        if self.state != "stopped" or not self.can_resume:
            return None
        return resume_command(self.folder, self.record)


def algorithm_of(record: dict[str, Any]) -> str:
    """One of ALGORITHMS, or the path of the user's file. Early records do not have it."""
    return str(record.get("algorithm") or ("ppo" if "clip_coef" in record.get("args", {}) else "impala"))


def resume_command(folder: Path, record: dict[str, Any]) -> str:
    """What is typed to continue this run, with as many processes as it had."""
    layout, algorithm = str(record.get("layout", "")), algorithm_of(record)
    start = [] if algorithm in ALGORITHMS else ["train"]
    with suppress(UsageError):
        start = ["launch", layout] if Topology.parse(layout).processes > 1 else start
    return shlex.join(["cleanba", *start, algorithm, "--resume", str(folder)])


def run_status(folder: Path) -> RunStatus:
    """Of a run folder, whatever is left of it. Never raises: one that cannot be read is "damaged"."""
    try:
        return _read_status(folder)
    except Exception:  # one folder must not end a list of a thousand
        return RunStatus(folder, "damaged", {}, {}, None, {})


def _read_status(folder: Path) -> RunStatus:
    last, record = read_last_row(folder), dict[str, Any]()
    with suppress(OSError, UsageError):
        record = read_record(folder)
    state = state_of(folder, has_rows=bool(last)) if record else "damaged"
    checkpoint = next(iter(checkpoint_updates(folder)), None)
    return RunStatus(folder, state, record, last, checkpoint, _evaluation(folder))


def state_of(folder: Path, *, has_rows: bool) -> State:
    if is_finished(folder):
        return "finished"
    if is_locked(folder):
        return "running"
    return "stopped" if has_rows else "empty"


def read_last_row(folder: Path) -> Row:
    """Of the last update whose row is intact; empty if there is none."""
    try:
        with open_to_read(folder / METRICS) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return {}
    rows = (numbers(parse_row(line)) for line in reversed(lines))
    return next((row for row in rows if "update" in row), {})


def _evaluation(folder: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(read_regular(folder / "evaluation.json"))
        scores = record.get("scores") if isinstance(record, dict) else None
        if isinstance(scores, dict):
            return {name: float(x) for name, x in scores.items() if is_number(x)}
    return {}
