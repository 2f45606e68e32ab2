"""The tests' own promise: what a test starts is dead when it is over, and gets default signals."""

import os
import subprocess
import sys
import time

from helpers import leftovers
from helpers.runs import REPO, run_python


def test_orphans_of_a_test_are_found_and_killed():
    """Also one in a session of its own, whose parent has ended."""
    before = leftovers.children()
    subprocess.run(["sh", "-c", "setsid sleep 1234 & sleep 1235 &"], check=True)
    assert sorted(leftovers.still_running(before, 0.2).values()) == ["sleep 1234", "sleep 1235"]
    leftovers.kill_new_children(before)
    assert not leftovers.still_running(before, 0)


def test_a_test_that_leaves_a_process_fails_and_the_next_one_does_not(tmp_path):
    (tmp_path / "conftest.py").write_text("from helpers import leftovers; leftovers.GRACE_SECONDS = 0.1")
    (tmp_path / "test_it.py").write_text(
        "import subprocess\n"
        "def test_leaves(): subprocess.Popen(['sleep', '1236'])\n"
        "def test_fails(): subprocess.Popen(['sleep', '1237']); assert False\n"
        "def test_innocent(): pass\n"
    )
    pytest = ["-m", "pytest", "-p", "helpers.leftovers", "-p", "no:cacheprovider", "-q", "."]
    done = run_python(tmp_path, *pytest, PYTHONPATH=str(REPO / "tests"))
    assert "1 failed, 2 passed, 2 errors" in done.stdout, done.stdout
    assert "left processes running" in done.stdout and "sleep 1236" in done.stdout


CHILD = "import signal; print(signal.getsignal(signal.SIGINT) == signal.default_int_handler)"
PARENT = """
import signal, subprocess, sys
from helpers.leftovers import give_children_default_signals

signal.signal(signal.SIGINT, signal.SIG_IGN)
give_children_default_signals()
signal.raise_signal(signal.SIGINT)
print(subprocess.check_output([sys.executable, "-c", sys.argv[1]]))
"""


def test_children_get_default_signals_although_the_suite_ignores_them(tmp_path):
    assert "True" in run_python(tmp_path, "-c", PARENT, CHILD, PYTHONPATH=str(REPO / "tests")).stdout


def test_nothing_outlives_a_suite_that_is_killed(tmp_path):
    """Neither its workers nor what their tests have started."""
    (tmp_path / "test_it.py").write_text(
        "import pathlib, subprocess\n"
        "def test_waits():\n"
        "    sleep = subprocess.Popen(['sleep', '1238'], start_new_session=True)\n"
        "    pathlib.Path('started').touch()\n"
        "    sleep.wait()\n"
    )
    before = leftovers.children()
    pytest = [sys.executable, "-m", "pytest", "-p", "helpers.leftovers", "-p", "no:cacheprovider", "-n", "1"]
    path = {"PYTHONPATH": str(REPO / "tests")}
    suite = subprocess.Popen(pytest, cwd=tmp_path, env=os.environ | path, stdout=subprocess.DEVNULL)
    while not (tmp_path / "started").exists():
        assert suite.poll() is None
        time.sleep(0.05)
    suite.kill()
    suite.wait()
    assert not leftovers.still_running(before, seconds=20)
