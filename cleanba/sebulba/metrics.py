"""What a run writes and shows: timers, digests, rows, and the writers of rows."""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import tensorboardX

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
    """Every `frequency`-th row under CleanRL's names."""

    def __init__(self, folder: Path, frequency: int, updates: int, hyperparameters: Mapping[str, Any]):
        self._writer = tensorboardX.SummaryWriter(str(folder))
        self._frequency = frequency
        self._updates = updates
        table = "\n".join(f"|{name}|{value}|" for name, value in hyperparameters.items())
        self._writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{table}")

    def write(self, row: Row) -> None:
        if not is_logged(row, self._frequency, self._updates):
            return
        for name, value in row.items():
            if "/" in name:
                self._writer.add_scalar(name, value, row["global_step"])

    def close(self) -> None:
        self._writer.close()


def is_logged(row: Row, frequency: int, updates: int) -> bool:
    return row["update"] % frequency == 0 or row["update"] == updates
