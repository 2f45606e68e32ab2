"""What all commands share: how they end, and what they say when something optional is not installed."""

import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, NoReturn

import jax
from rich.console import Console

from cleanba.sebulba.args import UsageError

ANOTHER_PROCESS = 3  # the exit code of a process that leaves because another one of its job did
PREEMPTED = 75  # that of a training that was asked to end: start it again to go on (sysexits' EX_TEMPFAIL)


class Ended(Exception):
    """It ends, for a reason that needs no traceback. One line."""

    def __init__(self, why: str, exit_code: int = 1):
        super().__init__(why)
        self.exit_code = exit_code


# ------------------------------------------------------------------------------------------------ signals


class Stopped(KeyboardInterrupt):
    """By a signal, or something like one."""

    def __init__(self, by: str, how: str = ""):
        super().__init__(f"stopped by {by} {how}".rstrip())
        self.by = by


_came: list[str] = []  # the signals since the command began
_gently: Callable[[str], None] | None = None


def _on_signal(number: int, _: object) -> None:
    name = signal.Signals(number).name
    _came.append(name)
    if len(_came) > 1:  # SLURM repeats itself; a person who does is in a hurry
        if number == signal.SIGINT:
            os.write(2, b"interrupted again: leaving at once\n")
            os._exit(128 + number)
    else:
        _heed(name)


def _heed(name: str) -> None:
    if _gently:
        _gently(name)
    else:
        raise Stopped(name)


def _raise_again(previous: dict[int, Any], report: Callable, lost: "sys.UnraisableHookArgs") -> None:
    """A signal that interrupts a `__del__` or a callback of the garbage collector (JAX has one) raises there,
    where Python drops what is raised. It comes again when that has returned: by an alarm, as a thread's start
    takes locks that the interrupted one may hold."""
    if isinstance(lost.exc_value, Stopped) and _came:
        handler = signal.signal(signal.SIGALRM, lambda *_: _heed(_came[0]))
        previous.setdefault(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    else:
        report(lost)


@contextmanager
def stopping_gently(action: Callable[[str], None]) -> Iterator[list[str]]:
    """A first signal in the body calls `action` with its name, and interrupts nothing. The list is of the
    signals that came. The action must not print with `say`: it may have interrupted a print."""
    global _gently
    _gently = action
    try:
        yield _came
    finally:
        _gently = None


def no_more_stops() -> None:
    """All is done but to note it: a signal that comes now must not make it look unfinished."""
    global _gently
    _gently = lambda name: None  # noqa: E731


@contextmanager
def _signals_handled(numbers: list[signal.Signals]) -> Iterator[None]:
    global _gently
    if threading.current_thread() is not threading.main_thread():  # only it can
        yield
        return
    _came.clear()
    heard = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]  # nohup has SIGHUP ignored
    previous: dict[int, Any] = {number: signal.signal(number, _on_signal) for number in heard}
    report = sys.unraisablehook
    sys.unraisablehook = partial(_raise_again, previous, report)
    try:
        yield
    finally:
        sys.unraisablehook = report
        if signal.SIGALRM in previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
        _came.clear()
        _gently = None


# ----------------------------------------------------------------------------------------------- commands


@contextmanager
def command(*, resumable: bool = False) -> Iterator[Console]:
    """Leave with 2 for bad input, 1 for any other failure; at SIGINT with 130, at SIGTERM with 143, but with
    75 if the command is `resumable`, then also at SIGUSR1 and SIGHUP."""
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1, signal.SIGHUP] if resumable else [])]
    with _signals_handled(numbers):
        try:
            yield Console()
        except UsageError as error:
            say(f"error: {error}")
            if jax.distributed.is_initialized():  # its normal exit waits for the other processes
                leave_now(2)
            sys.exit(2)
        except SystemExit as leaving:  # rich's, when nobody reads any more
            for note in getattr(leaving, "__notes__", []):
                say(note)
            if jax.distributed.is_initialized():
                leave_now(leaving.code if isinstance(leaving.code, int) else 1)
            raise
        except Ended as reason:
            say("\n".join([f"error: {reason}", *getattr(reason, "__notes__", [])]))
            leave_now(reason.exit_code)
        except KeyboardInterrupt as interrupt:
            say(str(interrupt) or "interrupted")
            leave_now(PREEMPTED if resumable else 143 if "SIGTERM" in _came else 130)
        except Exception:
            if _nobody_reads():  # as in `… --help | head`, which has seen enough
                os._exit(1)
            say(traceback.format_exc().rstrip())
            leave_now(1)


def _nobody_reads() -> bool:
    """Whoever read the output is gone."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def say(text: str) -> None:
    """Beside the output, in one write: other processes may write to the same terminal. It may be gone."""
    with suppress(OSError):
        sys.stderr.write(f"{without_secrets(text)}\n")
        sys.stderr.flush()


def without_secrets(text: str) -> str:
    """Libraries put what they were given into their error messages: tokens, or addresses with passwords."""
    for name, value in os.environ.items():
        if len(value) >= 8 and re.search("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", name.upper()):
            text = text.replace(value, f"(the value of {name})")
    return re.sub(r"(://)[^/\s:@]+:[^/\s@]+@", r"\1***@", text)


def leave_now(code: int) -> NoReturn:
    """Without waiting for threads: one may be inside a long device program."""
    for output in (sys.stdout, sys.stderr):
        with suppress(OSError):
            output.flush()
    os._exit(code)


def need_extra(flag: str, module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise UsageError(f"{flag} needs {module}; install the extra {extra!r}: pip install -e '.[{extra}]'")


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
