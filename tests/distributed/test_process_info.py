"""How a process finds its job in the environment variables."""

import os

import pytest

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.distributed.process_info import ProcessInfo, resolve_process

SLURM = dict(SLURM_JOB_ID="26017", SLURM_STEP_NODELIST="localhost", SLURM_NTASKS="2", SLURM_PROCID="1")
JAX = dict(JAX_COORDINATOR_ADDRESS="host:1", JAX_NUM_PROCESSES="3", JAX_PROCESS_ID="2")


@pytest.fixture
def set_variables(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "JAX_COORD", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")):
            monkeypatch.delenv(name)
    return lambda variables: [monkeypatch.setenv(*item) for item in variables.items()]


@pytest.mark.parametrize(
    ("variables", "info"),
    [
        (SLURM, ProcessInfo("localhost:62881", 2, 1)),  # 26017 % 4096 + 61440
        (SLURM | dict(SLURM_STEP_NODELIST="n1,n2"), ProcessInfo("n1:62881", 2, 1)),
        (SLURM | dict(SLURM_STEP_NODELIST="gpu-a[007-012,15],m1"), ProcessInfo("gpu-a007:62881", 2, 1)),
        (SLURM | dict(SLURM_STEP_NODELIST="n[3,5]"), ProcessInfo("n3:62881", 2, 1)),
        (JAX, ProcessInfo("host:1", 3, 2)),
        (SLURM | JAX, ProcessInfo("host:1", 3, 2)),
        (SLURM | dict(JAX_COORDINATOR_ADDRESS="host:1"), ProcessInfo("host:1", 2, 1)),
    ],
)
def test_the_job_is_found_in_the_environment(set_variables, variables, info):
    set_variables(variables)
    assert resolve_process(Args(distributed=True)) == info
    assert resolve_process(Args()).processes == 1


def test_tasks_that_train_alone_are_told_so_once(set_variables, capfd):
    set_variables(SLURM | dict(SLURM_PROCID="0"))
    resolve_process(Args(distributed=True))
    assert not capfd.readouterr().err
    resolve_process(Args())
    warning = "warning: each of the 2 tasks of this SLURM step trains alone; add --distributed"
    assert capfd.readouterr().err.startswith(warning)
    for quiet in (dict(SLURM_PROCID="1"), dict(SLURM_NTASKS="1", SLURM_PROCID="0")):
        set_variables(SLURM | quiet)
        resolve_process(Args())
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "start it with srun, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID"),
        (dict(JAX_NUM_PROCESSES="2", JAX_PROCESS_ID="0"), "or set JAX_COORDINATOR_ADDRESS "),
        (JAX | dict(JAX_PROCESS_ID="3"), "process 3 is not one of 3; count from 0"),
        (JAX | dict(JAX_COORDINATOR_ADDRESS="host"), "JAX_COORDINATOR_ADDRESS=host must be host:port"),
        (JAX | dict(JAX_NUM_PROCESSES="two"), "JAX_NUM_PROCESSES=two"),
        *[
            (JAX | dict(JAX_COORDINATOR_ADDRESS=address), f"ADDRESS={address} must be .* between 1 and 65535")
            for address in ("host:0", "host:65536", "host:-1", ":61440")
        ],
        (SLURM | dict(SLURM_JOB_ID="7_1"), "SLURM_JOB_ID=7_1 is not a number; set JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_missing_or_wrong_variables_are_named(set_variables, variables, message):
    set_variables(variables)
    with pytest.raises(UsageError, match=message):
        resolve_process(Args(distributed=True))
