"""The rows of a run as arrays, one per metric. Needs no jax."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from cleanba.records.row import Row
from cleanba.records.run_folder import read_rows


def read_columns(folder: Path) -> dict[str, np.ndarray]:
    """Of a run folder, also while it trains: an entry per update. What a row does not have is NaN."""
    with suppress(FileNotFoundError):
        return as_columns(read_rows(folder))
    return {}


def as_columns(rows: Iterable[Row]) -> dict[str, np.ndarray]:
    kept: list[Row] = []
    for row in rows:
        if type(update := row.get("update")) is not int:  # an evaluation, or a damaged line
            continue
        while kept and kept[-1]["update"] >= update:  # written again, after resuming from before it
            kept.pop()
        kept.append(row)
    names = dict.fromkeys(name for row in kept for name in row)
    return {name: _column([row.get(name) for row in kept]) for name in names}


def _column(values: list[Any]) -> np.ndarray:
    if any(isinstance(x, str) for x in values):  # digests
        return np.array(["" if x is None else str(x) for x in values])
    if all(type(x) is int for x in values):
        return np.array(values)
    return np.array([x if isinstance(x, int | float) else np.nan for x in values], np.float64)
