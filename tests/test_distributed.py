"""Jobs of several processes: the same run as one process, and an end for all when one of them ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import REPO, read_rows
from test_equivalence import ALGORITHMS, check_lag, distance, sgd

from cleanba.cleanba_ppo import Args
from cleanba.sebulba.args import BatchPlan, UsageError
from cleanba.sebulba.command import Ended
from cleanba.sebulba.job import Place, _objection, find_place, joined
from cleanba.sebulba.model import load_model
from cleanba.sebulba.records import Learned, Report, Rows, check_agreement
from cleanba.sebulba.topology import Topology

SMALL = (
    "--distributed --env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --hiddens 16"
)
PPO = [str(REPO / "cleanba/cleanba_ppo.py")]


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Process:
    """One process of a job, with what it prints in a file."""

    def __init__(self, folder, rank, argv, env):
        self.output = folder / f"process-{rank}"
        with self.output.open("w") as file:
            self.popen = subprocess.Popen(
                [sys.executable, *map(str, argv)], cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT
            )

    def wait(self, timeout=100):
        """Its exit code."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.said()}") from None

    def said(self):
        return self.output.read_text()


@pytest.fixture
def start(tmp_path):
    """Start a job; none of it outlives the test."""
    started = []

    def start(processes, *argv, script=None, devices=1, flags=(), **env):
        """`flags` are added to one process each."""
        usual = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "JAX_PROCESS", "JAX_NUM"))}
        place = {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": str(processes)}
        shared = usual | place | {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(REPO)} | env
        program = ["-c", script] if script else PPO
        job = [
            Process(tmp_path, rank, [*program, *argv, *extra], shared | {"JAX_PROCESS_ID": str(rank)})
            for rank, extra in enumerate([*flags, *[()] * (processes - len(flags))])
        ]
        started.extend(job)
        return job

    yield start
    for process in started:
        process.popen.kill()
        process.popen.wait()


def wait_for_rows(tmp_path, job, rows):
    deadline = time.time() + 100
    while not any(p.read_text().count("\n") >= rows for p in tmp_path.glob("runs/*/metrics.jsonl")):
        assert time.time() < deadline and all(p.popen.poll() is None for p in job), [p.said() for p in job]
        time.sleep(0.05)


# -------------------------------------------------------------------------------------- finding each other


SLURM = dict(SLURM_JOB_ID="26017", SLURM_STEP_NODELIST="localhost", SLURM_NTASKS="2", SLURM_PROCID="1")
JAX = dict(JAX_COORDINATOR_ADDRESS="host:1", JAX_NUM_PROCESSES="3", JAX_PROCESS_ID="2")


@pytest.fixture
def environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "JAX_COORD", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")):
            monkeypatch.delenv(name)
    return lambda variables: [monkeypatch.setenv(*item) for item in variables.items()]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (SLURM, Place("localhost:62881", 2, 1)),  # 26017 % 4096 + 61440
        (SLURM | dict(SLURM_STEP_NODELIST="n1,n2"), Place("n1:62881", 2, 1)),
        (SLURM | dict(SLURM_STEP_NODELIST="gpu-a[007-012,15],m1"), Place("gpu-a007:62881", 2, 1)),
        (SLURM | dict(SLURM_STEP_NODELIST="n[3,5]"), Place("n3:62881", 2, 1)),
        (JAX, Place("host:1", 3, 2)),
        (SLURM | JAX, Place("host:1", 3, 2)),
        (SLURM | dict(JAX_COORDINATOR_ADDRESS="host:1"), Place("host:1", 2, 1)),
    ],
)
def test_peers_are_found_in_the_environment(environment, variables, place):
    environment(variables)
    assert find_place(Args(distributed=True)) == place
    assert find_place(Args()).processes == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "start it with srun, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID"),
        (dict(JAX_NUM_PROCESSES="2", JAX_PROCESS_ID="0"), "or set JAX_COORDINATOR_ADDRESS "),
        (JAX | dict(JAX_PROCESS_ID="3"), "there is no process 3 among 3; count from 0"),
        (JAX | dict(JAX_COORDINATOR_ADDRESS="host"), "JAX_COORDINATOR_ADDRESS=host should be host:port"),
        (JAX | dict(JAX_NUM_PROCESSES="two"), "JAX_NUM_PROCESSES=two"),
    ],
)
def test_what_is_missing_in_the_environment_is_named(environment, variables, message):
    environment(variables)
    with pytest.raises(UsageError, match=message):
        find_place(Args(distributed=True))


def test_a_process_waits_for_process_0_no_longer_than_it_is_told(start):
    job = start(2, *SMALL.split(), "--join-seconds", 1)
    job[0].popen.kill()
    assert job[1].wait() == 3
    assert re.search(r"error: process 0 did not answer at 127.0.0.1:\d+ within 1 s", job[1].said())
    assert "Traceback" not in job[1].said()


def test_process_0_waits_for_a_peer_no_longer_than_it_is_told(start):
    job = start(2, *SMALL.split(), "--join-seconds", 2)
    job[1].popen.kill()
    assert job[0].wait() == 3
    assert re.search(r"error: process 1 did not come to 127.0.0.1:\d+ within 2 s", job[0].said())


def test_processes_that_were_started_differently_are_told_so(start, tmp_path):
    job = start(2, *SMALL.split(), flags=[["--seed", "1"], ["--seed", "2"]])
    for process in job:
        assert process.wait() == 2
        assert "--seed is 2 in process 1 and 1 in process 0" in process.said()
        assert "Traceback" not in process.said()
    assert not (tmp_path / "runs").exists()


def test_other_code_layouts_and_ranks_are_objected_to():
    place, about = Place("host:1", 3, 0), {"code": "a", "layout": "a0-l0-d3"}
    assert _objection(place, about, 1, dict(about), {}) == ""
    assert "code is 'b' in process 2 and 'a' in process 0" in _objection(
        place, about, 2, about | {"code": "b"}, {}
    )
    assert "layout is 'a0-l1-d3' in process 1" in _objection(
        place, about, 1, about | {"layout": "a0-l1-d3"}, {}
    )
    assert "two processes came to host:1 as process 1 of 3" in _objection(
        place, about, 1, dict(about), {1: None}
    )
    assert "as process 3 of 3" in _objection(place, about, 3, dict(about), {})


# ----------------------------------------------------------------------------------------------- the same run

SAME_RUN = """
import sys
from importlib import import_module
from test_equivalence import sgd
from cleanba.sebulba.train import run_command

which, *flags = sys.argv[1:]
algorithm = import_module(f"cleanba.cleanba_{which}")

def make_algorithm(*inputs):
    return algorithm.make_algorithm(*inputs)._replace(**sgd(which))

run_command(algorithm.Args(), make_algorithm, description="", argv=flags)
"""


def as_flags(options):
    for name, value in options.items():
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield from [
                f"--{name.replace('_', '-')}",
                *map(str, value if isinstance(value, tuple) else [value]),
            ]


@pytest.mark.parametrize(
    ("which", "processes", "learners"),
    [
        pytest.param("impala", 2, (0,), id="impala-a0-l0-d2"),
        pytest.param("ppo", 2, (0,), id="ppo-a0-l0-d2", marks=pytest.mark.slow),
        pytest.param("impala", 2, (1, 2), id="impala-a0-l1,2-d2", marks=pytest.mark.slow),
        pytest.param("ppo", 2, (1, 2), id="ppo-a0-l1,2-d2", marks=pytest.mark.slow),
        pytest.param("impala", 3, (1, 2), id="impala-a0-l1,2-d3", marks=pytest.mark.slow),
        pytest.param("ppo", 3, (1, 2), id="ppo-a0-l1,2-d3", marks=pytest.mark.slow),
    ],
)
def test_more_processes_give_the_same_run(run, start, tmp_path, which, processes, learners):
    """24 environments: in one process, 12 in each of two, 8 in each of three. IMPALA's have lag 1."""
    sizes = dict(num_steps=16, num_minibatches=2, inference_batch=2, hiddens=(16,), num_actor_threads=1)
    same = sizes | dict(env_id="CartPole-v1", total_timesteps=5 * 16 * 24)
    alone = ALGORITHMS[which] | same | dict(local_num_envs=24)
    reference, reference_rows = run(sgd(which), **alone)
    unmoved, _ = run(sgd(which, scale=0.0), **alone)
    assert distance(unmoved.model.params, reference.model.params) > 1e-3, "SGD did not move: no test"

    runs_dir = tmp_path / "together"
    flags = as_flags(
        same | dict(local_num_envs=24 // processes, learner_device_ids=learners, runs_dir=runs_dir)
    )
    path = f"{REPO}:{REPO / 'tests'}"
    options = ["--distributed", "--save-model"]
    job = start(processes, which, *flags, *options, script=SAME_RUN, devices=3, PYTHONPATH=path)
    assert [p.wait() for p in job] == [0] * processes, [p.said() for p in job]
    (run_dir,) = runs_dir.iterdir()  # of process 0 alone
    rows = [row for row in read_rows(run_dir) if "update" in row]
    assert [row["global_step"] for row in rows] == [row["global_step"] for row in reference_rows]
    assert rows[0]["data_digest"] == reference_rows[0]["data_digest"]
    check_lag(rows, lag=1 if which == "impala" else 0)
    assert rows[0]["stats/games"] == reference_rows[0]["stats/games"] > 0  # those of all processes
    assert rows[0]["charts/avg_episodic_return"] == reference_rows[0]["charts/avg_episodic_return"]
    (model,) = run_dir.glob("*.cleanrl_model")
    assert distance(load_model(model).params, reference.model.params) < 1e-5
    record = json.loads((run_dir / "args.json").read_text())
    assert record["layout"] == f"a0-l{','.join(map(str, learners))}-d{processes}"


CURVES = {  # layouts of 24 environments: how many for an actor thread, processes, devices
    "a0-l0-d1": (24, 1, {}),
    "a0-l1,2-d1": (24, 1, dict(learner_device_ids=(1, 2))),
    "a0-l1,2,3-d1": (24, 1, dict(learner_device_ids=(1, 2, 3))),
    "a0,1-l2,3-d1": (12, 1, dict(actor_device_ids=(0, 1), learner_device_ids=(2, 3))),
    "a0-l0-d2": (12, 2, {}),
    "a0-l1,2-d2": (12, 2, dict(learner_device_ids=(1, 2))),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_layouts_learn_alike(run, start, tmp_path):
    """CartPole, five seeds on each: the bands (mean and standard deviation) of any two overlap all along."""
    sizes = dict(
        env_id="CartPole-v1", num_actor_threads=1, num_steps=32, num_minibatches=1, inference_batch=6
    )
    learning = dict(learning_rate=1e-3, gamma=0.98, gae_lambda=0.8, clip_coef=0.2, ent_coef=0.0)
    same = sizes | learning | dict(update_epochs=10, hiddens=(64, 64), total_timesteps=80 * 32 * 24)
    curves = {}
    for layout, (envs, processes, devices) in CURVES.items():
        for seed in range(1, 6):
            flags = same | devices | dict(local_num_envs=envs, seed=seed, exp_name=layout)
            if processes == 1:
                _, rows = run(**flags)
            else:
                flags |= dict(runs_dir=tmp_path)
                job = start(processes, "--distributed", *as_flags(flags), devices=3)
                assert [p.wait(300) for p in job] == [0] * processes, [p.said() for p in job]
                (run_dir,) = tmp_path.glob(f"CartPole-v1__{layout.replace(',', '-')}__{seed}__*")
                rows = read_rows(run_dir)
            check_lag(rows, lag=0)
            curves.setdefault(layout, []).append([r["charts/avg_episodic_return"] for r in rows[9::10]])
    bands = {layout: (np.mean(c, axis=0), np.std(c, axis=0)) for layout, c in curves.items()}
    for layout, (mean, std) in bands.items():
        print(layout, " ".join(f"{m:.0f}±{s:.0f}" for m, s in zip(mean, std, strict=True)))
        assert mean[-1] > 3 * mean[0], "nothing was learned"
    for a, (mean_a, std_a) in bands.items():
        for b, (mean_b, std_b) in bands.items():
            assert (np.abs(mean_a - mean_b) <= std_a + std_b).all(), (a, b)


def test_an_actor_that_did_not_have_to_wait_waited_for_no_time():
    """Which of them do is a matter of timing."""
    report = Report(
        0, [], [dict(inference=1.0), dict(inference=3.0, waiting=2.0)], [0], "a" * 16, "0" * 16, 0.0
    )
    plan = BatchPlan.create(Args(), Topology((0,), (0,), 1))
    news = Learned(0, None, [], losses={}, seconds={}, finished=time.perf_counter())
    row = Rows(plan, lambda update: 1.0).make(news, [report])
    assert (row["stats/actor_inference_seconds"], row["stats/actor_waiting_seconds"]) == (2.0, 1.0)


def test_params_that_differ_between_processes_end_the_run():
    same = Report(4, [], [], params_digest="a", data_digest="0", lags=[0], digest_seconds=0.0)
    check_agreement([same, same])
    with pytest.raises(RuntimeError, match="process 1 has other params than process 0 after update 5"):
        check_agreement([same, same._replace(params_digest="b")])
    with pytest.raises(RuntimeError):
        check_agreement([same, same._replace(update=3)])


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Breakout-v5"])
def test_the_two_terminals_of_the_readme(start, tmp_path, env_id):
    """Exactly SLURM's variables as they are set there; small sizes are added."""
    script = str(REPO / "cleanba/cleanba_ppo_envpool_impala_atari_wrapper.py")
    job_id = str(26017 + os.getpid())  # not the port of another test run
    place = dict(
        SLURM_JOB_ID=job_id,
        SLURM_STEP_NODELIST="localhost",
        SLURM_NTASKS="2",
        SLURM_LOCALID="0",
        SLURM_STEP_NUM_NODES="2",
        JAX_NUM_CPU_DEVICES="4",
    )
    flags = "--distributed --actor-device-ids 0 --learner-device-ids 1 2 3"
    small = (
        f"--env-id {env_id} --num-steps 4 --total-timesteps 960 --channels 4 --hiddens 16 --update-epochs 1"
    )
    usual = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "JAX_COORD"))}
    job = [
        Process(
            tmp_path,
            rank,
            [script, *flags.split(), *small.split()],
            usual | place | {"SLURM_PROCID": str(rank)},
        )
        for rank in range(2)
    ]
    assert [p.wait(200) for p in job] == [0, 0], [p.said() for p in job]
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [row["global_step"] for row in read_rows(run_dir)] == [480, 960]
    assert json.loads((run_dir / "args.json").read_text())["layout"] == "a0-l1,2,3-d2"
    assert "done: 960 steps" in job[0].said() and "done" not in job[1].said()


GROWTH = """
import sys, psutil
from cleanba import cleanba_ppo
from cleanba.sebulba.records import Report

make_report, sizes = Report.of, []

def watched(news):
    sizes.append(psutil.Process().memory_info().rss)
    return make_report(news)

Report.of = watched
cleanba_ppo.main(argv=sys.argv[1:])
print("grown by", (sizes[-1] - sizes[len(sizes) // 5]) / 2**20, "MiB")
"""


@pytest.mark.slow
def test_500_updates_of_two_processes_of_four_devices_neither_deadlock_nor_grow(start, tmp_path):
    tiny = "--local-num-envs 3 --num-actor-threads 1 --num-steps 4 --hiddens 8 --learner-device-ids 1 2 3"
    learning = f"--num-minibatches 1 --update-epochs 1 --concurrency --total-timesteps {500 * 24}"
    flags = f"--distributed --env-id CartPole-v1 {tiny} {learning}"
    job = start(2, *flags.split(), script=GROWTH, devices=4)
    assert [p.wait(280) for p in job] == [0, 0], [p.said() for p in job]
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert len(read_rows(run_dir)) == 500
    for process in job:
        assert float(re.search(r"grown by ([-\d.]+) MiB", process.said()).group(1)) < 20


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_ends_the_others_with_its_name(start, tmp_path, victim):
    job = start(3 if victim else 2, *SMALL.split())
    wait_for_rows(tmp_path, job, 3)
    job[victim].popen.kill()
    killed = time.time()
    for process in job:
        if process is not job[victim]:
            assert process.wait(15) == 3
            assert f"error: process {victim} (pid {job[victim].popen.pid} on " in process.said()
            assert "was lost" in process.said() and "Traceback" not in process.said()
    if victim != 0:  # process 0 knows, and has saved
        assert re.search(r"lost: [\d,]+ steps since the checkpoint of update \d+", job[0].said())
    assert time.time() - killed < 15


def test_what_was_lost_is_said_of_the_reason_too():
    """A collective may break before the news of the lost process is there."""
    with pytest.raises(Ended) as caught, joined(Place("", 1, 0), Args()) as job:
        job.loss = Ended("process 1 was lost")
        broken = RuntimeError("the collective broke")
        broken.add_note("lost: 64 steps")
        raise broken
    assert caught.value is job.loss and caught.value.__notes__ == ["lost: 64 steps"]


FAILING = """
import os, sys
from cleanba import cleanba_ppo
from cleanba.sebulba.envs import Envs

receive, calls = Envs.receive, 0

def broken_receive(self):
    global calls
    calls += 1
    if calls > 100 and os.environ["JAX_PROCESS_ID"] == "1":
        {what}
    return receive(self)

Envs.receive = broken_receive
cleanba_ppo.main(argv=sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_in_one_process_ends_all(start, tmp_path, rank):
    what = 'open("failed", "w").close(); raise RuntimeError("the emulator caught fire")'
    script = FAILING.format(what=what).replace('== "1"', f'== "{rank}"')
    job = start(2, *SMALL.split(), "--save-model", script=script)
    failed, other = job[rank], job[1 - rank]
    assert (failed.wait(), other.wait()) == (1, 3), [p.said() for p in job]
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 15
    assert "RuntimeError: the emulator caught fire" in failed.said()
    assert re.search(r"lost: \d+ steps since the checkpoint of update \d+; --resume runs/", job[0].said())
    assert failed.said().count("Traceback") == 1
    assert re.search(
        rf"error: process {rank} \(pid \d+ on .*\) failed: RuntimeError: the emulator caught fire",
        other.said(),
    )
    assert "Traceback" not in other.said()
    if rank == 1:  # the first process goes for a reason that is not its own, and keeps what it has
        assert list(tmp_path.glob("runs/*/*.cleanrl_model"))


@pytest.mark.slow
def test_a_process_that_is_stuck_is_reported_and_all_end(start, tmp_path):
    job = start(
        2, *SMALL.split(), "--stuck-seconds", 10, script=FAILING.format(what="import time; time.sleep(999)")
    )
    assert [p.wait() for p in job] == [1, 1], [p.said() for p in job]
    stacks = job[1].said()
    assert "where each thread stands" in stacks and "thread actor-0:" in stacks
    assert "in broken_receive" in stacks and "time.sleep(999)" not in stacks.split("in broken_receive")[0]
    for process in job:
        assert "has made no progress for 10 s" in process.said()


@pytest.mark.slow
def test_a_stopped_process_is_missed(start, tmp_path):
    job = start(2, *SMALL.split(), "--stuck-seconds", 10)
    wait_for_rows(tmp_path, job, 3)
    job[1].popen.send_signal(signal.SIGSTOP)
    assert job[0].wait(40) == 1
    assert "process 0 of 2 has made no progress for 10 s; process 1 has not been heard for" in job[0].said()
    assert "thread learner:" in job[0].said()


@pytest.mark.slow
def test_a_single_process_that_is_stuck_ends_too(start):
    script = FAILING.format(what="import time; time.sleep(999)").replace('== "1"', '== "0"')
    (process,) = start(1, *SMALL.split(), "--stuck-seconds", 10, script=script)
    assert process.wait() == 1
    assert "error: the run has made no progress for 10 s" in process.said()
    assert "thread actor-0:" in process.said()


@pytest.mark.parametrize(
    ("rank", "number"),
    [
        pytest.param(0, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(1, signal.SIGINT, marks=pytest.mark.slow),
        (1, signal.SIGUSR1),
    ],
)
def test_a_signal_to_one_process_stops_all_after_the_same_update(start, tmp_path, rank, number):
    """With the gradients the wish reaches them all. (JAX's runtime would take SIGTERM over.)"""
    job = start(2, *SMALL.split(), "--save-model")
    wait_for_rows(tmp_path, job, 3)
    job[rank].popen.send_signal(number)
    assert [p.wait(15) for p in job] == [75, 75], [p.said() for p in job]
    assert f"{number.name}: waiting for all 2 processes" in job[rank].said()
    (run_dir,) = (tmp_path / "runs").iterdir()
    rows = read_rows(run_dir)
    assert f"after update {len(rows)} of" in job[0].said()
    assert f"after update {len(rows)} of 390625, with the other processes" in job[1].said()
    (checkpoint,) = run_dir.glob("checkpoints/*")
    assert checkpoint.stem == f"update-{len(rows)}"
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == rows[-1]["global_step"]


SLOW_CHOICE = """
import sys, time
from cleanba import cleanba_ppo
from cleanba.sebulba import train

def choose_slowly(*_):
    open("choosing", "w").close()
    time.sleep(60)

train.choose_beginning = choose_slowly
cleanba_ppo.main(argv=sys.argv[1:])
"""


def test_a_signal_to_one_process_before_the_training_stops_all(start, tmp_path):
    job = start(2, *SMALL.split(), script=SLOW_CHOICE)
    while not (tmp_path / "choosing").exists():
        assert all(p.popen.poll() is None for p in job)
        time.sleep(0.05)
    job[0].popen.send_signal(signal.SIGTERM)
    assert [p.wait(15) for p in job] == [75, 75], [p.said() for p in job]
    assert "failed: it was stopped" in job[1].said()


@pytest.mark.slow
def test_something_else_at_the_port_is_ignored(start):
    """A line that is no message, a connection that says nothing, and another job's process."""
    host, port = (address := free_address()).split(":")
    job = start(2, *SMALL.split(), "--total-timesteps", 256, JAX_COORDINATOR_ADDRESS=address)
    job[1].popen.send_signal(signal.SIGSTOP)
    deadline = time.time() + 60
    while time.time() < deadline:
        try:
            strangers = [socket.create_connection((host, int(port)), timeout=1) for _ in range(2)]
            break
        except OSError:
            time.sleep(0.1)
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b'{"job": "another", "process": 1, "who": "", "about": {}}\n')
    job[1].popen.send_signal(signal.SIGCONT)
    assert [p.wait() for p in job] == [0, 0], [p.said() for p in job]
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_a_process_that_dies_while_they_meet_is_named(start):
    job = start(3, *SMALL.split(), "--join-seconds", 20, script=DYING)
    assert [p.wait(15) for p in job][1:] == [-9, 3], [p.said() for p in job]
    assert re.search(r"error: process 1 \(pid \d+ on .*\) was lost", job[0].said())


DYING = """
import os, sys
from cleanba import cleanba_ppo
from cleanba.sebulba import job

meet = job.meet

def meet_and_die(*inputs):
    met = meet(*inputs)
    if os.environ["JAX_PROCESS_ID"] == "1":
        os.kill(os.getpid(), 9)
    return met

job.meet = meet_and_die
cleanba_ppo.main(argv=sys.argv[1:])
"""
