"""`cleanba launch`: the processes of a layout on this machine."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from helpers.jobs import SMALL, wait_for_rows
from helpers.runs import REPO, read_rows

from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology
from cleanba.distributed.handshake import VARIABLE
from cleanba.distributed.launch import assign_devices, command_lines, main
from cleanba.runtime.children import tied_to_parent


def launch(tmp_path, *argv, before=()):
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES")
    }
    return subprocess.Popen(
        [*before, sys.executable, "-c", "from cleanba.cli import main; main()", "launch", *argv],
        cwd=tmp_path,
        env=inherited | {"PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ------------------------------------------------------------------------------------- devices and flags


def test_each_process_gets_its_own_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7,8")
    shares = assign_devices(Topology.parse("a0-l1,2,3-d2"))
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == ["0,1,2,3", "4,5,6,7"]
    with pytest.raises(UsageError, match="a0-l1,2,3-d3 needs 4 GPUs in each of 3 processes, but there are 9"):
        assign_devices(Topology.parse("a0-l1,2,3-d3"))


def test_without_gpus_each_process_gets_virtual_cpu_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert assign_devices(Topology.parse("a0-l1,2,3-d2")) == [{"JAX_NUM_CPU_DEVICES": "4"}] * 2


def test_the_layout_becomes_flags_and_variables(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (_, zero), (argv, one) = command_lines(Topology.parse("a0,1-l2-d2"), "impala", ["--seed", "3"])
    assert " ".join(argv[1:]) == (
        "-m cleanba impala --actor-device-ids 0 1 --learner-device-ids 2 --distributed --seed 3"
    )
    assert zero["JAX_COORDINATOR_ADDRESS"] == one["JAX_COORDINATOR_ADDRESS"]
    assert (zero["JAX_PROCESS_ID"], one["JAX_PROCESS_ID"], one["JAX_NUM_PROCESSES"]) == ("0", "1", "2")
    assert len(secret := zero[VARIABLE]) == 64 and one[VARIABLE] == secret and secret not in " ".join(argv)
    assert command_lines(Topology.parse("a0-l0-d2"), "ppo", [])[0][1][VARIABLE] != secret
    script, _ = command_lines(Topology.parse("a0-l0-d1"), "some/preset.py", [])[0]
    assert script[1] == "some/preset.py"


@pytest.mark.parametrize(
    ("last", "is_started"),
    [
        ("", False),
        ("def domain(x):\n    return pretrain(x)\n", False),
        ("def main():\n    run_command(Args(), make_algorithm)\n", False),
        ('if __name__ == "__main__":\n    main()\n', True),
        ("outcome = cleanba.train(make_algorithm)\n", True),
        ("a line that Python will refuse\n", True),
    ],
)
def test_an_algorithm_that_does_not_start_itself_is_started(tmp_path, last, is_started):
    file = tmp_path / "own.py"
    file.write_text(f"def make_algorithm(args, env, plan):\n    return train(main(env))\n\n\n{last}")
    argv = command_lines(Topology.parse("a0-l0-d1"), str(file), [])[0][0]
    assert argv[1:5] == ([str(file), *argv[2:5]] if is_started else ["-m", "cleanba", "train", str(file)])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a0-l1", "dqn"], "cannot start 'dqn'; give ppo, impala, a preset or a .py file"),
        (["b0-l1", "ppo"], "layout 'b0-l1' is not of the form"),
        (["a0-l1-d2"], "needs a layout and a command"),
        (
            ["a0-l0-d2", "ppo", "--learner-device-ids", "1"],
            "--learner-device-ids is set by the layout",
        ),
        (["a0-l0-d2", "ppo", "--distributed"], "--distributed is set by the layout a0-l0-d2"),
    ],
)
def test_bad_input(argv, message, capfd):
    with pytest.raises(SystemExit) as left:
        main(argv)
    errors = capfd.readouterr().err
    assert left.value.code == 2 and message in errors and "Traceback" not in errors


# --------------------------------------------------------------------------------------- running processes


def test_a_layout_trains_and_output_lines_start_with_the_rank(tmp_path):
    command = launch(tmp_path, "a0-l1,2-d2", "ppo", *SMALL, "--total-timesteps", "256")
    output, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors
    assert re.search(r"^\[0\] done: 256 steps", output, re.MULTILINE)
    assert all(line.startswith(("[0] ", "[1] ")) for line in (output + errors).splitlines())
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [row["global_step"] for row in read_rows(run_dir)] == [128, 256]


FAILING = """
import os, sys, time
from cleanba import cleanba_ppo
from cleanba.distributed.job import Job
from cleanba.envs.envpool import Envs

def broken_reset(self):
    if os.environ["JAX_PROCESS_ID"] == "1":
        raise RuntimeError("the emulator caught fire")
    return reset(self)

def slow_to_hear(self, why, **how):
    if os.environ["JAX_PROCESS_ID"] != "1":
        time.sleep(1)  # JAX's runtime must not abort it meanwhile
    lose(self, why, **how)

reset, Envs.reset = Envs.reset, broken_reset
lose, Job.lose = Job.lose, slow_to_hear
cleanba_ppo.main(argv=sys.argv[1:])
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_failure_ends_all_and_is_repeated_at_the_end(tmp_path, rank):
    (tmp_path / "failing.py").write_text(FAILING.replace('= "1"', f'= "{rank}"'))
    command = launch(tmp_path, "a0-l0-d2", "failing.py", *SMALL)
    output, errors = command.communicate(timeout=120)
    assert command.returncode == 1
    forwarded, repeated = errors.split(f"process {rank} failed first, with exit code 1:\n")
    assert f"[{rank}] RuntimeError: the emulator caught fire" in forwarded
    assert f"[{1 - rank}] error: process {rank} (pid" in forwarded
    assert repeated.startswith("Traceback") and "RuntimeError: the emulator caught fire" in repeated


def test_a_process_that_exits_because_of_another_did_not_fail_first(tmp_path):
    exit_early = 'if os.environ["JAX_PROCESS_ID"] == "1": sys.exit(3)'
    script = f"import os, sys, time\n{exit_early}\ntime.sleep(1)\nsys.exit(5)"
    (tmp_path / "exiting.py").write_text(script)
    command = launch(tmp_path, "a0-l0-d2", "exiting.py")
    _, errors = command.communicate(timeout=30)
    assert command.returncode == 5, errors
    assert "process 0 failed first, with exit code 5" in errors


def test_a_process_that_does_not_exit_is_killed(tmp_path):
    """And the exit code of a killed process is that of a shell."""
    script = (
        'import os, time\nif os.environ["JAX_PROCESS_ID"] == "1": os.kill(os.getpid(), 9)\ntime.sleep(999)'
    )
    (tmp_path / "stubborn.py").write_text(script)
    launching = "launch.main(['a0-l0-d2', 'stubborn.py'])"
    impatient = f"from cleanba.distributed import launch; launch.EXIT_SECONDS = 1; {launching}"
    command = subprocess.run(
        [sys.executable, "-c", impatient],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert command.returncode == 137
    assert command.stderr.splitlines()[-1] == "process 1 was killed by SIGKILL (out of memory?)"


KILLED = """
import json, os, time
from pathlib import Path
if os.environ["JAX_PROCESS_ID"] == "0":
    folder = Path("out/x")
    (folder / "checkpoints").mkdir(parents=True)
    record = {"args": {}, "plan": {"batch_size": 100}, "layout": "a0-l0-d2", "algorithm": "ppo"}
    (folder / "args.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text('{"update": 5, "global_step": 500}\\n')
    CHECKPOINT
    os.kill(os.getpid(), 9)
time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("checkpoint", "last"),
    [
        (
            '(folder / "checkpoints/update-3.safetensors").touch()',
            "lost: 200 steps since the checkpoint of update 3; "
            "`cleanba launch a0-l0-d2 ppo --resume out/x` continues from it",
        ),
        ("pass", "lost: all 500 steps; there was no checkpoint yet in out/x"),
    ],
)
def test_what_a_killed_process_0_cannot_say_the_launcher_says(tmp_path, checkpoint, last):
    old = tmp_path / "out/old"
    old.mkdir(parents=True)
    (old / "args.json").write_text('{"args": {}, "layout": "a0-l0-d2"}')
    os.utime(old / "args.json", (0, 0))
    (tmp_path / "killed.py").write_text(KILLED.replace("CHECKPOINT", checkpoint))
    command = launch(tmp_path, "a0-l0-d2", "killed.py", "--runs-dir", "out")
    _, errors = command.communicate(timeout=60)
    assert command.returncode == 137
    assert errors.splitlines()[-2:] == ["process 0 was killed by SIGKILL (out of memory?)", last]


def test_what_process_0_has_said_is_lost_stands_at_the_end(tmp_path):
    script = """
import os, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    os.kill(os.getpid(), 9)
time.sleep(0.5)
sys.exit("lost: 7 steps")
"""
    (tmp_path / "saying.py").write_text(script)
    _, errors = launch(tmp_path, "a0-l0-d2", "saying.py").communicate(timeout=60)
    assert errors.splitlines()[-1] == "lost: 7 steps"


CHATTY = "for i in range(20_000): print(f'line {i} of some output that is more than a pipe holds')"


def test_output_that_nobody_reads_or_that_is_closed_stops_no_process(tmp_path):
    (tmp_path / "chatty.py").write_text(CHATTY)
    with launch(tmp_path, "a0-l0-d2", "chatty.py") as unread:
        assert unread.wait(60) == 0
        assert unread.stdout.readline().endswith("line 0 of some output that is more than a pipe holds\n")
    closed = launch(tmp_path, "a0-l0-d2", "chatty.py", before=["sh", "-c", 'exec "$@" >&-', "sh"])
    assert closed.communicate(timeout=60) == ("", "") and closed.returncode == 0


def wait_for(condition, command):
    deadline = time.monotonic() + 60
    while not condition():
        assert command.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def start_and_wait(tmp_path, *flags):
    """A launcher whose job has logged a few updates, and the processes of the job."""
    command = launch(tmp_path, "a0-l0-d2", "ppo", *SMALL, *flags)
    wait_for_rows(tmp_path, [command])
    children = psutil.Process(command.pid).children(recursive=True)
    assert len(children) >= 2
    return command, children


SILENT = """
import os, signal, sys, time
from pathlib import Path

def save(*_):
    Path("saved-" + os.environ["JAX_PROCESS_ID"]).touch()
    os._exit(75)

signal.signal(signal.SIGTERM, save)
Path("started-" + os.environ["JAX_PROCESS_ID"]).touch()
time.sleep(999)
"""


def test_processes_save_and_end_when_their_launcher_is_killed(tmp_path):
    """At once, not only when they notice that nobody reads what they print."""
    (tmp_path / "silent.py").write_text(SILENT)
    command = launch(tmp_path, "a0-l0-d2", "silent.py")
    wait_for(lambda: len(list(tmp_path.glob("started-*"))) == 2, command)
    children = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    command.communicate()
    _, alive = psutil.wait_procs(children, timeout=15)
    for process in alive:
        process.kill()
    assert len(children) == 2 and not alive
    assert len(list(tmp_path.glob("saved-*"))) == 2


def test_a_process_whose_launcher_is_already_dead_does_not_start(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    tied = tied_to_parent([sys.executable, "-c", "print('started')"], parent=gone.pid)
    process = subprocess.run(tied, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (143, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_processes_that_do_not_handle_it_yet(tmp_path, number):
    """As while they import."""
    importing = SILENT.replace("signal.signal(signal.SIGTERM, save)", "")
    (tmp_path / "importing.py").write_text(importing)
    command = launch(tmp_path, "a0-l0-d2", "importing.py")
    wait_for(lambda: len(list(tmp_path.glob("started-*"))) == 2, command)
    command.send_signal(number)
    _, errors = command.communicate(timeout=60)
    assert (command.returncode, errors) == (75, f"stopped by {number.name} before anything was done\n")


def test_a_signal_stops_processes_that_are_being_started(tmp_path):
    command = launch(tmp_path, "a0-l0-d2", "ppo", *SMALL)
    wait_for(lambda: len(psutil.Process(command.pid).children()) == 2, command)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    assert command.returncode == 75 and "Traceback" not in errors, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_stops_all_processes_cleanly(tmp_path, number):
    command, children = start_and_wait(tmp_path)
    command.send_signal(number)
    output, errors = command.communicate(timeout=30)
    assert command.returncode == 75, errors
    for rank in (0, 1):
        waiting = f"[{rank}] {number.name}: waiting for all 2 processes to complete the current update"
        assert waiting in errors
    resume = r"`cleanba launch a0-l0-d2 ppo --resume runs/\S+` continues it"
    assert re.search(rf"\[0\] stopped by {number.name} after update \d+ of \d+; {resume}", errors)
    assert re.search(r"\[1\] stopped by .* after update \d+ of \d+, with the other processes", errors)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(tmp_path):
    """While one process is suspended and the other waits for it."""
    command, children = start_and_wait(tmp_path)
    children[-1].suspend()
    time.sleep(1)
    command.send_signal(signal.SIGINT)
    time.sleep(2)
    assert command.poll() is None
    pressed = time.time()
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=30)
    assert time.time() - pressed < 2
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
