"""Jobs under a real SLURM: what their processes see, and how they are requeued."""

import json
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.hub_stub import TOKEN, Hub
from helpers.runs import REPO, read_args, read_rows
from helpers.slurm import start

# Asks the class with which jax.distributed detects SLURM.
SHOW_PROCESS = """
import json, os
from jax._src.clusters import SlurmCluster as found
print(json.dumps(dict(
    found=found.is_env_present(),
    coordinator=found.get_coordinator_address(None, None),
    process=[found.get_process_id(), found.get_local_process_id(), found.get_process_count()],
    nodes=os.environ["SLURM_STEP_NUM_NODES"],
    job=os.environ["SLURM_JOB_ID"],
    gpus=os.environ["CUDA_VISIBLE_DEVICES"],
)))
"""


def submit(slurm, folder, script, *flags):
    """Submit a batch script; its output goes to job_{id} or, for an array, job_{id}_{task}."""
    (folder / "job.sh").write_text("#!/bin/bash\n" + script)
    output = "job_%A_%a" if any(flag.startswith("--array") for flag in flags) else "job_%j"
    return slurm.run("sbatch", "--parsable", "--output", output, *flags, "job.sh", cwd=folder).strip()


def test_srun_starts_numbered_processes_on_the_node(slurm):
    printed = slurm.run("srun", "-n", "2", "sh", "-c", "echo $SLURM_PROCID $SLURM_STEP_NODELIST")
    assert sorted(printed.splitlines()) == ["0 localhost", "1 localhost"]


def test_each_job_of_an_array_has_its_own_gpus_and_coordinator(slurm, tmp_path):
    (tmp_path / "show_process.py").write_text(SHOW_PROCESS)
    script = f"""
touch started$SLURM_ARRAY_TASK_ID
until [ -e started$((1 - SLURM_ARRAY_TASK_ID)) ]; do sleep 0.1; done  # both must hold their GPUs at once
srun {sys.executable} show_process.py"""
    array = submit(slurm, tmp_path, script, "--array=0-1", "--ntasks=2", "--gpus-per-task=4")
    slurm.wait_for(array)
    jobs = [
        sorted(
            map(json.loads, (tmp_path / f"job_{array}_{index}").read_text().splitlines()),
            key=lambda p: p["process"],
        )
        for index in range(2)
    ]
    for processes in jobs:
        assert [p["process"] for p in processes] == [[0, 0, 2], [1, 1, 2]]
        assert all(p["found"] and p["nodes"] == "1" for p in processes)
        coordinator = f"localhost:{int(processes[0]['job']) % 4096 + 61440}"
        assert [p["coordinator"] for p in processes] == [coordinator] * 2
    assert jobs[0][0]["coordinator"] != jobs[1][0]["coordinator"]
    gpus = [p["gpus"] for processes in jobs for p in processes]
    assert sorted(gpus) == ["0,1,2,3", "12,13,14,15", "4,5,6,7", "8,9,10,11"]


# The last job of an array to start has the array's id as its SLURM_JOB_ID, so requeueing that id would run
# the others again too.
REQUEUE = """
echo start ${SLURM_RESTART_COUNT:-0}
srun sh -c 'exit $(( SLURM_ARRAY_TASK_ID == 1 && ${SLURM_RESTART_COUNT:-0} == 0 ? 75 : 0 ))'
if [ $? = 75 ]; then
    scontrol requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    sleep 60  # until SLURM ends this script
fi
"""


def test_only_the_job_that_requeues_itself_runs_again(slurm, tmp_path):
    submitted = time.monotonic()
    array = submit(slurm, tmp_path, REQUEUE, "--array=0-1", "--requeue", "--open-mode=append")
    slurm.wait_for(array)
    assert time.monotonic() - submitted < 100  # a default SLURM takes two minutes

    def starts(index):
        return [s for s in (tmp_path / f"job_{array}_{index}").read_text().splitlines() if "start " in s]

    assert starts(0) == ["start 0"]
    assert starts(1) == ["start 0", "start 1"]


def test_a_job_that_fails_shows_the_logs(slurm, tmp_path):
    job = submit(slurm, tmp_path, "exit 3")
    with pytest.raises(AssertionError, match=r"(?s)FAILED.*slurmctld\.log.*WEXITSTATUS 3.*slurmd\.log"):
        slurm.wait_for(job)
    assert slurm.wait_for(job, expected="FAILED") == "FAILED"


def process_names(namespace):
    """The names of the processes in a PID namespace."""
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.readlink(process / "ns/pid") == namespace:
                names.add((process / "comm").read_text().strip())
    return names


def test_nothing_is_left_of_a_cluster(slurm, tmp_path):
    """Here a second one, beside the fixture `slurm`, which installs the packages."""
    with start() as other:
        job = submit(other, tmp_path, "setsid sleep 600 & readlink /proc/self/ns/pid; sleep 600")
        output = tmp_path / f"job_{job}"
        while not (output.exists() and output.read_text()):
            time.sleep(0.1)
        namespace = output.read_text().strip()
        assert process_names(namespace) >= {"munged", "slurmctld", "slurmd", "slurmstepd", "sleep"}
    assert not process_names(namespace) and not other.folder.exists()


# --------------------------------------------------------------------------------------------- training


def path_with_python():
    """A PATH with the tests' Python as `python`, for commands as users type them."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def test_processes_started_by_srun_train_together(slurm, tmp_path):
    small = (
        "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --total-timesteps 640 "
        "--stuck-seconds 60"
    )
    command = ["python", REPO / "cleanba/cleanba_ppo.py", "--distributed", *small.split()]
    env = {"JAX_NUM_CPU_DEVICES": "2", "PATH": path_with_python()}
    printed = slurm.run("srun", "-n", "2", *map(str, command), cwd=tmp_path, env=env, timeout=120)
    assert "a0-l0-d2" in printed and "done: 640 steps" in printed
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [row["global_step"] for row in read_rows(run_dir)] == [128, 256, 384, 512, 640]


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "seeds"), [("CartPole-v1", 2), ("Breakout-v5", 2)])
def test_the_benchmark_command_of_the_readme(slurm, tmp_path, env_id, seeds):
    """As it is there, with small sizes added. `poetry run` does what it does in an active environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/poetry").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "bin/poetry").chmod(0o755)
    (tmp_path / "cleanba").symlink_to(REPO / "cleanba")
    training = (
        "poetry run python cleanba/cleanba_ppo_envpool_impala_atari_wrapper_large.py --distributed "
        "--learner-device-ids 1 2 3 --track --save-model --upload-model "
        "--num-steps 4 --total-timesteps 960 --channels 4 --hiddens 16 --update-epochs 1"
    )
    slurm_flags = "--slurm-gpus-per-task 4 --slurm-ntasks 2 --slurm-nodes 1"
    template = ["--slurm-template-path", "cleanba.slurm_template"]
    hub = Hub(tmp_path / "hub")
    env = {
        "PATH": f"{tmp_path / 'bin'}:{path_with_python()}",
        "PYTHONPATH": str(REPO),
        "JAX_NUM_CPU_DEVICES": "4",
        "WANDB_MODE": "offline",
        "HF_ENDPOINT": hub.address,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
    }
    command = ["python", "-m", "cleanrl_utils.benchmark", "--env-ids", env_id, "--command", training]
    command += ["--num-seeds", str(seeds), "--workers", "1", *slurm_flags.split(), *template]
    submitted = slurm.run(*command, cwd=tmp_path, env=env)
    (job,) = re.findall(r"Submitted batch job (\d+)", submitted)
    (folder,) = (tmp_path / "runs/benchmark").iterdir()
    try:
        slurm.wait_for(job, timeout=280)
    except AssertionError as error:
        raise AssertionError("\n".join(log.read_text() for log in folder.glob("*.log"))) from error
    hub.shutdown()
    hub.server_close()
    names = [f"{env_id}__{seed}" for seed in range(1, seeds + 1)]
    assert sorted(path.stem for path in folder.glob("*.done")) == names
    for seed in range(1, seeds + 1):
        name = "cleanba_ppo_envpool_impala_atari_wrapper_large"
        (run_dir,) = tmp_path.glob(f"runs/{env_id}__{name}__{seed}__*")
        *updates, evaluation = read_rows(run_dir)
        assert [row["global_step"] for row in updates] == [480, 960] and "eval/episodic_return" in evaluation
        assert read_args(run_dir)["layout"] == "a0-l1,2,3-d2"
        assert list(run_dir.glob("wandb/offline-run-*/run-*.wandb"))
        uploaded = {path.name for path in (hub.folder / f"somebody/{env_id}-{name}-seed{seed}").iterdir()}
        assert {f"{name}.cleanrl_model", "README.md", "evaluation.json", "args.json"} <= uploaded
    again = slurm.run(*command, cwd=tmp_path, env=env)
    assert f"runs: {seeds} done" in again and "Submitted" not in again


def submit_benchmark(slurm, folder, env_id, command):
    """One run of two processes, through the benchmark and its template; returns the job id and the log."""
    benchmark = ["python", "-m", "cleanrl_utils.benchmark", "--env-ids", env_id, "--command", command]
    flags = "--num-seeds 1 --slurm-ntasks 2 --slurm-template-path cleanba.slurm_template"
    env = {"PATH": path_with_python(), "PYTHONPATH": str(REPO), "JAX_NUM_CPU_DEVICES": "1"}
    submitted = slurm.run(*benchmark, *flags.split(), cwd=folder, env=env)
    (job,) = re.findall(r"Submitted batch job (\d+)", submitted)
    (script,) = folder.glob("runs/benchmark/*/job.sbatch")
    return job, script.with_name(f"{env_id}__1.log")


def submit_script(slurm, folder, script):
    (folder / "train.sh").write_text(script)
    return submit_benchmark(slurm, folder, "A", "bash train.sh")


FIRST_TIME = "m=started_$SLURM_PROCID; [ -e $m ] && exit 0; touch $m; "


def check_requeued(log):
    assert "restart 0" in log.read_text() and "exit code 75" in log.read_text()
    assert "restart 1" in log.read_text() and log.with_suffix(".done").exists()


def test_a_preempted_run_is_requeued(slurm, tmp_path):
    """By the template: both processes exit with 75 the first time. They have a secret in common."""
    job, log = submit_script(slurm, tmp_path, FIRST_TIME + "echo $CLEANBA_JOB_SECRET >>secrets; exit 75")
    slurm.wait_for(job)
    check_requeued(log)
    first, second = (tmp_path / "secrets").read_text().split()
    assert first == second and len(first) == 64


@pytest.mark.slow
def test_a_run_preempted_before_it_handles_signals_is_requeued_too(slurm, tmp_path):
    """While Python still imports, SIGTERM ends it with 143."""
    job, log = submit_script(slurm, tmp_path, FIRST_TIME + "exec sleep 60")
    deadline = time.monotonic() + 30
    while not all((tmp_path / f"started_{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    slurm.run("scancel", "--signal=TERM", f"{job}_0")
    slurm.wait_for(job)
    check_requeued(log)


def submit_training(slurm, folder, updates):
    """The same for a training; returns once it has logged some updates."""
    sizes = "--local-num-envs 2 --num-actor-threads 1 --num-steps 16 --hiddens 16"
    sizes += " --num-minibatches 1 --update-epochs 1"
    training = f"python {REPO}/cleanba/cleanba_ppo.py --distributed {sizes} --total-timesteps {64 * updates}"
    job, log = submit_benchmark(slurm, folder, "CartPole-v1", training)
    deadline = time.monotonic() + 60
    while not any(p.read_text().count("\n") > 20 for p in folder.glob("runs/*/metrics.jsonl")):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return job, log


def check_nothing_is_lost(folder, log, updates):
    (run_dir,) = folder.glob("runs/CartPole*")
    assert [row["update"] for row in read_rows(run_dir)] == list(range(1, updates + 1))
    first, second = read_args(run_dir)["parts"]
    assert 20 < second["from_update"] < updates
    assert "restart 1" in log.read_text() and log.with_suffix(".done").exists(), log.read_text()


@pytest.mark.slow
def test_a_preempted_training_job_continues_later(slurm, tmp_path):
    """It exits by itself in its grace time, the template requeues it, and it runs after the urgent job."""
    job, log = submit_training(slurm, tmp_path, updates := 800)
    flags = ["--parsable", "--partition=urgent", "--exclusive", "--wrap=true"]
    urgent = slurm.run("sbatch", *flags, cwd=tmp_path)
    slurm.wait_for(urgent.strip())
    slurm.wait_for(job, timeout=120)
    assert "SIGTERM: waiting for all 2 processes" in log.read_text() and "exit code 75" in log.read_text()
    check_nothing_is_lost(tmp_path, log, updates)


@pytest.mark.slow
def test_a_requeued_training_job_continues(slurm, tmp_path):
    job, log = submit_training(slurm, tmp_path, updates := 800)
    slurm.run("scontrol", "requeue", f"{job}_0")
    slurm.wait_for(job, timeout=120)
    check_nothing_is_lost(tmp_path, log, updates)
