"""The faults: each does something to a run, checks that it ends as promised, and resumes it if it stopped."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from fault_round import PREEMPTED, UPDATES, Result, Round
from signal_faults import SIGNAL_FAULTS

# ------------------------------------------------------------------------------- signals to one process


def stopped_by(number: signal.Signals) -> Callable[[Round], Result]:
    def fault(round: Round) -> Result:
        process = round.start()
        round.wait_for_random_moment(process, first=1)
        now = time.monotonic()
        process.send_signal(number)
        seconds = round.expect_exit(process, now, PREEMPTED, f"stopped by {number.name} after update")
        assert seconds < 5, f"it took {seconds:.1f} s"
        lost = round.resume()
        assert lost == 0, f"{lost} steps were lost"
        return Result(seconds, lost)

    return fault


def killed(round: Round) -> Result:
    process = round.start()
    round.wait_for_checkpoint(process)
    round.wait_for_random_moment(process)
    now = time.monotonic()
    process.kill()
    seconds = round.expect_exit(process, now, -signal.SIGKILL)
    return Result(seconds, round.resume("resumed after update"))


def suspended(round: Round) -> Result:
    process = round.start()
    round.wait_for_random_moment(process, first=1)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1 + 2 * round.rng.random())
    process.send_signal(signal.SIGCONT)
    round.expect_exit(process, time.monotonic(), 0)
    return Result(None, 0)


# -------------------------------------------------------------------------------- jobs of two processes


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
    process = round.launch("--stuck-seconds", "10")  # a slow machine compiles for seconds
    round.wait_for_checkpoint(process)
    round.wait_for_random_moment(process)
    now = time.monotonic()
    job_member(round, process).suspend()
    seconds = round.expect_exit(process, now, 1, "has made no progress for 10 s")
    return Result(seconds, round.resume("resumed after update"))


# ------------------------------------------------------------------------- failures inside the process


def failing(kind: str, calls: int, *messages: str) -> Callable[[Round], Result]:
    """`calls` is how often a complete run calls the function that fails."""

    def fault(round: Round) -> Result:
        process = round.start(fault=(kind, round.rng.randint(calls // 8, calls * 3 // 4)))
        seconds = round.expect_exit(process, round.wait_for_fault(process), 1, "lost:", *messages)
        assert seconds < 10, f"it took {seconds:.1f} s"
        return Result(seconds, round.resume("resumed after update"))

    return fault


# ------------------------------------------------------------------------------------ files and folders


def damaged(change: Callable[[bytearray, random.Random], bytes]) -> Callable[[Round], Result]:
    def fault(round: Round) -> Result:
        process = round.start()
        round.wait_for_checkpoint(process, 2)
        process.kill()
        seconds = round.expect_exit(process, time.monotonic(), -signal.SIGKILL)
        newest = round.checkpoints()[-1]
        newest.write_bytes(change(bytearray(newest.read_bytes()), round.rng))
        return Result(seconds, round.resume("is damaged", "resumed after update"))

    return fault


def truncated(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data))])


def bit_flipped(data: bytearray, rng: random.Random) -> bytes:
    """In the tensors: in the header a flipped bit may be in mere white space."""
    start = 8 + int.from_bytes(data[:8], "little")
    data[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@contextmanager
def small_disk(folder: Path):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(round: Round) -> Result:
    """For a second. The run ends with nothing missing."""
    with small_disk(round.runs):
        process = round.start()
        round.wait_for_random_moment(process, first=1)
        filler = round.runs / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        time.sleep(0.5 + round.rng.random() / 2)
        filler.unlink()
        messages = (
            "metrics.jsonl cannot be written (No space left on device)",
            "can be written again; nothing is missing",
        )
        round.expect_exit(process, time.monotonic(), 0, *messages)
        round.check_complete()
        shutil.copytree(round.runs, round.folder / "copy")
    round.runs = round.folder / "copy"
    return Result(None, 0)


def read_only_folder(round: Round) -> Result:
    """Checkpoints can no longer be written. Rows can: their file is open."""
    as_a_user = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    process = round.start(before=as_a_user)
    round.wait_for_checkpoint(process)
    folders = [round.run_dir, round.run_dir / "checkpoints"]
    for folder in folders:
        folder.chmod(0o555)
    round.wait_for_update(process, min(UPDATES - 20, len(round.updates()) + 60))
    now = time.monotonic()
    process.terminate()
    seconds = round.expect_exit(
        process, now, PREEMPTED, "no checkpoint of update", "Permission denied", "lost:"
    )
    for folder in folders:
        folder.chmod(0o755)
    return Result(seconds, round.resume("resumed after update"))


def killed_while_writing(round: Round) -> Result:
    process = round.start("--checkpoint-minutes", "0.003", fault=("kill in a write", round.rng.randint(2, 6)))
    seconds = round.expect_exit(process, round.wait_for_fault(process), -signal.SIGKILL)
    assert list(round.run_dir.glob("checkpoints/*.unfinished"))
    lost = round.resume("resumed after update")
    assert not list(round.run_dir.glob("checkpoints/*.unfinished"))
    return Result(seconds, lost)


def two_resumes(round: Round) -> Result:
    process = round.start()
    round.wait_for_random_moment(process, first=1)
    now = time.monotonic()
    process.terminate()
    seconds = round.expect_exit(process, now, PREEMPTED)
    both = [round.start("--resume", str(round.run_dir)) for _ in range(2)]
    ends = sorted(((p.communicate(timeout=100)[0], p.returncode) for p in both), key=lambda end: end[1])
    assert [code for _, code in ends] == [0, 2], ends
    assert "is in use: another process is training there" in ends[1][0]
    return Result(seconds, 0)


FAULTS: dict[str, Callable[[Round], Result]] = {
    "SIGTERM": stopped_by(signal.SIGTERM),
    "SIGINT": stopped_by(signal.SIGINT),
    "SIGKILL": killed,
    "SIGSTOP for a while": suspended,
    "SIGTERM to a job of two": job_stopped,
    "SIGKILL to one of two": job_member_killed,
    "SIGSTOP to one of two": job_member_suspended,
    "exception in an actor": failing("actor", UPDATES * 16, "RuntimeError: boom"),
    "exception in an environment": failing("environment", UPDATES * 16, "RuntimeError: boom"),
    "exception in the learner": failing("learner", UPDATES, "RuntimeError: boom"),
    "exception in a writer": failing("writer", UPDATES, "RuntimeError: boom"),
    "truncated checkpoint": damaged(truncated),
    "bit-flipped checkpoint": damaged(bit_flipped),
    "full disk": full_disk,
    "read-only run folder": read_only_folder,
    "NaN reward": failing(
        "NaN reward", UPDATES * 16, "NotFinite: reward is not finite in update", "environment 3"
    ),
    "NaN gradient": failing("NaN gradient", UPDATES * 4, "NotFinite: gradient/", "is not finite in update"),
    "kill in a checkpoint's write": killed_while_writing,
    "two resumes at once": two_resumes,
    **SIGNAL_FAULTS,
}
