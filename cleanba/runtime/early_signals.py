"""Signals that reach a training script, or `cleanba`, while Python imports, before `command` handles them.

Importing this first is enough: `python cleanba/cleanba_ppo.py` then ends with one line and the exit code of a
run that can be started again. An exception would do neither: raised inside an import it becomes a traceback,
or is lost in a library that catches it, and the run goes on.
"""

import signal
import sys
from pathlib import Path

from cleanba.runtime import signals

PACKAGE = Path(__file__).parents[1]


def _leave(number: int, _: object) -> None:
    signals.leave_before_start(signal.Signals(number).name)


def _is_command() -> bool:
    """Whether this process runs one of Cleanba's files, or `cleanba`: others handle signals as they like."""
    path = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    return path.name == "cleanba" or path.resolve().parent == PACKAGE


if _is_command():
    signals.handle_until_command(_leave)
