"""Frame stacks, of which each frame is copied to a device only once.

An Atari observation is the last four frames, three of which were in the observation before it. Only the
newest is copied, to the actor's device and with the rollout to the learners; the stacks are put together
there. After a reset, a stack holds the first frame four times. Most lost lives are no reset.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cleanba.envs.spec import ArraySpec, EnvSpec


class Frames(NamedTuple):
    """The observations of N environments in T+1 steps, K frames at a time."""

    frame: Any  # [K-1 + T+1, N, height, width]; the first K-1 are from before the first step
    since_reset: Any  # i8 [T+1, N]: frames between the last reset and this one, at most K-1


def stack_up(obs: Any) -> Any:
    """A tree of observations [T+1, N, ...], in which Frames become [T+1, N, K, height, width]."""
    return jax.tree.map(
        lambda x: _stack_up(x) if isinstance(x, Frames) else x,
        obs,
        is_leaf=lambda x: isinstance(x, Frames),
    )


def _stack_up(frames: Frames) -> Array:
    """The oldest frame first."""
    steps, envs = frames.since_reset.shape
    depth = len(frames.frame) - steps + 1
    back = jnp.minimum(jnp.arange(depth - 1, -1, -1), frames.since_reset[..., None])  # [T+1, N, K]
    t = jnp.arange(depth - 1, depth - 1 + steps)[:, None, None] - back
    return frames.frame[t, jnp.arange(envs)[:, None]]


def frames_since_reset(before: np.ndarray, stacks: list[np.ndarray], reset_row: np.ndarray) -> np.ndarray:
    """i8 [B] of the stacks [B, K, ...] of each environment, from the counts of the stacks `before` them. Only
    a reset row can be a reset, but EnvPool does not always say whether it is: after a lost life it plays
    no-ops, during which the game may end. So the frames decide: if all are equal, it makes no difference
    whether they are new."""
    since_reset = np.minimum(before + 1, max(x.shape[1] for x in stacks) - 1)
    for i in np.flatnonzero(reset_row):
        if all((x[i] == x[i, -1]).all() for x in stacks):
            since_reset[i] = 0
    return since_reset


class DeviceFrameStack:
    """The frame stacks of an actor's environments, on the actor's device: the first kind of state that
    travels with an environment."""

    def __init__(self, env: EnvSpec, envs: int, device: jax.Device):
        specs, self._tree = jax.tree.flatten(env.obs)
        self._is_array = isinstance(env.obs, ArraySpec)
        self._stacked = [spec.stack > 1 for spec in specs]
        empty = [np.zeros((envs, *spec.shape), spec.dtype) for spec in specs if spec.stack > 1]
        self._last: list[Array] = jax.device_put(empty, device)  # [N, K, height, width] each

    def __call__(
        self,
        obs: list[np.ndarray],
        env: np.ndarray,
        since_reset: np.ndarray,
        episode_start: np.ndarray,
        env_id: np.ndarray,
        step: np.ndarray,
    ) -> tuple[Any, Any]:
        """What `act` needs of the environments [B]: observations, and i32 [3, B], whether an episode starts
        with them, global indices and steps. `obs` has the leaves of the observations' tree: passed on as they
        are, or stacked up from the newest frames [B, height, width]: then every frame of an environment must
        come through here, in order. The integers are copied as one array: each copy costs."""
        integers = np.empty((5 if self._last else 3, len(env)), np.int32)  # np.stack made a call 10 µs longer
        integers[0], integers[1], integers[2] = episode_start, env_id, step
        if not self._last:
            return self._whole(obs), integers
        integers[3], integers[4] = env, since_reset
        newest = [x for x, stacked in zip(obs, self._stacked, strict=True) if stacked]
        self._last, stacks, integers = _push(self._last, newest, integers)
        stacked_up = iter(stacks)
        return self._whole(
            [next(stacked_up) if stacked else x for x, stacked in zip(obs, self._stacked, strict=True)]
        ), integers

    def _whole(self, leaves: list[Any]) -> Any:
        """The observations' tree: a single array is its own."""
        return leaves[0] if self._is_array else jax.tree.unflatten(self._tree, leaves)


def _push_frames(
    last: list[Array], newest: list[Array], integers: Array
) -> tuple[list[Array], list[Array], Array]:
    env, since_reset = integers[3:]
    stacks = []
    for stack, frame in zip(last, newest, strict=True):
        frame = frame[:, None]
        shifted = jnp.concatenate([stack[env, 1:], frame], axis=1)
        is_new = (since_reset == 0).reshape(-1, *[1] * (shifted.ndim - 1))
        stacks.append(jnp.where(is_new, frame, shifted))
    last = [x.at[env].set(stack, unique_indices=True) for x, stack in zip(last, stacks, strict=True)]
    return last, stacks, integers[:3]


_push = jax.jit(_push_frames, donate_argnums=0)
