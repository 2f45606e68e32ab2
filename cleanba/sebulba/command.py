"""What all commands share: how they end, and what they say when something optional is not installed."""

import os
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
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(interrupt, file=sys.stderr)
        leave_now(130)
    except BrokenPipeError:  # whoever read the output, as in `… --help | head`, has seen enough
        os._exit(1)
    except Exception:
        traceback.print_exc()
        leave_now(1)


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
