"""Connections that do not belong to a job: they neither get in nor do harm."""

import contextlib
import re
import socket
import threading
import time

import psutil
import pytest
from helpers import strangers
from helpers.jobs import SMALL, exit_codes, outputs
from helpers.listening import listening
from helpers.ports import free_address, wait_for_listener

from cleanba.distributed import listener as module
from cleanba.distributed.connection import Connection
from cleanba.distributed.handshake import VARIABLE, JobSecret, introduce, make_secret
from cleanba.distributed.listener import MAX_UNPROVEN, Listener, is_loopback, listen_at

SECRET = JobSecret(b"the secret of this job", "-.-")
REASONS = {  # why strangers are dropped
    "it sent nothing in time",
    "it sent only part of a message in time",
    "it sent more than 512 bytes without a line end",
    "it sent something that is not a message",
    "it sent something that is not a greeting",
    "it could not prove that it belongs to this job",
}
DROPPED = re.compile(
    r"warning: dropped a connection from 127\.0\.0\.1: (.*) \(not repeated for others like it\)"
)


@pytest.fixture
def logged(monkeypatch):
    """What the listener says."""
    lines = []
    monkeypatch.setattr(module, "say", lines.append)
    return lines


@pytest.fixture
def process_0(logged):
    """Its address, and the callers that it has admitted."""
    with listening(SECRET) as both:
        yield both


def call_honestly(address, process=1):
    connection = Connection(socket.create_connection(address, timeout=10))
    introduce(connection, SECRET, process, time.monotonic() + 10)
    connection.send(who="pid 1 on \x1b[2Jhost", about={"--seed": 1})
    return connection


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------ the listener


def test_two_hundred_strangers_do_not_keep_a_process_out(process_0, logged, monkeypatch):
    """They are dropped, one line for each reason, and some are still there when the process calls."""
    monkeypatch.setattr(module, "GREETING_SECONDS", 3.0)
    address, admitted = process_0
    with contextlib.ExitStack() as opened:
        for kind in (*strangers.KINDS, strangers.replay(SECRET)) * 20:
            opened.enter_context(strangers.call(address, kind))
        opened.callback(call_honestly(address).close)
        wait_for(lambda: admitted)
        wait_for(lambda: {DROPPED.fullmatch(line)[1] for line in logged} >= REASONS)
    assert len(set(logged)) == len(logged) < 10
    (caller,) = admitted
    assert (caller.process, caller.about) == (1, {"--seed": 1})
    assert caller.connection.peer == r"pid 1 on \x1b[2Jhost"


def test_silent_strangers_cannot_use_up_the_places(process_0, logged):
    """The oldest makes room, long before its time is over."""
    address, admitted = process_0
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_UNPROVEN + 10):
            opened.enter_context(strangers.call(address, strangers.silence))
        opened.callback(call_honestly(address).close)
        wait_for(lambda: admitted and logged)
        assert [DROPPED.fullmatch(line)[1] for line in logged] == ["its connection closed unexpectedly"]


def test_a_stranger_is_told_only_a_challenge(process_0, logged):
    address, _ = process_0
    with strangers.call(address, strangers.old_greeting) as sock:
        told = b"".join(iter(lambda: sock.recv(4096), b""))
    assert re.fullmatch(rb'\{"challenge": "[0-9a-f]{32}"\}\n', told)


def test_nothing_is_left_of_a_closed_listener(logged):
    before = threading.active_count()
    host, port = free_address().split(":")
    address = (host, int(port))
    with Listener(*address, SECRET) as listener:
        greeting = threading.Thread(target=lambda: list(listener.callers(time.monotonic() + 1)))
        greeting.start()
        stranger = strangers.call(address, strangers.silence)
        greeting.join()
    with stranger, pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=5)
    wait_for(lambda: threading.active_count() <= before)
    assert not logged


@pytest.mark.parametrize(("host", "listens_at"), [("127.0.0.2", "127.0.0.2"), ("localhost", "127.0.0.1")])
def test_it_listens_at_the_named_address_only(host, listens_at):
    with listen_at(host, 0) as server:
        assert server.getsockname()[0] == listens_at


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(
            (host, True)
            for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.1", "::1", "::ffff:127.0.0.1")
        ),
        *(
            (host, False)
            for host in ("127.example.org", "10.0.0.7", "::ffff:10.0.0.7", "fe80::1", "node7", "")
        ),
    ],
)
def test_loopback_is_known_however_it_is_written(host, expected):
    assert is_loopback(host) is expected


def test_a_name_that_is_loopback_only_here_is_open_to_other_hosts(monkeypatch):
    """As Debian's /etc/hosts has the machine's own name. Nothing is opened here: only what would be."""
    opened = []
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 61440))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_server", lambda address, **_: opened.append(address[0]))
    listen_at("node7", 61440)
    found[0] = (*found[0][:4], ("10.0.0.7", 61440))
    listen_at("node7", 61440)
    assert opened == ["", "10.0.0.7"]


# ------------------------------------------------------------------------------------------------ a job


def call_all(address, kinds, count):
    """Whether or not somebody listens there."""
    with contextlib.ExitStack() as opened:
        for index in range(count):
            if sock := strangers.call(address, kinds[index % len(kinds)], timeout=1):
                opened.enter_context(sock)


def listening_at(process):
    with contextlib.suppress(psutil.Error):  # it has ended
        connections = psutil.Process(process.popen.pid).net_connections("tcp")
        return [tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN]
    return []


@pytest.mark.slow
def test_a_thousand_strangers_before_and_during_a_job_of_two(start, tmp_path):
    """Before: where process 0 can be reached. During: at all ports that its processes have open."""
    secret = make_secret()
    known = (*strangers.KINDS, strangers.replay(JobSecret(secret.encode(), "-.-")))
    flags = [*SMALL, "--total-timesteps", 300 * 128]
    options = dict(JAX_COORDINATOR_ADDRESS=(address := free_address()), **{VARIABLE: secret})
    job = start(2, *flags, **options, ranks=[0])
    call_all(wait_for_listener(address), known, 1000)
    job += start(2, *flags, **options, ranks=[1])
    mute = [kind for kind in known if kind not in (strangers.wrong_secret, strangers.wrong_process)]
    calls, seen = 0, set()
    while any(process.poll() is None for process in job):
        ports = [port for process in job for port in listening_at(process)]
        seen.update(ports)
        for port in ports if calls < 1000 else ():
            call_all(port, mute, len(mute))
            calls += len(mute)
        time.sleep(0.05)
    assert exit_codes(job) == [0, 0], outputs(job)
    assert calls >= 100 and len(seen) == 3  # where they met, and each one's collectives
    assert {host.removeprefix("::ffff:") for host, _ in seen} == {"127.0.0.1"}
    assert "done: 38,400 steps" in job[0].output
    reasons = DROPPED.findall(job[0].output)
    assert set(reasons) >= {r for r in REASONS if "in time" not in r}  # the silent ones left before that
    assert len(set(reasons)) == len(reasons) < 10
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 3 and not [text for text in written if secret in text]
