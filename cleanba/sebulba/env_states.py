"""What travels with an actor's environments on its device: recurrent state, for instance.

Every environment's state belongs to its own history. All calls have fixed sizes: rows are chosen by masks, as
an index of another length would compile anew.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cleanba.agents.algorithm import State


class EnvStates:
    """A tree [N, ...] of which calls read and write the rows of B environments. An empty tree costs
    nothing."""

    def __init__(self, initial: State, device: jax.Device):
        self.tree = jax.device_put(initial, device)
        self.is_empty = not jax.tree.leaves(initial)

    def copy(self) -> "EnvStates":
        """Arrays are never written to in place, so a copy shares them until one of the two changes."""
        copied = object.__new__(EnvStates)
        copied.tree, copied.is_empty = self.tree, self.is_empty
        return copied

    def rows(self, env: np.ndarray) -> State:
        return self.tree if self.is_empty else _rows(self.tree, env)

    def write(self, env: np.ndarray, rows: State, mask: np.ndarray) -> None:
        """The rows [B, ...] of the environments [B] where `mask` [B] is True."""
        if not self.is_empty and mask.any():
            self.tree = _write(self.tree, env, rows, mask)


@jax.jit
def _rows(tree: State, env: Array) -> State:
    return jax.tree.map(lambda x: x[env], tree)


@jax.jit
def _write(tree: State, env: Array, rows: State, mask: Array) -> State:
    def write(x: Array, row: Array) -> Array:
        chosen = jnp.where(mask.reshape(-1, *[1] * (row.ndim - 1)), row, x[env])
        return x.at[env].set(chosen, unique_indices=True)

    return jax.tree.map(write, tree, rows)
