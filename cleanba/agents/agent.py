"""A network as functions, and how an actor-critic acts with it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array

from cleanba.agents.algorithm import Decision, Params, Published, State
from cleanba.agents.distributions import Distribution


class Agent(NamedTuple):
    init: Callable[[Array], Published]  # from a key
    initial_state: Callable[[int], State]  # of n environments
    apply: Callable[..., tuple[Distribution, Array, State]]  # published, obs [B], state, episode_start [B]
    unroll: Callable[
        ..., tuple[Distribution, Array, State]
    ]  # the same over [T, B], from the state [B] before

    @property
    def has_memory(self) -> bool:
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.initial_state(1))))


def memoryless(
    init: Callable[[Array], Params], apply: Callable[[Params, Any], tuple[Distribution, Array]]
) -> Agent:
    """Of a network that sees one observation at a time: obs [B, ...] -> distribution, value [B]."""

    def apply_rows(published: Published, obs: Any, state: State = (), episode_start: Any = None) -> Any:
        return *apply(published.params, obs), state

    def unroll(published: Published, obs: Any, state: State = (), episode_start: Any = None) -> Any:
        answer = apply(published.params, flat_rows(obs))
        return *by_time(answer, len(jax.tree.leaves(obs)[0])), state

    return Agent(lambda key: Published(init(key)), lambda envs: (), apply_rows, unroll)


def flat_rows(tree: Any) -> Any:
    """[T, B, ...] as [T * B, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def by_time(tree: Any, steps: int) -> Any:
    """[T * B, ...] as [T, B, ...]."""
    return jax.tree.map(lambda x: x.reshape(steps, -1, *x.shape[1:]), tree)


class ActorCriticRecord(NamedTuple):
    """What an actor writes down with each action."""

    logprob: Any  # f32 [B], of the policy that acted
    value: Any  # f32 [B], of its critic


def act(
    agent: Agent,
    key: Array,
    published: Published,
    obs: Any,
    state: State,
    episode_start: Array,
    env_id: Array,
    step: Array,
) -> tuple[Decision, State]:
    """Sample an action per row."""
    distribution, value, state = agent.apply(published, obs, state, episode_start)
    action = distribution.sample(row_keys(key, env_id, step))
    return Decision(action, ActorCriticRecord(distribution.log_prob(action), value)), state


def play(
    agent: Agent,
    key: Array,
    published: Published,
    obs: Any,
    state: State,
    episode_start: Array,
    env_id: Array,
    step: Array,
    *,
    greedy: bool,
) -> tuple[Array, State]:
    distribution, _, state = agent.apply(published, obs, state, episode_start)
    keys = row_keys(key, env_id, step)
    return distribution.mode() if greedy else distribution.sample(keys), state


def row_keys(key: Array, env_id: Array, step: Array) -> Array:
    """A row's key comes from its environment (its global index) and that environment's step, so thread,
    device and batch make no difference."""

    def row_key(env_id: Array, step: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, env_id), step)

    return jax.vmap(row_key)(env_id, step)
