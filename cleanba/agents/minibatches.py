"""Minibatches of whole sequences, for losses that look through time."""

import jax.numpy as jnp
from jax import Array

from cleanba.agents.algorithm import Slots
from cleanba.config.batch_plan import BatchPlan, check_divides


def whole_environments(env_id: Array, *, plan: BatchPlan, rows: int) -> Slots:
    """Minibatch m takes the first `rows` rows of the environments with e mod M == m: a learner that holds
    some of the environments holds its share of every minibatch. Slots [M, chunks, rows, columns]."""
    parts = plan.num_minibatches
    columns = jnp.argsort(env_id % parts, stable=True).reshape(parts, -1)
    per_chunk = plan.chunk_rows // plan.num_steps
    padding = plan.chunks * per_chunk - columns.shape[1]
    mask = jnp.ones(columns.shape, bool)
    columns, mask = (jnp.pad(x, ((0, 0), (0, padding))) for x in (columns, mask))
    shape = (parts, plan.chunks, rows, per_chunk)
    t = jnp.arange(rows)[:, None]

    def over_rows(x: Array) -> Array:
        return jnp.broadcast_to(x.reshape(parts, plan.chunks, 1, per_chunk), shape)

    return Slots(t=jnp.broadcast_to(t, shape), env=over_rows(columns), mask=over_rows(mask))


def check_whole_environments(plan: BatchPlan) -> None:
    """Every learner must have as many environments of each minibatch, of each actor."""
    over = f"over {plan.learners} learners and --num-minibatches {plan.num_minibatches}"
    check_divides("--local-num-envs", plan.envs_per_actor, plan.learners * plan.num_minibatches, over)
