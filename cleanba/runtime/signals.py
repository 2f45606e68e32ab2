"""Signals that ask a command to stop.

Terminals, `timeout`, `srun` and container runtimes pass on a signal that has already arrived: a repetition
within half a second is the same request, a later Ctrl-C is impatience. A thread, the watcher, tells them
apart. It is woken through a socket when a signal arrives (`signal.set_wakeup_fd`), even while the main thread
is inside a long call; and it may wait for locks, which a handler must not.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

PREEMPTED = 75  # exit code of a training that was asked to stop and can be resumed (sysexits' EX_TEMPFAIL)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
SAME_REQUEST_SECONDS = 0.5
ACT = 0  # sent to the watcher by a handler; other bytes are the numbers of signals
# Sent to the main thread until it has handled the first signal: that one may have reached another thread, or
# this one a moment before it began to wait. By default it is ignored, so it does no harm after the command.
NUDGE, NUDGE_SECONDS = signal.SIGURG, 0.1


class Stopped(KeyboardInterrupt):
    """Asked to stop, by a signal or by another process."""

    def __init__(self, by: str, how: str = ""):
        super().__init__(f"stopped by {by} {how}".rstrip())
        self.by = by


def leave(code: int, why: str) -> NoReturn:
    """Not through `say`: this must not wait, and must not fail where stderr is closed, full or unread."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{why}\n".encode())
    os._exit(code)


def leave_at_once() -> None:
    leave(128 + signal.SIGINT, "interrupted again: leaving at once")


def leave_before_start(name: str, code: int = PREEMPTED) -> None:
    leave(code, f"stopped by {name} before anything was done")


_received: list[str] = []  # names of the signals since the command began
_on_stop: Callable[[str], None] | None = None  # what a first signal does; None: it raises Stopped
_on_repeat: Callable[[], None] = leave_at_once  # what a later Ctrl-C does
_impatience: Callable[[], None] = leave_at_once  # the same, where `on_stop` does not say
_to_watcher: socket.socket | None = None  # None: signals are not handled
_early: dict[signal.Signals, Any] = {}  # what handled signals before `handle_until_command`
_dropped = False  # Python has dropped a Stopped that a handler raised


def _handle(number: int, _: object) -> None:
    """In the main thread. Either it interrupts what runs there, or the watcher does what is to be done."""
    _received.append(signal.Signals(number).name)
    if len(_received) > 1:
        return
    if _on_stop is None:
        raise Stopped(_received[0])
    _wake_watcher()


def _handle_nudge(*_: object) -> None:
    global _dropped
    if _dropped:
        _dropped = False
        raise Stopped(_received[0])


def _wake_watcher() -> None:
    if _to_watcher:
        _to_watcher.send(bytes([ACT]))


def _watch(wakeups: socket.socket) -> None:
    """Until the other end is closed."""
    first = None
    while True:
        unnoticed = _dropped or (first is not None and not _received)
        if not select.select([wakeups], [], [], NUDGE_SECONDS if unnoticed else None)[0]:
            signal.pthread_kill(threading.main_thread().ident or 0, NUDGE)
            continue
        if not (byte := wakeups.recv(1)):
            return
        number, action = byte[0], _on_stop  # the main thread may leave `on_stop` meanwhile
        if number == ACT and action:
            action(_received[0])
        elif number == ACT or signal.getsignal(number) is not _handle:
            continue  # the main thread has left `on_stop`, or a signal of somebody else
        elif first is None:
            first = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - first > SAME_REQUEST_SECONDS:
            _on_repeat()


def _note_dropped(report: Callable, dropped: "sys.UnraisableHookArgs") -> None:
    """A signal that interrupts a `__del__` or a callback of the garbage collector (JAX has one) raises there,
    where Python drops exceptions. It is raised again at the next nudge."""
    global _dropped
    if isinstance(dropped.exc_value, Stopped):
        _dropped = True
        _wake_watcher()
    else:
        report(dropped)


@contextmanager
def on_stop(
    action: Callable[[str], None], on_repeat: Callable[[], None] | None = None
) -> Iterator[list[str]]:
    """In the body, a first signal interrupts nothing: another thread calls `action` with its name, and
    `on_repeat` at a later Ctrl-C. Yields the names of all signals so far. Signals are the main thread's
    business: in any other, nothing happens."""
    global _on_stop, _on_repeat
    if not in_main_thread():
        yield []
        return
    _on_stop, _on_repeat = action, on_repeat or _impatience
    try:
        if _received:  # a library has caught the exception of an earlier one
            action(_received[0])
        yield _received
    finally:
        _on_stop, _on_repeat = None, _impatience


def ignore_stops() -> None:
    """All work is done: a signal that arrives now must not make the run look unfinished."""
    global _on_stop
    if in_main_thread():
        _on_stop = lambda name: None  # noqa: E731


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def handle_until_command(handler: Callable[[int, Any], None]) -> None:
    """For all signals that ask to stop, unless they are ignored or handled already."""
    for number in STOP_SIGNALS if _to_watcher is None else ():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            _early[number] = signal.signal(number, handler)


@contextmanager
def handle_signals(
    numbers: Sequence[signal.Signals], impatience: Callable[[], None] = leave_at_once
) -> Iterator[list[str]]:
    """In the body, these signals stop the command, and a later Ctrl-C calls `impatience`. Yields the names of
    those received."""
    if not in_main_thread():  # only it can set handlers
        yield _received
        return
    with ExitStack() as cleanup:
        if _to_watcher is None:
            cleanup.enter_context(_watcher(impatience))
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                previous = signal.signal(number, _handle)
                cleanup.callback(signal.signal, number, _early.pop(number, previous) or signal.SIG_DFL)
        while _early:
            signal.signal(*_early.popitem())
        yield _received


@contextmanager
def handle_default_signals() -> Iterator[None]:
    """In the body, signals that nobody else handles raise Stopped: in a notebook, or a script of the user's
    own, a later Ctrl-C interrupts whatever runs then, and leaves the process alone."""
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    with handle_signals([n for n in ours if signal.getsignal(n) in defaults], _interrupt_again):
        yield


def _interrupt_again() -> None:
    global _dropped
    _dropped = True  # the watcher nudges the main thread


@contextmanager
def _watcher(impatience: Callable[[], None]) -> Iterator[None]:
    global _to_watcher, _on_stop, _on_repeat, _impatience, _dropped
    _on_stop, _on_repeat, _impatience, _dropped = None, impatience, impatience, False
    report = sys.unraisablehook
    sending, receiving = socket.socketpair()
    sending.setblocking(False)
    previous = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    _to_watcher, sys.unraisablehook = sending, lambda dropped: _note_dropped(report, dropped)
    watcher = threading.Thread(target=_watch, args=(receiving,), name="signals", daemon=True)
    watcher.start()
    nudged = signal.signal(NUDGE, _handle_nudge)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        sys.unraisablehook = report
        _to_watcher, _on_stop, _dropped = None, None, False
        _on_repeat = _impatience = leave_at_once
        _received.clear()
        sending.close()
        watcher.join()
        receiving.close()
        signal.signal(NUDGE, nudged or signal.SIG_DFL)
