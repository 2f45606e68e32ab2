"""What a run writes and shows: timers, digests, rows, and the writers of rows."""

import hashlib
import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import tensorboardX

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.command import first_line, say

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


def params_digest(params: Any) -> str:
    """Of the exact bytes of the params."""
    digest = hashlib.blake2b(digest_size=16)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


def data_digest(parts: Iterable[tuple[np.ndarray, list[np.ndarray]]]) -> str:
    """Of parts with the environments' global indices [N] and arrays [T, N]. A sum over environments of hashes
    that include their index, so it does not matter how they are spread over threads and devices."""
    total = 0
    for env_id, arrays in parts:
        for column, env in enumerate(env_id):
            digest = hashlib.blake2b(int(env).to_bytes(8, "little"), digest_size=16)
            for array in arrays:
                digest.update(np.ascontiguousarray(array[:, column]).data)
            total += int.from_bytes(digest.digest(), "little")
    return f"{total % 2**128:032x}"


def joint_digest(digests: Iterable[str]) -> str:
    """The data digest of all environments from those of the processes."""
    return f"{sum(int(digest, 16) for digest in digests) % 2**128:032x}"


# ----------------------------------------------------------------------------------------------- writers


class Writer(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """metrics.jsonl: every row, flushed, so that a run that dies leaves all of them."""

    def __init__(self, path: Path):
        self._file = path.open("a")

    def write(self, row: Row) -> None:
        finite = {name: value if is_finite(value) else None for name, value in row.items()}  # JSON has no NaN
        self._file.write(json.dumps(finite, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


class TensorBoard:
    """Every `frequency`-th row, under CleanRL's names."""

    def __init__(self, folder: Path, frequency: int, updates: int, hyperparameters: Mapping[str, Any]):
        self._writer = tensorboardX.SummaryWriter(str(folder))
        self._frequency = frequency
        self._updates = updates
        table = "\n".join(f"|{name}|{value}|" for name, value in hyperparameters.items())
        self._writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{table}")

    def write(self, row: Row) -> None:
        if is_logged(row, self._frequency, self._updates):
            for name, value in charts(row).items():
                self._writer.add_scalar(name, value, row["global_step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """The rows that TensorBoard gets. When the service fails the run goes on, and everything is kept in the
    run's folder."""

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
    ):
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
            reinit="finish_previous",
            settings=dict(silent=True, console="off", init_timeout=self.START_SECONDS),
        )
        try:
            self._run = wandb.init(**options)
        except Exception as error:
            self._say(f"cannot be reached ({first_line(error)})")
            self._run = wandb.init(**options, mode="offline")

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
