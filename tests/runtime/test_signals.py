"""One request to stop, however often it arrives; a real second one; signals while the main thread is busy."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.full_disk import open_full
from helpers.runs import REPO

from cleanba.cli import COMMANDS
from cleanba.runtime.early_signals import TRAINS_NOTHING

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
from cleanba.runtime import signals
from cleanba.runtime.signals import Stopped, on_stop

signals.SAME_REQUEST_SECONDS = 60.0  # a busy machine may take its time between two signals
stop = threading.Event()
with command(resumable=True), on_stop(lambda name: (stop.set(), print("asked by", name))) as received:
    print("ready", flush=True)
    stop.wait()
    time.sleep(0.3)
    raise Stopped(received[0], "after saving")
"""


def start(script, stderr=subprocess.PIPE):
    command = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=stderr, text=True
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
    code, out, errors = end(command)
    name = out.split()[-1]  # of two that a busy process sees at once, either may be the first
    assert name in {number.name for number in numbers}
    assert (code, out, errors) == (75, f"asked by {name}\n", f"stopped by {name} after saving\n")


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


@pytest.mark.parametrize("kind", ["a full disk", "a pipe that nobody has open any more"])
def test_a_later_ctrl_c_leaves_at_once_where_it_cannot_say_so(kind):
    """Ctrl-C also ends the `tee` of `2>&1 | tee log`."""
    with ExitStack() as cleanup:
        if kind == "a full disk":
            stderr = cleanup.enter_context(open_full())
        else:
            reader, stderr = os.pipe()
            cleanup.callback(os.close, stderr)
            os.close(reader)
        command = start(WORK.format(resumable=True, work=SLEEP, cleanup=60), stderr)
    command.send_signal(signal.SIGINT)
    time.sleep(1)
    assert command.poll() is None
    command.send_signal(signal.SIGINT)
    assert end(command) == (130, "", None)


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
    assert end(command) == (75, "", "stopped by SIGINT before anything was done\n")


# ------------------------------------------------------------------------------------ while Python imports

INTERRUPTED_IMPORT = """
import signal, time
try:
    signal.raise_signal(signal.{name})
    time.sleep(60)
except BaseException:  # as a library may have it
    pass
print("imported")
"""
TOOLS = {module.rpartition(".")[2] for module, _ in COMMANDS.values()}
SCRIPTS = [[path] for path in sorted((REPO / "cleanba").glob("cleanba_*.py")) if path.stem not in TOOLS]


CLEANBA = ["-m", "cleanba"]


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [
        *((script, "SIGINT", 75) for script in SCRIPTS),
        ([REPO / "cleanba/cleanba_ppo.py"], "SIGTERM", 75),
        ([REPO / "cleanba/cleanba_ppo.py"], "SIGUSR1", 75),
        ([*CLEANBA, "ppo"], "SIGINT", 75),
        ([*CLEANBA, "ppo-fit"], "SIGTERM", 75),
        ([*CLEANBA, "train", REPO / "examples/a2c.py"], "SIGINT", 75),
        ([*CLEANBA, "eval"], "SIGINT", 130),
        ([*CLEANBA, "bench"], "SIGTERM", 143),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, list) else None,
)
def test_a_command_can_be_stopped_while_it_imports(tmp_path, command, name, code):
    process = start_interrupted_import(tmp_path, command, name)
    assert end(process) == (code, "", f"stopped by {name} before anything was done\n")


@pytest.mark.parametrize(
    "command", [[REPO / "cleanba/cleanba_ppo.py"], [*CLEANBA, "ppo"]], ids=["script", "cli"]
)
def test_a_command_that_cannot_say_so_is_stopped_too(tmp_path, command):
    with open_full() as full:
        assert end(start_interrupted_import(tmp_path, command, "SIGINT", full)) == (75, "", None)


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [("ppo", "SIGINT", 75), ("ppo", "SIGTERM", 75), ("runs", "SIGINT", 130), ("runs", "SIGTERM", 143)],
)
@pytest.mark.parametrize(
    "cleanba", [CLEANBA, [Path(sys.executable).with_name("cleanba")]], ids=["module", "script"]
)
def test_cleanba_can_be_stopped_before_it_has_read_its_command(tmp_path, cleanba, command, name, code):
    process = start_interrupted_import(tmp_path, [*cleanba, command], name, module="rich")
    assert end(process) == (code, "", f"stopped by {name} before anything was done\n")


def test_the_early_codes_are_those_of_the_commands():
    assert TRAINS_NOTHING | {"launch"} == set(COMMANDS)


def start_interrupted_import(tmp_path, command, name, stderr=subprocess.PIPE, module="jax"):
    (tmp_path / f"{module}.py").write_text(INTERRUPTED_IMPORT.format(name=name))
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{REPO}"},
    )


EARLY = """
import signal
from cleanba.runtime.command import command
from cleanba.runtime.signals import STOP_SIGNALS, handle_until_command

def handlers():
    return [signal.getsignal(number) for number in STOP_SIGNALS]

before = handlers()
handle_until_command(print)
assert handlers() == [print] * 4
with command({flags}):
    assert print not in handlers()
assert handlers() == before
"""


@pytest.mark.parametrize("flags", ["", "resumable=True"])
def test_handling_before_a_command_ends_with_it(flags):
    subprocess.run([sys.executable, "-c", EARLY.format(flags=flags)], check=True, timeout=60)


def test_a_program_that_imports_an_algorithm_keeps_its_handlers(tmp_path):
    program = "import signal; before = signal.getsignal(2); from cleanba import cleanba_ppo"
    (tmp_path / "own.py").write_text(f"{program}; assert signal.getsignal(2) is before")
    subprocess.run([sys.executable, tmp_path / "own.py"], check=True, timeout=60)
