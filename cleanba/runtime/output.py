"""Output beside the work: who prints does not wait. Needs no rich, for the workers of environments."""

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

MAX_WAITING_BYTES = 2**18  # that nobody has read
PATIENCE_SECONDS = 1.0  # at the end, for output that does not move
GAP = "(some output is missing here: nobody read it, or the disk was full)\n"


class BackgroundStream:
    """A text stream whose `write` never waits: a thread writes to the terminal, pipe or file behind it. What
    nobody reads, and what a full disk refuses, is dropped. `write` raises BrokenPipeError once the reader has
    gone. Everything else is that of the stream behind it."""

    def __init__(self, stream: TextIO):
        self._stream, self._descriptor = stream, stream.fileno()
        self._waiting = b""
        self._written = 0  # bytes
        self._has_gap = False
        self._reader_gone = False
        self._changed = threading.Condition()  # its lock can be taken twice by one thread
        threading.Thread(target=self._write_all, name="output", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        data = (GAP * self._has_gap + text).encode(self._stream.encoding, "backslashreplace")
        with self._changed:
            if self._reader_gone:
                raise BrokenPipeError("the reader of the output has gone")
            self._has_gap = len(self._waiting) + len(data) > MAX_WAITING_BYTES
            if not self._has_gap:
                self._waiting += data
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Does not wait; `drain` does."""

    def drain(self) -> None:
        """Wait until everything is written, or nothing has moved for PATIENCE_SECONDS."""
        with self._changed:
            before = -1
            while self._waiting and before != self._written:
                before = self._written
                self._changed.wait_for(lambda: not self._waiting, PATIENCE_SECONDS)

    def _write_all(self) -> None:
        while not self._reader_gone:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[:4096]  # a pipe takes this much in one piece
            written = self._write(data)
            with self._changed:
                self._waiting = b"" if self._reader_gone else self._waiting[written:]
                self._written += written
                self._changed.notify_all()

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
    disk."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_in_background, before)
    try:
        yield
    finally:
        flush_output()
        sys.stdout, sys.stderr = before


def _in_background(stream: TextIO) -> TextIO:
    if isinstance(stream, BackgroundStream) or not _has_descriptor(stream):
        return stream
    return cast(TextIO, BackgroundStream(stream))


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
