"""The compiled policy call, from observations on the host to decisions on the host."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cleanba.agents.algorithm import Algorithm, Decision, Published, State
from cleanba.envs.spec import EnvSpec
from cleanba.runtime.compilation import compiler_options


def compile_act(algorithm: Algorithm) -> Callable[..., tuple[Array, State]]:
    """`act` of key, published, observations, state and i32 [3, B] (whether an episode starts, env_id, step:
    each array that is copied costs), with its decision packed. The key is an argument, so that a run with
    another seed finds the program compiled."""

    def packed_act(
        key: Array, published: Published, obs: Any, state: State, integers: Array
    ) -> tuple[Array, State]:
        start, env_id, step = integers
        decision, state = algorithm.act(key, published, obs, state, start != 0, env_id, step)
        return pack(decision), state

    return jax.jit(packed_act, compiler_options=compiler_options())


def call_like(function: Callable[..., Any], algorithm: Algorithm, env: EnvSpec) -> tuple[Any, State]:
    """Shapes and types of what `act` or `play` gives for one environment, [1, ...]."""

    def call(key: Array) -> tuple[Any, State]:
        obs = jax.tree.map(lambda spec: jnp.zeros((1, *spec.shape), spec.dtype), env.obs)
        zeros = jnp.zeros(1, jnp.int32)
        return function(key, algorithm.init(key), obs, algorithm.initial_state(1), zeros > 0, zeros, zeros)

    return jax.eval_shape(call, jax.random.key(0))


def decision_like(algorithm: Algorithm, env: EnvSpec) -> Decision:
    """Shapes and types of a decision about one environment, without the batch axis."""
    like, _ = call_like(algorithm.act, algorithm, env)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), like)


def pack(decision: Decision) -> Array:
    """i32 [K, B], bit by bit: one copy to the host takes a third of the time of three."""
    columns = [
        jax.lax.bitcast_convert_type(x, jnp.int32).reshape(len(x), -1).T for x in jax.tree.leaves(decision)
    ]
    return jnp.concatenate(columns)


def unpack(packed: np.ndarray, like: list[Any]) -> list[np.ndarray]:
    """The leaves of the decision, [B, ...] each, with the shapes and types of `like`."""
    leaves, at = [], 0
    for leaf in like:
        size = leaf.size
        columns = packed[at] if leaf.shape == () else packed[at : at + size].T.reshape(-1, *leaf.shape)
        leaves.append(columns.view(leaf.dtype))
        at += size
    return leaves
