"""What the bits of a run depend on, besides its arguments."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.topology import Topology

GPU_FLAG = "--xla_gpu_deterministic_ops"  # no sums in the order in which threads come, no kernels by timing
OF_CUDA = [f"nvidia-{library}-cu{version}" for library in ("cudnn", "cublas") for version in (12, 13)]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "envpool", *OF_CUDA)
JAX_OPTIONS = ("default_matmul_precision", "default_prng_impl", "threefry_partitionable", "enable_x64")


def make_deterministic() -> None:
    """On GPUs; CPUs are anyway. XLA reads its flags once, when jax first looks for devices, so this comes
    before it. What the user has in XLA_FLAGS stays, and counts."""
    theirs = os.environ.get("XLA_FLAGS", "").strip()
    in_file = bool(theirs) and not theirs.startswith("-")
    given = Path(theirs).read_text() if in_file and Path(theirs).is_file() else theirs
    if any(flag.split("=")[0] == GPU_FLAG for flag in given.split()):
        return
    if in_file:
        fix = f"put {GPU_FLAG}=true into it, or give --no-deterministic"
        raise UsageError(f"XLA_FLAGS names the file {theirs}, which does not make GPUs deterministic; {fix}")
    os.environ["XLA_FLAGS"] = f"{theirs} {GPU_FLAG}=true".strip()


def circumstances(topology: Topology) -> dict[str, Any]:
    """For the record. Of several processes, those of process 0."""
    devices = {"actor": topology.actor_devices()[0], "learner": topology.learner_devices()[0]}
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "python": platform.python_version(),
        **packages,
        **{f"{role}_devices": device.device_kind for role, device in devices.items()},
        "runtime": devices["learner"].client.platform_version,  # names CUDA's version
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "xla_threads": os.environ.get("PJRT_NPROC"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **{name: getattr(jax.config, f"jax_{name}") for name in JAX_OPTIONS},
    }


def cpu_model() -> str:
    """XLA compiles for its instructions."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
