"""What process 0 records during a run: a row per update, and a checkpoint from time to time."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.episodes import Episode
from cleanba.records.checkpoint import Checkpoint, CheckpointManager, Saved
from cleanba.records.row import Row, Writer
from cleanba.records.row_builder import ProcessReport, RowBuilder, UpdateResult
from cleanba.records.run_folder import ARGS, MetricsFile, remake_run_dir, write_record
from cleanba.records.run_status import resume_command
from cleanba.records.tensorboard_logger import TensorBoard
from cleanba.runtime.files import OpenFolder, write_when_possible
from cleanba.runtime.messages import say
from cleanba.sebulba.learner import LearnerState
from cleanba.sebulba.sharding import on_host


class Progress(NamedTuple):
    state: LearnerState
    row: Row  # of the last update
    recent: list[Episode]  # the episodes over which returns are averaged


@dataclass(kw_only=True)
class RunRecorder:
    args: RunArgs
    folder: OpenFolder
    record: dict[str, Any]  # args.json
    rows: RowBuilder
    metrics: MetricsFile
    events: TensorBoard
    writers: list[Writer]  # all but `metrics`; `events` is among them
    checkpoints: CheckpointManager
    key: np.ndarray  # the data of the run's key
    resumes: int
    tracker: str | None
    last: Progress | None  # None before the first update
    lock: threading.RLock = field(default_factory=threading.RLock)  # of what `save` writes
    closed: bool = False

    @property
    def updates(self) -> int:
        """Updates done."""
        return self.last.row["update"] if self.last else 0

    def write(self, update_result: UpdateResult, reports: list[ProcessReport]) -> Row:
        row = self.rows.make(update_result, reports)
        with self.lock:
            self.metrics.write(row)
            self.last = Progress(update_result.state, row, self.rows.recent)  # also if a writer fails now
        for writer in self.writers:
            writer.write(row)
        if self.checkpoints.is_due:
            self.save()
        return row

    def write_scores(self, row: Row) -> None:
        """Of the evaluation after the training."""
        for writer in (self.metrics, *self.writers):
            writer.write(row)

    @property
    def run_dir(self) -> Path:
        """Where it was last."""
        return self.folder.path

    @property
    def resume_command(self) -> str:
        return resume_command(self.run_dir, self.record)

    def locate(self) -> Path:
        """The run's folder, wherever it was moved to. What was deleted of it is written again."""
        before = self.run_dir
        if self.folder.find() is None:
            remade = remake_run_dir(self.args, before)
            self.folder.close()
            self.folder = OpenFolder(remade)
            say(f"{before} was deleted; the run continues in {remade}")
        elif before != self.run_dir:
            say(f"{before} is {self.run_dir} now; the run continues there")
        for file in (self.metrics, self.events):
            file.keep_in(self.run_dir)
        if not (self.run_dir / ARGS).exists():
            write_record(self.run_dir, self.record)
        self.checkpoints.run_dir = self.run_dir
        return self.run_dir

    def save(self) -> bool:
        """Write a checkpoint of the last update, if there is none yet. Returns whether there is one now; a
        failure is reported, not raised. Any thread may, while the main thread is stuck in a writer."""
        before = self.checkpoints.update
        try:
            return self._save()
        except (OSError, UsageError) as error:
            previous = f"the previous one is of update {before}" if before else "there is no earlier one"
            why = (isinstance(error, OSError) and error.strerror) or error
            say(f"no checkpoint of update {self.updates} ({why}); {previous}")
        return False

    def save_when_possible(self, seconds: float) -> bool:
        """The same, but wait for so long where the disk is full."""
        try:
            return write_when_possible(self._save, "the last checkpoint", seconds)
        except (OSError, UsageError):
            return self.save()

    def _save(self) -> bool:
        with self.lock:
            if self.last is None or self.closed:
                return self.checkpoints.has(self.updates)
            self.locate()
            if not self.checkpoints.has(self.updates):
                state, row, recent = self.last
                saved, run_id = Saved(on_host(state), self.key), self.record["run_id"]
                self.metrics.sync()  # first: resuming from a checkpoint without its rows would leave a gap
                checkpoint = Checkpoint(self.updates, self.resumes, row, recent, self.tracker, saved, run_id)
                self.checkpoints.save(checkpoint)
            return True

    def close(self) -> None:
        """Nothing more is saved, also not by another thread: the folder and its files are about to close."""
        with self.lock:
            self.closed = True

    def lost(self, steps: int, model: Path | None = None) -> str:
        """What is lost if the run ends now, after this many steps, and what is kept. One line."""
        checkpoints = self.checkpoints
        if checkpoints.has(checkpoints.update):
            steps_since = max(0, steps - checkpoints.step)
            since = f"{steps_since:,} steps since the checkpoint of update {checkpoints.update}"
            kept = f"; the model is in {model}" if model else ""
            return f"lost: {since}; `{self.resume_command}` continues from it{kept}"
        why = "its checkpoints are gone" if checkpoints.update else "there was no checkpoint yet"
        if model:
            return f"the run cannot be resumed ({why}); its model is kept: --init-from {model} starts from it"
        return f"lost: all {steps:,} steps; {why}"
