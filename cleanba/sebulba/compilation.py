"""How programs are compiled, and that they are kept between runs: a second start takes seconds."""

import functools
import os
from hashlib import sha256
from pathlib import Path

import jax

from cleanba.sebulba.determinism import cpu_model

LEAST_SECONDS = 0.2  # to compile; what takes less is not worth a file


def keep_compiled() -> None:
    """In the user's cache folder, unless JAX was told where to keep them, or not to."""
    where = "jax_compilation_cache_dir"
    if getattr(jax.config, where) is None:
        jax.config.update(where, str(cache_dir()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)


def cache_dir() -> Path:
    """One per kind of processor: machines share homes, and XLA compiles for the one it runs on."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cleanba" / "compiled" / sha256(cpu_model().encode()).hexdigest()[:8]


@functools.cache
def compiler_options() -> dict[str, str]:
    """For programs with the network in them. On CPUs XLA leaves convolutions to YNNPACK, and gradients
    of ours take a fifth longer. As an option: a flag that another version does not know ends the process."""
    options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # another version of XLA
        return {}
    return options
