"""Compiler options, and the cache that keeps compiled programs between runs."""

import functools
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import jax

from cleanba.runtime.devices import on_accelerator
from cleanba.runtime.machine import processor

MIN_SECONDS = 0.2  # to compile; what compiles faster is not worth a file


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX was told where, or there is no home."""
    where = "jax_compilation_cache_dir"
    if getattr(jax.config, where) is None:
        with suppress(RuntimeError):  # Path.home()'s
            jax.config.update(where, str(cache_dir()))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)


def cache_dir() -> Path:
    """One folder per kind of processor: machines share homes, and XLA compiles for the processor it runs
    on."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cleanba" / "compiled" / sha256(processor().encode()).hexdigest()[:8]


@functools.cache
def compiler_options() -> dict[str, str]:
    """For programs that contain the network. On CPUs XLA leaves convolutions to YNNPACK, with which our
    gradients take a fifth longer. An option and not an XLA flag: an unknown flag would end the process."""
    options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
    if on_accelerator():
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # another version of XLA
        return {}
    return options
