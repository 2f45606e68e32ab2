"""Real training processes, and what can happen to them: `python tests/fault_suite.py --rounds 60`.

Each round starts a run, does one of the FAULTS to it at a random moment, sees that it ends as promised,
resumes it, and sees that it comes to its end with every update in metrics.jsonl exactly once and no process
left behind.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).parent
UPDATES, STEPS = 400, 64  # of a run, and of each update
RUN = (
    "--env-id CartPole-v1 --num-steps 16 --hiddens 16 --num-minibatches 1 --log-frequency 5 "
    f"--total-timesteps {UPDATES * STEPS} --checkpoint-minutes 0.01"
)
ONE = ["--local-num-envs", "4", "--num-actor-threads", "1"]
TWO = ["--local-num-envs", "2", "--num-actor-threads", "1"]
PREEMPTED = 75
MARK = "CLEANBA_FAULT_ROUND"  # in the environment of all processes of a round


class Result(NamedTuple):
    seconds: float | None  # from the fault to the end of the last process; None: the run went on
    lost: int  # steps


class Round:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, chance: random.Random):
        self.folder, self.chance = folder, chance
        self.runs = folder / "runs"

    def start(self, *flags: str, fault: tuple[str, int] = ("none", 0), before: tuple[str, ...] = ()) -> Any:
        """A run, or its resumption."""
        kind, moment = fault
        command = [*before, sys.executable, str(TESTS / "faulty_train.py"), kind, str(moment)]
        return self._popen([*command, *RUN.split(), *ONE, "--resume", "auto", *flags])

    def launch(self, *flags: str) -> Any:
        """The same run in two processes."""
        command = [sys.executable, "-c", "from cleanba.cli import main; main()", "launch", "a0-l0-d2", "ppo"]
        return self._popen([*command, *RUN.split(), *TWO, "--resume", "auto", *flags])

    def _popen(self, command: list[str]) -> Any:
        unwanted = ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")
        env = {k: v for k, v in os.environ.items() if k not in unwanted}
        process = subprocess.Popen(
            [*command, "--runs-dir", str(self.runs)],
            env=env | {"PYTHONPATH": str(TESTS.parent), MARK: str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return process

    # ----------------------------------------------------------------------------------------- what is there

    @property
    def run_dir(self) -> Path:
        (run_dir,) = self.runs.iterdir()
        return run_dir

    def updates(self) -> list[int]:
        """Of the whole rows on disk."""
        with suppress(FileNotFoundError, ValueError):
            lines = (self.run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
            return [json.loads(line)["update"] for line in lines if line.endswith("}\n")]
        return []

    def checkpoints(self) -> list[Path]:
        found = self.run_dir.glob("checkpoints/*.safetensors")
        return sorted(found, key=lambda path: int(path.stem.removeprefix("update-")))

    def processes(self) -> list[psutil.Process]:
        """All that belong to the round, in the order in which they were started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has ended meanwhile, or is none of ours
                if process.environ().get(MARK) == str(self.folder):
                    found.append(process)
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    # ---------------------------------------------------------------------------------------------- waiting

    def wait_for_update(self, process: Any, update: int) -> None:
        deadline = time.monotonic() + 100
        while len(self.updates()) < update:
            assert process.poll() is None, f"it ended too early\n{process.communicate()[0]}"
            assert time.monotonic() < deadline, "it does not come to its moment"
            time.sleep(0.01)

    def random_moment(self, process: Any, *, first: int = 0) -> None:
        """In the middle of the run; with `first` not before that update."""
        self.wait_for_update(process, self.chance.randint(first, UPDATES // 2))
        time.sleep(self.chance.random() / 20)

    def wait_for_checkpoint(self, process: Any, count: int = 1) -> None:
        self.wait_for_update(process, 1)
        while len(self.checkpoints()) < count:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)

    def wait_for_fault(self, process: Any) -> float:
        """Inside the process; when it was."""
        deadline = time.monotonic() + 100
        while not (self.folder / "fault").exists():
            assert process.poll() is None and time.monotonic() < deadline, "nothing happened"
            time.sleep(0.005)
        return time.monotonic()

    def end(self, process: Any, since: float, code: int | tuple[int, ...], *said: str) -> float:
        """The process ends as promised; the seconds that it took."""
        output = process.communicate(timeout=60)[0]
        seconds = time.monotonic() - since
        codes = code if isinstance(code, tuple) else (code,)
        assert process.returncode in codes, f"exit code {process.returncode}\n{output}"
        for text in said:
            assert text in output, f"{text!r} is not said\n{output}"
        assert not self.processes(), "a process is left"
        return seconds

    def resume(self, *said: str) -> int:
        """Go on to the end; the steps that were lost."""
        rows = self.updates()
        self.end(self.start(), time.monotonic(), 0, *said)
        parts = json.loads((self.run_dir / "args.json").read_text())["parts"]
        return max(0, len(rows) - parts[-1]["from_update"]) * STEPS


# ------------------------------------------------------------------------------------------------- signals


def stopped_by(number: signal.Signals) -> Callable[[Round], Result]:
    def fault(round: Round) -> Result:
        process = round.start()
        round.random_moment(process, first=1)
        now = time.monotonic()
        process.send_signal(number)
        seconds = round.end(process, now, PREEMPTED, f"stopped by {number.name} after update")
        assert seconds < 5, f"it took {seconds:.1f} s"
        lost = round.resume()
        assert lost == 0, f"{lost} steps are lost"
        return Result(seconds, lost)

    return fault


def killed(round: Round) -> Result:
    process = round.start()
    round.wait_for_checkpoint(process)
    round.random_moment(process)
    now = time.monotonic()
    process.kill()
    seconds = round.end(process, now, -signal.SIGKILL)
    return Result(seconds, round.resume("resumed after update"))


def suspended(round: Round) -> Result:
    process = round.start()
    round.random_moment(process, first=1)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1 + 2 * round.chance.random())
    process.send_signal(signal.SIGCONT)
    round.end(process, time.monotonic(), 0)
    return Result(None, 0)


# ---------------------------------------------------------------------------------------- jobs of processes


def job_stopped(round: Round) -> Result:
    process = round.launch()
    round.random_moment(process, first=1)
    now = time.monotonic()
    process.send_signal(signal.SIGTERM)
    seconds = round.end(process, now, PREEMPTED, "SIGTERM: waiting for all 2 processes")
    lost = round.resume()
    assert lost == 0
    return Result(seconds, lost)


def job_member(round: Round, process: Any) -> psutil.Process:
    """One of the two training processes."""
    children = [p for p in round.processes() if p.pid != process.pid]
    assert len(children) == 2, children
    return round.chance.choice(children)


def job_member_killed(round: Round) -> Result:
    process = round.launch()
    round.wait_for_checkpoint(process)
    round.random_moment(process)
    now = time.monotonic()
    job_member(round, process).kill()
    seconds = round.end(process, now, 128 + signal.SIGKILL, "was lost")
    assert seconds < 15, f"it took {seconds:.1f} s"
    return Result(seconds, round.resume("resumed after update"))


def job_member_suspended(round: Round) -> Result:
    process = round.launch("--stuck-seconds", "10")  # a slow machine compiles for seconds
    round.wait_for_checkpoint(process)
    round.random_moment(process)
    now = time.monotonic()
    job_member(round, process).suspend()
    seconds = round.end(process, now, 1, "has made no progress for 10 s")
    return Result(seconds, round.resume("resumed after update"))


# ----------------------------------------------------------------------------------------------- exceptions


def failing(kind: str, most: int, *said: str) -> Callable[[Round], Result]:
    """`most` is the number of calls that a run makes of what fails."""

    def fault(round: Round) -> Result:
        process = round.start(fault=(kind, round.chance.randint(most // 8, most * 3 // 4)))
        seconds = round.end(process, round.wait_for_fault(process), 1, "lost:", *said)
        assert seconds < 10, f"it took {seconds:.1f} s"
        return Result(seconds, round.resume("resumed after update"))

    return fault


# --------------------------------------------------------------------------------------- files and folders


def damaged(change: Callable[[bytearray, random.Random], bytes]) -> Callable[[Round], Result]:
    def fault(round: Round) -> Result:
        process = round.start()
        round.wait_for_checkpoint(process, 2)
        process.kill()
        seconds = round.end(process, time.monotonic(), -signal.SIGKILL)
        newest = round.checkpoints()[-1]
        newest.write_bytes(change(bytearray(newest.read_bytes()), round.chance))
        return Result(seconds, round.resume("is damaged", "resumed after update"))

    return fault


def truncated(data: bytearray, chance: random.Random) -> bytes:
    return bytes(data[: chance.randrange(len(data))])


def bit_flipped(data: bytearray, chance: random.Random) -> bytes:
    """Among the tensors: in the header some bits are spaces between words."""
    start = 8 + int.from_bytes(data[:8], "little")
    data[chance.randrange(start, len(data))] ^= 1 << chance.randrange(8)
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
    """For some seconds. Then the run has all it had to write."""
    with small_disk(round.runs):
        process = round.start()
        round.random_moment(process, first=1)
        filler = round.runs.parent / "runs/filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        time.sleep(0.5 + round.chance.random() / 2)
        filler.unlink()
        said = ("metrics.jsonl cannot be written (No space left on device)", "with nothing missing")
        round.end(process, time.monotonic(), 0, *said)
        check(round)
        shutil.copytree(round.runs, round.folder / "copy")
    round.runs = round.folder / "copy"
    return Result(None, 0)


def read_only_folder(round: Round) -> Result:
    """No checkpoint can be written any more. The rows go on: their file is open."""
    mortal = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    process = round.start(before=mortal)
    round.wait_for_checkpoint(process)
    folders = [round.run_dir, round.run_dir / "checkpoints"]
    for folder in folders:
        folder.chmod(0o555)
    round.wait_for_update(process, min(UPDATES - 20, len(round.updates()) + 60))
    now = time.monotonic()
    process.terminate()
    seconds = round.end(process, now, PREEMPTED, "no checkpoint of update", "Permission denied", "lost:")
    for folder in folders:
        folder.chmod(0o755)
    return Result(seconds, round.resume("resumed after update"))


def killed_in_a_write(round: Round) -> Result:
    process = round.start(
        "--checkpoint-minutes", "0.003", fault=("kill in a write", round.chance.randint(2, 6))
    )
    seconds = round.end(process, round.wait_for_fault(process), -signal.SIGKILL)
    assert list(round.run_dir.glob("checkpoints/*.unfinished"))
    lost = round.resume("resumed after update")
    assert not list(round.run_dir.glob("checkpoints/*.unfinished"))
    return Result(seconds, lost)


def two_resumes(round: Round) -> Result:
    process = round.start()
    round.random_moment(process, first=1)
    now = time.monotonic()
    process.terminate()
    seconds = round.end(process, now, PREEMPTED)
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
    "kill in a checkpoint's write": killed_in_a_write,
    "two resumes at once": two_resumes,
}


# --------------------------------------------------------------------------------------------------- rounds


def check(round: Round) -> None:
    """What every run must leave."""
    assert round.updates() == list(range(1, UPDATES + 1)), "not every update has exactly one row"
    assert (round.run_dir / "finished.json").exists()
    assert not round.processes(), "a process is left"


def play(name: str, folder: Path, chance: random.Random) -> Result:
    round = Round(folder, chance)
    folder.mkdir()
    try:
        result = FAULTS[name](round)
        check(round)
        return result
    finally:
        for process in round.processes():
            process.kill()


def impossible_here(name: str) -> str:
    if name == "full disk" and os.geteuid() != 0:
        return "needs root, to mount a small disk"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", nargs="*", default=list(FAULTS), choices=list(FAULTS), metavar="FAULT")
    args = parser.parse_args()
    console = Console(soft_wrap=True, width=max(100, Console().width))
    console.print(f"{args.rounds} rounds, --seed {args.seed}")
    possible = [name for name in args.only if not impossible_here(name)]
    for name in set(args.only) - set(possible):
        console.print(f"left out: {name} {impossible_here(name)}")
    chance = random.Random(args.seed)
    names = [name for _ in range(args.rounds) for name in chance.sample(possible, len(possible))][
        : args.rounds
    ]
    results: dict[str, list[Result | None]] = {name: [] for name in possible}
    with tempfile.TemporaryDirectory(prefix="cleanba-faults-") as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/cache")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        for number, name in enumerate(names):
            began = time.monotonic()
            try:
                result = play(name, Path(folder) / str(number), random.Random(chance.random()))
            except (AssertionError, subprocess.SubprocessError) as error:
                console.print(f"round {number + 1}: {name} FAILED: {error}", markup=False, highlight=False)
                result = None
            results[name].append(result)
            shutil.rmtree(Path(folder) / str(number), ignore_errors=True)
            console.print(f"round {number + 1} of {args.rounds}: {name}, {time.monotonic() - began:.0f} s")
    console.print(report(results))
    sys.exit(any(result is None for found in results.values() for result in found))


def report(results: dict[str, list[Result | None]]) -> Table:
    table = Table("fault", "tried", "survived", "seconds to stop", "steps lost")
    for name, found in results.items():
        survived = [result for result in found if result]
        seconds = [result.seconds for result in survived if result.seconds is not None]
        stop = f"{statistics.median(seconds):.2f}, at most {max(seconds):.2f}" if seconds else "goes on"
        lost = [result.lost for result in survived]
        steps = f"{statistics.median(lost):.0f}, at most {max(lost)}" if any(lost) else "0"
        table.add_row(name, str(len(found)), str(len(survived)), stop if survived else "", steps)
    return table


if __name__ == "__main__":
    main()
