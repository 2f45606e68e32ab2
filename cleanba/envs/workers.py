"""The worker processes of one actor thread: started, woken, watched and ended.

They are started by their own entry point, never by fork: JAX's threads would not survive it. What they share
with this process is memory; pipes carry only which environment is next and which is ready.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np

from cleanba.config.errors import EnvError
from cleanba.envs.shared_rows import allocate, map_rows
from cleanba.envs.worker_job import RENDER, Fds, Job
from cleanba.runtime.children import tied_to_parent

MAX_POLL_MS = 2**31 - 1  # more than that is an OverflowError: 24 days
CLOSE_SECONDS = 1.0  # for environments to close; then their processes are killed


class Workers:
    def __init__(self, env_id: str, job: Job, patience: float | None = None):
        self._env_id, self._job, self._patience = env_id, job, patience
        self._worker_of = np.repeat(np.arange(job.workers), [len(job.own(w)) for w in range(job.workers)])
        rows = self._own(allocate(job.fields))
        self.rows = map_rows(rows, job.fields)
        self.rows["current"][:] = -1
        self._ready, ready = self._pipe()
        self._closing = self._own(os.eventfd(0))
        self._lock = threading.Lock()  # pipes are not closed while they are written
        self._processes: list[subprocess.Popen[bytes]] = []
        self._commands: list[int] = []
        self._replies: list[Connection] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._commands)
        self._finalizer.atexit = False
        told = self._own(_in_memory(pickle.dumps(job)))
        for index in range(job.workers):
            self._start(index, Fds(told, rows, -1, ready, -1))
        self._watched = {self._own(os.pidfd_open(p.pid)): i for i, p in enumerate(self._processes)}
        self._poll = select.poll()
        for fd in (self._ready, self._closing, *self._watched):
            self._poll.register(fd, select.POLLIN)

    def _own(self, fd: int) -> int:
        """Closed when nothing can use it any more: a thread may still wait for it when `close` returns."""
        weakref.finalize(self, os.close, fd).atexit = False
        return fd

    def _pipe(self) -> tuple[int, int]:
        read, write = os.pipe()
        return self._own(read), self._own(write)

    def _start(self, index: int, fds: Fds) -> None:
        (commands, write), (read, replies) = os.pipe(), os.pipe()
        fds = fds._replace(commands=commands, replies=replies)
        argv = [sys.executable, "-P", "-m", "cleanba.envs.worker", *map(str, (index, *fds))]
        process = subprocess.Popen(
            tied_to_parent(argv, signal.SIGKILL),
            env=os.environ | _worker_variables(),
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output belongs to the command
            pass_fds=fds,
            start_new_session=True,  # it gets signals from this process only
        )
        self._processes.append(process)
        self._commands.append(write)
        self._replies.append(Connection(read, writable=False))
        for fd in (commands, replies):
            os.close(fd)

    def send(self, numbers: np.ndarray, env: np.ndarray) -> None:
        """Commands for these environments."""
        worker = self._worker_of[env]
        with self._lock, suppress(BrokenPipeError):  # `wait` says why
            for index in np.unique(worker) if self._commands else ():
                os.write(self._commands[index], numbers[worker == index].astype(np.int32).tobytes())

    def wait(self) -> list[int]:
        """The environments that have become ready."""
        events = self._within_patience(self._poll)
        if self._closing in events:
            raise RuntimeError("the environments are closed")
        for fd in events & self._watched.keys():
            raise self._failure(self._watched[fd])
        return np.frombuffer(os.read(self._ready, 1 << 16), np.int32).tolist()

    def render(self) -> np.ndarray | None:
        """An image of the first environment."""
        self.send(np.array([RENDER]), np.array([0]))
        died = select.poll()
        (pidfd,) = (fd for fd, index in self._watched.items() if index == 0)
        for fd in (pidfd, self._replies[0].fileno()):
            died.register(fd, select.POLLIN)
        self._within_patience(died)
        with suppress(EOFError, OSError):  # of a worker that dies, the pipe closes first
            if self._replies[0].poll():
                reply = self._replies[0].recv()
                if isinstance(reply, tuple):  # a report, which is here before its process has ended
                    raise EnvError(self._env_id, *reply)
                return reply
        raise self._failure(0)

    def _within_patience(self, poll: select.poll) -> set[int]:
        """What can be read."""
        if ready := poll.poll(None if self._patience is None else min(1000 * self._patience, MAX_POLL_MS)):
            return {fd for fd, _ in ready}
        current = self.rows["current"]
        env = int(current[current >= 0][0]) if (current >= 0).any() else 0
        raise EnvError(self._env_id, env, f"has been in the middle of a step for {self._patience:g} s")

    def _failure(self, index: int) -> EnvError:
        """Why a worker has ended."""
        process, current = self._processes[index], int(self.rows["current"][index])
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            if self._replies[index].poll():
                return EnvError(self._env_id, *self._replies[index].recv())
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        exited = ended is None or ended.si_code == os.CLD_EXITED
        status = ended.si_status if ended else 0
        how = f"exited with code {status}" if exited else f"was killed by {signal.Signals(status).name}"
        if current >= 0:
            return EnvError(self._env_id, current, f"has ended its worker process, which {how}")
        first = self._job.own(index).start
        return EnvError(self._env_id, first, f"has lost its worker process {process.pid}, which {how}")

    def close(self) -> None:
        os.eventfd_write(self._closing, 1)
        with self._lock:
            self._finalizer()


def _worker_variables() -> dict[str, str]:
    """It imports from where this process does, and has one core."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **threads}


def _in_memory(content: bytes) -> int:
    fd = os.memfd_create("cleanba-job")
    os.write(fd, content)
    return fd


def _end(processes: list[subprocess.Popen[bytes]], commands: list[int]) -> None:
    """A worker that is idle closes its environments and ends; another is killed, with its children."""
    while commands:
        os.close(commands.pop())
    deadline = time.monotonic() + CLOSE_SECONDS
    for process in processes:
        pidfd, ended = os.pidfd_open(process.pid), select.poll()  # `select` takes no number beyond 1023
        ended.register(pidfd, select.POLLIN)
        ended.poll(1000 * max(0.0, deadline - time.monotonic()))
        os.close(pidfd)
        with suppress(ProcessLookupError):  # before `wait`: after it the number could be another group's
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
