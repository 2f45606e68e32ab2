"""Child processes that end when the process that started them does, in whatever way. Needs no jax."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

# Becomes the command in argv[3:], which gets the signal argv[2] when its parent argv[1] dies. In a program of
# its own: Python must not run between fork and exec in a process with threads.
TIED_TO_PARENT = """
import ctypes, os, sys
PR_SET_PDEATHSIG = 1
parent, number = map(int, sys.argv[1:3])
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
if os.getppid() != parent:  # it has died before
    sys.exit(128 + number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def tied_to_parent(
    argv: list[str], number: signal.Signals = signal.SIGTERM, parent: int | None = None
) -> list[str]:
    """A command line that runs `argv`, and sends it the signal when `parent` dies: this process by
    default."""
    start = [sys.executable, "-ISc", TIED_TO_PARENT, str(parent or os.getpid()), str(int(number))]
    return [*start, *argv]


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for the signal."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False
