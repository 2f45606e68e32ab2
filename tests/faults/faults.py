"""The faults: each does something to a run, checks that it ends as promised, and resumes it if it stopped."""

import random
import signal
import time
from collections.abc import Callable

from env_faults import ENV_FAULTS
from fault_round import PREEMPTED, UPDATES, Result, Round
from folder_faults import FOLDER_FAULTS
from job_faults import JOB_FAULTS
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


def killed_while_writing(round: Round) -> Result:
    process = round.start("--checkpoint-minutes", "0.003", fault=("kill in a write", round.rng.randint(2, 6)))
    seconds = round.expect_exit(process, round.wait_for_fault(process), -signal.SIGKILL)
    assert list(round.run_dir.glob("checkpoints/*.unfinished"))
    lost = round.resume("resumed after update")
    assert not list(round.run_dir.glob("checkpoints/*.unfinished"))
    return Result(seconds, lost)


FAULTS: dict[str, Callable[[Round], Result]] = {
    "SIGTERM": stopped_by(signal.SIGTERM),
    "SIGINT": stopped_by(signal.SIGINT),
    "SIGKILL": killed,
    "SIGSTOP for a while": suspended,
    "exception in an actor": failing("actor", UPDATES * 16, "RuntimeError: boom"),
    "exception in an environment": failing("environment", UPDATES * 16, "RuntimeError: boom"),
    "exception in the learner": failing("learner", UPDATES, "RuntimeError: boom"),
    "exception in a writer": failing("writer", UPDATES, "RuntimeError: boom"),
    "truncated checkpoint": damaged(truncated),
    "bit-flipped checkpoint": damaged(bit_flipped),
    "NaN reward": failing("NaN reward", UPDATES * 16, "reward is not finite in update", "environment 3"),
    "NaN gradient": failing("NaN gradient", UPDATES * 4, "gradient/", "is not finite in update"),
    "kill in a checkpoint's write": killed_while_writing,
    **SIGNAL_FAULTS,
    **JOB_FAULTS,
    **FOLDER_FAULTS,
    **ENV_FAULTS,
}
