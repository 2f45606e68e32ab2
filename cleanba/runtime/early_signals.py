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


TRAINS_NOTHING = {"bench", "completion", "diff", "envs", "eval", "plot", "report", "runs"}  # of `cleanba`


def _leave(number: int, _: object) -> None:
    trains = not TRAINS_NOTHING & set(sys.argv[1:2])
    signals.leave_before_start(signal.Signals(number).name, signals.PREEMPTED if trains else 128 + number)


def _is_command() -> bool:
    """Whether this process runs one of Cleanba's files, or `cleanba`: others handle signals as they like."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    return path is not None and (Path(path).name == "cleanba" or Path(path).resolve().parent == PACKAGE)


if _is_command():
    signals.handle_until_command(_leave)
