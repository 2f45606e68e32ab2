"""One request to stop, however often it arrives; a real second one; signals while the main thread is busy."""

import signal
import subprocess
import sys
import time

import pytest

SLEEP = "time.sleep(60)"
LONG_CALL = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'  # in which Python handles no signals

WORK = """
import hashlib, time
from cleanba.runtime.command import command
with command(resumable={resumable}):
    try:
        print("ready", flush=True)
        {work}
    finally:
        time.sleep({cleanup})
        print("cleaned up", flush=True)
"""

SAVING = """
import threading, time
from cleanba.runtime.command import command
from cleanba.runtime.signals import Stopped, on_stop

stop = threading.Event()
with command(resumable=True), on_stop(lambda name: (stop.set(), print("asked by", name))) as signals:
    print("ready", flush=True)
    stop.wait()
    time.sleep(0.3)
    raise Stopped(signals[0], "after saving")
"""


def start(script):
    command = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout.readline() == "ready\n"
    return command


def end(command):
    """Exit code, stdout and stderr."""
    out, errors = command.communicate(timeout=20)
    return command.returncode, out, errors


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGINT],
        [signal.SIGINT, signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGINT, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGINT],
    ],
    ids=lambda numbers: "-".join(number.name for number in numbers),
)
def test_a_repetition_within_half_a_second_is_the_same_request(numbers):
    command = start(SAVING)
    for number in numbers:
        command.send_signal(number)
        time.sleep(0.05)
    name = numbers[0].name
    assert end(command) == (75, f"asked by {name}\n", f"stopped by {name} after saving\n")


def test_a_repetition_does_not_interrupt_the_cleanup():
    command = start(WORK.format(resumable=False, work=SLEEP, cleanup=0.3))
    command.send_signal(signal.SIGINT)
    time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    assert end(command) == (130, "cleaned up\n", "stopped by SIGINT\n")


@pytest.mark.parametrize("work", [SLEEP, LONG_CALL], ids=["waiting", "in a long call"])
def test_a_later_ctrl_c_leaves_at_once(work):
    command = start(WORK.format(resumable=True, work=work, cleanup=60))
    command.send_signal(signal.SIGINT)
    time.sleep(1)
    assert command.poll() is None
    command.send_signal(signal.SIGINT)
    assert end(command) == (130, "", "interrupted again: leaving at once\n")


def test_a_later_sigterm_does_not():
    """SLURM repeats itself."""
    command = start(WORK.format(resumable=True, work=SLEEP, cleanup=1.5))
    command.terminate()
    time.sleep(1)
    command.terminate()
    assert end(command) == (75, "cleaned up\n", "stopped by SIGTERM\n")


TO_ANOTHER_THREAD = """
import signal, threading, time
from cleanba.runtime.command import command

def interrupt():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

with command(resumable=True):
    print("ready", flush=True)
    threading.Thread(target=interrupt).start()
    time.sleep(60)
"""


def test_a_signal_that_the_main_thread_does_not_notice_is_not_lost():
    """It wakes another thread, or comes just before the main thread begins to wait."""
    assert end(start(TO_ANOTHER_THREAD)) == (75, "", "stopped by SIGINT\n")


def test_ctrl_c_while_python_imports_is_one_line(tmp_path):
    (tmp_path / "slow.py").write_text('print("ready", flush=True)\nimport time\ntime.sleep(60)')
    command = start(
        f"import sys; sys.argv[1:] = ['train', '{tmp_path}/slow.py']; import cleanba.cli as c; c.main()"
    )
    command.send_signal(signal.SIGINT)
    assert end(command) == (75, "", "stopped by SIGINT\n")
