"""Checkpoints: everything a run needs to continue, in one safetensors file. Loading one executes nothing."""

import hashlib
import json
import math
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cleanba.config.errors import UsageError
from cleanba.envs.episodes import Episode
from cleanba.records.row import Row
from cleanba.records.run_folder import CHECKPOINTS, checkpoint_path, checkpoint_updates
from cleanba.runtime.files import atomic_write, open_regular
from cleanba.runtime.messages import first_line, say
from cleanba.runtime.tensors import check_tensors, named_leaves, named_tensors, slice_type, tensor_type
from cleanba.sebulba.learner import LearnerState

FORMAT = 1  # file format; incremented when older code cannot read what newer code writes


class Saved(NamedTuple):
    """The tensors of a checkpoint, on the host."""

    state: LearnerState
    key: Any  # u32: the data of the run's key, from which all other keys are derived


class Checkpoint(NamedTuple):
    """A run's state. The field names, except `saved`, are keys in the file."""

    update: int  # updates done
    resumes: int  # how many times the run had been resumed
    row: Row  # of the last update
    recent: list[Episode]  # the episodes over which returns are averaged
    tracker: str | None  # id of the Weights & Biases run
    saved: Saved
    run_id: str | None = None  # of the run whose state it is; None: unknown, from an earlier version


class Damaged(Exception):
    """The file is not as it was written. The message is one line."""


class Unreadable(UsageError):
    """The file may be intact, but cannot be read now."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    tensors = named_tensors(checkpoint.saved)
    fields = checkpoint._asdict()
    left_out = {"saved"} | ({"run_id"} if fields.get("run_id") is None else set())
    about = json.dumps({name: value for name, value in fields.items() if name not in left_out})
    digest = _digest_header(about, _types(tensors))
    digests = {"header_digest": digest.hexdigest(), "digest": _add_tensors(digest, tensors).hexdigest()}
    atomic_write(path, save(tensors, {"format": str(FORMAT), "about": about, **digests}))


def load_checkpoint(path: Path, like: Saved) -> Checkpoint:
    """The tensors must have the shapes and dtypes of `like`. They are compared before any tensor is read, and
    safetensors checks all sizes against the file's size."""
    try:
        os.close(open_regular(path, own=True))
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if int(metadata["format"]) > FORMAT:
                raise UsageError(f"{path} was written by a newer Cleanba; update this one")
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: slice_type(x) for name, x in slices.items()}
            digest = _digest_header(metadata["about"], found)
            if digest.hexdigest() != metadata["header_digest"]:
                raise Damaged("its header does not match its digest")
            expected = _types(named_leaves(like))
            check_tensors(f"{path} is a checkpoint of another algorithm or network", found, expected)
            tensors = {name: file.get_tensor(name) for name in expected}
        if _add_tensors(digest, tensors).hexdigest() != metadata["digest"]:
            raise Damaged("its content does not match its digest")
        saved = jax.tree.unflatten(jax.tree.structure(like), tensors.values())
        return _validate(Checkpoint(**json.loads(metadata["about"]), saved=saved))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {first_line(error)}") from error


def _validate(checkpoint: Checkpoint) -> Checkpoint:
    """A file with the right digest may still have been written by hand."""
    row = checkpoint.row
    counts = (checkpoint.update, checkpoint.resumes, row["update"], row["global_step"], row["stats/games"])
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise ValueError(f"impossible counts {counts}")
    if checkpoint.update != row["update"] or not math.isfinite(row["seconds"]):
        raise ValueError("its row is of another update")
    if checkpoint.tracker is not None and not re.fullmatch(r"[^/\\\0]+", checkpoint.tracker):
        raise ValueError("invalid id of a Weights & Biases run")  # it becomes part of a path
    if not isinstance(checkpoint.run_id, str | None):
        raise TypeError("invalid id of a run")
    recent = [Episode(float(total), int(length)) for total, length in checkpoint.recent]
    return checkpoint._replace(recent=recent)


def _digest_header(about: str, types: dict[str, str]) -> Any:
    """A digest of everything but the tensors' content, which can be added to it."""
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    digest.update(json.dumps(sorted(types.items())).encode())
    return digest


def _add_tensors(digest: Any, tensors: dict[str, np.ndarray]) -> Any:
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.data)
    return digest


def _types(tensors: dict[str, Any]) -> dict[str, str]:
    return {name: tensor_type(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


# ---------------------------------------------------------------------------------- the checkpoints of a run


class CheckpointManager:
    """Writes a run's checkpoints, keeps the last few, and knows when the next one is due."""

    def __init__(self, run_dir: Path, minutes: float, keep: int, newest: Checkpoint | None = None):
        self.run_dir = run_dir  # which may be moved
        self._seconds = 60 * minutes
        self._keep = keep
        self._last_attempt = time.monotonic()
        self.update = newest.update if newest else None
        self.step: int = newest.row["global_step"] if newest else 0

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._last_attempt > self._seconds

    def has(self, update: int | None) -> bool:
        """Whether the newest is of this update, and still there."""
        return (
            update is not None and update == self.update and checkpoint_path(self.run_dir, update).is_file()
        )

    def save(self, checkpoint: Checkpoint) -> None:
        self._last_attempt = time.monotonic()
        folder = self.run_dir / CHECKPOINTS
        folder.mkdir(exist_ok=True)
        save_checkpoint(checkpoint_path(self.run_dir, checkpoint.update), checkpoint)
        self.update, self.step = checkpoint.update, checkpoint.row["global_step"]
        unfinished = folder.glob("*.unfinished")  # left by a process that was killed
        for path in (*_newest_first(self.run_dir)[self._keep :], *unfinished):
            with suppress(OSError):
                path.unlink()


def find_checkpoint(run_dir: Path, like: Saved, run_id: str | None = None) -> Checkpoint | None:
    """The newest intact checkpoint of this run. Newer ones, damaged or unreadable, are renamed; where all are
    unreadable, the disk may be: that is an error."""
    unreadable: dict[Path, Unreadable] = {}
    for path in _newest_first(run_dir):
        try:
            checkpoint = _load_of(run_dir, path, like, run_id)
        except Damaged as damage:
            say(f"{path} is damaged ({damage}); trying the previous one")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
        except Unreadable as problem:
            unreadable[path] = problem
        else:
            _set_aside(unreadable, checkpoint.update)
            return checkpoint
    for newest in unreadable.values():
        raise newest
    return None


def _set_aside(unreadable: dict[Path, Unreadable], used: int) -> None:
    for path, reason in unreadable.items():
        say(f"{reason}; using that of update {used}")
        with suppress(OSError):
            path.rename(path.with_suffix(".unreadable"))


def _load_of(run_dir: Path, path: Path, like: Saved, run_id: str | None) -> Checkpoint:
    checkpoint = load_checkpoint(path, like)
    if path != checkpoint_path(run_dir, checkpoint.update):
        raise Damaged(f"it holds update {checkpoint.update}")
    if run_id and checkpoint.run_id and checkpoint.run_id != run_id:
        raise Damaged("it belongs to another run")
    return checkpoint


def saved_bytes(run_dir: Path) -> int:
    """How much the checkpoints there take."""
    return sum(path.stat().st_size for path in _newest_first(run_dir) if path.is_file())


def _newest_first(run_dir: Path) -> list[Path]:
    return [checkpoint_path(run_dir, update) for update in checkpoint_updates(run_dir)]
