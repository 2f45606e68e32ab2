"""How the processes of a job connect: process 0 listens, the others call it, both prove that they belong to
the job, and their flags are compared."""

import math
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.distributed.connection import Connection, Message, NoMessage
from cleanba.distributed.handshake import HOW_TO_SET, VARIABLE, JobSecret, introduce
from cleanba.distributed.job import Job
from cleanba.distributed.listener import Caller, Listener, free_port, is_loopback, join_host_and_port
from cleanba.distributed.process_info import ProcessInfo, describe_process, process_description
from cleanba.runtime.command import ANOTHER_PROCESS, PREEMPTED, CleanExit
from cleanba.runtime.messages import first_line, say

HEARTBEAT_SECONDS = 3600  # of JAX's runtime, which would abort; our own connections notice sooner
UNIX = "unix:"  # begins the address of a socket file
MAX_REJECTIONS = 3  # of this process, until it gives up


@contextmanager
def joined(info: ProcessInfo, args: RunArgs, algorithm: str = "") -> Iterator[Job]:
    """The job, once all of its processes are connected. The others hear of a failure in the body."""
    about = process_description(args, info, algorithm)
    connections, runtime = rendezvous(info, about, args.join_seconds)
    job = Job(info, connections)
    try:
        if connections:
            with job.starting(args.join_seconds), _closed_to_others(runtime, job):
                start_runtime(runtime, info, math.ceil(args.join_seconds))
                jax.local_devices()  # all processes exchange their devices: before one waits for another
        yield job
    except KeyboardInterrupt:
        job.fail("interrupted", PREEMPTED)
        raise
    except SystemExit:
        job.fail("it exited early")
        raise
    except Exception as error:
        reason = job.reason_of(error)
        if reason is not error:
            job.let_others_exit()
            for note in getattr(error, "__notes__", []):
                reason.add_note(note)
            raise reason from None
        if not job.end_reason:
            job.fail(f"{type(error).__name__}: {first_line(error)}")
        raise
    finally:
        job.left.set()


@contextmanager
def _closed_to_others(runtime: str, job: Job) -> Iterator[None]:
    """After the body all processes are connected to JAX's runtime: without its socket file, no other can."""

    def remove(reason: CleanExit | None = None) -> None:
        if runtime.startswith(UNIX) and job.process == 0:
            shutil.rmtree(Path(runtime.removeprefix(UNIX)).parent, ignore_errors=True)

    job.when_lost(remove)  # the process may then exit within the body
    try:
        yield
    finally:
        remove()


def start_runtime(address: str, info: ProcessInfo, seconds: int) -> None:
    """Start JAX's runtime, which sets up the learners' collectives. It asks for no secret."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(
            address,
            info.processes,
            info.process,
            cluster_detection_method="deactivate",  # under SLURM it would use one device per process
            initialization_timeout=seconds + 60,  # it aborts then; `Job.starting` ends the job before
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=seconds,
            coordinator_bind_address=address,
        )
    except jax.errors.JaxRuntimeError:
        raise
    except RuntimeError as error:  # the backend is already in use
        raise UsageError(f"--distributed: {first_line(error)}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # the runtime has replaced it with one that only sets a flag


def rendezvous(info: ProcessInfo, about: Message, seconds: float) -> tuple[dict[int, Connection], str]:
    """Connect process 0 with all others and check that their flags match. Also returns the address for JAX's
    runtime."""
    if info.processes == 1:
        return {}, ""
    secret, deadline = JobSecret.from_environment(), time.monotonic() + seconds
    if info.process > 0:
        connection = _connect_to_process_0(info, about, secret, deadline, seconds)
        try:
            return {0: connection}, _wait_for_the_others(connection, info, deadline)
        except BaseException:
            connection.close()
            raise
    if not secret.key and not is_loopback(info.host_and_port[0]):
        danger = f"whoever can reach {info.address} can join or end this job"
        say(f"warning: without {VARIABLE}, {danger}; {HOW_TO_SET}")
    connections = _accept_all(info, about, secret, deadline, seconds)
    runtime = _runtime_address(info, connections)
    _send_all(connections, runtime=runtime, who=describe_process())
    return connections, runtime


# ---------------------------------------------------------------------------------------------- process 0


def _accept_all(
    info: ProcessInfo, about: Message, secret: JobSecret, deadline: float, seconds: float
) -> dict[int, Connection]:
    try:
        listener = Listener(*info.host_and_port, secret)
    except OSError as error:
        fix = "JAX_COORDINATOR_ADDRESS must name the host of process 0 and a free port"
        raise CleanExit(f"process 0 cannot listen at {info.address}: {error}; {fix}") from error
    connections: dict[int, Connection] = {}
    with listener:
        for caller in listener.callers(deadline):
            _admit(caller, info, about, connections)
            if len(connections) == info.processes - 1:
                return connections
    missing = ", ".join(str(p) for p in range(1, info.processes) if p not in connections)
    why = f"process {missing} did not connect to {info.address} within {seconds:g} s"
    _refuse(connections, why, usage=False)
    raise CleanExit(why, ANOTHER_PROCESS)


def _admit(caller: Caller, info: ProcessInfo, about: Message, connections: dict[int, Connection]) -> None:
    """Flags that differ are a mistake in this job, which ends. One process too many is a mistake elsewhere:
    only that process is refused."""
    if why := mismatch(about, caller.process, caller.about):
        _refuse(connections | {caller.process: caller.connection}, why)
        raise UsageError(why)
    if caller.process in connections or not 0 < caller.process < info.processes:
        why = f"a second or unknown process {caller.process} of {info.processes} called {info.address}"
        say(f"warning: {why}; it was refused")
        _refuse({caller.process: caller.connection}, f"{why}; do two jobs use it?")
    else:
        connections[caller.process] = caller.connection


def _refuse(connections: dict[int, Connection], why: str, *, usage: bool = True) -> None:
    _send_all(connections, refused=why, usage=usage)
    for connection in connections.values():
        connection.close()


def mismatch(about: Message, process: int, theirs: Message) -> str:
    """Why this process cannot join; empty if it can."""
    different = [
        f"{name} is {theirs.get(name)!r} in process {process} and {about.get(name)!r} in process 0"
        for name in about | theirs
        if theirs.get(name) != about.get(name)
    ]
    return f"all processes of a job need the same flags and code: {'; '.join(different)}" if different else ""


def _send_all(connections: dict[int, Connection], **message: Any) -> None:
    for connection in connections.values():
        with suppress(OSError):  # it has exited, which its listener notices
            connection.send(**message)


def _runtime_address(info: ProcessInfo, connections: dict[int, Connection]) -> str:
    """On one machine, a socket file that only this user can reach. Else a free port, only where the others
    have reached this process; not on loopback if one of them is elsewhere."""
    if is_loopback(info.host_and_port[0]):
        return f"{UNIX}{tempfile.mkdtemp(prefix='cleanba-', dir='/tmp')}/runtime"  # paths must be short
    host = min((connection.local_host for connection in connections.values()), key=is_loopback)
    return join_host_and_port(host, free_port(host))


# --------------------------------------------------------------------------------------------- the others


def _connect_to_process_0(
    info: ProcessInfo, about: Message, secret: JobSecret, deadline: float, seconds: float
) -> Connection:
    rejections = 0
    while True:
        try:
            connection = _call(info, secret, deadline)
            connection.send(who=describe_process(), about=about)
            return connection
        except NoMessage as error:
            rejections += 1  # one is no proof: process 0 drops connections when strangers call by the hundred
            if rejections == MAX_REJECTIONS or time.monotonic() > deadline:
                why = f"what listens at {info.address} is not process 0 of this job: {error}"
                raise UsageError(f"{why}; {HOW_TO_SET}, or use another port") from None
        except OSError as error:
            if time.monotonic() > deadline:
                why = f"process 0 did not answer at {info.address} within {seconds:g} s ({error})"
                raise CleanExit(why, ANOTHER_PROCESS) from None
        time.sleep(0.2)


def _call(info: ProcessInfo, secret: JobSecret, deadline: float) -> Connection:
    sock = socket.create_connection(info.host_and_port, timeout=5)
    connection = Connection(sock)
    try:
        if sock.getsockname() == sock.getpeername():  # happens on loopback while nobody listens
            raise ConnectionRefusedError("connected to itself")
        introduce(connection, secret, info.process, max(deadline, time.monotonic() + 1))
    except BaseException:
        connection.close()
        raise
    return connection


def _wait_for_the_others(connection: Connection, info: ProcessInfo, deadline: float) -> str:
    """The address of JAX's runtime, which process 0 sends when all have joined."""
    try:
        answer = connection.read(deadline + 5)  # process 0 may have started later
    except NoMessage as error:
        raise CleanExit(f"process 0 at {info.address} was lost: {error}", ANOTHER_PROCESS) from None
    match answer:
        case {"runtime": str(runtime), "who": str(who)}:
            if runtime.startswith(UNIX) and not Path(runtime.removeprefix(UNIX)).parent.exists():
                fix = "name their host in JAX_COORDINATOR_ADDRESS"
                raise UsageError(f"processes that meet at {info.address} must have the same /tmp; {fix}")
            connection.peer = who
            return runtime
        case {"refused": str(why), "usage": True}:
            raise UsageError(why)
        case {"refused": str(why)}:
            raise CleanExit(why, ANOTHER_PROCESS)
        case _:
            raise CleanExit(f"process 0 at {info.address} sent an answer of another version of Cleanba")
