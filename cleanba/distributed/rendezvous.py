"""How the processes of a job connect: process 0 listens, the others call it, and their flags are compared."""

import math
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.distributed.connection import Connection, Message
from cleanba.distributed.job import Job
from cleanba.distributed.process_info import ProcessInfo, describe_process, job_tag, process_description
from cleanba.runtime.command import ANOTHER_PROCESS, PREEMPTED, CleanExit
from cleanba.runtime.messages import first_line

HEARTBEAT_SECONDS = 3600  # of JAX's runtime, which would abort; our own connections notice sooner


@contextmanager
def joined(info: ProcessInfo, args: RunArgs, algorithm: str = "") -> Iterator[Job]:
    """The job, once all of its processes are connected. The others hear of a failure in the body."""
    about = process_description(args, info, algorithm)
    connections, runtime = rendezvous(info, about, args.join_seconds)
    job = Job(info, connections)
    try:
        if connections:
            start_runtime(runtime, info, math.ceil(args.join_seconds))
            jax.local_devices()  # all processes exchange their devices here: before one waits for another
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
            for note in getattr(error, "__notes__", []):
                reason.add_note(note)
            raise reason from None
        if not job.end_reason:
            job.fail(f"{type(error).__name__}: {first_line(error)}")
        raise


def start_runtime(address: str, info: ProcessInfo, seconds: int) -> None:
    """Start JAX's runtime, which sets up the learners' collectives."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(
            address,
            info.processes,
            info.process,
            cluster_detection_method="deactivate",  # under SLURM it would use one device per process
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=seconds,
            coordinator_bind_address=address if _is_loopback(info.host_and_port[0]) else None,
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
    deadline = time.monotonic() + seconds
    if info.process > 0:
        connection, runtime = _connect_to_process_0(info, about, deadline, seconds)
        return {0: connection}, runtime
    connections = _accept_all(info, about, deadline, seconds)
    runtime = _free_address(info.host_and_port[0])
    _send_all(connections, runtime=runtime, who=describe_process())
    return connections, runtime


def _accept_all(info: ProcessInfo, about: Message, deadline: float, seconds: float) -> dict[int, Connection]:
    try:
        server = _listen_at(*info.host_and_port)
    except OSError as error:
        raise CleanExit(f"process 0 cannot listen at {info.address}: {error}") from error
    connections: dict[int, Connection] = {}
    with server:
        while len(connections) < info.processes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(p) for p in range(1, info.processes) if p not in connections)
                why = f"process {missing} did not connect to {info.address} within {seconds:g} s"
                _send_all(connections, refused=why, usage=False)
                raise CleanExit(why, ANOTHER_PROCESS) from None
            connection = Connection(accepted)
            match connection.read_within(5):
                case {"job": tag, "process": int(process), "who": str(who), "about": dict(theirs)} if (
                    tag == job_tag()
                ):
                    connection.peer = who
                    why = mismatch(info, about, process, theirs, connections)
                    connections[process] = connection
                    if why:
                        _send_all(connections, refused=why, usage=True)
                        raise UsageError(why)
                case _:
                    connection.close()  # not a process of this job
    return connections


def mismatch(
    info: ProcessInfo, about: Message, process: int, theirs: Message, connections: dict[int, Connection]
) -> str:
    """Why this process cannot join; empty if it can."""
    if process in connections or not 0 < process < info.processes:
        who = f"process {process} of {info.processes}"
        return f"a second or unknown {who} connected to {info.address}; do two jobs use this address?"
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


def _connect_to_process_0(
    info: ProcessInfo, about: Message, deadline: float, seconds: float
) -> tuple[Connection, str]:
    while True:
        try:
            connection = Connection(socket.create_connection(info.host_and_port, timeout=5))
            connection.send(job=job_tag(), process=info.process, who=describe_process(), about=about)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                why = f"process 0 did not answer at {info.address} within {seconds:g} s ({error})"
                raise CleanExit(why, ANOTHER_PROCESS) from None
            time.sleep(0.2)
    match connection.read_within(deadline - time.monotonic() + 5):  # process 0 may have started later
        case {"runtime": str(runtime), "who": str(who)}:
            connection.peer = who
            return connection, runtime
        case {"refused": why, "usage": True}:
            raise UsageError(why)
        case {"refused": why}:
            raise CleanExit(why, ANOTHER_PROCESS)
        case _:
            raise CleanExit(f"the process at {info.address} is not process 0 of this job, or has exited")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _listen_at(host: str, port: int) -> socket.socket:
    """On loopback if the host is loopback, otherwise on all interfaces."""
    if _is_loopback(host):
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _free_address(host: str) -> str:
    with _listen_at(host, 0) as server:
        port = server.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
