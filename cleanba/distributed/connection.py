"""A connection between two processes of a job."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import IO, Any

Message = dict[str, Any]
MAX_MESSAGE_BYTES = 2**24
SILENT_HOST_MS = 10_000  # a host that acknowledges nothing for this long counts as lost


class Connection:
    """A socket on which both sides send JSON, one message per line."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that dies does not close its connections. Pings are sent all the time, and its kernel must
        # acknowledge them.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_HOST_MS)
        self.peer = ""  # who is at the other end
        self._socket = sock
        self._file: IO[bytes] = sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> Message | None:
        """The next message; None if the other side has gone, or sent something that is not a message."""
        try:
            line = self._file.readline(MAX_MESSAGE_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def read_within(self, seconds: float) -> Message | None:
        self._socket.settimeout(max(0.01, seconds))
        message = self.read()
        self._socket.settimeout(None)
        return message

    def __iter__(self) -> Iterator[Message]:
        while (message := self.read()) is not None:
            yield message

    def close(self) -> None:
        self._socket.close()
