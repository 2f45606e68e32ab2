"""What all commands share: how they end, and what they say when something optional is not installed."""

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

import jax
from rich.console import Console

from cleanba.sebulba.args import UsageError

ANOTHER_PROCESS = 3  # the exit code of a process that leaves because another one of its job did


class Ended(Exception):
    """It ends, for a reason that needs no traceback. One line."""

    def __init__(self, why: str, exit_code: int = 1):
        super().__init__(why)
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """By SIGTERM, which is taken as Ctrl-C is."""


def _terminate(*_: object) -> None:
    raise Terminated


@contextmanager
def command() -> Iterator[Console]:
    """Leave with 2 for bad input, 130 for Ctrl-C, 143 for SIGTERM, 1 for any other failure."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield Console()
    except UsageError as error:
        say(f"error: {error}")
        if jax.distributed.is_initialized():  # its normal exit waits for the other processes
            leave_now(2)
        sys.exit(2)
    except SystemExit as leaving:  # rich's, when nobody reads any more
        if jax.distributed.is_initialized():
            leave_now(leaving.code if isinstance(leaving.code, int) else 1)
        raise
    except Ended as reason:
        say(f"error: {reason}")
        leave_now(reason.exit_code)
    except KeyboardInterrupt as interrupt:
        say(str(interrupt) or "interrupted")
        terminated = isinstance(interrupt, Terminated) or isinstance(interrupt.__cause__, Terminated)
        leave_now(143 if terminated else 130)
    except Exception:
        if _nobody_reads():  # as in `… --help | head`, which has seen enough
            os._exit(1)
        traceback.print_exc()
        leave_now(1)


def _nobody_reads() -> bool:
    """Whoever read the output is gone."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def say(text: str) -> None:
    """Beside the output, in one write: other processes may write to the same terminal."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def leave_now(code: int) -> NoReturn:
    """Without waiting for threads: one may be inside a long device program."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def need_extra(flag: str, module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise UsageError(f"{flag} needs {module}; install the extra {extra!r}: pip install -e '.[{extra}]'")


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
