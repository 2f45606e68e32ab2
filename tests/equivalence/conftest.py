"""Bits are compared in the programs that users run."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def optimized():
    """As XLA does it by default; `make test` leaves most of it out elsewhere."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
