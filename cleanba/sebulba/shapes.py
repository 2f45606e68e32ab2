"""An update without data, of shapes and types only: what cannot work is found before the first one."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cleanba.agents.algorithm import Algorithm, Decision, Extra, Loss, Rollout, State
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.envs.spec import EnvSpec
from cleanba.runtime.devices import LEARNERS
from cleanba.runtime.tensors import named_leaves, tensor_type
from cleanba.sebulba.learner import global_sum, map_per_env, take_rows


def check_update(algorithm: Algorithm, plan: BatchPlan, env: EnvSpec, like: Decision) -> None:
    """The next extra must be like the one that `init` gives: a program is compiled once, and a checkpoint has
    names."""
    if problem := difference(*trace_update(algorithm, plan, env, like)):
        raise UsageError(f"next_extra gives {problem}")


def trace_update(algorithm: Algorithm, plan: BatchPlan, env: EnvSpec, like: Decision) -> tuple[Extra, Extra]:
    """The extra before it and after it."""

    def zeros() -> Rollout:
        return rollout_of_zeros(algorithm, plan, env, like)

    def update(key: Array, own_rollout: Rollout) -> tuple[Extra, Extra]:
        published, rollout = algorithm.init(key), zeros()
        batch = map_per_env(lambda x: x[None], algorithm.prepare(published, rollout))
        slots = algorithm.minibatches(key, jnp.arange(plan.envs_per_learner))
        minibatch, chunk = (jax.tree.map(lambda x, at=at: x[at], slots) for at in (0, (0, 0)))
        statistics = algorithm.statistics(take_rows(batch, minibatch), minibatch.mask, global_sum)
        loss = algorithm.loss(published, take_rows(batch, chunk), chunk.mask, statistics)
        check_scalars(loss)
        if algorithm.next_extra is None:
            return published.extra, published.extra
        metrics = {name: jnp.asarray(0.0) for name in loss.metrics}
        return published.extra, algorithm.next_extra(published, own_rollout, metrics, global_sum)

    one_learner = jax.vmap(update, in_axes=(None, 0), out_axes=None, axis_name=LEARNERS, axis_size=1)
    rollouts = jax.eval_shape(lambda: jax.tree.map(lambda x: x[None], zeros()))  # of one learner
    try:
        return jax.eval_shape(one_learner, jax.random.key(0), rollouts)
    except ValueError as error:
        if "out_axes is None" not in str(error):
            raise
        problem = "next_extra gives something of the rollout of one learner"
        raise UsageError(f"{problem}; put it through global_sum, so that all get the same") from None


def check_scalars(loss: Loss) -> None:
    for name, x in named_leaves(loss._asdict()).items():
        if jnp.shape(x):
            kind = tensor_type(x.dtype, x.shape)
            raise UsageError(f"loss gives {name} as {kind}; give a sum over the rows of the chunk, a scalar")


def rollout_of_zeros(algorithm: Algorithm, plan: BatchPlan, env: EnvSpec, like: Decision) -> Rollout:
    """Of the environments of one learner."""
    steps, envs = plan.num_steps, plan.envs_per_learner
    state = algorithm.initial_state(envs)

    def zeros(spec: Any, rows: int = steps) -> Array:
        return jnp.zeros((rows, envs, *spec.shape), spec.dtype)

    flags = jnp.zeros((steps, envs), bool)
    return Rollout(
        obs=jax.tree.map(lambda spec: zeros(spec, steps + 1), env.obs),
        action=zeros(like.action),
        record=jax.tree.map(zeros, like.record),
        reward=jnp.zeros((steps, envs)),
        terminated=flags,
        truncated=flags,
        valid=flags,
        discounted_return=() if algorithm.return_discount is None else jnp.zeros((steps, envs)),
        episode_start=jnp.zeros((steps + 1, envs), bool) if jax.tree.leaves(state) else (),
        first_state=state,
        last_state=state,
    )


def difference(before: Extra | State, after: Extra | State, first: str = "init") -> str | None:
    """What follows "next_extra gives"; `first` is the function that gave the one before."""
    was, is_ = (
        {name or "one array": tensor_type(x.dtype, x.shape) for name, x in named_leaves(tree).items()}
        for tree in (before, after)
    )
    new, gone = (", ".join(name for name in a if name not in b) for a, b in ((is_, was), (was, is_)))
    if new or gone:
        return f"{new or 'nothing for ' + gone}, {first} gave {gone or 'none of that name'}"
    for name, kind in is_.items():
        if kind != was[name]:
            return f"{name} as {kind}, {first} gave {was[name]}"
    new, gone = (str(jax.tree.structure(tree)) for tree in (after, before))
    return f"{new}, {first} gave {gone}" if new != gone else None
