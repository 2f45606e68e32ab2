"""Files that survive crashes and full disks: written all at once, or appended to without gaps."""

import errno
import fcntl
import os
import re
from pathlib import Path

from cleanba.runtime.messages import say


def atomic_write(path: Path, data: bytes) -> None:
    """A reader finds the old file or the new one, never half of one, even after a power failure."""
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


class RetryingFile:
    """A file that is appended to. What cannot be written now, on a full disk for instance, is kept and
    written before whatever comes next: the file never has a gap."""

    def __init__(self, path: Path):
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._kept = b""
        self._complained = False

    def lock(self) -> bool:
        """False if another process holds the lock. It is released when this process ends, however that
        ends."""
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
                say(f"{self._path} cannot be written ({error.strerror}); the run continues and tries again")
            self._complained = True
            return False
        if self._complained:
            say(f"{self._path} can be written again; nothing is missing")
        self._complained = False
        return True

    def sync(self) -> None:
        """Everything is on the disk when this returns; raises OSError otherwise."""
        if not self.append(b""):
            raise OSError(errno.ENOSPC, f"{self._path.name} is not complete")
        _sync(self._file)

    def close(self) -> None:
        if not self.append(b""):
            say(f"{self._path} lacks its last {len(self._kept):,} bytes")
        os.close(self._file)


def file_name(text: str) -> str:
    """A safe name for a file or folder: environment ids may have slashes, names that users choose
    anything."""
    return re.sub(r"[^\w.+-]", "-", text)
