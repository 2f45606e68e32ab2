"""One Ctrl-C, at any moment and whoever passes it on: a checkpoint that resumes, and exit code 75. And output
that nobody reads, or that a full disk refuses."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from fault_round import PREEMPTED, TESTS, UPDATES, Result, Round

TIMEOUT = ("timeout", "1000")
FORWARD_TWICE = (sys.executable, str(TESTS / "helpers/forward_twice.py"))
WRAPPERS = (TIMEOUT, FORWARD_TWICE, ("timeout", "1000", *FORWARD_TWICE))


def press_ctrl_c(process: Any) -> float:
    """As the terminal does it, which signals the whole group; returns the time."""
    os.killpg(process.pid, signal.SIGINT)
    return time.monotonic()


def expect_saved(round: Round, process: Any, pressed: float, *messages: str) -> Result:
    """It ends with a checkpoint of its last update; or, before there was one, with nothing done."""
    seconds = round.expect_exit(process, pressed, PREEMPTED, "stopped by SIGINT", *messages)
    assert seconds < 10, f"it took {seconds:.1f} s"
    if not round.updates():  # the folder of a run without an update is not taken up again
        shutil.rmtree(round.runs, ignore_errors=True)
    lost = round.resume()
    assert lost == 0, f"{lost} steps were lost"
    return Result(seconds, lost)


def forwarded(round: Round) -> Result:
    process = round.start(before=round.rng.choice(WRAPPERS), own_group=True)
    round.wait_for_random_moment(process, first=1)
    return expect_saved(round, process, press_ctrl_c(process), "after update")


def followed_by_sigterm(round: Round) -> Result:
    """As from a launcher or a scheduler that is in a hurry."""
    process = round.start(own_group=True)
    round.wait_for_random_moment(process, first=1)
    pressed = press_ctrl_c(process)
    time.sleep(round.rng.random() / 20)
    process.terminate()
    return expect_saved(round, process, pressed, "after update")


def while_starting(round: Round) -> Result:
    """While Python imports, JAX compiles, or the first updates are made."""
    process = round.start(before=round.rng.choice(WRAPPERS), own_group=True, through_cli=True)
    round.wait_for_handlers()
    time.sleep(6 * round.rng.random())
    return expect_saved(round, process, press_ctrl_c(process))


def while_compiling(round: Round) -> Result:
    """Nothing is in the cache; a larger network takes seconds."""
    round.flags = ("--hiddens", "256", "256", "256", "--num-minibatches", "4")
    before, cache = round.rng.choice(WRAPPERS), str(round.folder / "cache")
    process = round.start(before=before, own_group=True, JAX_COMPILATION_CACHE_DIR=cache)
    round.wait_for_run_dir(process)
    time.sleep(2 * round.rng.random())
    return expect_saved(round, process, press_ctrl_c(process))


def after_training(kind: str) -> Callable[[Round], Result]:
    """In the evaluation or the upload, which would both take a minute."""

    def fault(round: Round) -> Result:
        before = round.rng.choice(WRAPPERS)
        process = round.start("--save-model", fault=(kind, 1), before=before, own_group=True)
        round.wait_for_fault(process)
        time.sleep(round.rng.random())
        return expect_saved(round, process, press_ctrl_c(process), f"after update {UPDATES} of {UPDATES}")

    return fault


def forwarded_to_job(round: Round) -> Result:
    process = round.launch(before=round.rng.choice(WRAPPERS), own_group=True)
    round.wait_for_random_moment(process, first=1)
    return expect_saved(round, process, press_ctrl_c(process), "waiting for all 2 processes")


def pressed_twice(round: Round) -> Result:
    """One second apart, while the second checkpoint is being written, which would take a minute."""
    process = round.start(fault=("slow checkpoint", 2), own_group=True)
    round.wait_for_fault(process)
    press_ctrl_c(process)
    time.sleep(1)
    seconds = round.expect_exit(process, press_ctrl_c(process), 130, "interrupted again: leaving at once")
    assert seconds < 2, f"it took {seconds:.1f} s"
    return Result(seconds, round.resume("resumed after update"))


def unread(round: Round) -> Result:
    """The reader of the output stops reading; the run goes on, and a signal still saves."""
    reading, writing = os.pipe()
    process = round.start("--log-frequency", "1", output=writing)
    os.close(writing)
    round.wait_for_random_moment(process, first=UPDATES // 4)
    now = time.monotonic()
    process.terminate()
    seconds = round.expect_exit(process, now, PREEMPTED)
    os.close(reading)
    lost = round.resume()
    assert lost == 0, f"{lost} steps were lost"
    return Result(seconds, lost)


def full_output(round: Round) -> Result:
    with open("/dev/full", "w") as full:
        process = round.start("--log-frequency", "1", output=full.fileno())
    round.expect_exit(process, time.monotonic(), 0)
    return Result(None, 0)


SIGNAL_FAULTS: dict[str, Callable[[Round], Result]] = {
    "Ctrl-C that is passed on": forwarded,
    "Ctrl-C followed by SIGTERM": followed_by_sigterm,
    "Ctrl-C while starting": while_starting,
    "Ctrl-C while compiling": while_compiling,
    "Ctrl-C in the evaluation": after_training("evaluation"),
    "Ctrl-C in the upload": after_training("upload"),
    "Ctrl-C to a job of two, passed on": forwarded_to_job,
    "Ctrl-C twice": pressed_twice,
    "output that nobody reads": unread,
    "output on a full disk": full_output,
}
