"""Checkpoints: all that a run needs to go on, in one file of safetensors. Loading one executes nothing."""

import hashlib
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.command import first_line, say
from cleanba.sebulba.envs import Episode
from cleanba.sebulba.files import tensor_names, write_whole
from cleanba.sebulba.learner import LearnerState
from cleanba.sebulba.metrics import Row

FORMAT = 1  # of the file; raised when older code could not read what newer code writes
FOLDER = "checkpoints"  # in the run's folder


class Saved(NamedTuple):
    """The tensors of a checkpoint, on the host."""

    state: LearnerState
    key: Any  # u32: the data of the run's key, from which all others derive


class Checkpoint(NamedTuple):
    """Of a run after some updates."""

    update: int  # so many are done
    resumes: int  # how often the run had been resumed
    row: Row  # of the last update
    recent: list[Episode]  # the games over which returns are averaged
    tracker: str | None  # the run's id there
    tensors: dict[str, np.ndarray]  # those of Saved, by name

    def saved(self, like: Saved) -> Saved:
        """The tensors as a tree with the shapes and types of `like`."""
        expected = dict(zip(tensor_names(like), jax.tree.leaves(like), strict=True))
        for name in expected.keys() | self.tensors.keys():
            should, found = (_in_words(tensors.get(name)) for tensors in (expected, self.tensors))
            if should != found:
                raise UsageError(
                    f"the checkpoint is of another network: {name} should be {should}, is {found}"
                )
        return jax.tree.unflatten(jax.tree.structure(like), [self.tensors[name] for name in expected])


class Damaged(Exception):
    """The file is not what was once written. One line."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    about = json.dumps({name: value for name, value in checkpoint._asdict().items() if name != "tensors"})
    metadata = {"format": str(FORMAT), "about": about, "digest": _digest(about, checkpoint.tensors)}
    write_whole(path, save(checkpoint.tensors, metadata))


def load_checkpoint(path: Path) -> Checkpoint:
    """Safetensors has compared all sizes with that of the file before any of them is allocated."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if int(metadata["format"]) > FORMAT:
                raise UsageError(f"{path} was written by a newer Cleanba; update this one")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(metadata["about"], tensors) != metadata["digest"]:
            raise Damaged("its digest does not fit its content")
        about = json.loads(metadata["about"])
        return _checked(Checkpoint(**about, tensors=tensors))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {first_line(error)}") from error


def _checked(found: Checkpoint) -> Checkpoint:
    """Its digest is right, yet it may have been made by hand."""
    counts = (found.update, found.resumes, found.row["global_step"], found.row["stats/games"])
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise ValueError(f"impossible counts {counts}")
    if found.tracker is not None and not re.fullmatch(r"[\w-]{1,64}", found.tracker):
        raise ValueError("impossible id of a tracked run")  # it becomes part of a path
    games = [Episode(float(total), int(length)) for total, length in found.recent]
    return found._replace(recent=games)


def _digest(about: str, tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {_in_words(tensors[name])}".encode())
        digest.update(tensors[name].data)
    return digest.hexdigest()


def _in_words(tensor: Any) -> str:
    return "absent" if tensor is None else f"{np.dtype(tensor.dtype).name} {tuple(tensor.shape)}"


# ------------------------------------------------------------------------------------- the last few of a run


class Checkpoints:
    """Those of one run."""

    def __init__(self, run_dir: Path, minutes: float, keep: int, newest: Checkpoint | None = None):
        self.newest = newest
        self._folder = run_dir / FOLDER
        self._seconds = 60 * minutes
        self._keep = keep
        self._tried = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._tried > self._seconds

    def has(self, update: int) -> bool:
        return self.newest is not None and self.newest.update == update

    def save(self, checkpoint: Checkpoint) -> None:
        """A failure is said, and all else goes on."""
        try:
            self._folder.mkdir(exist_ok=True)
            save_checkpoint(_path(self._folder, checkpoint.update), checkpoint)
        except OSError as error:
            last = f"the last one is of update {self.newest.update}" if self.newest else "there is none yet"
            say(f"no checkpoint of update {checkpoint.update}: {error.strerror}; {last}")
        else:
            self.newest = checkpoint._replace(tensors={})
            unfinished = self._folder.glob("*.unfinished")  # of a process that was killed
            for path in (*_newest_first(self._folder)[self._keep :], *unfinished):
                path.unlink(missing_ok=True)
        self._tried = time.monotonic()


def find_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The newest one that is whole; those that are not are set aside."""
    for path in _newest_first(run_dir / FOLDER):
        try:
            return load_checkpoint(path)
        except Damaged as damage:
            say(f"{path} is damaged ({damage}); trying the one before it")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
    return None


def _path(folder: Path, update: int) -> Path:
    return folder / f"update-{update}.safetensors"


def _newest_first(folder: Path) -> list[Path]:
    updates = [re.fullmatch(r"update-(\d+)\.safetensors", path.name) for path in folder.glob("update-*")]
    return [_path(folder, update) for update in sorted((int(m[1]) for m in updates if m), reverse=True)]
