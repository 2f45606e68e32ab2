"""Gymnasium environments, in worker processes of their own, that go wrong or whose run is stopped."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
from fault_round import PREEMPTED, STUCK, Result, Round

ENV = "helpers.fault_env:GoesWrong-v0"


def start(round: Round, *flags: str, **options: Any) -> Any:
    round.flags = ("--env-id", ENV, "--env-threads", "2")
    return round.start(*flags, **options)


def workers(round: Round) -> list[psutil.Process]:
    return [p for p in round.processes() if "cleanba.envs.worker" in p.cmdline()]


def going_wrong(
    how: str, *messages: str, flags: tuple[str, ...] = (), limit: float = 5
) -> Callable[[Round], Result]:
    """In the middle of a step; the run ends within `limit` seconds."""

    def fault(round: Round) -> Result:
        process = start(round, *flags)
        round.wait_for_random_moment(process, first=1)
        order = round.folder / "order"
        order.write_text(how)
        order.rename(round.folder / "env-fault")
        now = round.wait_for_fault(process)
        seconds = round.expect_exit(process, now, 1, "error: ", "lost:", *messages)
        assert seconds < limit, f"it took {seconds:.1f} s"
        return Result(seconds, round.resume("resumed after update"))

    return fault


def worker_killed(round: Round) -> Result:
    """By somebody else, at any moment."""
    process = start(round)
    round.wait_for_random_moment(process, first=1)
    now = time.monotonic()
    round.rng.choice(workers(round)).kill()
    seconds = round.expect_exit(process, now, 1, f"of {ENV} has ", "killed by SIGKILL", "lost:")
    assert seconds < 5, f"it took {seconds:.1f} s"
    return Result(seconds, round.resume("resumed after update"))


def run_killed(round: Round) -> Result:
    """Its workers end with it."""
    process = start(round)
    round.wait_for_checkpoint(process)
    round.wait_for_random_moment(process)
    assert len(workers(round)) == 2
    now = time.monotonic()
    process.kill()
    process.communicate()
    seconds = round.wait_for_the_end(now)
    return Result(seconds, round.resume("resumed after update"))


def ctrl_c(round: Round) -> Result:
    process = start(round, own_group=True)
    round.wait_for_random_moment(process, first=1)
    now = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    seconds = round.expect_exit(process, now, PREEMPTED, "stopped by SIGINT after update")
    assert seconds < 5, f"it took {seconds:.1f} s"
    lost = round.resume()
    assert lost == 0, f"{lost} steps were lost"
    return Result(seconds, lost)


ENV_FAULTS: dict[str, Callable[[Round], Result]] = {
    "Gymnasium environment that raises": going_wrong(
        "raises", f"of {ENV} failed while taking a step", "ValueError: a bad step"
    ),
    "Gymnasium environment that hangs": going_wrong(
        "hangs", f"of {ENV} is in the middle of a step", flags=tuple(STUCK), limit=60
    ),
    "Gymnasium environment whose process dies": going_wrong(
        "is killed", f"of {ENV} has ended its worker process, which was killed by SIGKILL"
    ),
    "SIGKILL to a Gymnasium worker": worker_killed,
    "SIGKILL to a run with Gymnasium workers": run_killed,
    "Ctrl-C with Gymnasium workers": ctrl_c,
}
