"""Where process 0 can be reached until all others have joined."""

import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from cleanba.distributed.connection import Connection, Message, NoMessage
from cleanba.distributed.handshake import GREETING_SECONDS, JobSecret, admit
from cleanba.runtime.messages import printable, say

MAX_UNPROVEN = 64  # connections at a time that have proved nothing yet
MAX_NAME = 200  # characters


class Caller(NamedTuple):
    """A process that has proved that it belongs to this job."""

    process: int
    about: Message  # what must be the same in all processes
    connection: Connection


class Listener:
    """Greets every connection in a thread of its own, so that none can hold up another, and drops those that
    do not prove in time that they belong to the job."""

    def __init__(self, host: str, port: int, secret: JobSecret):
        self._server = listen_at(host, port)
        self._secret = secret
        self._proven: queue.Queue[Caller] = queue.Queue()
        self._unproven: dict[Connection, None] = {}  # the oldest first
        self._logged: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()

    def callers(self, until: float) -> Iterator[Caller]:
        """Those who prove themselves, as they come, until `until` (of time.monotonic())."""
        while (remaining := until - time.monotonic()) > 0:
            self._server.settimeout(min(0.1, remaining))
            try:
                self._greet_beside(*self._server.accept())
            except TimeoutError:
                pass
            except OSError:  # the caller has gone again, or there are too many open files
                time.sleep(0.01)
            while not self._proven.empty():
                yield self._proven.get()

    def close(self) -> None:
        self._server.close()
        with self._lock:
            self._closed = True
            for connection in self._unproven:
                connection.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _greet_beside(self, sock: socket.socket, address: tuple) -> None:
        connection = Connection(sock)
        with self._lock:
            if len(self._unproven) >= MAX_UNPROVEN:  # an honest process would have proved itself long ago
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                oldest.close()
            self._unproven[connection] = None
        threading.Thread(target=self._greet, args=(connection, address[0]), daemon=True).start()

    def _greet(self, connection: Connection, host: str) -> None:
        try:
            self._proven.put(self._admit(connection))
        except (NoMessage, OSError) as why:
            connection.close()
            self._log_once(str(why) if isinstance(why, NoMessage) else "its connection closed", host)
        with self._lock:
            self._unproven.pop(connection, None)

    def _admit(self, connection: Connection) -> Caller:
        until = time.monotonic() + GREETING_SECONDS
        process = admit(connection, self._secret, until)
        match connection.read(until):
            case {"who": str(who), "about": dict(about)}:
                connection.peer = printable(who)[:MAX_NAME]
                return Caller(process, about, connection)
            case _:
                raise NoMessage("it proved to belong to this job, but did not say who it is")

    def _log_once(self, why: str, host: str) -> None:
        """Strangers must not fill the log either."""
        with self._lock:
            new = why not in self._logged and not self._closed
            self._logged.add(why)
        if new:
            say(f"warning: dropped a connection from {host}: {why} (not repeated for others like it)")


def is_loopback(host: str) -> bool:
    """Of an address, in any way to write it, and of the name that every machine has for itself."""
    with suppress(OSError, ValueError):
        return socket.inet_aton(host)[0] == 127  # also 127.1
    with suppress(ValueError):
        address = ipaddress.IPv6Address(host)
        return (address.ipv4_mapped or address).is_loopback
    return host.lower() == "localhost"


def listen_at(host: str, port: int) -> socket.socket:
    """At the named address, not on all interfaces. But a name that means loopback only on this machine, as
    Debian's /etc/hosts has it for the machine's own name, means another address to other hosts."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda entry: entry[0])  # IPv4 first
    if not is_loopback(str(address[0])) or is_loopback(host):
        return socket.create_server(address[:2], family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def free_port(host: str) -> int:
    with listen_at(host, 0) as server:
        return server.getsockname()[1]


def join_host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
