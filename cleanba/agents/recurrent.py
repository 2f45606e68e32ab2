"""A policy's memory: an LSTM or a GRU between the torso and the heads.

What does not depend on time is done for all T * B rows at once: torso, dense layers, the gates' projections
of their input. The scan over time has one small matrix product per step. (Convolution gradients inside of it
would be 10 to 15 times slower on CPUs.)
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal
from jax import Array, lax

from cleanba.agents.agent import Agent, by_time, flat_rows
from cleanba.agents.algorithm import Params, Published, State
from cleanba.agents.distributions import Distribution

Kind = Literal["lstm", "gru"]
GATES: dict[Kind, int] = {"lstm": 4, "gru": 3}


class Memory(NamedTuple):
    """The state of B environments, always in float32; zeros where an episode starts."""

    hidden: Array  # f32 [B, W], what the heads see
    cell: Any = ()  # f32 [B, W], of an LSTM


def empty_memory(kind: Kind, width: int, envs: int) -> Memory:
    zeros = jnp.zeros((envs, width))
    return Memory(zeros, zeros if kind == "lstm" else ())


def lstm_step(memory: Memory, projected: Array, product: Callable[[Array], Array]) -> Memory:
    """Hochreiter and Schmidhuber 1997, with forget gates that begin open (Jozefowicz et al. 2015). The gates'
    `projected` input is [B, 4 W], and so is the `product` of the hidden state."""
    enter, forget, new, leave = jnp.split(projected + product(memory.hidden), 4, axis=1)
    cell = nn.sigmoid(forget + 1.0) * memory.cell + nn.sigmoid(enter) * nn.tanh(new)
    return Memory(nn.sigmoid(leave) * nn.tanh(cell), cell)


def gru_step(memory: Memory, projected: Array, product: Callable[[Array], Array]) -> Memory:
    """Cho et al. 2014, with the reset gate after the matrix product, so that one product serves all gates."""
    old = memory.hidden
    (reset_x, keep_x, new_x), (reset_h, keep_h, new_h) = (
        jnp.split(x, 3, axis=1) for x in (projected, product(old))
    )
    keep, new = nn.sigmoid(keep_x + keep_h), nn.tanh(new_x + nn.sigmoid(reset_x + reset_h) * new_h)
    return Memory(keep * old + (1.0 - keep) * new)


STEPS = {"lstm": lstm_step, "gru": gru_step}


class Core(nn.Module):
    """x [T * B, F], memory [B, ...], episode_start [T, B] -> hidden [T * B, W], memory after the last row."""

    kind: Kind
    width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, memory: Memory, episode_start: Array) -> tuple[Array, Memory]:
        gates = GATES[self.kind]
        projected = nn.Dense(gates * self.width, name="input", dtype=self.dtype)(x)
        kernel = self.param("recurrent", _orthogonal_gates(gates), (self.width, gates * self.width))

        def product(hidden: Array) -> Array:
            return (hidden.astype(self.dtype) @ kernel.astype(self.dtype)).astype(jnp.float32)

        def step(memory: Memory, row: tuple[Array, Array]) -> tuple[Memory, Array]:
            x, start = row
            memory = jax.tree.map(lambda state: jnp.where(start[:, None], 0.0, state), memory)
            memory = STEPS[self.kind](memory, x, product)
            return memory, memory.hidden

        sequences = projected.astype(jnp.float32).reshape(*episode_start.shape, -1)
        memory, hidden = lax.scan(step, memory, (sequences, episode_start))
        return hidden.reshape(-1, self.width), memory


def _orthogonal_gates(gates: int) -> Callable[..., Array]:
    """A square matrix for each gate, side by side."""

    def init(key: Array, shape: tuple[int, int]) -> Array:
        squares = [orthogonal()(k, (shape[0], shape[0])) for k in jax.random.split(key, gates)]
        return jnp.concatenate(squares, axis=1)

    return init


def recurrent(
    init: Callable[[Array], Params],
    initial_state: Callable[[int], State],
    apply: Callable[..., tuple[Distribution, Array, State]],
) -> Agent:
    """Of a network with a memory. `apply` takes params, obs [T * B, ...], state [B, ...] and episode_start
    [T, B], and gives a distribution and values [T * B], and the state [B, ...] after the last row."""

    def apply_rows(published: Published, obs: Any, state: State, episode_start: Array) -> Any:
        return apply(published.params, obs, state, episode_start[None])

    def unroll(published: Published, obs: Any, state: State, episode_start: Array) -> Any:
        *answer, state = apply(published.params, flat_rows(obs), state, episode_start)
        return *by_time(tuple(answer), len(episode_start)), state

    return Agent(lambda key: Published(init(key)), initial_state, apply_rows, unroll)
