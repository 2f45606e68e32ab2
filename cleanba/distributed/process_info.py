"""Which process of a job this is, and what must be the same in all of its processes."""

import dataclasses
import json
import os
import re
import socket
from typing import NamedTuple

import jax

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, flag
from cleanba.distributed.connection import Message
from cleanba.runtime.code_version import code_digest
from cleanba.runtime.messages import say


class ProcessInfo(NamedTuple):
    """This process's index in its job, and where to reach process 0."""

    address: str  # host:port of process 0
    processes: int
    process: int

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, port = self.address.rsplit(":", 1)
        return host.strip("[]"), int(port)


def resolve_process(args: RunArgs) -> ProcessInfo:
    """From JAX's environment variables, else from SLURM's."""
    env = os.environ
    slurm = {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"} <= env.keys()
    if not args.distributed:
        if slurm and env["SLURM_NTASKS"] != "1" and env["SLURM_PROCID"] == "0":
            say(
                f"warning: each of the {env['SLURM_NTASKS']} tasks of this SLURM step trains alone; add "
                "--distributed to make them one run, or give each a --seed of its own"
            )
        return ProcessInfo("", 1, 0)
    found = {
        "JAX_COORDINATOR_ADDRESS": _slurm_address() if slurm else None,
        "JAX_NUM_PROCESSES": env.get("SLURM_NTASKS") if slurm else None,
        "JAX_PROCESS_ID": env.get("SLURM_PROCID") if slurm else None,
    }
    found = {name: env.get(name, value) for name, value in found.items()}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise UsageError(
            f"--distributed cannot find the other processes; start it with srun, or set {', '.join(missing)} "
            "(`cleanba launch a0-l0-d2 ppo` sets them on one machine)"
        )
    address, processes, process = found.values()
    try:
        info = ProcessInfo(str(address), int(str(processes)), int(str(process)))
        host, port = info.host_and_port
    except ValueError:
        raise UsageError(
            f"--distributed: JAX_COORDINATOR_ADDRESS={address} must be host:port, "
            f"JAX_NUM_PROCESSES={processes} and JAX_PROCESS_ID={process} must be integers"
        ) from None
    if not host or not 0 < port < 2**16:
        raise UsageError(
            f"--distributed: JAX_COORDINATOR_ADDRESS={address} must be host:port, with the host of process 0 "
            f"and a port between 1 and {2**16 - 1}"
        )
    if not 0 <= info.process < info.processes:
        raise UsageError(f"--distributed: process {process} is not one of {processes}; count from 0")
    return info


def _slurm_address() -> str:
    """The job step's first host, and a port derived from the job id: the same in all processes."""
    nodes = os.environ["SLURM_STEP_NODELIST"]  # e.g. n1,n2 or n[001-003,7],m1
    first = re.match(r"([^,\[]*)(?:\[([^,\-\]]*))?", nodes)
    host = "".join(part or "" for part in first.groups()) if first else nodes
    numbers = {name: os.environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")}
    for name, value in numbers.items():
        if not (value.isascii() and value.isdigit()):
            raise UsageError(f"--distributed: {name}={value} is not a number; set JAX_COORDINATOR_ADDRESS")
    job, step = map(int, numbers.values())
    return f"{host}:{(job + 97 * step) % 4096 + 61440}"


def process_description(args: RunArgs, info: ProcessInfo, algorithm: str) -> Message:
    """What must be the same in all processes; `algorithm` is a digest of its file."""
    flags = {flag(name): value for name, value in dataclasses.asdict(args).items()}
    here = {
        "JAX_NUM_PROCESSES (or SLURM_NTASKS)": info.processes,
        "code": code_digest(),
        "algorithm": algorithm,
        "jax": jax.__version__,
    }
    return json.loads(json.dumps(flags | here))


def describe_process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
