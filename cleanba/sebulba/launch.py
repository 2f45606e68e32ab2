"""`cleanba launch a0-l1,2,3-d2 ppo …`: all processes of a layout, on this machine."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.command import ANOTHER_PROCESS, command, say
from cleanba.sebulba.topology import Topology
from cleanrl_utils.gpus import visible_gpus

USAGE = """usage: cleanba launch LAYOUT COMMAND [flags]

  LAYOUT   such as a0-l1,2,3-d2: actor device 0 and learner devices 1, 2, 3 in each of two processes
  COMMAND  ppo, impala, or a script such as cleanba/cleanba_ppo_envpool_impala_atari_wrapper.py
  flags    those of the command; device ids and --distributed come from the layout

Each process gets GPUs of its own, or virtual CPU devices where there are none. Its lines begin with its
number. When one fails, all end; the exit code is that of the first that failed by itself. SIGINT, SIGTERM and
SIGUSR1 go to all of them, which save their state and leave with 75; a Ctrl-C after that kills them."""
BY_THE_LAYOUT = ("--actor-device-ids", "--learner-device-ids", "--distributed", "--no-distributed")
LEAVE_SECONDS = 10.0  # that the others have to end by themselves when one has failed
FEWEST_CORES = 4  # that a process can do with
KEPT_LINES = 200  # of each process's errors, to be repeated at the end


def main(argv: list[str]) -> None:
    with command():
        match argv:
            case [] | ["-h" | "--help", *_]:
                print(USAGE)
            case [layout, program, *flags]:
                sys.exit(launch(Topology.parse(layout), program, flags))
            case _:
                raise UsageError("cleanba launch needs a layout and a command: cleanba launch a0-l0-d2 ppo")


def launch(topology: Topology, program: str, flags: list[str]) -> int:
    commands = command_lines(topology, program, flags)
    processes: list[Process] = []
    with signals_to(processes) as signals:
        for rank, (argv, env) in enumerate(commands):
            processes.append(Process(rank, argv, env))
        share_cores(processes)
        failed = wait_for_all(processes, signals)
    if not failed:
        return 0
    first = next((p for p in failed if p.exit_code != ANOTHER_PROCESS), failed[0])
    if signals:  # it was asked to end
        return first.exit_code
    say(f"process {first.rank} failed first, with exit code {first.exit_code}:")
    say("".join(first.errors))
    return first.exit_code


def command_lines(
    topology: Topology, program: str, flags: list[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """Of each process, with what it has in its environment."""
    for flag in flags:
        if flag.split("=")[0].replace("_", "-") in BY_THE_LAYOUT:
            raise UsageError(f"{flag} is already said by the layout {topology}; leave it out")
    if program.endswith(".py"):
        start = [sys.executable, program]
    elif program in ("ppo", "impala"):
        start = [sys.executable, "-m", f"cleanba.cleanba_{program}"]
    else:
        raise UsageError(f"cleanba launch cannot start {program!r}; give ppo, impala or a .py file")
    ids = (topology.actor_ids, topology.learner_ids)
    for flag, values in zip(BY_THE_LAYOUT, ids, strict=False):
        start += [flag, *map(str, values)]
    shared = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": str(topology.processes),
        "PYTHONUNBUFFERED": "1",
    }
    devices = share_devices(topology)
    return [
        ([*start, "--distributed", *flags], shared | {"JAX_PROCESS_ID": str(rank)} | own)
        for rank, own in enumerate(devices)
    ]


def share_devices(topology: Topology) -> list[dict[str, str]]:
    each = max(*topology.actor_ids, *topology.learner_ids) + 1
    gpus = visible_gpus()
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(each)}] * topology.processes
    if len(gpus) < each * topology.processes:
        raise UsageError(
            f"{topology} needs {each} GPUs in each of {topology.processes} processes, there are {len(gpus)}; "
            "choose a smaller layout (CUDA_VISIBLE_DEVICES= in front of the command takes CPUs)"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * each : (rank + 1) * each])}
        for rank in range(topology.processes)
    ]


def share_cores(processes: list["Process"]) -> None:
    """Each would take all of them for its environments. Where they are few, collectives need them more."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // len(processes)
    for rank, process in enumerate(processes if each >= FEWEST_CORES else []):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, cores[rank * each : (rank + 1) * each])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# ---------------------------------------------------------------------------------------------- processes


class Process:
    def __init__(self, rank: int, argv: list[str], env: dict[str, str]):
        self.rank = rank
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)
        self._child = subprocess.Popen(
            argv,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # signals reach it through this process alone
        )
        pipes = ((self._child.stdout, sys.stdout, None), (self._child.stderr, sys.stderr, self.errors))
        self._readers = [threading.Thread(target=self._pass_on, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 and the signal for a process that was killed."""
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def wait(self) -> None:
        """Until it has ended and all that it said has been passed on."""
        self._child.wait()
        for reader in self._readers:
            reader.join(timeout=5)  # whoever it started may still hold its output

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def _pass_on(self, source: IO[str], target: IO[str], kept: "deque[str] | None") -> None:
        for line in source:
            with suppress(OSError):  # nobody reads any more
                target.write(f"[{self.rank}] {line}")
                target.flush()
            if kept is not None:
                kept.append(line)


def wait_for_all(processes: list[Process], signals: list[int]) -> list[Process]:
    """Those that fail, in order. After the first has left, the others have some time to end by themselves. A
    signal alone sets no limit; a Ctrl-C on top of it does."""
    ended: queue.Queue[Process] = queue.Queue()

    def wait(process: Process) -> None:
        process.wait()
        ended.put(process)

    for process in processes:
        threading.Thread(target=wait, args=(process,), daemon=True).start()
    failed, running, deadline = list[Process](), list(processes), float("inf")
    while running:
        if failed:
            deadline = min(deadline, time.monotonic() + LEAVE_SECONDS)
        if time.monotonic() > deadline or signal.SIGINT in signals[1:]:
            for process in running:
                process.signal(signal.SIGKILL)
        with suppress(queue.Empty):
            process = ended.get(timeout=0.1)
            running.remove(process)
            if process.exit_code:
                failed.append(process)
    return failed


@contextmanager
def signals_to(processes: list[Process]) -> Iterator[list[int]]:
    """Ctrl-C and the like go to all processes. In the end none is left. The list is of those that came."""
    came: list[int] = []

    def pass_on(number: int, _: object) -> None:
        came.append(number)
        for process in processes:
            process.signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, pass_on) for number in heard}
    try:
        yield came
    finally:
        for process in processes:
            process.signal(signal.SIGKILL)
        for number, handler in previous.items():
            signal.signal(number, handler)
