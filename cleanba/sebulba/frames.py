"""Stacked pictures, each sent once.

An Atari observation is the last four frames, three of which were in the one before. Only the newest travels,
to the actor's device and with the rollout to the learners; the stacks are put together there. A new game
begins with four times its first frame; most lost lives change nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cleanba.sebulba.envs import EnvSpec


class Frames(NamedTuple):
    """What N environments saw in T+1 steps, K frames at a time."""

    frame: Any  # [K-1 + T+1, N, height, width]; the first K-1 are from before
    age: Any  # i8 [T+1, N]: so many frames of the game came before, K-1 at most


def stack_up(frames: Frames) -> Array:
    """[T+1, N, K, height, width], the oldest frame first."""
    steps, envs = frames.age.shape
    depth = len(frames.frame) - steps + 1
    back = jnp.minimum(jnp.arange(depth - 1, -1, -1), frames.age[..., None])  # [T+1, N, K]
    t = jnp.arange(depth - 1, depth - 1 + steps)[:, None, None] - back
    return frames.frame[t, jnp.arange(envs)[:, None]]


def ages(before: np.ndarray, obs: np.ndarray, reset_row: np.ndarray) -> np.ndarray:
    """i8 [B] of the stacks [B, K, ...], from those of the ones before. A game begins on a reset row, if at
    all. EnvPool does not always say so: after a lost life it plays no-ops, and the game may end with them. So
    the frames decide: if they are equal, it makes no difference whether it is a new game."""
    age = np.minimum(before + 1, obs.shape[1] - 1)
    for i in np.flatnonzero(reset_row):
        if (obs[i] == obs[i, -1]).all():
            age[i] = 0
    return age


class Sight:
    """What the policy sees of an actor's environments, on the actor's device."""

    def __init__(self, env: EnvSpec, envs: int, device: jax.Device):
        self._last: Array | None = None  # [N, K, height, width]
        if env.stack > 1:
            self._last = jax.device_put(np.zeros((envs, *env.obs_shape), env.obs_dtype), device)

    def __call__(
        self, env: np.ndarray, obs: np.ndarray, age: np.ndarray, env_id: np.ndarray, step: np.ndarray
    ) -> tuple[Any, Any, Any]:
        """What `act` needs of the environments [B]: observations, global indices and steps. Observations are
        taken as they come, or stacked up from the newest frames [B, height, width]: then of each environment
        every frame must come here, in its order. The numbers travel as one array: every one costs."""
        if self._last is None:
            return obs, env_id, step
        self._last, *seen = _push(self._last, obs, np.stack([env, age, env_id, step]))
        return tuple(seen)


def _push_frames(last: Array, frame: Array, numbers: Array) -> tuple[Array, Array, Array, Array]:
    env, age, env_id, step = numbers
    frame = frame[:, None]
    shifted = jnp.concatenate([last[env, 1:], frame], axis=1)
    stack = jnp.where((age == 0)[:, None, None, None], frame, shifted)
    return last.at[env].set(stack, unique_indices=True), stack, env_id, step


_push = jax.jit(_push_frames, donate_argnums=0)
