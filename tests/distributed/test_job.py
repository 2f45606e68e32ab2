"""What one process of a job makes of the messages of another."""

import re
import socket
import threading
import time

import pytest
from helpers.leftovers import joined_threads

from cleanba.distributed import job as module
from cleanba.distributed.connection import Connection
from cleanba.distributed.job import Job
from cleanba.distributed.process_info import ProcessInfo


@pytest.fixture
def exit_codes(monkeypatch):
    """Of a process that would exit; it does so at once."""
    codes = []
    monkeypatch.setattr(module, "hard_exit", codes.append)
    monkeypatch.setattr(module, "EXIT_SECONDS", 0.0)
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    with joined_threads():  # one that exits after the test would end pytest
        yield codes


@pytest.fixture
def make_job(exit_codes):
    """A process, and the end of its connection that another process would have."""
    opened = []

    def make(process=0):
        ours, theirs = map(Connection, socket.socketpair())
        ours.peer = "pid 7 on there"
        opened.extend([ours, theirs])
        return Job(ProcessInfo("", 2, process), {1 - process: ours}), theirs

    yield make
    for connection in opened:
        connection.close()


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "message",
    [
        {"failed": "", "exit_code": 0},
        {"failed": "", "exit_code": "0"},
        {"failed": "", "exit_code": 256},
        {"failed": "", "exit_code": -9},
        {"failed": None, "exit_code": 1},
        {"lost": "", "stuck": "yes", "exit_code": 3},
        {"lost": "", "stuck": False, "exit_code": 0},
        {"report": [1]},
        {"ping": "fast"},
        {"bye": 0},
        {"unknown": 1},
        {},
    ],
)
def test_what_no_process_sends_is_never_obeyed(make_job, exit_codes, message):
    """Once `exit_code: 0` ended process 0 as a success, and text for a code aborted it."""
    job, other = make_job()
    other.send(**message)
    wait_for(lambda: exit_codes)
    assert exit_codes == [3]
    assert str(job.end_reason) == (
        "process 1 (pid 7 on there) was lost: it sent a message that no process of a job sends"
    )


def test_process_0_tells_the_others_which_process_was_lost(exit_codes):
    (first, of_first), (second, of_second) = (map(Connection, socket.socketpair()) for _ in range(2))
    first.peer = "pid 7 on there"
    job = Job(ProcessInfo("", 3, 0), {1: first, 2: second})
    of_first.close()
    why = "process 1 (pid 7 on there) was lost: its connection closed unexpectedly"
    assert of_second.read() == {"lost": why, "stuck": False, "exit_code": 3}
    wait_for(lambda: exit_codes)
    assert str(job.end_reason) == why
    for connection in (first, second, of_second):
        connection.close()


@pytest.mark.parametrize("code", [1, 75, 255])
def test_a_failure_passes_on_its_exit_code(make_job, exit_codes, code):
    job, other = make_job()
    other.send(failed="the emulator caught fire", exit_code=code)
    wait_for(lambda: exit_codes)
    assert exit_codes == [code]
    assert str(job.end_reason) == "process 1 (pid 7 on there) failed: the emulator caught fire"


def test_a_process_exits_as_soon_as_it_has_said_why_process_0_does(make_job, exit_codes, capfd):
    job, process_0 = make_job(process=1)
    process_0.send(failed="the emulator caught fire", exit_code=1)
    job._listeners[0].join(20)
    assert not job._listeners[0].is_alive() and exit_codes[0] == 1
    assert capfd.readouterr().err == "error: process 0 (pid 7 on there) failed: the emulator caught fire\n"


def test_process_0_exits_after_the_others(make_job, monkeypatch):
    """JAX's runtime aborts a process without process 0: once before it had read why."""
    monkeypatch.setattr(module, "EXIT_SECONDS", 60.0)
    job, other = make_job()
    failing = threading.Thread(target=job.fail, args=("the emulator caught fire", 1))
    failing.start()
    assert other.read() == {"failed": "the emulator caught fire", "exit_code": 1}
    failing.join(0.2)
    assert failing.is_alive()
    other.close()
    failing.join(20)
    assert not failing.is_alive() and job.end_reason is None


def test_process_0_does_not_wait_for_one_that_hangs(make_job):
    job, _ = make_job()
    job.fail("the emulator caught fire", 1)


def test_escape_codes_of_another_process_do_not_reach_the_terminal(make_job, exit_codes, capfd):
    _, other = make_job()
    other.send(failed="\x1b]0;owned\x07", exit_code=1)
    wait_for(lambda: exit_codes)
    errors = capfd.readouterr().err
    assert r"\x1b]0;owned\x07" in errors and "\x1b" not in errors


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"\xff\xfe\n", "it sent something that is not a message"),
        (b"[" * 10_000 + b"\n", "it sent something that is not a message"),
        (b"1" * 10_000 + b"\n", "it sent something that is not a message"),
        (b"[]\n", "it sent something that is not a message"),
        (b'{"ping"', "its connection closed within a message"),
        (b"", "its connection closed unexpectedly"),
    ],
)
def test_a_process_that_sends_garbage_or_dies_is_named(exit_codes, garbage, why):
    ours, theirs = socket.socketpair()
    job = Job(ProcessInfo("", 2, 0), {1: Connection(ours)})
    with theirs:
        theirs.sendall(garbage)
    wait_for(lambda: exit_codes)
    ours.close()
    assert str(job.end_reason) == f"process 1 () was lost: {why}"


def test_a_process_that_falls_silent_while_jax_starts_is_named(make_job, exit_codes):
    """JAX's runtime would wait for it, and then abort with a stack of C++."""
    job, other = make_job()
    with job.starting(seconds=3.2):
        assert other.read() == {"ping": 0}
        wait_for(lambda: exit_codes)
    assert exit_codes == [3]
    expected = r"JAX's runtime did not start within 3\.2 s; process 1 has been silent for \d+ s"
    assert re.fullmatch(expected, str(job.end_reason))


def test_a_start_that_succeeds_is_not_watched_any_longer(make_job, exit_codes):
    job, other = make_job()
    with job.starting(seconds=0.05):
        pass
    time.sleep(0.2)
    assert not exit_codes and job.end_reason is None


@pytest.mark.parametrize(("stuck", "codes"), [(True, [1]), (False, [])])
def test_what_is_stuck_after_all_have_finished_is_given_up_and_what_is_lost_then_is_not_missed(
    exit_codes, stuck, codes
):
    job = Job(ProcessInfo("", 1, 0), {})
    job.finish()
    job.lose("it has not ended", stuck=stuck)
    wait_for(lambda: len(exit_codes) == len(codes))
    assert exit_codes == codes and bool(job.end_reason) == stuck


def test_a_single_process_that_its_caller_goes_on_with_is_left_alone(exit_codes, monkeypatch):
    """As in a notebook, where `cleanba.train` has raised the reason."""
    monkeypatch.setattr(module, "SAVE_SECONDS", 60.0)
    job = Job(ProcessInfo("", 1, 0), {})
    job.when_stuck(exit_codes.append)
    job.lose("no progress", stuck=True)
    job.left.set()
    with joined_threads():
        pass
    assert not exit_codes
