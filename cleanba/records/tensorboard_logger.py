"""The writer of TensorBoard's event files."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from cleanba.records.event_file import EVENTS, event_record
from cleanba.records.row import Row, charts, is_logged
from cleanba.runtime.files import RetryingFile
from cleanba.runtime.messages import printable


class TensorBoard:
    """Writes every `frequency`-th row as one record, under CleanRL's metric names. (tensorboardX's own writer
    has a thread that dies on a full disk; the run would then wait for it forever.)"""

    def __init__(
        self,
        folder: Path,
        frequency: int,
        updates: int,
        hyperparameters: Mapping[str, Any],
        *,
        resumed_at: int | None = None,
    ):
        """`resumed_at` is a step: TensorBoard ignores what earlier files have after it."""
        self._file = RetryingFile(folder / f"{EVENTS}{int(time.time())}.{socket.gethostname()}")
        self._frequency = frequency
        self._updates = updates
        self._write(file_version="brain.Event:2")
        if resumed_at is not None:
            self._write(step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START))
        table = "\n".join(f"|{name}|{printable(str(value))}|" for name, value in hyperparameters.items())
        self._write(summary=summary.text("hyperparameters", f"|param|value|\n|-|-|\n{table}"))

    def write(self, row: Row) -> None:
        if is_logged(row, self._frequency, self._updates):
            values = [summary.scalar(name, value).value[0] for name, value in charts(row).items()]
            self._write(step=row["global_step"], summary=Summary(value=values))

    def keep_in(self, folder: Path) -> None:
        self._file.keep_in(folder)

    def close(self) -> None:
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._file.append(event_record(Event(wall_time=time.time(), **event)))
