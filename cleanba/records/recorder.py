"""What process 0 records during a run: a row per update, and a checkpoint from time to time."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cleanba.envs.episodes import Episode
from cleanba.records.checkpoint import Checkpoint, CheckpointManager, Saved
from cleanba.records.row import Row, Writer
from cleanba.records.row_builder import ProcessReport, RowBuilder, UpdateResult
from cleanba.records.run_folder import MetricsFile
from cleanba.runtime.messages import say
from cleanba.sebulba.learner import LearnerState
from cleanba.sebulba.sharding import on_host


class Progress(NamedTuple):
    state: LearnerState
    row: Row  # of the last update
    recent: list[Episode]  # the episodes over which returns are averaged


@dataclass(kw_only=True)
class RunRecorder:
    run_dir: Path
    rows: RowBuilder
    metrics: MetricsFile
    writers: list[Writer]  # `metrics` is one of them
    checkpoints: CheckpointManager
    key: np.ndarray  # the data of the run's key
    resumes: int
    tracker: str | None
    last: Progress | None  # None before the first update

    @property
    def updates(self) -> int:
        """Updates done."""
        return self.last.row["update"] if self.last else 0

    def write(self, update_result: UpdateResult, reports: list[ProcessReport]) -> None:
        row = self.rows.make(update_result, reports)
        for writer in self.writers:
            writer.write(row)
        self.last = Progress(update_result.state, row, self.rows.recent)
        if self.checkpoints.is_due:
            self.save()

    def save(self) -> bool:
        """Write a checkpoint of the last update, if there is none yet. Returns whether there is one now; a
        failure is reported, not raised."""
        if self.last is None:
            return False
        update, before = self.updates, self.checkpoints.update
        if update != before:
            state, row, recent = self.last
            saved = Saved(on_host(state), self.key)
            try:
                self.metrics.sync()  # first: resuming from a checkpoint without its rows would leave a gap
                self.checkpoints.save(Checkpoint(update, self.resumes, row, recent, self.tracker, saved))
            except OSError as error:
                previous = f"the previous one is of update {before}" if before else "there is no earlier one"
                say(f"no checkpoint of update {update} ({error.strerror}); {previous}")
        return update == self.checkpoints.update

    def lost(self, steps: int) -> str:
        """What is lost if the run ends now, after this many steps. One line."""
        if self.checkpoints.update is None:
            return f"lost: all {steps:,} steps; there was no checkpoint yet"
        since = max(0, steps - self.checkpoints.step)
        return (
            f"lost: {since:,} steps since the checkpoint of update {self.checkpoints.update}; "
            f"--resume {self.run_dir} continues from it"
        )
