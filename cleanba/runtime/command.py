"""How commands end: exit codes, and one line for errors that need no traceback."""

import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from cleanba.config.errors import EnvError, NotFinite, UsageError
from cleanba.runtime.messages import say
from cleanba.runtime.output import background_output, flush_output, replace_closed_streams
from cleanba.runtime.signals import PREEMPTED, STOP_SIGNALS, handle_signals, leave_before_start, on_stop

ANOTHER_PROCESS = 3  # exit code of a process that leaves because another process of its job did


CHECKOUT = Path(__file__).parent.parent.parent  # if it is one


class CleanExit(Exception):
    """The command ends for a reason that needs no traceback. One line."""

    def __init__(self, why: str, exit_code: int = 1):
        super().__init__(why)
        self.exit_code = exit_code


@contextmanager
def command(*, resumable: bool = False) -> Iterator[Console]:
    """Exit with 2 for bad input and 1 for any other failure; on SIGINT with 130, on SIGTERM with 143, but
    with 75 if the command is `resumable`, which then handles SIGUSR1 and SIGHUP the same way, and which no
    output stops: neither one that nobody reads nor a full disk."""
    numbers = STOP_SIGNALS if resumable else (signal.SIGINT, signal.SIGTERM)
    replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may have bytes that are not UTF-8
    with handle_signals(numbers) as received, background_output() if resumable else nullcontext():
        try:
            yield Console()
            if not _flushed():
                hard_exit(1)
        except UsageError as error:
            say(f"error: {error}")
            if _in_job():
                hard_exit(2)
            sys.exit(2)
        except SystemExit as leaving:  # rich raises it when the reader of the output is gone
            for note in getattr(leaving, "__notes__", []):
                say(note)
            if _in_job() or not _flushed():
                hard_exit(leaving.code if isinstance(leaving.code, int) else 1)
            raise
        except (CleanExit, EnvError, NotFinite) as reason:
            say("\n".join([f"error: {reason}", *getattr(reason, "__notes__", [])]))
            hard_exit(reason.exit_code)
        except KeyboardInterrupt as interrupt:
            say(str(interrupt) or "interrupted")
            hard_exit(_exit_code(received[:1] == ["SIGTERM"], resumable))
        except Exception:
            if _reader_is_gone():  # as in `… --help | head`
                os._exit(1)
            say(traceback.format_exc().rstrip())
            hard_exit(1)


@contextmanager
def importing(*, resumable: bool = False) -> Iterator[None]:
    """In the body, a signal ends the process. Raised inside an import, an exception becomes a traceback, is
    lost in a library that catches it, or crashes an extension module."""

    with on_stop(lambda name: leave_before_start(name, _exit_code(name == "SIGTERM", resumable))):
        yield


def _exit_code(terminated: bool, resumable: bool) -> int:
    return PREEMPTED if resumable else 143 if terminated else 130


def _in_job() -> bool:
    """JAX's runtime connects this process to others: a normal exit would wait for them."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _flushed() -> bool:
    """False if the output cannot be written: Python would report that once more at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # as in `… --help | head`
        return False
    except OSError as error:
        say(f"the output could not be written ({error.strerror})")
        return False
    return True


def _reader_is_gone() -> bool:
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def hard_exit(code: int) -> NoReturn:
    """Without waiting for threads: one may be inside a long device program."""
    flush_output()
    os._exit(code)


def has_module(name: str) -> bool:
    return find_spec(name) is not None


def need_extra(flag: str, module: str, extra: str) -> None:
    if not has_module(module):
        where = CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else None
        install = f"-e '{where}[{extra}]'" if where else f"'cleanba[{extra}]'"
        raise UsageError(f"{flag} needs {module}; install it with: pip install {install}")
