"""Running statistics that scale observations and rewards. They travel with the params (`Published.extra`), so
that actors, learner and evaluation use one version.

Counts are integers, and what is kept is mean and variance, merged by the formula of Chan et al. 1979: sums of
squares in float32 would lose it after some million rows.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from cleanba.agents.agent import Agent
from cleanba.agents.algorithm import GlobalSum, NextExtra, Published, Rollout
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.spec import ACTION_MASK, ArraySpec, EnvSpec

MAX_COUNT = 2**30  # beyond it older rows fade, slowly; an int32 holds twice as many
LIMIT = 10.0  # deviations, beyond which observations and rewards are clipped, as in CleanRL
EPSILON = 1e-8
ROUNDING = 1e-5  # of the mean: what varies less is rounding, which differs between layouts


class Moments(NamedTuple):
    rows: Array  # i32 [], how many there were
    mean: Array  # f32 [...]
    variance: Array  # f32 [...]

    @staticmethod
    def none(shape: tuple[int, ...]) -> "Moments":
        """Before the first row: they scale nothing."""
        return Moments(jnp.zeros((), jnp.int32), jnp.zeros(shape), jnp.ones(shape))

    def merge(self, x: Array, mask: Array, global_sum: GlobalSum) -> "Moments":
        """With the rows x [T, N, ...] of all learners where `mask` [T, N] is True. Sums are of differences
        from the mean so far, and then from the rows' own: both are small numbers."""
        mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        count = global_sum(jnp.sum(mask, dtype=jnp.int32))
        n = jnp.maximum(count, 1).astype(jnp.float32)
        apart = global_sum(jnp.sum(x - self.mean, axis=(0, 1), where=mask)) / n
        apart += global_sum(jnp.sum(x - self.mean - apart, axis=(0, 1), where=mask)) / n  # what rounding lost
        squares = global_sum(jnp.sum((x - self.mean - apart) ** 2, axis=(0, 1), where=mask))
        total = jnp.maximum(self.rows + count, 1).astype(jnp.float32)
        new, old = count / total, self.rows / total
        variance = old * self.variance + new * squares / n + old * new * apart**2
        variance = jnp.where(count > 0, variance, self.variance)
        return Moments(jnp.minimum(self.rows + count, MAX_COUNT), self.mean + new * apart, variance)

    def scale(self, x: Array) -> Array:
        """In deviations from the mean."""
        floor = EPSILON + (ROUNDING * self.mean) ** 2
        return jnp.clip((x - self.mean) / jnp.sqrt(self.variance + floor), -LIMIT, LIMIT)

    def scale_rewards(self, reward: Array) -> Array:
        """By the deviation alone: the sign of a reward means something."""
        return jnp.clip(reward / jnp.sqrt(self.variance + EPSILON), -LIMIT, LIMIT)


class Statistics(NamedTuple):
    obs: Any = ()  # Moments by the name of an entry; a single array is `obs`
    reward: Any = ()  # Moments of the discounted returns


def initial_statistics(args: RunArgs, env: EnvSpec) -> Statistics | tuple[()]:
    if not (args.normalize_observations or args.normalize_rewards):
        return ()
    if args.normalize_observations and not any(_is_scaled(*entry) for entry in _entries(env.obs).items()):
        raise UsageError(
            f"--normalize-observations has no effect: {env.env_id} has images only; leave it out"
        )
    scaled = {
        name: Moments.none(spec.shape) for name, spec in _entries(env.obs).items() if _is_scaled(name, spec)
    }
    return Statistics(
        obs=scaled if args.normalize_observations else {},
        reward=Moments.none(()) if args.normalize_rewards else (),
    )


def with_statistics(agent: Agent, args: RunArgs, env: EnvSpec) -> Agent:
    """The agent with observations scaled by the statistics of its version."""
    if not isinstance(initial_statistics(args, env), Statistics):
        return agent

    def init(key: Array) -> Published:
        return agent.init(key)._replace(extra=initial_statistics(args, env))

    def apply(published: Published, obs: Any, *state: Any) -> Any:
        return agent.apply(published, scale_observations(published.extra, obs), *state)

    def unroll(published: Published, obs: Any, *state: Any) -> Any:
        return agent.unroll(published, scale_observations(published.extra, obs), *state)

    return agent._replace(init=init, apply=apply, unroll=unroll)


def scale_observations(statistics: Statistics, obs: Any) -> Any:
    scaled = {
        name: statistics.obs[name].scale(x) if name in statistics.obs else x
        for name, x in _entries(obs).items()
    }
    return scaled if isinstance(obs, Mapping) else scaled["obs"]


def next_statistics(args: RunArgs, env: EnvSpec) -> NextExtra | None:
    """The algorithm's `next_extra`: all observations that were acted on count, and all discounted returns of
    transitions."""
    if not isinstance(initial_statistics(args, env), Statistics):
        return None

    def next_extra(
        published: Published, rollout: Rollout, metrics: dict[str, Array], global_sum: GlobalSum
    ) -> Statistics:
        statistics, obs = published.extra, _entries(rollout.obs)
        everywhere = jnp.ones_like(rollout.valid)
        merged = {n: old.merge(obs[n][:-1], everywhere, global_sum) for n, old in statistics.obs.items()}
        reward = statistics.reward
        if isinstance(reward, Moments):
            reward = reward.merge(rollout.discounted_return, rollout.valid, global_sum)
        return Statistics(merged, reward)

    return next_extra


def _entries(obs: Any) -> Mapping[str, Any]:
    return obs if isinstance(obs, Mapping) else {"obs": obs}


def _is_scaled(name: str, spec: ArraySpec) -> bool:
    return not spec.is_image and name != ACTION_MASK


def discount_of_returns(args: RunArgs) -> float | None:
    """The algorithm's `return_discount`."""
    return args.gamma if args.normalize_rewards else None
