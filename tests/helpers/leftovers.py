"""Processes and threads that a test has started: none may outlive it, whether it passes or fails."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

GRACE_SECONDS = 10  # for helpers of libraries, which end by themselves
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def pytest_configure() -> None:
    adopt_orphans()
    give_children_default_signals()
    leave_nothing_when_terminated()


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    """Whatever a test starts is dead when the test is over, passed or failed."""
    before = children()
    yield
    left = still_running(before, GRACE_SECONDS)
    kill_new_children(before)
    assert not left, f"the test has left processes running: {left}"


def adopt_orphans() -> None:
    """Children of children whose parent ends become children of this process, wherever they have gone."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def give_children_default_signals() -> None:
    """A script's background jobs ignore SIGINT, those of nohup SIGHUP, and children inherit that. They do not
    inherit a handler; this one ignores the signal here as before."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def leave_nothing_when_terminated() -> None:
    """A worker whose parent has been killed is terminated, too."""

    def leave(*_: object) -> None:
        kill_new_children(set())
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)
    if "PYTEST_XDIST_WORKER" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def children() -> set[int]:
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.update(map(int, path.read_text().split()))
    return found


@contextmanager
def joined_threads() -> Iterator[None]:
    """All threads that are started in the body end. One may start another."""
    before = set(threading.enumerate())
    yield
    while running := set(threading.enumerate()) - before:
        for thread in running:
            with suppress(RuntimeError):  # it is about to start
                thread.join(20)
            assert not thread.is_alive()


def describe(pid: int) -> str:
    """Its command line; empty for a process that has ended, whether or not somebody has waited for it."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return "" if state in "ZX" else command.strip() or "(about to start)"
    return ""


def still_running(before: set[int], seconds: float) -> dict[int, str]:
    """The children that `before` lacks, and that have not ended within these seconds."""
    deadline = time.monotonic() + seconds
    while left := {pid: text for pid in children() - before if (text := describe(pid))}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return left


def kill_new_children(before: set[int]) -> None:
    """With their children, which this process adopts."""
    while left := still_running(before, 0):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
