"""`cleanba.runs`: the runs below a folder as records, for tables and plots of one's own. Needs no jax."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleanba.analysis.report.runs import find_runs
from cleanba.config.errors import UsageError
from cleanba.records.columns import read_columns
from cleanba.records.run_status import State, run_status


@dataclass(frozen=True)
class Run:
    folder: Path
    status: State  # finished, running, stopped, empty (no update yet) or damaged
    algorithm: str  # or the name of your own file
    step: int  # environment steps so far
    updates: int
    seconds: float
    score: float  # mean return of the last 100 episodes of the training; NaN before one has finished
    evaluation: float  # mean return of the evaluation after the training; NaN without one
    resume: str | None  # the command that continues it, if it was stopped
    flags: dict[str, Any]  # all of them; empty if they are lost

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Read now: by the metric's name, an entry per update."""
        return read_columns(self.folder)

    def as_dict(self) -> dict[str, Any]:
        """Flat, as a row of a table: `pandas.DataFrame(run.as_dict() for run in cleanba.runs())`."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "flags"}
        return own | {name: value for name, value in self.flags.items() if name not in own}


def runs(folder: str | Path = "runs") -> list[Run]:
    """All run folders at or below `folder`, the oldest first, whatever state they are in."""
    if not Path(folder).is_dir():
        raise UsageError(f"{folder} is not a folder; give the folder of runs, or one of them")
    found, _ = find_runs([Path(folder)], tensorboard=False)
    return sorted(map(read, found), key=lambda run: (_started(run.folder), run.folder))


def read(folder: Path) -> Run:
    status = run_status(folder)
    step, updates, seconds = (status.last.get(name, 0) for name in ("global_step", "update", "seconds"))
    score = status.episodic_return
    return Run(
        folder=folder,
        status=status.state,
        algorithm=status.algorithm if status.flags else "",
        step=step,
        updates=updates,
        seconds=seconds,
        score=np.nan if score is None else score,
        evaluation=status.evaluation.get("episodic_return", np.nan),
        resume=status.resume_command,
        flags=status.flags,
    )


def _started(folder: Path) -> int:
    """The time in its name; 0 if it was renamed."""
    time = folder.name.rpartition("__")[2]
    return int(time) if time.isdecimal() else 0
