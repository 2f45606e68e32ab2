"""Checkpoints: all that a run needs to go on, in one file of safetensors. Loading one executes nothing."""

import hashlib
import json
import math
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
from cleanba.sebulba.files import named_tensors, tensor_names, write_whole
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
    saved: Saved


class Damaged(Exception):
    """The file is not what was once written. One line."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    tensors = named_tensors(checkpoint.saved)
    about = json.dumps({name: value for name, value in checkpoint._asdict().items() if name != "saved"})
    header = _header(about, {name: _in_words(tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    digests = {"header_digest": header.hexdigest(), "digest": _add(header, tensors).hexdigest()}
    write_whole(path, save(tensors, {"format": str(FORMAT), "about": about, **digests}))


def load_checkpoint(path: Path, like: Saved) -> Checkpoint:
    """With tensors of the shapes and types of `like`. They are compared before any of them is read, and
    safetensors has compared all sizes with that of the file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if int(metadata["format"]) > FORMAT:
                raise UsageError(f"{path} was written by a newer Cleanba; update this one")
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {n: _in_words(NAMES.get(part.get_dtype()), part.get_shape()) for n, part in parts.items()}
            header = _header(metadata["about"], found)
            if header.hexdigest() != metadata["header_digest"]:
                raise Damaged("its header does not fit its digest")
            _compare(path, found, like)
            tensors = {name: file.get_tensor(name) for name in tensor_names(like)}
        if _add(header, tensors).hexdigest() != metadata["digest"]:
            raise Damaged("its content does not fit its digest")
        saved = jax.tree.unflatten(jax.tree.structure(like), tensors.values())
        return _checked(Checkpoint(**json.loads(metadata["about"]), saved=saved))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {first_line(error)}") from error


def _compare(path: Path, found: dict[str, str], like: Saved) -> None:
    leaves = zip(tensor_names(like), jax.tree.leaves(like), strict=True)
    expected = {name: _in_words(leaf.dtype, leaf.shape) for name, leaf in leaves}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UsageError(
                f"{path} is of another network: {name} should be {expected.get(name, 'absent')}, "
                f"is {found.get(name, 'absent')}"
            )


def _checked(found: Checkpoint) -> Checkpoint:
    """Its digest is right, yet it may have been made by hand."""
    row = found.row
    counts = (found.update, found.resumes, row["update"], row["global_step"], row["stats/games"])
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise ValueError(f"impossible counts {counts}")
    if found.update != row["update"] or not math.isfinite(row["seconds"]):
        raise ValueError("a row that does not belong to it")
    if found.tracker is not None and not re.fullmatch(r"[^/\\\0]+", found.tracker):
        raise ValueError("impossible id of a tracked run")  # it becomes part of a path
    games = [Episode(float(total), int(length)) for total, length in found.recent]
    return found._replace(recent=games)


def _header(about: str, shapes: dict[str, str]) -> Any:
    """A digest of all but the tensors' content, to which that can be added."""
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    digest.update(json.dumps(sorted(shapes.items())).encode())
    return digest


def _add(digest: Any, tensors: dict[str, np.ndarray]) -> Any:
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.data)
    return digest


NAMES = {"F32": "float32", "I32": "int32", "U32": "uint32"}  # safetensors' own


def _in_words(dtype: Any, shape: Any) -> str:
    return f"{dtype} {tuple(shape)}"


# ------------------------------------------------------------------------------------- the last few of a run


class Keeper:
    """Of the checkpoints of one run."""

    def __init__(self, run_dir: Path, minutes: float, keep: int, newest: Checkpoint | None = None):
        self._folder = run_dir / FOLDER
        self._seconds = 60 * minutes
        self._keep = keep
        self._tried = time.monotonic()
        self._note(newest)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._tried > self._seconds

    def save(self, checkpoint: Checkpoint) -> None:
        self._tried = time.monotonic()
        self._folder.mkdir(exist_ok=True)
        save_checkpoint(_path(self._folder, checkpoint.update), checkpoint)
        self._note(checkpoint)
        unfinished = self._folder.glob("*.unfinished")  # of a process that was killed
        for path in (*_newest_first(self._folder)[self._keep :], *unfinished):
            with suppress(OSError):
                path.unlink()

    def _note(self, newest: Checkpoint | None) -> None:
        self.update = newest.update if newest else None  # of the newest one
        self.step: int = newest.row["global_step"] if newest else 0


def find_checkpoint(run_dir: Path, like: Saved) -> Checkpoint | None:
    """The newest one that is whole; those that are not are set aside."""
    for path in _newest_first(run_dir / FOLDER):
        try:
            checkpoint = load_checkpoint(path, like)
            if path != _path(run_dir / FOLDER, checkpoint.update):
                raise Damaged(f"it is of update {checkpoint.update}")
            return checkpoint
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
