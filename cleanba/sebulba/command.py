"""What all commands share: how they end, and what they say when something optional is not installed."""

import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

import jax
from rich.console import Console

from cleanba.sebulba.args import UsageError


class Ended(Exception):
    """It ends, for a reason that needs no traceback. One line; exit code 1."""


@contextmanager
def command() -> Iterator[Console]:
    """Leave with 2 for bad input, 130 for Ctrl-C, 1 for any other failure."""
    try:
        yield Console()
    except UsageError as error:
        say(f"error: {error}")
        if jax.distributed.is_initialized():  # its normal exit waits for the other processes
            leave_now(2)
        sys.exit(2)
    except Ended as reason:
        say(f"error: {reason}")
        leave_now(1)
    except KeyboardInterrupt as interrupt:
        say(str(interrupt) or "interrupted")
        leave_now(130)
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
