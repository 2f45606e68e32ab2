"""Compiler options."""

import functools

import jax

from cleanba.runtime.devices import on_accelerator


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
