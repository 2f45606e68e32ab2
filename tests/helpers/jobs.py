"""Training jobs of several processes."""

import os
import subprocess
import sys
import time

from helpers import runs
from helpers.ports import free_address
from helpers.runs import REPO

PPO = str(REPO / "cleanba/cleanba_ppo.py")
SMALL = [*runs.SMALL, "--hiddens", "16"]


class Process:
    """One process of a job. Its output goes to a file."""

    def __init__(self, folder, rank, argv, env):
        self._file = folder / f"process-{rank}"
        with self._file.open("w") as file:
            self.popen = subprocess.Popen(
                [sys.executable, *map(str, argv)], cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def output(self):
        return self._file.read_text()

    def poll(self):
        return self.popen.poll()

    def exit_code(self, timeout=250):
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.output}") from None


def start_processes(folder, count, *argv, script=None, devices=1, flags=(), ranks=None, **env):
    """Start a job in `folder`: PPO, or the code in `script`. `flags` has extra flags for single processes;
    `ranks` names the ones to start, by default all."""
    shared = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "JAX_PROCESS", "JAX_NUM"))}
    shared |= {
        "JAX_COORDINATOR_ADDRESS": free_address(),
        "JAX_NUM_PROCESSES": str(count),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": f"{REPO}:{REPO / 'tests'}",
    }
    shared |= env
    command = [*(["-c", script] if script else [PPO]), *argv, "--distributed"]
    return [
        Process(folder, rank, [*command, *extra], shared | {"JAX_PROCESS_ID": str(rank)})
        for rank, extra in enumerate([*flags, *[()] * (count - len(flags))])
        if ranks is None or rank in ranks
    ]


def exit_codes(job, timeout=250):
    return [process.exit_code(timeout) for process in job]


def outputs(job):
    return [process.output for process in job]


def wait_for_rows(folder, processes, rows=3):
    """Until a run in `folder` has logged this many updates. All of its processes must live that long."""
    deadline = time.monotonic() + 250
    while not any(path.read_text().count("\n") >= rows for path in folder.glob("runs/*/metrics.jsonl")):
        ended = [getattr(process, "output", process) for process in processes if process.poll() is not None]
        assert not ended, ended
        assert time.monotonic() < deadline, "too few rows"
        time.sleep(0.05)
