"""Files that survive crashes, full disks and moved folders: written all at once, or appended to without
gaps."""

import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from cleanba.runtime.messages import say

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
RETRY_SECONDS = 1.0
LOCK_SECONDS = 1.0  # to wait for a lock that somebody may only be looking at
Result = TypeVar("Result")


def open_regular(path: Path, flags: int = os.O_RDONLY, *, own: bool = False) -> int:
    """A descriptor of a regular file; anything else is an OSError: reading a FIFO or a device may never end.
    With `own`, so is a link, or a file with another owner than its folder."""
    if own and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, not a file", str(path))
    only = os.O_NONBLOCK | (os.O_NOFOLLOW if own else 0)
    descriptor = os.open(path, flags | only, 0o666)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if own and status.st_uid != path.parent.stat().st_uid:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    return descriptor


def open_to_read(path: Path) -> BinaryIO:
    return os.fdopen(open_regular(path), "rb")


def read_regular(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()


def last_written(paths: Iterable[Path]) -> float:
    """When the newest of these files was, in seconds of the epoch; 0 if none is there."""
    times = [0.0]
    for path in paths:
        with suppress(OSError):  # it is gone, or a link that leads nowhere
            times.append(path.stat().st_mtime)
    return max(times)


def is_own_folder(folder: Path) -> bool:
    """Whether what is made in it gets the folder's owner. The file system is asked: containers and network
    disks show one's own files under other numbers than one's own."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid == folder.stat().st_uid


def atomic_write(path: Path, data: bytes) -> None:
    """A reader finds the old file or the new one, never half of one, even after a power failure."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        if os.path.lexists(unfinished):  # left by a process that was killed, or a link to another file
            unfinished.unlink()
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            _sync(file.fileno())
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except OSError:
        unfinished.unlink(missing_ok=True)  # on a full disk its space is needed
        raise


def write_when_possible(write: Callable[[], Result], what: str, seconds: float) -> Result:
    """Call `write`, and again while the disk is full; after so many seconds its error is raised."""
    deadline, waiting = time.monotonic() + seconds, False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in NO_ROOM or time.monotonic() > deadline:
                raise
            if not waiting:
                say(f"{what} finds no room ({error.strerror}): make some; waiting for up to {seconds:g} s")
            waiting = True
            time.sleep(RETRY_SECONDS)


def free_bytes(folder: Path) -> int | None:
    """What can still be written there, or where it will be made; None if the file system does not say."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize if room.f_blocks else None


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
        self._file = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, own=True)
        self._kept = b""
        self._complained = False
        self._locked = False

    def lock(self) -> bool:
        """False if another process holds the lock. It is released when this process ends, however that
        ends. Who only looks whether there is a lock has one for a moment, too."""
        self._locked = True
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self._is_in_place()  # who had the lock before may have put another file there
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
            except OSError:  # a file system without locks
                return True
            time.sleep(LOCK_SECONDS / 50)

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

    def keep_in(self, folder: Path) -> None:
        """The file is in this folder, with all that was written, also if it was deleted or replaced."""
        self._path = folder / self._path.name
        if self._is_in_place():
            return
        with suppress(FileNotFoundError):
            self._path.rename(self._path.with_name(f"{self._path.name}.replaced"))
        self._move_to_a_copy()

    def unshare(self) -> bool:
        """The file has one name only: hard links to it, as `cp -al` makes them for a backup, keep what is in
        it now. False if another process has the lock of the new file."""
        return os.fstat(self._file).st_nlink == 1 or self._move_to_a_copy()

    def _is_in_place(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), os.fstat(self._file))
        return False

    def _move_to_a_copy(self) -> bool:
        with os.fdopen(os.dup(self._file), "rb") as old:
            old.seek(0)
            atomic_write(self._path, old.read())
        os.close(self._file)
        self._file = open_regular(self._path, os.O_RDWR | os.O_APPEND, own=True)
        return not self._locked or self.lock()

    def sync(self) -> None:
        """Everything is on the disk when this returns; raises OSError otherwise."""
        if not self.append(b""):
            raise OSError(errno.ENOSPC, f"{self._path.name} is not complete")
        _sync(self._file)

    def close(self) -> None:
        if not self.append(b""):
            say(f"{self._path} lacks its last {len(self._kept):,} bytes")
        os.close(self._file)


class OpenFolder:
    """A folder that is found again after it was moved."""

    def __init__(self, path: Path):
        self.path = path  # where it was last
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def find(self) -> Path | None:
        """Where it is now; None if it was deleted."""
        for find in (lambda: self.path, self._moved_to):
            with suppress(OSError):
                path = find()
                if os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                    self.path = path
                    return path
        return None

    def _moved_to(self) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))  # as Linux has it

    def close(self) -> None:
        os.close(self._descriptor)


def file_name(text: str) -> str:
    """A safe name for a file or folder: environment ids may have slashes, names that users choose
    anything."""
    return re.sub(r"[^\w.+-]", "-", text)
