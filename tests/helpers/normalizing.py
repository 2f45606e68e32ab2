"""PPO whose policy normalizes observations by running statistics, in what travels with the params."""

from functools import wraps
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from cleanba import cleanba_ppo
from cleanba.agents.agent import Agent
from cleanba.agents.algorithm import Published
from cleanba.agents.networks import make_agent


class Stats(NamedTuple):
    count: Any  # i32
    mean: Any  # f32 [4]
    squares: Any  # f32 [4], of the differences from the mean


def normalizing_agent(args, env):
    inner = make_agent(args, env)

    def init(key):
        zeros = jnp.zeros(env.obs.shape)
        return Published(inner.init(key).params, Stats(jnp.zeros((), jnp.int32), zeros, zeros))

    def apply(published, obs, state=(), episode_start=None):
        count, mean, squares = published.extra
        deviation = jnp.sqrt(squares / jnp.maximum(count, 1) + 1e-2)
        return inner.apply(Published(published.params), (obs - mean) / deviation, state, episode_start)

    return Agent(init, inner.initial_state, apply, inner.unroll)


def next_stats(published, rollout, metrics, global_sum):
    """Chan et al. 1979: the statistics of two samples together."""
    stats = published.extra
    obs, valid = rollout.obs[:-1], rollout.valid
    count = global_sum(jnp.sum(valid))
    mean = global_sum(jnp.sum(obs, (0, 1), where=valid[..., None])) / count
    squares = global_sum(jnp.sum((obs - mean) ** 2, (0, 1), where=valid[..., None]))
    total, apart = stats.count + count, mean - stats.mean
    return Stats(
        total,
        stats.mean + apart * count / total,
        stats.squares + squares + apart**2 * stats.count * count / total,
    )


@wraps(cleanba_ppo.make_algorithm)
def make_algorithm(*inputs):
    """For a process of its own."""
    cleanba_ppo.make_agent = normalizing_agent
    return cleanba_ppo.make_algorithm(*inputs)._replace(
        next_extra=next_stats, optimizer=optax.identity(), learning_rate=lambda update, extra: 0.01
    )
