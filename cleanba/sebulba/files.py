"""Files that survive what happens to machines: all at once or not at all, and patient with full disks."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cleanba.sebulba.command import say


def write_whole(path: Path, data: bytes) -> None:
    """A reader, also one after a power failure, finds the old file or the new one, never half of one."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            _sync(file.fileno())
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except OSError:
        unfinished.unlink(missing_ok=True)  # on a full disk its space is needed
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, folders above all
            raise


class PatientFile:
    """A file that is appended to. What cannot be written now, on a full disk for instance, is kept and tried
    again with whatever comes next: the file never has a gap."""

    def __init__(self, path: Path):
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._kept = b""
        self._complained = False

    def lock(self) -> bool:
        """False when another process has it. It ends with this process, however that ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
        return True

    def cut(self, size: int) -> None:
        os.ftruncate(self._file, size)

    def append(self, data: bytes) -> bool:
        """Whether everything is written."""
        self._kept += data
        try:
            while self._kept:
                self._kept = self._kept[os.write(self._file, self._kept) :]
        except OSError as error:
            if not self._complained:
                say(f"{self._path} cannot be written ({error.strerror}); the run goes on and tries again")
            self._complained = True
            return False
        if self._complained:
            say(f"{self._path} is written again, with nothing missing")
        self._complained = False
        return True

    def sync(self) -> None:
        """All of it is on the disk, and not only on its way there; or an OSError."""
        if not self.append(b""):
            raise OSError(errno.ENOSPC, f"{self._path.name} is not complete")
        _sync(self._file)

    def close(self) -> None:
        if not self.append(b""):
            say(f"{self._path} lacks its last {len(self._kept):,} bytes")
        os.close(self._file)


def tensor_names(tree: Any) -> list[str]:
    """Of a tree's leaves, in their order: params/Dense_0/kernel."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]


def named_tensors(tree: Any) -> dict[str, np.ndarray]:
    arrays = [np.asarray(leaf, order="C") for leaf in jax.tree.leaves(tree)]
    return dict(zip(tensor_names(tree), arrays, strict=True))
