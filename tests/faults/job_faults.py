"""Jobs of two processes."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import psutil
from fault_round import PREEMPTED, STEPS, STUCK, UPDATES, Result, Round
from helpers import strangers


def job_stopped(round: Round) -> Result:
    process = round.launch()
    round.wait_for_random_moment(process, first=1)
    now = time.monotonic()
    process.send_signal(signal.SIGTERM)
    seconds = round.expect_exit(process, now, PREEMPTED, "SIGTERM: waiting for all 2 processes")
    lost = round.resume()
    assert lost == 0
    return Result(seconds, lost)


def job_member(round: Round, process: Any) -> psutil.Process:
    """One of the two training processes."""
    children = [p for p in round.processes() if p.pid != process.pid]
    assert len(children) == 2, children
    return round.rng.choice(children)


def job_member_killed(round: Round) -> Result:
    process = round.launch()
    round.wait_for_checkpoint(process)
    round.wait_for_random_moment(process)
    now = time.monotonic()
    job_member(round, process).kill()
    seconds = round.expect_exit(process, now, 128 + signal.SIGKILL, "was lost")
    assert seconds < 15, f"it took {seconds:.1f} s"
    return Result(seconds, round.resume("resumed after update"))


def job_member_suspended(round: Round) -> Result:
    process = round.launch(*STUCK)
    round.wait_for_checkpoint(process)
    round.wait_for_random_moment(process)
    now = time.monotonic()
    job_member(round, process).suspend()
    seconds = round.expect_exit(process, now, 1, "has made no progress for 20 s")
    return Result(seconds, round.resume("resumed after update"))


def launcher_killed(round: Round) -> Result:
    """Its processes save, and end."""
    process = round.launch()
    round.wait_for_random_moment(process, first=1)
    now = time.monotonic()
    process.kill()
    process.communicate()
    seconds = round.wait_for_the_end(now)
    lost = round.resume("resumed after update")
    assert lost == 0, f"{lost} steps were lost"
    return Result(seconds, lost)


def job_unread(round: Round) -> Result:
    """Nobody reads what the launcher prints, or its output is closed."""
    reading, writing = os.pipe()
    closed = ("sh", "-c", 'exec "$@" >&- 2>&-', "sh") if round.rng.random() < 0.5 else ()
    process = round.launch("--log-frequency", "1", output=writing, before=closed)
    os.close(writing)
    round.wait_for_random_moment(process, first=UPDATES // 4)
    now = time.monotonic()
    process.terminate()
    seconds = round.expect_exit(process, now, PREEMPTED)
    os.close(reading)
    lost = round.resume()
    assert lost == 0, f"{lost} steps were lost"
    return Result(seconds, lost)


def visited_by_strangers(round: Round) -> Result:
    """At all ports that its processes have open, from the first moment on. The one where they meet may be
    open for too short a time for a warning."""
    process = round.launch()
    mute = [kind for kind in strangers.KINDS if "wrong" not in kind.__name__]  # they say something first
    update = round.rng.randint(1, UPDATES // 2)
    with ExitStack() as opened:
        while len(round.updates()) < update:
            assert process.poll() is None, process.communicate()[0]
            for address in listening(round):
                if sock := strangers.call(address, round.rng.choice(mute), timeout=1):
                    opened.enter_context(sock)
            time.sleep(0.02)
    round.expect_exit(process, time.monotonic(), 0, f"done: {UPDATES * STEPS:,} steps")
    return Result(None, 0)


def listening(round: Round) -> list[tuple[str, int]]:
    found = []
    for process in round.processes():
        with suppress(psutil.Error):  # it has ended
            connections = process.net_connections("tcp")
            found += [tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN]
    return found


JOB_FAULTS: dict[str, Callable[[Round], Result]] = {
    "SIGTERM to a job of two": job_stopped,
    "SIGKILL to one of two": job_member_killed,
    "SIGSTOP to one of two": job_member_suspended,
    "SIGKILL to the launcher": launcher_killed,
    "a job's output that nobody reads": job_unread,
    "strangers at a job of two": visited_by_strangers,
}
