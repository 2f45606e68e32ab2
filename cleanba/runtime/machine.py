"""Cores, processor and GPUs of this machine. Needs no jax."""

import os
import platform
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

NO_GPU = ("", "-1", "NoDevFiles")  # in CUDA_VISIBLE_DEVICES; the last is SLURM's


def available_cores() -> int:
    """Those this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def free_cores() -> int:
    """For environments: machines with more than four cores keep two for Python and XLA."""
    cores = available_cores()
    return cores - 2 if cores > 4 else cores


def cpu_model() -> str:
    return _cpuinfo("model name") or platform.machine()


def processor() -> str:
    """Model and instruction sets: virtual machines share a model name and differ in the rest."""
    return f"{cpu_model()} {_cpuinfo('flags', 'Features')}"


def _cpuinfo(*names: str) -> str:
    """The first of these entries, empty where there is none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                return value.strip()
    return ""


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in re.split(r"[,\s]+", visible) if gpu not in NO_GPU]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(gpu) for gpu in range(len(re.findall("^GPU ", listed, re.MULTILINE)))]
