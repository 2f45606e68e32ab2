"""What process 0 keeps of a run while it goes on: a row per update, and a checkpoint from time to time."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from cleanba.sebulba.checkpoint import Checkpoint, Keeper, Saved
from cleanba.sebulba.command import say
from cleanba.sebulba.envs import Episode
from cleanba.sebulba.learner import LearnerState, on_host
from cleanba.sebulba.metrics import JsonLines, Row, Writer
from cleanba.sebulba.records import Learned, Report, Rows


class Done(NamedTuple):
    """How far the run is."""

    update: int  # so many are done
    state: LearnerState
    row: Row  # of the last of them
    recent: list[Episode]


class Logbook:
    def __init__(
        self,
        run_dir: Path,
        *,
        rows: Rows,
        metrics: JsonLines,
        writers: list[Writer],  # `metrics` is one of them
        keeper: Keeper,
        key: np.ndarray,  # the data of the run's key
        resumes: int,
        tracker: str | None,
        last: Done | None,  # where a resumed run begins
    ):
        self.run_dir = run_dir
        self.writers = writers
        self.last = last
        self._rows = rows
        self._metrics = metrics
        self._keeper = keeper
        self._key, self._resumes, self._tracker = key, resumes, tracker

    @property
    def updates(self) -> int:
        """So many are done."""
        return self.last.update if self.last else 0

    def write(self, news: Learned, reports: list[Report]) -> None:
        row = self._rows.make(news, reports)
        for writer in self.writers:
            writer.write(row)
        self.last = Done(news.update + 1, news.state, row, self._rows.recent)
        if self._keeper.is_due:
            self.save()

    def save(self) -> bool:
        """Whether there is a checkpoint of the last update. A failure is said, and all else goes on."""
        if self.last is None:
            return False
        update, state, row, recent = self.last
        if update != self._keeper.update:
            saved = Saved(on_host(state), self._key)
            try:
                self._metrics.sync()  # first: a checkpoint whose rows are not there would leave a gap
                self._keeper.save(Checkpoint(update, self._resumes, row, recent, self._tracker, saved))
            except OSError as error:
                before = f"is of update {self._keeper.update}" if self._keeper.update else "does not exist"
                say(f"no checkpoint of update {update}: {error.strerror}; the one before it {before}")
        return update == self._keeper.update

    def lost(self, steps: int) -> str:
        """If the run ends now, and has done so many steps. One line."""
        if self._keeper.update is None:
            return f"lost: all of its {steps:,} steps; there was no checkpoint yet"
        since, resume = max(0, steps - self._keeper.step), f"--resume {self.run_dir} goes on from it"
        return f"lost: {since:,} steps since the checkpoint of update {self._keeper.update}; {resume}"
