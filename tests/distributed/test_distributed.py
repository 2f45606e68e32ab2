"""Jobs of several processes: the same run as in one process."""

import os
import re
import time

import numpy as np
import pytest
from helpers.equivalence import ALGORITHMS, check_lag, distance, sgd
from helpers.jobs import Process, exit_codes, outputs
from helpers.runs import REPO, read_args, read_rows

from cleanba.cleanba_ppo import Args
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology
from cleanba.evaluation.model import load_model
from cleanba.records.row_builder import ProcessReport, RowBuilder, UpdateResult, check_agreement

SAME_RUN = """
import sys
from functools import wraps
from importlib import import_module
from helpers.equivalence import sgd
from cleanba.training.train import run_command

which, *flags = sys.argv[1:]
algorithm = import_module(f"cleanba.cleanba_{which}")

@wraps(algorithm.make_algorithm)
def make_algorithm(*inputs):
    return algorithm.make_algorithm(*inputs)._replace(**sgd(which))

run_command(algorithm.Args(), make_algorithm, description="", argv=flags)
"""

LSTM = dict(recurrent="lstm", recurrent_width=16, last_action_reward=True)


def as_flags(options):
    for name, value in options.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{dashed}" if value else f"--no-{dashed}"
        else:
            yield from [f"--{dashed}", *map(str, value if isinstance(value, tuple) else [value])]


@pytest.mark.parametrize("memory", [{}, pytest.param(LSTM, marks=pytest.mark.slow)], ids=["", "lstm"])
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
def test_more_processes_give_the_same_run(run, start, tmp_path, which, processes, learners, memory):
    """24 environments: all in one process, 12 in each of two, or 8 in each of three. IMPALA has lag 1."""
    sizes = dict(num_steps=16, num_minibatches=2, inference_batch=2, hiddens=(16,), num_actor_threads=1)
    same = sizes | memory | dict(env_id="CartPole-v1", total_timesteps=5 * 16 * 24)
    alone = ALGORITHMS[which] | same | dict(local_num_envs=24)
    reference, reference_rows = run(sgd(which), **alone)
    unmoved, _ = run(sgd(which, scale=0.0), **alone | dict(total_timesteps=16 * 24))
    assert distance(unmoved.model.params, reference.model.params) > 1e-3, "SGD moved nothing: no test"

    runs_dir = tmp_path / "job"
    layout = dict(local_num_envs=24 // processes, learner_device_ids=learners)
    flags = as_flags(same | layout | dict(runs_dir=runs_dir, save_model=True))
    job = start(processes, which, *flags, script=SAME_RUN, devices=max(learners) + 1)
    assert exit_codes(job) == [0] * processes, outputs(job)
    (run_dir,) = runs_dir.iterdir()  # only process 0 has one
    rows = [row for row in read_rows(run_dir) if "update" in row]
    assert [row["global_step"] for row in rows] == [row["global_step"] for row in reference_rows]
    assert rows[0]["data_digest"] == reference_rows[0]["data_digest"]
    check_lag(rows, lag=1 if which == "impala" else 0)
    assert rows[0]["stats/games"] == reference_rows[0]["stats/games"] > 0  # episodes of all processes
    assert rows[0]["charts/avg_episodic_return"] == reference_rows[0]["charts/avg_episodic_return"]
    (model,) = run_dir.glob("*.cleanrl_model")
    assert distance(load_model(model).params, reference.model.params) < 1e-5
    assert read_args(run_dir)["layout"] == f"a0-l{','.join(map(str, learners))}-d{processes}"


CURVES = {  # layouts of 24 environments: how many per actor thread, processes, devices
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
    """CartPole, five seeds each: the bands (mean ± standard deviation) of any two layouts always overlap."""
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
                job = start(processes, *as_flags(flags), devices=3)
                assert exit_codes(job, 300) == [0] * processes, outputs(job)
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


def test_an_actor_without_waiting_time_counts_as_0_in_the_mean():
    """Which actors have to wait is a matter of timing."""
    report = ProcessReport(
        0, [], [dict(inference=1.0), dict(inference=3.0, waiting=2.0)], [0], "a" * 16, "0" * 16, 0.0
    )
    plan = BatchPlan.create(Args(), Topology((0,), (0,), 1))
    result = UpdateResult(0, None, [], {}, 1.0, seconds={}, finished=time.perf_counter())
    row = RowBuilder(plan).make(result, [report])
    assert (row["stats/actor_inference_seconds"], row["stats/actor_waiting_seconds"]) == (2.0, 1.0)


def test_params_that_differ_between_processes_end_the_run():
    same = ProcessReport(4, [], [], params_digest="a", data_digest="0", lags=[0], digest_seconds=0.0)
    check_agreement([same, same])
    with pytest.raises(RuntimeError, match="process 1 has other params than process 0 after update 5"):
        check_agreement([same, same._replace(params_digest="b")])
    with pytest.raises(RuntimeError):
        check_agreement([same, same._replace(update=3)])


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Breakout-v5"])
def test_the_two_terminals_of_the_readme(start, tmp_path, env_id):
    """With exactly the SLURM variables of docs/distributed.md; small sizes are added."""
    script = str(REPO / "cleanba/cleanba_ppo_envpool_impala_atari_wrapper.py")
    job_id = str(26017 + os.getpid())  # another port than other test runs
    variables = dict(
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
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "JAX_COORD"))}
    job = [
        Process(
            tmp_path,
            rank,
            [script, *flags.split(), *small.split()],
            inherited | variables | {"SLURM_PROCID": str(rank)},
        )
        for rank in range(2)
    ]
    assert exit_codes(job, 200) == [0, 0], outputs(job)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [row["global_step"] for row in read_rows(run_dir)] == [480, 960]
    assert read_args(run_dir)["layout"] == "a0-l1,2,3-d2"
    assert "done: 960 steps" in job[0].output and "done" not in job[1].output


GROWTH = """
import sys, psutil
from cleanba import cleanba_ppo
from cleanba.records.row_builder import ProcessReport

make_report, sizes = ProcessReport.of, []

def watched(update_result):
    sizes.append(psutil.Process().memory_info().rss)
    return make_report(update_result)

ProcessReport.of = watched
cleanba_ppo.main(argv=sys.argv[1:])
print("grown by", (sizes[-1] - sizes[len(sizes) // 5]) / 2**20, "MiB")
"""


@pytest.mark.slow
def test_500_updates_of_two_processes_of_four_devices_neither_deadlock_nor_grow(start, tmp_path):
    tiny = "--local-num-envs 3 --num-actor-threads 1 --num-steps 4 --hiddens 8 --learner-device-ids 1 2 3"
    learning = f"--num-minibatches 1 --update-epochs 1 --concurrency --total-timesteps {500 * 24}"
    flags = f"--env-id CartPole-v1 {tiny} {learning}"
    job = start(2, *flags.split(), script=GROWTH, devices=4)
    assert exit_codes(job, 280) == [0, 0], outputs(job)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert len(read_rows(run_dir)) == 500
    for process in job:
        assert float(re.search(r"grown by ([-\d.]+) MiB", process.output).group(1)) < 20
