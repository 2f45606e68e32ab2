"""`python -m cleanrl_utils.benchmark` in a test's folder, and the files it writes."""

import contextlib
import io
import sys
import time
from pathlib import Path

import pytest

from cleanrl_utils import benchmark
from helpers.runs import REPO

TEMPLATE = REPO / "cleanrl_utils/cleanba.slurm_template"
MODULE = [sys.executable, "-m", "cleanrl_utils.benchmark"]


def main(*argv):
    """Exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as exit, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        benchmark.main(list(map(str, argv)))
    return exit.value.code, out.getvalue(), err.getvalue()


def files(suffix):
    """The benchmark's files with this suffix, by their stems."""
    return {path.stem: path for path in Path("runs/benchmark").glob(f"*/*.{suffix}")}


def make_executable(name, text):
    """A bash script on the PATH of the fixture `bare_machine`."""
    path = Path("bin", name)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
