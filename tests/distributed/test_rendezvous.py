"""How the processes of a job connect, and what happens when they cannot."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.jobs import SMALL, exit_codes, outputs
from helpers.listening import listening
from helpers.ports import free_address

from cleanba.config.errors import UsageError
from cleanba.distributed import rendezvous as module
from cleanba.distributed.handshake import VARIABLE, JobSecret, make_secret
from cleanba.distributed.process_info import ProcessInfo
from cleanba.distributed.rendezvous import mismatch, rendezvous
from cleanba.runtime.command import CleanExit

ABOUT = {"--seed": 1, "code": "abc"}


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv(VARIABLE, make_secret())


def socket_folder(runtime):
    """Where processes on one machine find JAX's runtime."""
    return Path(runtime.removeprefix("unix:")).parent


@pytest.fixture
def meet():
    """Starts rendezvous of processes, each in a thread; returns a function that gives what each returned or
    raised."""
    connections, runtimes = [], set()

    def meet(*processes):
        results = [None] * len(processes)

        def join(index, inputs):
            try:
                results[index] = rendezvous(*inputs)
                connections.extend(results[index][0].values())
                runtimes.add(results[index][1])
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=join, args=item, daemon=True) for item in enumerate(processes)]
        for thread in threads:
            thread.start()

        def wait():
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            return results

        return wait

    yield meet
    for connection in connections:
        connection.close()
    for runtime in runtimes:
        if runtime.startswith("unix:"):
            socket_folder(runtime).rmdir()


def test_processes_meet_and_can_then_talk(meet):
    address = free_address()
    (zero, runtime), (one, runtime_1) = meet(
        (ProcessInfo(address, 2, 0), ABOUT, 20), (ProcessInfo(address, 2, 1), ABOUT, 20)
    )()
    assert runtime == runtime_1
    folder = socket_folder(runtime)
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    assert set(zero) == {1} and set(one) == {0} and re.match(r"pid \d+ on ", zero[1].peer)
    one[0].send(ping=3)
    zero[1].send(bye=True)
    assert (zero[1].read(), one[0].read()) == ({"ping": 3}, {"bye": True})


def test_a_process_waits_for_process_0_for_join_seconds(meet):
    (error,) = meet((ProcessInfo(address := free_address(), 2, 1), ABOUT, 0.5))()
    assert isinstance(error, CleanExit) and error.exit_code == 3
    assert str(error).startswith(f"process 0 did not answer at {address} within 0.5 s")


def test_process_0_waits_for_the_others_for_join_seconds(meet):
    """And tells those that did join."""
    address = free_address()
    zero, one = meet((ProcessInfo(address, 3, 0), ABOUT, 3), (ProcessInfo(address, 3, 1), ABOUT, 20))()
    for error in (zero, one):
        assert isinstance(error, CleanExit) and error.exit_code == 3
        assert str(error) == f"process 2 did not connect to {address} within 3 s"


@pytest.mark.parametrize(
    ("processes", "rank", "changed", "message"),
    [
        (2, 1, {"--seed": 2}, "--seed is 2 in process 1 and 1 in process 0"),
        (3, 2, {"JAX_NUM_PROCESSES": 3}, "JAX_NUM_PROCESSES is 3 in process 2 and 2 in process 0"),
    ],
)
def test_a_process_of_the_job_with_other_flags_is_refused_by_name(meet, processes, rank, changed, message):
    """All end: what was meant is known only to whoever started them. Also rank 2 of 3 in a job of two."""
    address, about = free_address(), ABOUT | {"JAX_NUM_PROCESSES": 2}
    results = meet(
        (ProcessInfo(address, 2, 0), about, 20), (ProcessInfo(address, processes, rank), about | changed, 20)
    )()
    for error in results:
        assert isinstance(error, UsageError) and message in str(error)


def test_a_second_process_with_the_same_number_is_refused_and_the_job_goes_on(meet, capfd):
    address = free_address()
    zero = meet((ProcessInfo(address, 3, 0), ABOUT, 20))
    twins = [meet((ProcessInfo(address, 3, 1), ABOUT, 20)) for _ in range(2)]
    while not (refused := capfd.readouterr().err):
        time.sleep(0.05)
    (two,) = meet((ProcessInfo(address, 3, 2), ABOUT, 20))()
    second, first = sorted((twin()[0] for twin in twins), key=lambda result: isinstance(result, tuple))
    assert isinstance(second, UsageError)
    assert str(second) == f"a second or unknown process 1 of 3 called {address}; do two jobs use it?"
    assert set(zero()[0][0]) == {1, 2} and set(first[0]) == set(two[0]) == {0}
    assert refused == f"warning: a second or unknown process 1 of 3 called {address}; it was refused\n"


def test_a_process_with_another_secret_gives_up_and_names_the_variable(meet, capfd):
    with listening(JobSecret(b"another secret", "-.-")) as ((host, port), admitted):
        (one,) = meet((ProcessInfo(f"{host}:{port}", 2, 1), ABOUT, 20))()
    assert isinstance(one, UsageError) and not admitted
    assert f"set {VARIABLE} to the same random text in all processes" in str(one)
    dropped = "warning: dropped a connection from 127.0.0.1: it could not prove that it belongs to this job"
    assert capfd.readouterr().err.count(dropped) == 1


def test_without_a_secret_the_network_is_trusted_only_with_a_warning(meet, monkeypatch, capfd):
    monkeypatch.delenv(VARIABLE)
    address = free_address()
    zero, one = meet((ProcessInfo(address, 2, 0), ABOUT, 20), (ProcessInfo(address, 2, 1), ABOUT, 20))()
    assert set(zero[0]) == {1} and set(one[0]) == {0} and not capfd.readouterr().err  # on loopback
    monkeypatch.setattr(module, "is_loopback", lambda host: False)
    meet((ProcessInfo(address, 2, 0), ABOUT, 0.2))()
    warning = f"warning: without {VARIABLE}, whoever can reach {address} can join or end this job; set "
    assert warning in capfd.readouterr().err


def test_process_0_must_be_on_the_named_host(meet):
    (error,) = meet((ProcessInfo("192.0.2.77:61440", 2, 0), ABOUT, 1))()
    assert isinstance(error, CleanExit)
    assert "JAX_COORDINATOR_ADDRESS must name the host of process 0 and a free port" in str(error)


def test_whatever_differs_is_named():
    about = {"code": "a", "layout": "a0-l0-d3"}
    assert mismatch(about, 1, about) == ""
    assert "code is 'b' in process 2 and 'a' in process 0" in mismatch(about, 2, about | {"code": "b"})
    assert "layout is 'a0-l1-d3' in process 1" in mismatch(about, 1, about | {"layout": "a0-l1-d3"})
    assert r"--new is '\x1b[2J' in process 1 and None" in mismatch(about, 1, about | {"--new": "\x1b[2J"})


# -------------------------------------------------------------------------------------- as whole processes


def test_other_hosts_get_a_port_where_they_reached_process_0(meet, monkeypatch):
    """Not on all interfaces. Here 127.0.0.2 stands for an address in the cluster's network."""
    monkeypatch.setattr(module, "is_loopback", lambda host: host == "127.0.0.1")
    address = free_address().replace("127.0.0.1", "127.0.0.2")
    zero, one = meet((ProcessInfo(address, 2, 0), ABOUT, 20), (ProcessInfo(address, 2, 1), ABOUT, 20))()
    assert zero[1] == one[1] and re.fullmatch(r"127\.0\.0\.2:\d+", zero[1]) and zero[1] != address


def test_processes_with_different_flags_are_refused(start, tmp_path):
    job = start(2, *SMALL, flags=[["--seed", "1"], ["--seed", "2"]])
    for process in job:
        assert process.exit_code() == 2
        assert "--seed is 2 in process 1 and 1 in process 0" in process.output
        assert "Traceback" not in process.output
    assert not (tmp_path / "runs").exists()


DYING = """
import os, sys
from cleanba import cleanba_ppo
from cleanba.distributed import rendezvous as module

rendezvous = module.rendezvous

def connect_and_die(*inputs):
    connected = rendezvous(*inputs)
    if os.environ["JAX_PROCESS_ID"] == "1":
        os.kill(os.getpid(), NUMBER)
    return connected

module.rendezvous = connect_and_die
cleanba_ppo.main(argv=sys.argv[1:])
"""


@pytest.mark.slow
def test_a_process_that_dies_right_after_connecting_is_named(start):
    """At once: long before --join-seconds are over."""
    job = start(3, *SMALL, "--join-seconds", 500, script=DYING.replace("NUMBER", "9"))
    assert exit_codes(job)[1:] == [-9, 3], outputs(job)
    assert re.search(r"error: process 1 \(pid \d+ on .*\) was lost", job[0].output)


@pytest.mark.slow
def test_a_process_that_falls_silent_right_after_connecting_is_named(start):
    """JAX's runtime, which waits for it, would abort with a stack of C++."""
    job = start(3, *SMALL, "--join-seconds", 8, script=DYING.replace("NUMBER", str(int(signal.SIGSTOP))))
    for process in (job[0], job[2]):
        assert process.exit_code(60) == 3
        assert re.search(r"error: JAX's runtime did not start within 8 s; process 1 has been", process.output)
        assert "0x" not in process.output
