"""Everything that can change the bits of a run besides its arguments: XLA's flags, versions, hardware."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology
from cleanba.runtime.devices import actor_devices, learner_devices
from cleanba.runtime.machine import available_cores, cpu_model

GPU_FLAG = "--xla_gpu_deterministic_ops"  # no sums in arbitrary order, no kernels chosen by timing
CUDA_PACKAGES = [f"nvidia-{library}-cu{version}" for library in ("cudnn", "cublas") for version in (12, 13)]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "envpool", "gymnasium", *CUDA_PACKAGES)
JAX_OPTIONS = (
    "default_matmul_precision",
    "default_prng_impl",
    "disable_most_optimizations",
    "enable_x64",
    "threefry_partitionable",
)


def make_deterministic() -> None:
    """On GPUs; CPUs always are. XLA reads its flags once, when jax first looks for devices, so this must come
    before. What the user has in XLA_FLAGS stays, and takes precedence."""
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
    """What is recorded of the machine; in a job, that of process 0."""
    devices = {"actor": actor_devices(topology)[0], "learner": learner_devices(topology)[0]}
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
        "cores": available_cores(),
        "xla_threads": os.environ.get("PJRT_NPROC"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **{name: jax.config.values[f"jax_{name}"] for name in JAX_OPTIONS},
    }
