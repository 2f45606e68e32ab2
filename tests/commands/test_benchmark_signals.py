"""How a benchmark is stopped, and what becomes of its runs."""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from helpers.benchmark_command import MODULE, files, main, wait_for

from cleanrl_utils import benchmark

pytestmark = pytest.mark.usefixtures("bare_machine")


def processes(mark):
    """The live processes with `mark` in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if mark.encode() in environ.read_bytes():
                found.append(environ.parent)
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_runs_and_leaves_no_process(number, code):
    """Not even children that run in the background."""
    mark = f"BENCHMARK_TEST={os.getpid()}.{time.time()}"
    command = "sleep 100 & touch started.$$; sleep 100; echo"
    argv = ["--env-ids", "A", "B", "C", "--num-seeds", "1", "--workers", "2", "--command", command]
    process = subprocess.Popen(
        ["env", mark, *MODULE, *argv], executable="/usr/bin/env", stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: len(list(Path().glob("started.*"))) == 2)
    assert len(processes(mark)) >= 5  # the benchmark, and for each run the shell and one or two others
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == code
    wait_for(lambda: not processes(mark))  # before their 100 seconds are over
    assert not files("done")
    assert out.splitlines()[-1] == "runs: 2 stopped, 1 waiting"


def test_nohup_works():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGHUP)).start()
    assert main("--env-ids", "A", "--num-seeds", 1, "--command", "sleep 0.4; echo")[0] == 0


def test_runs_can_save_a_checkpoint_when_the_benchmark_is_terminated():
    save = "trap 'sleep 0.2; echo saved; exit 75' TERM; touch started; while :; do sleep 0.01; done"
    argv = ["--env-ids", "A", "--num-seeds", "1", "--command", f"bash -c {shlex.quote(save)} && echo"]
    process = subprocess.Popen([*MODULE, *argv], stdout=subprocess.DEVNULL)
    wait_for(Path("started").exists)
    process.terminate()
    assert process.wait(20) == 143
    assert "saved" in files("log")["A__1"].read_text().splitlines()


@pytest.mark.parametrize("again", [False, True], ids=["after the grace time", "at the second Ctrl-C"])
def test_a_run_that_ignores_ctrl_c_is_killed(again, monkeypatch):
    monkeypatch.setattr(benchmark, "GRACE_SECONDS", 600 if again else 0.3)
    command = "trap '' INT; echo $$ > pid; while :; do sleep 0.01; done; echo"

    ended = threading.Event()

    def press():
        wait_for(Path("pid").exists)
        os.kill(os.getpid(), signal.SIGINT)
        while again and not ended.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    code, out, _ = main("--env-ids", "A", "--num-seeds", 1, "--command", command)
    ended.set()
    thread.join()
    assert code == 130
    assert not Path("/proc", Path("pid").read_text().strip()).exists()
    assert "stopping 1 runs" in out and out.endswith("runs: 1 stopped\n")


def test_ctrl_c_works_after_the_reader_of_the_output_has_gone():
    argv = ["--env-ids", "A", "--num-seeds", "1", "--command", "echo $$ > pid; exec sleep 100 #"]
    process = subprocess.Popen([*MODULE, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: Path("pid").exists() and Path("pid").read_text())
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == b""
    process.stderr.close()
    assert not Path("/proc", Path("pid").read_text().strip()).exists()


def test_leftover_processes_of_a_run_are_killed():
    code, *_ = main("--env-ids", "A", "--num-seeds", 1, "--command", "sleep 100 & echo $! > pid; echo")
    assert code == 0
    status = Path("/proc", Path("pid").read_text().strip(), "status")
    wait_for(lambda: not status.exists() or "State:\tZ" in status.read_text())
