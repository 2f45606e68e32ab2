"""Connections that do not belong to a job, of every kind that has once done harm."""

import contextlib
import socket
import time

from cleanba.distributed.connection import Connection, NoMessage
from cleanba.distributed.handshake import JobSecret, introduce

WRONG = JobSecret(b"a secret of another job", "-.-")
FLOOD = b"x" * 2**20


def silence(sock):
    pass


def half_a_line(sock):
    sock.sendall(b'{"process": 1')


def flood(sock):
    """20 MB without a line end."""
    for _ in range(20):
        sock.sendall(FLOOD)


def not_a_greeting(sock):
    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")


def escape_codes(sock):
    sock.sendall(b'{"process": 1, "challenge": "\x1b[2J", "proof": "\x1b[2J"}\n')


def old_greeting(sock):
    """As it was before there were secrets, with other flags: once it ended the job."""
    sock.sendall(b'{"job": "-.-", "process": 1, "who": "\\u001b[2J", "about": {"--seed": 2}}\n')


def exit_code_0(sock):
    sock.sendall(b'{"failed": "", "exit_code": 0}\n')


def wrong_secret(sock):
    introduce(Connection(sock), WRONG, 1, time.monotonic() + 5)


def wrong_process(sock):
    introduce(Connection(sock), WRONG, 7, time.monotonic() + 5)


KINDS = (
    silence,
    half_a_line,
    flood,
    not_a_greeting,
    escape_codes,
    old_greeting,
    exit_code_0,
    wrong_secret,
    wrong_process,
)


def call(address, behaviour, timeout=5):
    """The stranger's socket, still open; None if nobody listens or the connection was dropped at once."""
    try:
        sock = socket.create_connection(address, timeout=timeout)
    except OSError:
        return None
    with contextlib.suppress(OSError, NoMessage):  # it was dropped meanwhile
        behaviour(sock)
    return sock


def replay(secret):
    """A stranger who has overheard a true greeting, and repeats it on a connection of his own."""
    overheard = secret.proof("caller", 1, "the challenge of another connection", "x")
    greeting = f'{{"process": 1, "challenge": "x", "proof": "{overheard}"}}\n'
    return lambda sock: sock.sendall(greeting.encode())
