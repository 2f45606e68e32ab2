"""How programs are compiled, and that they are kept between runs: a second start takes seconds."""

import functools
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import jax

from cleanba.sebulba.determinism import cpu_model
from cleanba.sebulba.topology import on_accelerator

LEAST_SECONDS = 0.2  # to compile; what takes less is not worth a file


def keep_compiled() -> None:
    """In the user's cache folder, unless JAX was told where to keep them, or there is no home."""
    where = "jax_compilation_cache_dir"
    if getattr(jax.config, where) is None:
        with suppress(RuntimeError):  # Path.home()'s
            jax.config.update(where, str(cache_dir()))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)


def cache_dir() -> Path:
    """One per kind of processor: machines share homes, and XLA compiles for the one it runs on."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cleanba" / "compiled" / sha256(processor().encode()).hexdigest()[:8]


def processor() -> str:
    """Its name is not enough: virtual machines have the same one with other features."""
    features = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{cpu_model()} {features}"


@functools.cache
def compiler_options() -> dict[str, str]:
    """For programs with the network in them. On CPUs XLA leaves convolutions to YNNPACK, and gradients
    of ours take a fifth longer. As an option: a flag that another version does not know ends the process."""
    options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
    if on_accelerator():
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # another version of XLA
        return {}
    return options
