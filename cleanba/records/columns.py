"""The rows of a run as arrays, one per metric. Needs no jax."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from cleanba.records.row import Row
from cleanba.records.run_folder import MAX_COUNT, read_rows


def read_columns(folder: Path) -> dict[str, np.ndarray]:
    """Of a run folder, also while it trains: an entry per update. What a row does not have is NaN."""
    with suppress(FileNotFoundError):
        return as_columns(read_rows(folder))
    return {}


def as_columns(rows: Iterable[Row]) -> dict[str, np.ndarray]:
    kept: list[Row] = []
    for row in rows:
        update = row.get("update")
        if type(update) is not int or not 0 < update <= MAX_COUNT:  # an evaluation, or a damaged line
            continue
        while kept and kept[-1]["update"] >= update:  # written again, after resuming from before it
            kept.pop()
        kept.append(row)
    names = dict.fromkeys(name for row in kept for name in row)
    return {name: _column([row.get(name) for row in kept]) for name in names}


def _column(values: list[Any]) -> np.ndarray:
    """Of digests if most are text, else of numbers. Whatever else a damaged row has is missing."""
    if 2 * sum(isinstance(x, str) for x in values) > sum(x is not None for x in values):
        return np.array([x if isinstance(x, str) else "" for x in values])
    if all(type(x) is int and _fits(x) for x in values):
        return np.array(values, np.int64)
    known = [isinstance(x, float) or (isinstance(x, int) and _fits(x)) for x in values]
    return np.array([x if ok else np.nan for x, ok in zip(values, known, strict=True)], np.float64)


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63
