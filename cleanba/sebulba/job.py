"""The processes of one job: how they find each other, compare notes, and end together.

Process 0 listens at the job's address and the others stay connected to it, beside JAX's own runtime. That
runtime aborts a process whose peer does not come or dies, after a while and without saying who it was. Here a
process that dies is known at once (its connection closes), by name, and everyone leaves with a reason.
"""

import dataclasses
import hashlib
import json
import math
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax

from cleanba.sebulba.args import RunArgs, UsageError
from cleanba.sebulba.channel import Channel
from cleanba.sebulba.command import Ended, first_line, leave_now, say

Message = dict[str, Any]
NEWS_SECONDS = 3.0  # that a process whose collective broke waits to hear who was lost
LEAVE_SECONDS = 3.0  # that a process has to leave by itself when another was lost
LARGEST_MESSAGE = 2**24  # bytes
HEARTBEAT_SECONDS = 3600  # of JAX's runtime, which knows no more than the lines here and aborts: never first


# ------------------------------------------------------------------------------------- finding each other


class Place(NamedTuple):
    """Of this process in its job."""

    address: str  # host:port of process 0
    processes: int
    process: int

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, port = self.address.rsplit(":", 1)
        return host.strip("[]"), int(port)


def find_place(args: RunArgs) -> Place:
    """From JAX's variables, or else from SLURM's."""
    if not args.distributed:
        return Place("", 1, 0)
    env = os.environ
    slurm = {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"} <= env.keys()
    found = {
        "JAX_COORDINATOR_ADDRESS": _slurm_address() if slurm else None,
        "JAX_NUM_PROCESSES": env.get("SLURM_NTASKS") if slurm else None,
        "JAX_PROCESS_ID": env.get("SLURM_PROCID") if slurm else None,
    }
    found = {name: env.get(name, value) for name, value in found.items()}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise UsageError(
            f"--distributed does not find its peers; start it with srun, or set {', '.join(missing)} "
            "(`cleanba launch a0-l0-d2 ppo` does that on one machine)"
        )
    address, processes, process = found.values()
    try:
        place = Place(str(address), int(str(processes)), int(str(process)))
        _ = place.host_and_port
    except ValueError:
        raise UsageError(
            f"--distributed: JAX_COORDINATOR_ADDRESS={address} should be host:port, "
            f"JAX_NUM_PROCESSES={processes} and JAX_PROCESS_ID={process} numbers"
        ) from None
    if not 0 <= place.process < place.processes:
        raise UsageError(f"--distributed: there is no process {process} among {processes}; count from 0")
    return place


def _slurm_address() -> str:
    """The step's first host, and a port from the job's number: all processes come to the same."""
    nodes = os.environ["SLURM_STEP_NODELIST"]  # such as n1,n2 or n[001-003,7],m1
    first = re.match(r"([^,\[]*)(?:\[([^,\-\]]*))?", nodes)
    host = "".join(part or "" for part in first.groups()) if first else nodes
    return f"{host}:{int(os.environ['SLURM_JOB_ID']) % 4096 + 61440}"


def about_this_process(args: RunArgs, layout: str) -> Message:
    """What must be the same in all processes."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in dataclasses.asdict(args).items()}
    return json.loads(json.dumps(flags | {"layout": layout, "code": _code_digest(), "jax": jax.__version__}))


def who_this_is() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _code_digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


# -------------------------------------------------------------------------------------------- connections


class Line:
    """A connection on which both sides send JSON, one message per line."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that dies sends no goodbye
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self.who = ""  # is at the other end
        self._connection = connection
        self._file: IO[bytes] = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._sending:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> Message | None:
        """The next message; None when the other side is gone."""
        try:
            line = self._file.readline(LARGEST_MESSAGE)
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def __iter__(self) -> Iterator[Message]:
        while (message := self.read()) is not None:
            yield message

    def close(self) -> None:
        self._connection.close()


# ------------------------------------------------------------------------------------------------ the job


class Job:
    """This process among the others. Process 0 has a line to each of them, each of them one to process 0."""

    def __init__(self, place: Place, lines: dict[int, Line]):
        self.process, self.processes = place.process, place.processes
        self.loss: Ended | None = None  # why the job ends, when that is not this process's own failure
        self._lines = lines
        self._reports: dict[int, Channel[Message]] = {process: Channel(64) for process in lines}
        self._pings = {process: (time.monotonic(), 0) for process in lines}  # when, and how far it was
        self._on_loss: Callable[[Ended], None] = lambda loss: None
        self._losing = threading.Lock()
        self._lost = threading.Event()
        self._finished = False
        for process, line in lines.items():
            threading.Thread(target=self._listen, args=(process, line), daemon=True).start()

    # ---------------------------------------------------------------------------------- while all is well

    def report(self, report: Message) -> None:
        """To process 0, of one update."""
        self._send(report=report)

    def gather(self) -> list[Message]:
        """In process 0: the next report of each other process."""
        return [self._reports[process].get() for process in sorted(self._reports)]

    def ping(self, progress: int) -> None:
        self._send(ping=progress)

    def finish(self) -> None:
        """All processes have come to the end; process 0 goes on alone."""
        if self.processes > 1:
            jax.distributed.shutdown()  # waits for all
        self._finished = True
        self._send(bye=True)

    # -------------------------------------------------------------------------------- when something fails

    def when_lost(self, action: Callable[[Ended], None]) -> None:
        """What shall happen, in another thread, when a process is lost; this one leaves soon in any case."""
        self._on_loss = action

    def fail(self, why: str) -> None:
        """Tell the others why this process leaves. What they then say is no news to it."""
        if not self._finished:
            self._finished = True
            self._send(failed=why)

    def reason_of(self, error: Exception) -> Exception:
        """A collective breaks when another process is gone: then that is the reason, and who it was."""
        if isinstance(error, jax.errors.JaxRuntimeError) and self._lines:
            self._lost.wait(NEWS_SECONDS)
        return self.loss or error

    def lose(self, why: str, *, stuck: bool = False) -> None:
        """End the whole job. Whoever knows first says why; process 0 passes it on."""
        with self._losing:
            if self.loss or self._finished:
                return
            self.loss = Ended(why)
        if stuck:
            say(where_threads_stand())
        self._send(lost=why, stuck=stuck)
        if self.process > 0:  # it has no records to close, and JAX's runtime would soon abort it
            say(f"error: {why}")
            leave_now(1)
        for channel in self._reports.values():
            channel.close(self.loss)
        self._lost.set()
        self._on_loss(self.loss)
        threading.Thread(target=_leave_later, args=(why,), daemon=True).start()

    def straggler(self, progress: int) -> str:
        """In process 0: who seems to be waited for, by their last pings."""
        now = time.monotonic()
        for process, (heard, its_progress) in sorted(self._pings.items()):
            if now - heard > 3:
                return f"; process {process} has not been heard for {now - heard:.0f} s"
            if its_progress < progress:
                return f"; process {process} is behind it"
        return ""

    def _listen(self, process: int, line: Line) -> None:
        for message in line:
            match message:
                case {"report": report}:
                    self._reports[process].put(report)
                case {"ping": progress}:
                    self._pings[process] = (time.monotonic(), progress)
                case {"failed": why}:
                    self.lose(f"process {process} ({line.who}) failed: {why}")
                case {"lost": why, "stuck": stuck}:
                    self.lose(why, stuck=stuck)
                case {"bye": _}:
                    return
        self.lose(f"process {process} ({line.who}) was lost: its connection closed without a word")

    def _send(self, **message: Any) -> None:
        for line in self._lines.values():
            with suppress(OSError):  # whoever listens to that line notices
                line.send(**message)


def _leave_later(why: str) -> None:
    """For a process that does not come to its end by itself, inside a collective for instance."""
    time.sleep(LEAVE_SECONDS)
    say(f"error: {why}")
    leave_now(1)


def where_threads_stand() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=6))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    ]
    return "where each thread stands:\n" + "\n".join(stacks)


# ------------------------------------------------------------------------------------------------ joining


@contextmanager
def joined(place: Place, args: RunArgs, layout: str) -> Iterator[Job]:
    """The job with all its processes. A failure in the body is told to the others."""
    job = join(place, about_this_process(args, layout), args.join_seconds)
    try:
        yield job
    except KeyboardInterrupt:
        job.fail("it was interrupted")
        raise
    except Exception as error:
        reason = job.reason_of(error)
        if reason is not error:
            raise reason from None
        if not job.loss:
            job.fail(f"{type(error).__name__}: {first_line(error)}")
        raise


def join(place: Place, about: Message, seconds: float) -> Job:
    """Meet at the address, see that all are the same, and start JAX's runtime."""
    if place.processes == 1:
        return Job(place, {})
    deadline = time.monotonic() + seconds
    if place.process == 0:
        lines = _receive_all(place, about, deadline, seconds)
        host, _ = place.host_and_port
        runtime = f"{host}:{_free_port(host)}"
        for line in lines.values():
            line.send(runtime=runtime, who=who_this_is())
    else:
        line, runtime = _go_to_process_0(place, about, deadline, seconds)
        lines = {0: line}
    try:
        jax.distributed.initialize(
            runtime,
            place.processes,
            place.process,
            cluster_detection_method="deactivate",  # under SLURM it would take one device per process
            initialization_timeout=math.ceil(seconds),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=runtime if _is_loopback(place.host_and_port[0]) else None,
        )
    except RuntimeError as error:  # the backend is in use already
        raise UsageError(f"--distributed: {first_line(error)}") from error
    return Job(place, lines)


def _receive_all(place: Place, about: Message, deadline: float, seconds: float) -> dict[int, Line]:
    host, port = place.host_and_port
    try:
        server = socket.create_server((host if _is_loopback(host) else "", port))
    except OSError as error:
        raise Ended(f"process 0 cannot listen at {place.address}: {error}") from error
    lines: dict[int, Line] = {}
    with server:
        while len(lines) < place.processes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(p) for p in range(1, place.processes) if p not in lines)
                why = f"process {missing} did not come to {place.address} within {seconds:g} s"
                _refuse(lines, why, usage=False)
                raise Ended(why) from None
            line = Line(connection)
            connection.settimeout(5)
            hello = line.read()
            connection.settimeout(None)
            match hello:
                case {"process": int(process), "who": str(who), "about": dict(theirs)}:
                    line.who = who
                    why = _objection(place, about, process, theirs, lines)
                    lines[process] = line
                    if why:
                        _refuse(lines, why, usage=True)
                        raise UsageError(why)
                case _:
                    line.close()  # something else that knocked at the port
    return lines


def _objection(place: Place, about: Message, process: int, theirs: Message, lines: dict[int, Line]) -> str:
    if process in lines or not 0 < process < place.processes:
        return (
            f"two processes came to {place.address} as process {process} of {place.processes}; is it one job?"
        )
    different = [
        f"{name} is {theirs.get(name)!r} in process {process} and {about.get(name)!r} in process 0"
        for name in about | theirs
        if theirs.get(name) != about.get(name)
    ]
    return f"the processes of a job must be started alike: {'; '.join(different)}" if different else ""


def _refuse(lines: dict[int, Line], why: str, *, usage: bool) -> None:
    for line in lines.values():
        line.send(refused=why, usage=usage)


def _go_to_process_0(place: Place, about: Message, deadline: float, seconds: float) -> tuple[Line, str]:
    while True:
        try:
            line = Line(socket.create_connection(place.host_and_port, timeout=5))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                why = f"process 0 did not answer at {place.address} within {seconds:g} s ({error})"
                raise Ended(why) from None
            time.sleep(0.2)
    line.send(process=place.process, who=who_this_is(), about=about)
    match line.read():
        case {"runtime": runtime, "who": str(who)}:
            line.who = who
            return line, runtime
        case {"refused": why, "usage": True}:
            raise UsageError(why)
        case {"refused": why}:
            raise Ended(why)
        case _:
            raise Ended(f"process 0 at {place.address} left before all processes had come")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _free_port(host: str) -> int:
    with socket.create_server((host if _is_loopback(host) else "", 0)) as server:
        return server.getsockname()[1]
