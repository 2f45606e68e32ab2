"""What all commands share: how they end, and what they say when something optional is not installed."""

import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

from rich.console import Console

from cleanba.sebulba.args import UsageError


@contextmanager
def command() -> Iterator[Console]:
    """Leave with 2 for bad input, 130 for Ctrl-C, 1 for any other failure."""
    try:
        yield Console()
    except UsageError as error:
        say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            say(str(interrupt))
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
    """Beside the output."""
    print(text, file=sys.stderr, flush=True)


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
