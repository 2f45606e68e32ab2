"""The processes of a job while it runs: what they send each other, and how they end together.

Every process keeps a connection to process 0, beside JAX's own runtime. That runtime aborts a process whose
peer dies, late and without naming the peer. With our own connections a dead process is noticed at once and
named, because its connection closes, and every other process exits with that reason.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from cleanba.distributed.connection import Connection, Message, NoMessage
from cleanba.distributed.process_info import ProcessInfo
from cleanba.runtime.command import ANOTHER_PROCESS, CleanExit, hard_exit
from cleanba.runtime.messages import say, without_secrets
from cleanba.sebulba.channel import Channel, ChannelClosed

EXIT_SECONDS = 3.0  # for a process to learn which one was lost, and then to exit by itself
SAVE_SECONDS = 8.0  # the same for process 0, which also saves a checkpoint
RESCUE_SECONDS = 8.0  # for another thread to save it, where the main thread is stuck


class Job:
    """The job as one of its processes sees it. Process 0 has a connection to each of the others, each of them
    one to process 0."""

    def __init__(self, info: ProcessInfo, connections: dict[int, Connection]):
        self.process, self.processes = info.process, info.processes
        self.end_reason: CleanExit | None = None  # if the job ends for another reason than a failure here
        self._connections = connections
        self._reports: dict[int, Channel[Message]] = {process: Channel(64) for process in connections}
        self._pings = {process: (time.monotonic(), 0) for process in connections}  # when, its progress
        self._when_lost: Callable[[CleanExit], None] = lambda reason: None
        self._rescue: Callable[[CleanExit], CleanExit] = lambda reason: reason
        self._end_lock = threading.Lock()
        self._ended = threading.Event()
        self.left = threading.Event()  # by the main thread, in whatever way
        self._finished = False
        self._broadcasts: Channel[Message] = Channel(1)
        self._listeners = [
            threading.Thread(target=self._listen, args=item, name=f"process-{item[0]}", daemon=True)
            for item in connections.items()
        ]
        for listener in self._listeners:
            listener.start()

    # ----------------------------------------------------------------------------------- normal operation

    @contextmanager
    def starting(self, seconds: float) -> Iterator[None]:
        """In the body all processes start JAX's runtime, which waits for all of them. One that is silent for
        too long would make it abort with a stack of C++; the job ends before that, and names it."""
        started = threading.Event()
        deadline = time.monotonic() + seconds + (EXIT_SECONDS if self.process else 0)  # process 0 knows who

        def watch() -> None:
            while not started.wait(min(1.0, seconds / 5)):
                self.ping(0)
                if time.monotonic() > deadline:
                    self.lose(f"JAX's runtime did not start within {seconds:g} s{self.straggler(0)}")
                    return

        threading.Thread(target=watch, name="start", daemon=True).start()
        try:
            yield
        finally:
            started.set()

    def broadcast(self, message: Message) -> None:
        """In process 0: send to all others."""
        self._send(broadcast=message)

    def recv_broadcast(self) -> Message:
        """In the others: the next message that process 0 broadcasts."""
        return self._broadcasts.get()

    def report(self, report: Message) -> None:
        """Send process 0 the report of one update."""
        self._send(report=report)

    def gather(self) -> list[Message]:
        """In process 0: the next report of each other process."""
        return [self._reports[process].get() for process in sorted(self._reports)]

    def ping(self, progress: int) -> None:
        self._send(ping=progress)

    def finish(self) -> None:
        """All processes have finished training; process 0 continues alone."""
        if self.processes > 1:
            _run_in_thread(jax.distributed.shutdown)  # waits for all; this thread must handle signals
        self._finished = True
        self._send(bye=True)
        self._join_listeners()  # one that wakes up while Python exits could abort it

    # ------------------------------------------------------------------------------------------- failures

    def when_lost(self, action: Callable[[CleanExit], None]) -> None:
        """Call `action`, in another thread, when a process is lost; this process exits soon afterwards."""
        self._when_lost = action

    def when_stuck(self, rescue: Callable[[CleanExit], CleanExit]) -> None:
        """In process 0: call `rescue`, in another thread, if the main thread does not exit then, and exit for
        the reason that it returns."""
        self._rescue = rescue

    def fail(self, why: str, exit_code: int = ANOTHER_PROCESS) -> None:
        """Tell the others why this process exits, and with which exit code they should."""
        if not self._finished:
            self._finished = True
            self._send(failed=without_secrets(why), exit_code=exit_code)
            self.let_others_exit()

    def let_others_exit(self) -> None:
        """In process 0, before it exits early: without it, JAX's runtime aborts the others, perhaps before
        they have said why."""
        if self.process == 0:
            self._join_listeners()

    def reason_of(self, error: Exception) -> Exception:
        """A collective fails when another process dies: then that process is the reason to report."""
        if isinstance(error, jax.errors.JaxRuntimeError) and self._connections:
            self._ended.wait(EXIT_SECONDS)
        return self.end_reason or error

    def lose(self, why: str, *, stuck: bool = False, exit_code: int = ANOTHER_PROCESS) -> None:
        """End the whole job. Whoever notices first says why; process 0 forwards it."""
        with self._end_lock:
            if self.end_reason or (self._finished and not stuck):
                return
            self.end_reason = CleanExit(why, 1 if stuck else exit_code)
        if self.process > 0:  # it has no records to close, and JAX's runtime would not give the reason
            say(f"error: {why}")
        if stuck:
            say(thread_stacks())
        self._send(lost=why, stuck=stuck, exit_code=exit_code)
        threading.Thread(target=self._exit_later, daemon=True).start()
        if self.process == 0:
            for channel in self._reports.values():
                channel.close(self.end_reason)
            self._when_lost(self.end_reason)
        self._broadcasts.close(self.end_reason)
        self._ended.set()

    def straggler(self, progress: int) -> str:
        """In process 0: which process the others seem to be waiting for, judging by the last pings."""
        now = time.monotonic()
        for process, (pinged, its_progress) in sorted(self._pings.items()):
            if now - pinged > 3:
                return f"; process {process} has been silent for {now - pinged:.0f} s"
            if its_progress < progress:
                return f"; process {process} is behind it"
        return ""

    def _listen(self, process: int, connection: Connection) -> None:
        try:
            for message in connection:
                if self._is_last(process, connection, message):
                    break
        except NoMessage as why:
            self.lose(f"process {process} ({connection.peer}) was lost: {why}")
        if self.process > 0 and self.end_reason:  # without process 0, JAX's runtime aborts this one
            hard_exit(self.end_reason.exit_code)

    def _join_listeners(self) -> None:
        deadline = time.monotonic() + EXIT_SECONDS
        for listener in self._listeners:
            listener.join(max(0.0, deadline - time.monotonic()))

    def _is_last(self, process: int, connection: Connection, message: Message) -> bool:
        """Handle a message. A code of 0, or one that is no exit code, must not make a failure a success.
        After a failure, process 0 listens on until the others have gone."""
        match message:
            case {"report": dict(report)}:
                with suppress(ChannelClosed):  # the job is ending
                    self._reports[process].put(report)
            case {"ping": int(progress)}:
                self._pings[process] = (time.monotonic(), progress)
            case {"broadcast": dict(content)}:
                with suppress(ChannelClosed):  # the job is ending
                    self._broadcasts.put(content)
            case {"failed": str(why), "exit_code": int(code)} if 0 < code < 256:
                self.lose(f"process {process} ({connection.peer}) failed: {why}", exit_code=code)
                return self.process > 0
            case {"lost": str(why), "stuck": bool(stuck), "exit_code": int(code)} if 0 < code < 256:
                self.lose(why, stuck=stuck, exit_code=code)
                return self.process > 0
            case {"bye": True}:
                return True
            case _:
                raise NoMessage("it sent a message that no process of a job sends")
        return False

    def _exit_later(self) -> None:
        """For a process that cannot exit by itself, e.g. inside a collective. Process 0 gets more time: it
        writes a checkpoint and closes its records."""
        left = self.left.wait(SAVE_SECONDS if self.process == 0 else EXIT_SECONDS)
        if left and self.processes == 1:
            return  # its caller has the reason, in a notebook for instance
        assert self.end_reason is not None
        reason = self.end_reason
        if self.process == 0:
            lost = "lost: what came after the newest checkpoint, if there is one"
            reasons = [CleanExit(f"{reason}\n{lost}", reason.exit_code)]
            rescue = threading.Thread(target=lambda: reasons.append(self._rescue(reason)), daemon=True)
            rescue.start()
            rescue.join(RESCUE_SECONDS)
            reason = reasons[-1]
            say(f"error: {reason}")
        hard_exit(reason.exit_code)

    def _send(self, **message: Any) -> None:
        for connection in self._connections.values():
            with suppress(OSError):  # its listener notices
                connection.send(**message)


def _run_in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a thread and wait for it."""
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


def thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=6))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    ]
    return "where each thread is:\n" + "\n".join(stacks)
