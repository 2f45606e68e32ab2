"""A connection between two processes of a job."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
MAX_MESSAGE_BYTES = 2**24
SILENT_HOST_MS = 10_000  # a host that acknowledges nothing for this long counts as lost


class NoMessage(Exception):
    """What came instead of a message. One line, in our own words: it never repeats the other side's."""


class Connection:
    """A socket on which both sides send JSON, one message per line."""

    def __init__(self, sock: socket.socket):
        with suppress(OSError):  # the other side has already gone, which the first read will tell
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that dies does not close its connections. Pings are sent all the time, and its kernel
            # must acknowledge them.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_HOST_MS)
        self.peer = ""  # who is at the other end
        self._socket = sock
        self._received = bytearray()  # not yet read
        self._sending = threading.Lock()

    @property
    def local_host(self) -> str:
        """The address of this machine by which the other side has reached it."""
        return self._socket.getsockname()[0].removeprefix("::ffff:")

    def send(self, **message: Any) -> None:
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self, until: float | None = None, limit: int = MAX_MESSAGE_BYTES) -> Message:
        """The next message, if all of it is there at `until` (of time.monotonic()), in at most `limit`
        bytes."""
        try:
            message = json.loads(self._read_line(until, limit))
        except (ValueError, RecursionError):
            raise NoMessage("it sent something that is not a message") from None
        if not isinstance(message, dict):
            raise NoMessage("it sent something that is not a message")
        return message

    def _read_line(self, until: float | None, limit: int) -> bytes:
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched >= limit:
                raise NoMessage(f"it sent more than {limit} bytes without a line end")
            self._receive(until, limit - searched)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _receive(self, until: float | None, most: int) -> None:
        remaining = None if until is None else until - time.monotonic()
        try:
            if remaining is not None and remaining <= 0:  # bytes that keep coming must not stretch it
                raise TimeoutError
            self._socket.settimeout(remaining)
            data = self._socket.recv(min(most, 2**16))
        except TimeoutError:
            what = "only part of a message" if self._received else "nothing"
            raise NoMessage(f"it sent {what} in time") from None
        except OSError:  # a host that died, or a connection that was reset
            data = b""
        if not data:
            what = "within a message" if self._received else "unexpectedly"
            raise NoMessage(f"its connection closed {what}")
        self._received += data

    def __iter__(self) -> Iterator[Message]:
        """Until a read raises NoMessage."""
        while True:
            yield self.read()

    def close(self) -> None:
        """Also wakes up a thread that is reading."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
