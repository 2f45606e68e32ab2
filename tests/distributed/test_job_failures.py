"""When one process of a job fails, hangs or is stopped, all of them end, and say why."""

import re
import signal
import time

import pytest
from helpers.jobs import SMALL, exit_codes, outputs, wait_for_rows
from helpers.runs import read_rows

from cleanba.cleanba_ppo import Args
from cleanba.distributed.process_info import ProcessInfo
from cleanba.distributed.rendezvous import joined
from cleanba.evaluation.model import load_model
from cleanba.runtime.command import CleanExit

FAILING = """
import os, sys, time
from cleanba import cleanba_ppo
from cleanba.envs.envpool import Envs

receive, calls = Envs.receive, 0

def broken_receive(self):
    global calls
    calls += 1
    if calls > 100 and os.environ["JAX_PROCESS_ID"] == "{rank}":
        {failure}
    return receive(self)

Envs.receive = broken_receive
cleanba_ppo.main(argv=sys.argv[1:])
"""
HANG = "time.sleep(999)"


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_ends_the_others_with_its_name(start, tmp_path, victim):
    job = start(2, *SMALL)
    wait_for_rows(tmp_path, job)
    job[victim].popen.kill()
    for process in job:
        if process is not job[victim]:
            assert process.exit_code() == 3
            assert f"error: process {victim} (pid {job[victim].popen.pid} on " in process.output
            assert "was lost" in process.output and "Traceback" not in process.output
    if victim != 0:  # process 0 has saved a checkpoint
        assert re.search(r"lost: [\d,]+ steps since the checkpoint of update \d+", job[0].output)


def test_notes_of_a_broken_collective_are_added_to_the_reason():
    """A collective may break before this process knows which one was lost."""
    with pytest.raises(CleanExit) as caught, joined(ProcessInfo("", 1, 0), Args()) as job:
        job.end_reason = CleanExit("process 1 was lost")
        broken = RuntimeError("the collective broke")
        broken.add_note("lost: 64 steps")
        raise broken
    assert caught.value is job.end_reason and caught.value.__notes__ == ["lost: 64 steps"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_in_one_process_ends_all(start, tmp_path, rank):
    failure = 'open("failed", "w").close(); raise RuntimeError("the emulator caught fire")'
    job = start(2, *SMALL, "--save-model", script=FAILING.format(rank=rank, failure=failure))
    failed, other = job[rank], job[1 - rank]
    assert (failed.exit_code(), other.exit_code()) == (1, 3), outputs(job)
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 15
    assert "RuntimeError: the emulator caught fire" in failed.output
    kept = r"update \d+; `cleanba launch a0-l0-d2 ppo --resume runs/"
    assert re.search(rf"lost: \d+ steps since the checkpoint of {kept}", job[0].output)
    assert failed.output.count("Traceback") == 1
    assert re.search(
        rf"error: process {rank} \(pid \d+ on .*\) failed: RuntimeError: the emulator caught fire",
        other.output,
    )
    assert "Traceback" not in other.output
    if rank == 1:  # process 0 did not fail itself, and saves its model
        assert list(tmp_path.glob("runs/*/*.cleanrl_model"))


@pytest.mark.slow
def test_a_hanging_process_is_reported_and_all_end(start, tmp_path):
    job = start(2, *SMALL, "--stuck-seconds", 10, script=FAILING.format(rank=1, failure=HANG))
    assert exit_codes(job) == [1, 1], outputs(job)
    stacks = job[1].output
    assert "where each thread is" in stacks and "thread actor-0:" in stacks
    assert "in broken_receive" in stacks and HANG not in stacks.split("in broken_receive")[0]
    for process in job:
        assert "has made no progress for 10 s" in process.output


@pytest.mark.slow
def test_a_suspended_process_is_named(start, tmp_path):
    job = start(2, *SMALL, "--stuck-seconds", 10)
    wait_for_rows(tmp_path, job)
    job[1].popen.send_signal(signal.SIGSTOP)
    assert job[0].exit_code(40) == 1
    assert "process 0 of 2 has made no progress for 10 s; process 1 has been silent for" in job[0].output
    assert "thread learner:" in job[0].output


@pytest.mark.slow
def test_a_single_process_that_hangs_ends_too(start):
    (process,) = start(1, *SMALL, "--stuck-seconds", 10, script=FAILING.format(rank=0, failure=HANG))
    assert process.exit_code() == 1
    assert "error: the run has made no progress for 10 s" in process.output
    assert "thread actor-0:" in process.output


@pytest.mark.parametrize(
    ("rank", "number"),
    [
        pytest.param(0, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(1, signal.SIGINT, marks=pytest.mark.slow),
        (1, signal.SIGUSR1),
    ],
)
def test_a_signal_to_one_process_stops_all_after_the_same_update(start, tmp_path, rank, number):
    """The stop vote travels with the gradients. (JAX's runtime would take over SIGTERM.)"""
    job = start(2, *SMALL, "--save-model")
    wait_for_rows(tmp_path, job)
    job[rank].popen.send_signal(number)
    assert exit_codes(job) == [75, 75], outputs(job)
    assert f"{number.name}: waiting for all 2 processes" in job[rank].output
    (run_dir,) = (tmp_path / "runs").iterdir()
    rows = read_rows(run_dir)
    assert f"after update {len(rows)} of" in job[0].output
    assert f"after update {len(rows)} of 390625, with the other processes" in job[1].output
    (checkpoint,) = run_dir.glob("checkpoints/*")
    assert checkpoint.stem == f"update-{len(rows)}"
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == rows[-1]["global_step"]


SLOW_START = """
import sys, time
from cleanba import cleanba_ppo
from cleanba.training import train

def choose_slowly(*_):
    open("choosing", "w").close()
    time.sleep(60)

train.choose_start = choose_slowly
cleanba_ppo.main(argv=sys.argv[1:])
"""


def test_a_signal_to_one_process_before_the_training_stops_all(start, tmp_path):
    job = start(2, *SMALL, script=SLOW_START)
    while not (tmp_path / "choosing").exists():
        assert all(process.poll() is None for process in job)
        time.sleep(0.05)
    job[0].popen.send_signal(signal.SIGTERM)
    assert exit_codes(job, 50) == [75, 75], outputs(job)  # choosing would take longer
    assert "failed: interrupted" in job[1].output
