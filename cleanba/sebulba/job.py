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
import signal
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

from cleanba.sebulba.args import RunArgs, UsageError, flag
from cleanba.sebulba.channel import Channel, ChannelClosed
from cleanba.sebulba.command import (
    ANOTHER_PROCESS,
    PREEMPTED,
    Ended,
    first_line,
    leave_now,
    say,
    without_secrets,
)

Message = dict[str, Any]
LEAVE_SECONDS = 3.0  # that a process has to hear who was lost, and to leave by itself then
SAVE_SECONDS = 8.0  # that process 0 has for it, and to save what there is
LARGEST_MESSAGE = 2**24  # bytes
SILENT_HOST_MS = 10_000  # after which a host that does not even acknowledge what it is sent counts as lost
HEARTBEAT_SECONDS = 3600  # of JAX's runtime: it knows no more than the lines here, and would abort


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
    job, step = (int(os.environ.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return f"{host}:{(job + 97 * step) % 4096 + 61440}"


def about_this_process(args: RunArgs, place: Place) -> Message:
    """What must be the same in all processes."""
    flags = {flag(name): value for name, value in dataclasses.asdict(args).items()}
    here = {"processes": place.processes, "code": _code_digest(), "jax": jax.__version__}
    return json.loads(json.dumps(flags | here))


def job_tag() -> str:
    """Tells jobs apart that happen to come to the same address."""
    return ".".join(os.environ.get(name, "-") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))


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
        # A host that dies sends no goodbye. There are pings all the time; it must acknowledge them.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_HOST_MS)
        self.who = ""  # is at the other end
        self._connection = connection
        self._file: IO[bytes] = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._sending:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> Message | None:
        """The next message; None when the other side is gone, or does not speak as we do."""
        try:
            line = self._file.readline(LARGEST_MESSAGE)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def read_within(self, seconds: float) -> Message | None:
        self._connection.settimeout(max(0.01, seconds))
        message = self.read()
        self._connection.settimeout(None)
        return message

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
        self._told: Channel[Message] = Channel(1)
        self._listeners = [
            threading.Thread(target=self._listen, args=item, name=f"process-{item[0]}", daemon=True)
            for item in lines.items()
        ]
        for listener in self._listeners:
            listener.start()

    # ---------------------------------------------------------------------------------- while all is well

    def tell(self, message: Message) -> None:
        """From process 0 to the others."""
        self._send(told=message)

    def hear(self) -> Message:
        """What process 0 tells."""
        return self._told.get()

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
            _in_a_thread(jax.distributed.shutdown)  # waits for all; signals reach this thread in Python only
        self._finished = True
        self._send(bye=True)
        for listener in self._listeners:  # one that woke up while Python exits could abort it
            listener.join(LEAVE_SECONDS)

    # -------------------------------------------------------------------------------- when something fails

    def when_lost(self, action: Callable[[Ended], None]) -> None:
        """What shall happen, in another thread, when a process is lost; this one leaves soon in any case."""
        self._on_loss = action

    def fail(self, why: str, exit_code: int = ANOTHER_PROCESS) -> None:
        """Tell the others why this process leaves, and how they shall. What they say then is no news."""
        if not self._finished:
            self._finished = True
            self._send(failed=without_secrets(why), exit_code=exit_code)

    def reason_of(self, error: Exception) -> Exception:
        """A collective breaks when another process is gone: then that is the reason, and who it was."""
        if isinstance(error, jax.errors.JaxRuntimeError) and self._lines:
            self._lost.wait(LEAVE_SECONDS)
        return self.loss or error

    def lose(self, why: str, *, stuck: bool = False, exit_code: int = ANOTHER_PROCESS) -> None:
        """End the whole job. Whoever knows first says why; process 0 passes it on."""
        with self._losing:
            if self.loss or self._finished:
                return
            self.loss = Ended(why, 1 if stuck else exit_code)
        if self.process > 0:  # it has no records to close; it says at once what JAX's runtime would not
            say(f"error: {why}")
        if stuck:
            say(where_threads_stand())
        self._send(lost=why, stuck=stuck, exit_code=exit_code)
        threading.Thread(target=self._leave_later, daemon=True).start()
        if self.process == 0:
            for channel in self._reports.values():
                channel.close(self.loss)
            self._on_loss(self.loss)
        self._told.close(self.loss)
        self._lost.set()

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
                    with suppress(ChannelClosed):  # the job ends
                        self._reports[process].put(report)
                case {"ping": progress}:
                    self._pings[process] = (time.monotonic(), progress)
                case {"told": message}:
                    with suppress(ChannelClosed):  # the job ends
                        self._told.put(message)
                case {"failed": why, "exit_code": code}:
                    self.lose(f"process {process} ({line.who}) failed: {why}", exit_code=code)
                case {"lost": why, "stuck": stuck, "exit_code": code}:
                    self.lose(why, stuck=stuck, exit_code=code)
                case {"bye": _}:
                    return
        self.lose(f"process {process} ({line.who}) was lost: its connection closed without a word")
        if self.process > 0 and self.loss:  # process 0 is gone, and JAX's runtime aborts a process without it
            leave_now(self.loss.exit_code)

    def _leave_later(self) -> None:
        """For a process that does not come to its end by itself, inside a collective for instance. Process 0
        has more time, to write a checkpoint and close its records."""
        time.sleep(SAVE_SECONDS if self.process == 0 else LEAVE_SECONDS)
        assert self.loss is not None
        if self.process == 0:
            say(f"error: {self.loss}")
        leave_now(self.loss.exit_code)

    def _send(self, **message: Any) -> None:
        for line in self._lines.values():
            with suppress(OSError):  # whoever listens to that line notices
                line.send(**message)


def _in_a_thread(work: Callable[[], None]) -> None:
    """Run it, and wait for it."""
    failed: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


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
def joined(place: Place, args: RunArgs) -> Iterator[Job]:
    """The job with all its processes. A failure in the body is told to the others."""
    lines, runtime = meet(place, about_this_process(args, place), args.join_seconds)
    job = Job(place, lines)
    try:
        if lines:
            start_runtime(runtime, place, math.ceil(args.join_seconds))
            jax.local_devices()  # all processes compare their devices: before one waits for another
        yield job
    except KeyboardInterrupt:
        job.fail("it was stopped", PREEMPTED)
        raise
    except SystemExit:
        job.fail("it has left")
        raise
    except Exception as error:
        reason = job.reason_of(error)
        if reason is not error:
            for note in getattr(error, "__notes__", []):
                reason.add_note(note)
            raise reason from None
        if not job.loss:
            job.fail(f"{type(error).__name__}: {first_line(error)}")
        raise


def start_runtime(address: str, place: Place, seconds: int) -> None:
    """JAX's own, over which the learners' collectives are set up."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(
            address,
            place.processes,
            place.process,
            cluster_detection_method="deactivate",  # under SLURM it would take one device per process
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=seconds,
            coordinator_bind_address=address if _is_loopback(place.host_and_port[0]) else None,
        )
    except jax.errors.JaxRuntimeError:
        raise
    except RuntimeError as error:  # the backend is in use already
        raise UsageError(f"--distributed: {first_line(error)}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # the runtime has taken it over, and would only take note


def meet(place: Place, about: Message, seconds: float) -> tuple[dict[int, Line], str]:
    """Lines between process 0 and the others, which are found to be alike; an address for JAX's runtime."""
    if place.processes == 1:
        return {}, ""
    deadline = time.monotonic() + seconds
    if place.process > 0:
        line, runtime = _go_to_process_0(place, about, deadline, seconds)
        return {0: line}, runtime
    lines = _receive_all(place, about, deadline, seconds)
    runtime = _free_address(place.host_and_port[0])
    _tell(lines, runtime=runtime, who=who_this_is())
    return lines, runtime


def _receive_all(place: Place, about: Message, deadline: float, seconds: float) -> dict[int, Line]:
    try:
        server = _listen_at(*place.host_and_port)
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
                _tell(lines, refused=why, usage=False)
                raise Ended(why, ANOTHER_PROCESS) from None
            line = Line(connection)
            match line.read_within(5):
                case {"job": tag, "process": int(process), "who": str(who), "about": dict(theirs)} if (
                    tag == job_tag()
                ):
                    line.who = who
                    why = _objection(place, about, process, theirs, lines)
                    lines[process] = line
                    if why:
                        _tell(lines, refused=why, usage=True)
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


def _tell(lines: dict[int, Line], **message: Any) -> None:
    for line in lines.values():
        with suppress(OSError):  # it has left; that will be noticed
            line.send(**message)


def _go_to_process_0(place: Place, about: Message, deadline: float, seconds: float) -> tuple[Line, str]:
    while True:
        try:
            line = Line(socket.create_connection(place.host_and_port, timeout=5))
            line.send(job=job_tag(), process=place.process, who=who_this_is(), about=about)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                why = f"process 0 did not answer at {place.address} within {seconds:g} s ({error})"
                raise Ended(why, ANOTHER_PROCESS) from None
            time.sleep(0.2)
    match line.read_within(deadline - time.monotonic() + 5):  # process 0 may have started later
        case {"runtime": str(runtime), "who": str(who)}:
            line.who = who
            return line, runtime
        case {"refused": why, "usage": True}:
            raise UsageError(why)
        case {"refused": why}:
            raise Ended(why, ANOTHER_PROCESS)
        case _:
            raise Ended(f"whoever is at {place.address} is not process 0 of this job, or has left")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _listen_at(host: str, port: int) -> socket.socket:
    """On this host alone if the address is its own; otherwise wherever the others may come from."""
    if _is_loopback(host):
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _free_address(host: str) -> str:
    with _listen_at(host, 0) as server:
        port = server.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
