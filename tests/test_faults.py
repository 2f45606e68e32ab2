"""Whatever fails, the run ends: soon, with the original traceback, and with everything logged so far."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import REPO, read_rows

from cleanba.sebulba.actor import Actor
from cleanba.sebulba.envs import Envs
from cleanba.sebulba.learner import Learner
from cleanba.sebulba.metrics import JsonLines
from cleanba.sebulba.model import load_model


def failing_after(calls, method):
    """`method`, until it was called so often; then an exception."""
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
        (Envs, "step", 40),
        (Envs, "reset", 0),
        (Learner, "update", 2),
        (JsonLines, "write", 2),
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
from cleanba.sebulba.envs import Envs

step, calls = Envs.step, 0

def broken_step(self, action):
    global calls
    calls += 1
    if calls > 200:
        open("failed_at", "w").write(str(time.time()))
        raise RuntimeError("the emulator caught fire")
    return step(self, action)

Envs.step = broken_step
cleanba_ppo.main(argv="--env-id CartPole-v1 --local-num-envs 4 --num-steps 16".split())
"""


def test_a_command_whose_environment_fails_shows_why_once_and_exits(tmp_path):
    command = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert time.time() - float((tmp_path / "failed_at").read_text()) < 5
    assert command.returncode == 1
    assert command.stderr.count("RuntimeError: the emulator caught fire") == 1
    assert "broken_step" in command.stderr


def start(tmp_path, *argv):
    """A command with one device, as a user starts it."""
    usual = {k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")}
    return subprocess.Popen(
        [sys.executable, *map(str, argv)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=usual,
    )


def press_ctrl_c(command, when):
    """As soon as `when()` is true; exit code, seconds to the exit, what was printed."""
    deadline = time.time() + 200
    while not when():
        assert time.time() < deadline and command.poll() is None
        time.sleep(0.05)
    pressed = time.time()
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=30)
    return command.returncode, time.time() - pressed, errors


def test_ctrl_c_leaves_within_two_seconds_with_everything_logged(tmp_path):
    flags = ["--env-id", "CartPole-v1", "--local-num-envs", "4", "--num-steps", "16", "--save-model"]
    command = start(tmp_path, REPO / "cleanba/cleanba_ppo.py", *flags)

    def three_rows():
        return any(p.read_text().count("\n") >= 3 for p in tmp_path.glob("runs/*/metrics.jsonl"))

    code, seconds, errors = press_ctrl_c(command, three_rows)
    assert code == 130
    assert seconds < 2
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (
        "Traceback" not in errors
        and f"interrupted; everything logged so far is in runs/{run_dir.name}" in errors
    )
    rows = read_rows(run_dir)
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 3
    assert json.loads((run_dir / "args.json").read_text())["layout"] == "a0-l0-d1"
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == rows[-1]["global_step"]


LARGE_NETWORK = """
from cleanba import cleanba_ppo
from cleanba.sebulba.learner import Learner

minibatch_sums, calls = Learner._minibatch_sums, 0

def second_call_shows(self, *inputs):
    global calls
    calls += 1
    if calls == 2:
        open("differentiating", "w").close()
    return minibatch_sums(self, *inputs)

Learner._minibatch_sums = second_call_shows
cleanba_ppo.main(argv="--channels 64 128 --num-actor-threads 1 --local-num-envs 64 --num-steps 4".split())
"""


def test_ctrl_c_does_not_wait_for_a_long_device_program(tmp_path):
    """A chunk of this network takes seconds on a CPU; the interrupt comes while one runs."""
    command = start(tmp_path, "-c", LARGE_NETWORK)
    code, seconds, errors = press_ctrl_c(command, (tmp_path / "differentiating").exists)
    assert code == 130
    assert seconds < 2
    assert "Traceback" not in errors
