"""What a run writes and shows: timers, digests, rows, and the writers of rows."""

import json
import math
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from tensorboardX import summary
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.command import first_line, say
from cleanba.sebulba.files import PatientFile

Row = dict[str, Any]  # one per update
RECENT_GAMES = 100  # reported returns and lengths are means over this many finished games


class Timer:
    """Seconds per named activity: `with timer("inference"):`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """What has been counted since the last take."""
        seconds, self._seconds = self._seconds, {}
        return seconds


# ----------------------------------------------------------------------------------------------- digests


# A digest is two sums, over all 32-bit words, of hashes of a word and its place. So it does not matter in
# which order, on which device or in which process they are added up; and it costs next to nothing.


@jax.jit
def params_sums(params: Any) -> tuple[jax.Array, jax.Array]:
    """For a digest of the exact bits of the params, on the device where they are."""
    bits = [jax.lax.bitcast_convert_type(x, jnp.uint32).ravel() for x in jax.tree.leaves(params)]
    words = jnp.concatenate(bits)
    return _sums(words, jnp.arange(len(words), dtype=jnp.uint32))


def data_digest(parts: Iterable[tuple[np.ndarray, list[np.ndarray]]]) -> str:
    """Of parts with the environments' global indices [N] and arrays [T, N] of 32 bits or bool. A word's place
    is its environment, array and step."""
    digests = []
    for env_id, arrays in parts:
        words = np.stack([x.astype(np.uint32) if x.dtype == bool else x.view(np.uint32) for x in arrays])
        within_env = np.arange(words[..., 0].size, dtype=np.uint32).reshape(*words.shape[:2], 1)
        place = env_id.astype(np.uint32) * np.uint32(within_env.size) + within_env
        digests.append(digest(_sums(words, place)))
    return joint_digest(digests)


def joint_digest(digests: Iterable[str]) -> str:
    """Of all environments, from those of the parts."""
    pairs = [(int(text[:8], 16), int(text[8:], 16)) for text in digests]
    return digest(sum(column) % 2**32 for column in zip(*pairs, strict=True))


def _sums(words: Any, place: Any) -> tuple[Any, Any]:
    """Of arrays of u32, numpy's or jax's."""
    first = _mix(words ^ _mix(place))
    second = _mix(first + np.uint32(0x9E3779B9))
    return first.sum(dtype=np.uint32), second.sum(dtype=np.uint32)


def _mix(x: Any) -> Any:
    """A bijection of 32 bits that leaves no pattern: the last step of MurmurHash3."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def digest(sums: Iterable[Any]) -> str:
    return "".join(f"{int(x):08x}" for x in sums)


# ----------------------------------------------------------------------------------------------- writers


class Writer(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """metrics.jsonl: every row as soon as it is there, so that a run that dies leaves all of them. Whoever
    has it open has the run: a second process is refused."""

    def __init__(self, run_dir: Path):
        path = run_dir / "metrics.jsonl"
        try:
            self._file = PatientFile(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror})") from error
        if not self._file.lock():
            self._file.close()
            raise InUse(f"{run_dir} is in use: another process is training there")
        self._path = path

    def cut_after(self, update: int) -> int:
        """Only the rows up to that update stay. Returns the last step of which there was a row."""
        end = size = last_step = 0
        there = set()
        with self._path.open("rb") as lines:
            for line in lines:
                end += len(line)
                row = _row(line)
                last_step = max(last_step, row.get("global_step", 0))
                if row.get("update", update + 1) <= update:
                    size = end
                    there.add(row["update"])
        if missing := update - len(there):
            say(f"{self._path} lacks the rows of {missing} updates")
        self._file.cut(size)
        return last_step

    def rows(self) -> Iterator[Row]:
        return read_rows(self._path)

    def write(self, row: Row) -> None:
        finite = {name: value if is_finite(value) else None for name, value in row.items()}  # JSON has no NaN
        self._file.append(json.dumps(finite, allow_nan=False).encode() + b"\n")

    def sync(self) -> None:
        """Every row is on the disk, or an OSError."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> Iterator[Row]:
    """Of a metrics.jsonl, also while it is written; empty where a line was cut off or damaged."""
    with path.open("rb") as lines:
        yield from map(_row, lines)


class InUse(UsageError):
    """Another process has the run."""


def _row(line: bytes) -> Row:
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        if line.endswith(b"\n") and isinstance(row, dict):
            return row
    return {}


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


class TensorBoard:
    """Every `frequency`-th row, under CleanRL's names, as one record per row. (tensorboardX's own writer has
    a thread that a full disk kills, whereupon the run would wait for it forever.)"""

    def __init__(
        self,
        folder: Path,
        frequency: int,
        updates: int,
        hyperparameters: Mapping[str, Any],
        *,
        resumed_at: int | None = None,
    ):
        """`resumed_at` is a step: what earlier files have beyond it does not count."""
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._file = PatientFile(folder / name)
        self._frequency = frequency
        self._updates = updates
        self._write(file_version="brain.Event:2")
        if resumed_at is not None:
            purge = SessionLog(status=SessionLog.START)
            self._write(step=resumed_at + 1, session_log=purge)
        table = "\n".join(f"|{name}|{value}|" for name, value in hyperparameters.items())
        self._write(summary=summary.text("hyperparameters", f"|param|value|\n|-|-|\n{table}"))

    def write(self, row: Row) -> None:
        if is_logged(row, self._frequency, self._updates):
            values = [summary.scalar(name, value).value[0] for name, value in charts(row).items()]
            self._write(step=row["global_step"], summary=Summary(value=values))

    def close(self) -> None:
        self._file.close()

    def _write(self, **event: Any) -> None:
        """A record: length, checksum of the length, data, checksum of the data."""
        data = Event(wall_time=time.time(), **event).SerializeToString()
        length = struct.pack("<Q", len(data))
        self._file.append(length + _checksum(length) + data + _checksum(data))


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack(
        "<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    )  # "masked", as TFRecord has it


class WeightsAndBiases:
    """The rows that TensorBoard gets. When the service fails the run goes on, and everything is kept in the
    run's folder. A resumed run has the `run_id` it had; what was sent already is not sent again."""

    START_SECONDS, END_SECONDS, HURRY_SECONDS = 30, 60, 0.5  # how long the service is waited for

    def __init__(
        self,
        folder: Path,
        frequency: int,
        updates: int,
        *,
        project: str,
        entity: str | None,
        config: dict[str, Any],
        run_id: str | None = None,
        logged_until: int = 0,
    ):
        """`logged_until` is the last step that the run has logged before."""
        import wandb  # an extra

        self._wandb: Any = wandb
        self._run: Any = None
        self._frequency = frequency
        self._updates = updates
        options: dict[str, Any] = dict(
            project=project,
            entity=entity,
            name=folder.name,
            dir=str(folder),
            config=config,
            id=run_id,
            resume="allow" if run_id else None,
            reinit="finish_previous",
            settings=dict(silent=True, console="off", init_timeout=self.START_SECONDS),
        )
        try:
            self._run = wandb.init(**options)
        except Exception as error:
            self._say(f"cannot be reached ({first_line(error)})")
            self._run = wandb.init(**options, mode="offline")
        # The service knows what it has. Offline, all that was logged is in the files of the earlier parts.
        self._sent = logged_until if self._run.offline else self._run.starting_step - 1

    @property
    def run_id(self) -> str:
        return self._run.id

    @property
    def where(self) -> str:
        if self._run.disabled:
            return "nowhere: WANDB_MODE=disabled"
        if self._run.offline:
            return f"offline: `wandb sync {Path(self._run.dir).parent}` sends it"
        return f"at {self._run.url}"

    def write(self, row: Row) -> None:
        if self._run is None or not is_logged(row, self._frequency, self._updates):
            return
        if row["global_step"] <= self._sent and "update" in row:
            return
        step = row["global_step"] if "update" in row else None  # the evaluation takes the next one
        try:
            self._wandb.log(charts(row), step=step, commit=True)
        except Exception as error:
            self._say(f"has failed ({first_line(error)})")
            self._run = None

    def close(self, exit_code: int = 0) -> None:
        """What is not sent in time is kept; a run that ends early is in a hurry."""
        finishing = threading.Thread(target=self._finish, args=(exit_code,), daemon=True)
        finishing.start()
        finishing.join(self.HURRY_SECONDS if exit_code else self.END_SECONDS)

    def __enter__(self) -> "WeightsAndBiases":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.close(0 if kind is None else 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def _finish(self, exit_code: int) -> None:
        try:
            self._wandb.finish(exit_code=exit_code)
        except Exception as error:
            self._say(f"has failed ({first_line(error)})")

    def _say(self, what: str) -> None:
        say(f"Weights & Biases {what}; the run goes on and keeps everything locally")


def check_key() -> None:
    """Before a run: without a key it would have nowhere to log to."""
    import wandb  # an extra

    if wandb.setup().settings.mode != "online":
        return
    try:
        wandb.login()
    except wandb.errors.Error as error:
        # The same class stands for a key that cannot be one and for a service that does not answer.
        if isinstance(error, wandb.errors.UsageError) or "invalid" in str(error):
            raise UsageError(f"--track: {first_line(error)} Or set WANDB_MODE=offline") from error


def is_logged(row: Row, frequency: int, updates: int) -> bool:
    """Every so many updates, the last one, and what comes after it."""
    return "update" not in row or row["update"] % frequency == 0 or row["update"] == updates


def charts(row: Row) -> Row:
    """What has a curve."""
    return {name: value for name, value in row.items() if "/" in name}
