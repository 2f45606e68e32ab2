"""Whatever fails, the run ends soon, with the original traceback, and with everything logged so far."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.full_disk import open_full
from helpers.runs import REPO, SMALL, read_args, read_rows

from cleanba.envs.envpool import Envs
from cleanba.evaluation.model import load_model
from cleanba.records.run_folder import MetricsFile, checkpoint_updates
from cleanba.sebulba.actor import Actor
from cleanba.sebulba.learner import Learner


def failing_after(calls, method):
    """`method`, which raises after this many calls."""
    done = 0

    def wrapped(*args, **kwargs):
        nonlocal done
        done += 1
        if done > calls:
            raise RuntimeError("boom")
        return method(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        (Actor, "choose", 40),
        (Envs, "receive", 40),
        (Envs, "reset", 0),
        (Learner, "update", 2),
        (MetricsFile, "write", 2),
    ],
    ids=["actor", "environment", "reset", "learner", "writer"],
)
@pytest.mark.parametrize("concurrency", [False, True], ids=["lag0", "lag1"])
def test_an_exception_anywhere_ends_the_run(run, monkeypatch, owner, name, calls, concurrency):
    monkeypatch.setattr(owner, name, failing_after(calls, getattr(owner, name)))
    with pytest.raises(RuntimeError, match="boom") as caught:
        run(num_actor_threads=2, concurrency=concurrency, total_timesteps=10_000)
    assert any(entry.name == "wrapped" for entry in caught.traceback), "the original traceback is lost"
    time.sleep(0.1)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("actor", "learner"))]


SCRIPT = """
import time
from cleanba import cleanba_ppo
from cleanba.envs.envpool import Envs

receive, calls = Envs.receive, 0

def broken_receive(self):
    global calls
    calls += 1
    if calls > 200:
        open("failed_at", "w").write(str(time.time()))
        raise RuntimeError("the emulator caught fire")
    return receive(self)

Envs.receive = broken_receive
cleanba_ppo.main(argv="--env-id CartPole-v1 --local-num-envs 4 --num-steps 16".split())
"""


def test_a_command_whose_environment_fails_shows_the_error_once_and_exits(tmp_path):
    started = time.time()
    command = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    failed = float((tmp_path / "failed_at").read_text())
    assert time.time() - failed < failed - started, "it takes longer to end than to start"
    assert command.returncode == 1
    assert command.stderr.count("RuntimeError: the emulator caught fire") == 1
    assert "broken_receive" in command.stderr


@pytest.fixture
def start(tmp_path):
    """Starts a command with one device, as a user does. No command outlives its test."""
    env = {k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")}
    commands = []

    def start(*argv, stdout=subprocess.DEVNULL):
        command = [sys.executable, *map(str, argv)]
        commands.append(
            subprocess.Popen(command, cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)
        )
        return commands[-1]

    yield start
    for command in commands:
        with command:
            command.kill()


def wait_until(command, condition):
    deadline = time.time() + 200
    while not condition():
        assert command.poll() is None, command.stderr.read()
        assert time.time() < deadline
        time.sleep(0.05)


def send(command, when, *numbers):
    """Send signals once `when()` is true. Returns the exit code and stderr."""
    wait_until(command, when)
    for number in numbers:
        command.send_signal(number)
        time.sleep(0.02)
    _, errors = command.communicate(timeout=30)
    return command.returncode, errors


def rows_written(tmp_path):
    return sum(path.read_text().count("\n") for path in tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("number", "forwarded"),
    [
        (signal.SIGINT, (signal.SIGINT, signal.SIGTERM)),
        (signal.SIGUSR1, ()),
        pytest.param(signal.SIGTERM, (signal.SIGINT,), marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, (signal.SIGHUP,), marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_a_checkpoint_and_exits_with_75(tmp_path, start, number, forwarded):
    """Also if `timeout` or `srun` passes on what the terminal has already sent."""
    command = start(REPO / "cleanba/cleanba_ppo.py", *SMALL, "--save-model")
    code, errors = send(command, lambda: rows_written(tmp_path) >= 3, number, *forwarded)
    assert code == 75, errors
    (run_dir,) = (tmp_path / "runs").iterdir()
    rows = read_rows(run_dir)
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 3
    resume = f"`cleanba ppo --resume runs/{run_dir.name}` continues it"
    assert f"stopped by {number.name} after update {len(rows)} of 781250; {resume}" in errors
    assert "Traceback" not in errors
    assert read_args(run_dir)["layout"] == "a0-l0-d1"
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == rows[-1]["global_step"]
    assert [path.stem for path in run_dir.glob("checkpoints/*")] == [f"update-{len(rows)}"]


def test_a_signal_before_the_first_update_exits_with_75(tmp_path, start):
    command = start(REPO / "cleanba/cleanba_ppo.py", *SMALL, "--num-steps", "4000")
    code, errors = send(command, lambda: list(tmp_path.glob("runs/*/events*")), signal.SIGTERM)
    assert code == 75 and errors.startswith("stopped by SIGTERM")


LOST_EXCEPTION = """
import gc, signal, sys, time
from cleanba.runtime.command import command

def interrupted(phase, _):
    if phase == "stop" and not interrupted.once:
        interrupted.once = True
        signal.raise_signal(signal.SIGTERM)

interrupted.once = False
with command(resumable=True):
    gc.callbacks.append(interrupted)
    gc.collect()
    time.sleep(float(sys.argv[1]))
time.sleep(0.1)
"""


@pytest.mark.parametrize(("seconds", "end"), [(60, (75, "stopped by SIGTERM\n")), (0, (0, ""))])
def test_a_signal_during_a_garbage_collection_is_not_lost(tmp_path, seconds, end):
    """Python drops exceptions raised there, and JAX has a callback. After the command it has no effect."""
    command = subprocess.run(
        [sys.executable, "-c", LOST_EXCEPTION, str(seconds)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (command.returncode, command.stderr) == end


SLOW_CHECKPOINT = """
import sys, time
from cleanba import cleanba_ppo
from cleanba.records import checkpoint

def slow_write(*_):
    open("saving", "w").close()
    time.sleep(60)

checkpoint.atomic_write = slow_write
cleanba_ppo.main(argv=sys.argv[1:])
"""


def test_a_second_ctrl_c_leaves_at_once(tmp_path, start):
    """While the checkpoint of the first one is being written."""
    command = start("-c", SLOW_CHECKPOINT, *SMALL)
    wait_until(command, lambda: rows_written(tmp_path) >= 3)
    command.send_signal(signal.SIGINT)
    wait_until(command, (tmp_path / "saving").exists)
    time.sleep(1)
    code, errors = send(command, lambda: True, signal.SIGINT)  # within half of what writing takes
    assert code == 130
    assert "interrupted again: leaving at once" in errors


LATE_SIGNAL = """
import os, signal, sys
from cleanba import cleanba_ppo
from cleanba.training import train

mark_finished = train.mark_finished

def interrupted(*inputs):
    os.kill(os.getpid(), signal.SIGTERM)
    mark_finished(*inputs)

train.mark_finished = interrupted
cleanba_ppo.main(argv=sys.argv[1:])
"""


def test_a_signal_while_the_run_is_marked_finished_is_ignored(tmp_path, start):
    """With 75, a finished run would be requeued and trained again from the start."""
    command = start("-c", LATE_SIGNAL, *SMALL, "--total-timesteps", "128")
    _, errors = command.communicate(timeout=100)
    assert command.returncode == 0, errors
    assert list(tmp_path.glob("runs/*/finished.json"))


@pytest.mark.parametrize(("ctrl_c", "code"), [(False, 1), (True, 75)])
def test_a_run_whose_reader_has_gone_saves_a_checkpoint(tmp_path, start, ctrl_c, code):
    """`| head` has read enough; `| tee log` gets the same Ctrl-C."""
    flags = [*SMALL, "--log-frequency", "1"]
    command = start(REPO / "cleanba/cleanba_ppo.py", *flags, stdout=subprocess.PIPE)
    for _ in range(5):
        command.stdout.readline()
    if ctrl_c:
        command.send_signal(signal.SIGINT)
    command.stdout.close()
    with command.stderr:
        errors = command.stderr.read()
    assert command.wait(30) == code, errors
    assert ("stopped by SIGINT" if ctrl_c else "lost: ") in errors and "Traceback" not in errors
    (run_dir,) = tmp_path.glob("runs/*")
    assert checkpoint_updates(run_dir)[0] == len(read_rows(run_dir)), "a row is lost"


def test_output_that_nobody_reads_stops_no_training(tmp_path, start):
    """`| less`, Ctrl-S in the terminal: the pipe is full after a few lines."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    command = start(REPO / "cleanba/cleanba_ppo.py", *SMALL, "--log-frequency", "1", stdout=writing)
    os.close(writing)
    code, errors = send(command, lambda: rows_written(tmp_path) >= 100, signal.SIGTERM)
    shown = os.read(reading, 2**16)
    os.close(reading)
    assert code == 75 and "stopped by SIGTERM after update" in errors
    assert list(tmp_path.glob("runs/*/checkpoints/*")) and b"update 100/" not in shown


def test_a_full_disk_under_the_output_stops_no_training(tmp_path, start):
    with open_full() as full:
        command = start(REPO / "cleanba/cleanba_ppo.py", *SMALL, "--total-timesteps", "128", stdout=full)
    _, errors = command.communicate(timeout=100)
    assert (command.returncode, errors) == (0, "")
    assert list(tmp_path.glob("runs/*/finished.json"))


LARGE_NETWORK = """
from cleanba import cleanba_ppo
from cleanba.sebulba.learner import Learner

minibatch_sums, calls = Learner.minibatch_sums, 0

def second_call_shows(self, *inputs):
    global calls
    calls += 1
    if calls == 2:
        open("differentiating", "w").close()
    return minibatch_sums(self, *inputs)

Learner.minibatch_sums = second_call_shows
cleanba_ppo.main(argv="--channels 64 128 --num-actor-threads 1 --local-num-envs 64 --num-steps 4".split())
"""


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_long_device_program(tmp_path, start):
    """A chunk of this network takes seconds on a CPU; the interrupt comes while one runs."""
    command = start("-c", LARGE_NETWORK)
    wait_until(command, (tmp_path / "differentiating").exists)
    pressed = time.time()
    code, errors = send(command, lambda: True, signal.SIGINT)
    assert code == 75
    assert time.time() - pressed < 5
    assert "Traceback" not in errors
