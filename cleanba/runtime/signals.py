"""Signals that ask a command to stop."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class Stopped(KeyboardInterrupt):
    """Asked to stop, by a signal or by another process."""

    def __init__(self, by: str, how: str = ""):
        super().__init__(f"stopped by {by} {how}".rstrip())
        self.by = by


_received: list[str] = []  # names of the signals since the command began
_on_stop: Callable[[str], None] | None = None  # what a first signal does; None: it raises Stopped


def _handle(number: int, _: object) -> None:
    name = signal.Signals(number).name
    _received.append(name)
    if len(_received) > 1:  # SLURM repeats itself; a person who does is in a hurry
        if number == signal.SIGINT:
            os.write(2, b"interrupted again: leaving at once\n")
            os._exit(128 + number)
    else:
        _stop(name)


def _stop(name: str) -> None:
    if _on_stop:
        _on_stop(name)
    else:
        raise Stopped(name)


def _raise_again(previous: dict[int, Any], report: Callable, dropped: "sys.UnraisableHookArgs") -> None:
    """A signal that interrupts a `__del__` or a callback of the garbage collector (JAX has one) raises there,
    where Python drops exceptions. It is raised again once that code has returned, by an alarm: starting a
    thread would take locks that the interrupted thread may hold."""
    if isinstance(dropped.exc_value, Stopped) and _received:
        handler = signal.signal(signal.SIGALRM, lambda *_: _stop(_received[0]))
        previous.setdefault(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    else:
        report(dropped)


@contextmanager
def on_stop(action: Callable[[str], None]) -> Iterator[list[str]]:
    """In the body, a first signal calls `action` with its name and interrupts nothing. Yields the names of
    all signals so far. The action must not print with `say`: it may have interrupted a print."""
    global _on_stop
    _on_stop = action
    try:
        yield _received
    finally:
        _on_stop = None


def ignore_stops() -> None:
    """All work is done: a signal that arrives now must not make the run look unfinished."""
    global _on_stop
    _on_stop = lambda name: None  # noqa: E731


@contextmanager
def handle_signals(numbers: list[signal.Signals]) -> Iterator[list[str]]:
    """In the body, these signals stop the command. Yields the names of those received."""
    global _on_stop
    if threading.current_thread() is not threading.main_thread():  # only it can set handlers
        yield _received
        return
    _received.clear()
    handled = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]  # nohup ignores SIGHUP
    previous: dict[int, Any] = {number: signal.signal(number, _handle) for number in handled}
    report = sys.unraisablehook
    sys.unraisablehook = partial(_raise_again, previous, report)
    try:
        yield _received
    finally:
        sys.unraisablehook = report
        if signal.SIGALRM in previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
        _received.clear()
        _on_stop = None
