"""One round of the fault suite: a training process, or a job of two, in a folder of its own."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from cleanba.runtime.children import handles

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))  # for `helpers`
UPDATES, STEPS = 400, 64  # per run, and per update
RUN = (
    "--env-id CartPole-v1 --num-steps 16 --hiddens 16 --num-minibatches 1 --log-frequency 5 "
    f"--total-timesteps {UPDATES * STEPS} --checkpoint-minutes 0.01"
)
ONE_PROCESS = ["--local-num-envs", "4", "--num-actor-threads", "1"]
TWO_PROCESSES = ["--local-num-envs", "2", "--num-actor-threads", "1"]
AUTO = ["--resume", "auto"]
PREEMPTED = 75
PATIENCE = 600  # seconds to wait for anything: other work may keep the machine busy
STUCK = ["--stuck-seconds", "20"]  # where a run is to notice that; a busy machine compiles for seconds
MARK = "CLEANBA_FAULT_ROUND"  # in the environment of all processes of a round


class Result(NamedTuple):
    seconds: float | None  # from the fault to the end of the last process; None: the run did not stop
    lost: int  # steps


class Round:
    def __init__(self, folder: Path, rng: random.Random):
        self.folder, self.rng = folder, rng
        self.runs = folder / "runs"
        self.flags: tuple[str, ...] = ()  # of this run, also when it is resumed

    def start(
        self,
        *flags: str,
        fault: tuple[str, int] = ("none", 0),
        before: tuple[str, ...] = (),
        through_cli: bool = False,
        **options: Any,
    ) -> Any:
        """Start or resume the run; `fault` is the kind and moment of a fault inside the process."""
        kind, moment = fault
        program = [str(TESTS / "helpers/faulty_train.py"), kind, str(moment)]
        command = [*before, sys.executable, *(["-m", "cleanba", "ppo"] if through_cli else program)]
        return self._popen([*command, *RUN.split(), *ONE_PROCESS, *AUTO, *self.flags, *flags], **options)

    def launch(self, *flags: str, before: tuple[str, ...] = (), **options: Any) -> Any:
        """The same run in two processes."""
        command = [*before, sys.executable, "-m", "cleanba", "launch", "a0-l0-d2", "ppo"]
        return self._popen([*command, *RUN.split(), *TWO_PROCESSES, *AUTO, *flags], **options)

    def _popen(
        self, command: list[str], *, own_group: bool = False, output: int = subprocess.PIPE, **more: str
    ) -> "subprocess.Popen[str]":
        """`more` are environment variables."""
        unset = ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")
        env = {k: v for k, v in os.environ.items() if k not in unset}
        return subprocess.Popen(
            [*command, "--runs-dir", str(self.runs)],
            env=env | {"PYTHONPATH": f"{TESTS.parent}:{TESTS}", MARK: str(self.folder), **more},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=own_group,
        )

    # ----------------------------------------------------------------------------- the state of the round

    @property
    def run_dir(self) -> Path:
        (run_dir,) = self.runs.iterdir()
        return run_dir

    def updates(self) -> list[int]:
        """Those with a complete row on disk."""
        with suppress(FileNotFoundError, ValueError):
            lines = (self.run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
            rows = [json.loads(line) for line in lines if line.endswith("}\n")]
            return [row["update"] for row in rows if "update" in row]  # the evaluation's has none
        return []

    def checkpoints(self) -> list[Path]:
        found = self.run_dir.glob("checkpoints/*.safetensors")
        return sorted(found, key=lambda path: int(path.stem.removeprefix("update-")))

    def processes(self) -> list[psutil.Process]:
        """All processes of the round, in the order in which they were started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has ended, or belongs to another user
                if process.environ().get(MARK) == str(self.folder):
                    found.append(process)
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def check_complete(self) -> None:
        """What every run must have at its end."""
        assert self.updates() == list(range(1, UPDATES + 1)), "not every update has exactly one row"
        assert (self.run_dir / "finished.json").exists()
        assert not self.processes(), "a process is left"

    # ------------------------------------------------------------------------------------------- waiting

    def wait_for_update(self, process: Any, update: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.updates()) < update:
            assert process.poll() is None, f"it ended too early\n{process.communicate()[0]}"
            assert time.monotonic() < deadline, f"update {update} was not reached"
            time.sleep(0.01)

    def wait_for_random_moment(self, process: Any, *, first: int = 0) -> None:
        """In the first half of the run, not before update `first`."""
        self.wait_for_update(process, self.rng.randint(first, UPDATES // 2))
        time.sleep(self.rng.random() / 20)

    def wait_for_checkpoint(self, process: Any, count: int = 1) -> None:
        self.wait_for_update(process, 1)
        while len(self.checkpoints()) < count:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)

    def wait_for_handlers(self) -> None:
        """Until a process of the round handles SIGINT with a function: Python and its start come before."""
        deadline = time.monotonic() + PATIENCE
        while not any(handles(process.pid, signal.SIGUSR1) for process in self.processes()):
            assert time.monotonic() < deadline, "no process handles signals"
            time.sleep(0.01)

    def wait_for_run_dir(self, process: Any) -> None:
        """The threads start a moment later, and compile their programs."""
        deadline = time.monotonic() + PATIENCE
        while not list(self.runs.glob("*/events*")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "there is no run folder"
            time.sleep(0.01)

    def wait_for_fault(self, process: Any) -> float:
        """Until the fault inside the process has happened; returns the time."""
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / "fault").exists():
            assert process.poll() is None and time.monotonic() < deadline, "the fault did not happen"
            time.sleep(0.005)
        return time.monotonic()

    def wait_for_the_end(self, since: float) -> float:
        """Until no process is left; returns the seconds."""
        while left := self.processes():
            assert time.monotonic() < since + 30, f"processes are left: {left}"
            time.sleep(0.01)
        return time.monotonic() - since

    def expect_exit(self, process: Any, since: float, code: int, *messages: str) -> float:
        """The process ends with this exit code and these messages; returns the seconds it took."""
        output = process.communicate(timeout=PATIENCE)[0] or ""
        seconds = time.monotonic() - since
        assert process.returncode == code, f"exit code {process.returncode}\n{output}"
        for message in messages:
            assert message in output, f"{message!r} was not printed\n{output}"
        assert not self.processes(), "a process is left"
        return seconds

    def resume(self, *messages: str) -> int:
        """Resume the run to its end; returns the number of steps that were lost."""
        updates = self.updates()
        self.expect_exit(self.start(), time.monotonic(), 0, *messages)
        parts = json.loads((self.run_dir / "args.json").read_text())["parts"]
        return max(0, len(updates) - parts[-1]["from_update"]) * STEPS
