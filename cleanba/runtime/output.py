"""Output beside the work: who prints does not wait. Needs no rich, for the workers of environments."""

import os
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

MAX_WAITING_BYTES = 2**18  # that nobody has read
PATIENCE_SECONDS = 1.0  # at the end, for output that does not move
GAP = "(some output is missing here: nobody read it, or the disk was full)\n"


class BackgroundStream:
    """A text stream that nobody has to wait for: a thread writes to the terminal, pipe or file behind it.
    What nobody reads, and what a full disk refuses, is dropped. Once the reader has gone, `write` raises
    BrokenPipeError, or drops that, too. Lines stay whole where several processes write. Everything else is
    that of the stream behind it."""

    def __init__(self, stream: TextIO, *, needs_reader: bool = True, patience: float = 0.0):
        """With `patience`, who writes a line waits up to so many seconds until it is out, unless the line
        before was not out in time."""
        self._stream, self._descriptor, self._needs_reader = stream, stream.fileno(), needs_reader
        self._patience, self._moves = patience, True
        self._pid = os.getpid()
        self._waiting = b""
        self._ready = 0  # bytes of it: until the end of a line, or until they are flushed
        self._written = 0  # bytes
        self._has_gap = False
        self._reader_gone = False
        self._changed = threading.Condition()  # its lock can be taken twice by one thread
        threading.Thread(target=self._write_all, name="output", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        data = text.encode(self._stream.encoding, "backslashreplace")
        if self._is_copy():
            self._write_now(data)
            return len(text)
        with self._changed:
            if self._reader_gone and self._needs_reader:
                raise BrokenPipeError("the reader of the output has gone")
            data = GAP.encode() * self._has_gap + data
            self._has_gap = len(self._waiting) + len(data) > MAX_WAITING_BYTES
            if not self._has_gap and not self._reader_gone:
                self._waiting += data
                if "\n" in text or "\r" in text:
                    self.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Waits no longer than `patience`; `drain` does."""
        if not self._is_copy():
            with self._changed:
                self._ready = len(self._waiting)
                self._changed.notify_all()
                if self._patience and self._moves:
                    self._moves = self._changed.wait_for(lambda: not self._ready, self._patience)

    def drain(self) -> None:
        """Wait until everything is written, or nothing has moved for PATIENCE_SECONDS."""
        if self._is_copy():
            return
        self.flush()
        with self._changed:
            before = -1
            while self._waiting and before != self._written:
                before = self._written
                self._changed.wait_for(lambda: not self._waiting, PATIENCE_SECONDS)

    def _write_all(self) -> None:
        while not self._reader_gone:
            with self._changed:
                self._changed.wait_for(lambda: self._ready)
                data = self._waiting[: min(self._ready, select.PIPE_BUF)]
            written = self._write(data[: data.rfind(b"\n") + 1] or data)
            with self._changed:
                self._waiting = b"" if self._reader_gone else self._waiting[written:]
                self._ready -= written
                self._written += written
                self._moves = True
                self._changed.notify_all()

    def _is_copy(self) -> bool:
        """Made by a fork: it lacks the thread, which may even have had the lock."""
        return os.getpid() != self._pid

    def _write_now(self, data: bytes) -> None:
        """What does not fit is dropped."""
        while data and select.select([], [self._descriptor], [], 0)[1]:
            data = data[self._write(data[: select.PIPE_BUF]) :]

    def _write(self, data: bytes) -> int:
        """The number of bytes that need not be written again."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # another program has made the terminal non-blocking
            select.select([], [self._descriptor], [])
            return 0
        except BrokenPipeError:
            self._reader_gone = True
        except OSError:
            self._has_gap = True
        return len(data)


def replace_closed_streams() -> None:
    """After `>&-` Python has None instead of a stream, and the next file that is opened would get its
    descriptor, and with it whatever a library prints."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


@contextmanager
def background_output() -> Iterator[None]:
    """In the body, no output makes its writer wait: neither a terminal or pipe that nobody reads, nor a full
    disk. Who has closed standard output wants no more; standard error is only beside it."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _in_background(sys.stdout), _in_background(sys.stderr, needs_reader=False)
    try:
        yield
    finally:
        flush_output()
        sys.stdout, sys.stderr = before


def _in_background(stream: TextIO, *, needs_reader: bool = True) -> TextIO:
    if isinstance(stream, BackgroundStream) or not _has_descriptor(stream):
        return stream
    return cast(TextIO, BackgroundStream(stream, needs_reader=needs_reader))


def _has_descriptor(stream: TextIO) -> bool:
    """False for a stream in memory, as notebooks and tests have: it never waits."""
    try:
        return stream.fileno() >= 0
    except OSError:
        return False


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.drain() if isinstance(stream, BackgroundStream) else stream.flush()
