"""`cleanba launch a0-l1,2,3-d2 ppo …`: run all processes of a layout on this machine."""

import ast
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
from pathlib import Path
from typing import IO

from cleanba.algorithms import ALGORITHMS, PRESETS
from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology
from cleanba.distributed import handshake
from cleanba.records.run_folder import ARGS
from cleanba.records.run_status import RunStatus, resume_command, run_status
from cleanba.runtime.children import handles, tied_to_parent
from cleanba.runtime.command import ANOTHER_PROCESS, command
from cleanba.runtime.machine import visible_gpus
from cleanba.runtime.messages import say
from cleanba.runtime.signals import PREEMPTED, leave_at_once, on_stop

USAGE = """usage: {prog} LAYOUT COMMAND [flags]

  LAYOUT   e.g. a0-l1,2,3-d2: actor device 0 and learner devices 1, 2, 3 in each
           of two processes
  COMMAND  {algorithms}, a preset such as ppo-continuous, or a .py file
  flags    those of the command; device ids and --distributed come from the
           layout

Each process gets its own GPUs, or virtual CPU devices if there are none. Its
rank is put in front of its output lines. If one process fails, all end; the
exit code is that of the first one that failed on its own. SIGINT, SIGTERM and
SIGUSR1 go to all processes, which save a checkpoint and exit with code 75; a
Ctrl-C after that kills them."""
LAYOUT_FLAGS = ("--actor-device-ids", "--learner-device-ids", "--distributed", "--no-distributed")
EXIT_SECONDS = 10.0  # for the others to exit by themselves after one has failed
MIN_CORES = 4  # per process, for cores to be pinned at all
STARTING = ("main", "run_command", "train")  # functions that a script calls
MAX_ERROR_LINES = 200  # kept per process, to be repeated at the end
KILLED_AT_START = 128 + signal.SIGTERM


def main(argv: list[str], prog: str = "cleanba launch") -> None:
    with command(resumable=True):
        match argv:
            case [] | ["-h" | "--help", *_]:
                print(USAGE.format(prog=prog, algorithms=", ".join(ALGORITHMS)))
            case [layout, program, *flags]:
                sys.exit(launch(Topology.parse(layout), program, flags))
            case _:
                raise UsageError(f"{prog} needs a layout and a command: {prog} a0-l0-d2 ppo")


def launch(topology: Topology, program: str, flags: list[str]) -> int:
    commands = command_lines(topology, program, flags)
    processes: list[Process] = []
    started = time.time()
    with forward_signals(processes) as signals:
        for rank, (argv, env) in enumerate(commands):
            processes.append(Process(rank, argv, env))
        assign_cores(processes)
        for process in processes if signals else []:  # it may have come before the last one was started
            process.ask_to_stop(signal.Signals[signals[0]])
        failed = wait_for_all(processes, signals)
    if not failed:
        return 0
    codes = {process.exit_code for process in failed}
    if signals and codes == {KILLED_AT_START}:
        say(f"stopped by {signals[0]} before anything was done")
    if signals and codes <= {PREEMPTED, KILLED_AT_START, ANOTHER_PROCESS}:
        return PREEMPTED
    first = next((p for p in failed if p.exit_code != ANOTHER_PROCESS), failed[0])
    if not signals and first.exit_code != PREEMPTED:  # nobody has asked it to stop
        say("\n".join([first.ending, *(line.rstrip("\n") for line in first.errors)]))
        said = [line.rstrip("\n") for p in processes for line in p.errors if line.startswith("lost: ")]
        if said and said[-1] + "\n" not in first.errors:
            say(said[-1])
        elif not said and (run := run_since(started, topology, flags)):
            say(what_is_lost(run))
    return first.exit_code


def command_lines(
    topology: Topology, program: str, flags: list[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """The argv of each process, and its own environment variables."""
    for flag in flags:
        if flag.split("=")[0].replace("_", "-") in LAYOUT_FLAGS:
            raise UsageError(f"{flag} is set by the layout {topology}; leave it out")
    if program.endswith(".py"):
        start = [sys.executable, *_start_of_file(Path(program))]
    elif program in ALGORITHMS or program in PRESETS:
        start = [sys.executable, "-m", "cleanba", program]
    else:
        names = ", ".join(ALGORITHMS)
        raise UsageError(f"cleanba launch cannot start {program!r}; give {names}, a preset or a .py file")
    ids = (topology.actor_ids, topology.learner_ids)
    for flag, values in zip(LAYOUT_FLAGS, ids, strict=False):
        start += [flag, *map(str, values)]
    shared = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": str(topology.processes),
        handshake.VARIABLE: handshake.make_secret(),
        "PYTHONUNBUFFERED": "1",
    }
    devices = assign_devices(topology)
    return [
        ([*start, "--distributed", *flags], shared | {"JAX_PROCESS_ID": str(rank)} | own)
        for rank, own in enumerate(devices)
    ]


def _start_of_file(path: Path) -> list[str]:
    """A script, or an algorithm that leaves starting it to `cleanba train`."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    is_algorithm = "make_algorithm" in text and not starts_itself(text)
    return ["-m", "cleanba", "train", str(path)] if is_algorithm else [str(path)]


def starts_itself(text: str) -> bool:
    """Whether a file, when it is run, calls what trains: outside of its functions and classes."""
    try:
        statements = ast.parse(text).body
    except SyntaxError:  # Python will say so
        return True
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    run = [x for x in statements if not isinstance(x, definitions)]
    called = [x.func for statement in run for x in ast.walk(statement) if isinstance(x, ast.Call)]
    return any(getattr(f, "id", getattr(f, "attr", "")) in STARTING for f in called)


def assign_devices(topology: Topology) -> list[dict[str, str]]:
    each = max(*topology.actor_ids, *topology.learner_ids) + 1
    gpus = visible_gpus()
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(each)}] * topology.processes
    if len(gpus) < each * topology.processes:
        raise UsageError(
            f"{topology} needs {each} GPUs in each of {topology.processes} processes, but there are "
            f"{len(gpus)}; choose a smaller layout (CUDA_VISIBLE_DEVICES= in front of the command uses CPUs)"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * each : (rank + 1) * each])}
        for rank in range(topology.processes)
    ]


def assign_cores(processes: list["Process"]) -> None:
    """Each would use all cores for its environments. Where there are few, collectives need all of them."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // len(processes)
    for rank, process in enumerate(processes if each >= MIN_CORES else []):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, cores[rank * each : (rank + 1) * each])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# ---------------------------------------------------------------------------------- the run of a dead process


def run_since(started: float, topology: Topology, flags: list[str]) -> RunStatus | None:
    """The run that this job has begun or continued, if it came so far: process 0 may be past telling."""
    resumed = _value("--resume", flags)
    all_folders = Path(_value("--runs-dir", flags) or "runs").glob("*/")
    folders = all_folders if resumed in (None, "auto") else [Path(resumed)]
    found: list[tuple[float, Path]] = []
    for folder in folders:
        with suppress(OSError):
            found.append(((folder / ARGS).stat().st_mtime, folder))  # written at each start
    recent = (run_status(folder) for time, folder in sorted(found, reverse=True) if time >= started - 1)
    ended = (run for run in recent if run.state in ("stopped", "empty"))
    return next((run for run in ended if run.record.get("layout") == str(topology)), None)


def _value(name: str, flags: list[str]) -> str | None:
    """Of this flag, the last time that it is given."""
    value = None
    for flag, following in zip(flags, [*flags[1:], None], strict=False):
        given, equals, attached = flag.partition("=")
        if given.replace("_", "-") == name:
            value = attached if equals else following
    return value


def what_is_lost(run: RunStatus) -> str:
    done = run.last.get("global_step", 0)
    if run.checkpoint is None:
        return f"lost: all {done:,} steps; there was no checkpoint yet in {run.folder}"
    since = f"{max(0, done - (run.resumes_at or done)):,} steps since the checkpoint of update"
    resume = resume_command(run.folder, run.record)
    return f"lost: {since} {run.checkpoint}; `{resume}` continues from it"


# ---------------------------------------------------------------------------------------------- processes


class Process:
    def __init__(self, rank: int, argv: list[str], env: dict[str, str]):
        self.rank = rank
        self.errors: deque[str] = deque(maxlen=MAX_ERROR_LINES)
        self._child = subprocess.Popen(
            tied_to_parent(argv),  # it saves a checkpoint
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # it gets signals from this process only
        )
        pipes = ((self._child.stdout, sys.stdout, None), (self._child.stderr, sys.stderr, self.errors))
        self._readers = [threading.Thread(target=self._forward, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int:
        """As in a shell: 128 plus the signal if a signal killed it."""
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    @property
    def ending(self) -> str:
        """The line before what it wrote to stderr, which may be nothing."""
        colon = ":" if self.errors else ""
        if (code := self._child.returncode) >= 0:
            return f"process {self.rank} failed first, with exit code {code}{colon}"
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal
            name = f"signal {-code}"
        perhaps = " (out of memory?)" if name == "SIGKILL" else ""
        return f"process {self.rank} was killed by {name}{perhaps}{colon}"

    def wait(self) -> None:
        """Until it has ended and all of its output has been forwarded."""
        self._child.wait()
        for reader in self._readers:
            reader.join(timeout=5)  # its own children may still hold its output

    def ask_to_stop(self, number: int) -> None:
        """One that is still starting and does not handle signals would be lost in a traceback, or with a code
        of its own: it has done nothing yet."""
        self.signal(number if handles(self.pid, signal.SIGUSR1) else signal.SIGTERM)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def _forward(self, source: IO[str], target: IO[str], kept: "deque[str] | None") -> None:
        for line in source:
            with suppress(OSError):  # the reader has gone
                target.write(f"[{self.rank}] {line}")
                target.flush()
            if kept is not None:
                kept.append(line)


def wait_for_all(processes: list[Process], signals: list[str]) -> list[Process]:
    """The processes that fail, in order. After the first failure the others have EXIT_SECONDS to exit by
    themselves. After a signal they have all the time they need to save."""
    ended: queue.Queue[Process] = queue.Queue()

    def wait(process: Process) -> None:
        process.wait()
        ended.put(process)

    for process in processes:
        threading.Thread(target=wait, args=(process,), daemon=True).start()
    failed, running, deadline = list[Process](), list(processes), float("inf")
    while running:
        if failed and not signals:
            deadline = min(deadline, time.monotonic() + EXIT_SECONDS)
        if time.monotonic() > deadline:
            kill_all(running)
        with suppress(queue.Empty):
            process = ended.get(timeout=0.1)
            running.remove(process)
            if process.exit_code:
                failed.append(process)
    return failed


def kill_all(processes: list[Process]) -> None:
    for process in processes:
        process.signal(signal.SIGKILL)


@contextmanager
def forward_signals(processes: list[Process]) -> Iterator[list[str]]:
    """Forward a signal to all processes; a later Ctrl-C kills them, and so does the end of the body. Yields
    the names of the signals so far."""

    def forward(name: str) -> None:
        for process in processes:
            process.ask_to_stop(signal.Signals[name])

    def kill_and_leave() -> None:
        kill_all(processes)
        leave_at_once()

    try:
        with on_stop(forward, kill_and_leave) as received:
            yield received
    finally:
        kill_all(processes)
