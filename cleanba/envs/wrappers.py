"""What people expect around a Gymnasium environment, as options. In numpy: worker processes start faster
without more, and OpenCV is not needed."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from cleanba.config.errors import UsageError
from cleanba.envs.shared_rows import BadObservation

OPTIONS: dict[str, Any] = {  # with values that change nothing
    "action_repeat": 1,  # take each action this many times, and add up the rewards
    "frame_stack": 1,  # observe the last k frames or vectors
    "grayscale": False,  # images only
    "max_episode_steps": 0,  # truncate episodes after this many steps; 0: as the environment is registered
    "resize": (),  # images only: (height, width)
    "reward_clip": 0.0,  # learn from rewards between -this and this; 0: from all. Reported ones stay raw
    "reward_scale": 1.0,  # learn from rewards times this, before they are clipped
    "vectorization_mode": "async",  # each by itself in worker processes; or many at once: vector_entry_point
}
WRAPPERS = (OrderEnforcing, TimeLimit)  # of gymnasium.make
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as in Mnih et al. 2015


def wrap(env: gymnasium.Env, options: dict[str, Any]) -> gymnasium.Env:
    """The options that act on the environment; those on rewards and time limits act elsewhere."""
    if options["action_repeat"] > 1:
        env = ActionRepeat(env, options["action_repeat"])
    if options["grayscale"] or options["resize"]:
        env = Image(env, grayscale=options["grayscale"], size=options["resize"])
    if options["frame_stack"] > 1:
        env = FrameStack(env, options["frame_stack"])
    return env


def with_checks(env: gymnasium.Env) -> gymnasium.Env:
    """The environment as `gymnasium.make` gives it, with `Checked` below the wrappers that this has added."""
    if not isinstance(env, WRAPPERS):
        return Checked(env)
    env.env = with_checks(env.env)
    return env


class Checked(gymnasium.Wrapper):
    """Says what an environment returns in place of what Gymnasium's API wants."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        returned: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise BadObservation(f"returns {_count(returned)} from reset; it must `return observation, info`")
        obs, info = returned
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        returned: Any = self.env.step(action)
        if not isinstance(returned, tuple | list) or len(returned) != 5:
            raise BadObservation(
                f"returns {_count(returned)} from step; it must `return observation, reward, terminated, "
                "truncated, info`"
            )
        obs, reward, terminated, truncated, info = returned
        try:
            float(reward)
        except (TypeError, ValueError):
            raise BadObservation(f"returns the reward {reward!r}, which is no number") from None
        return obs, reward, terminated, truncated, info


def _count(returned: Any) -> str:
    if returned is None:
        return "nothing (None)"
    if isinstance(returned, tuple | list):
        return f"{len(returned)} values"
    return f"only one value, of type {type(returned).__name__},"


class ActionRepeat(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, times: int):
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class Image(gymnasium.ObservationWrapper):
    """Images [height, width, channels] in grey, as [1, height, width], or of another size."""

    def __init__(self, env: gymnasium.Env, *, grayscale: bool, size: tuple[int, ...]):
        super().__init__(env)
        space: Any = env.observation_space
        if not is_image(space):
            option = "grayscale" if grayscale else "resize"
            raise UsageError(f"--env-options: {option} needs images, but observations are {space}")
        shape = space.shape if len(space.shape) == 3 else (*space.shape, 1)
        self._gray = grayscale and shape[2] == 3
        self._size = size or shape[:2]
        self._rows = resize_taps(shape[0], self._size[0])
        self._columns = np.ascontiguousarray(resize_weights(shape[1], self._size[1]).T)
        self._resized = tuple(self._size) != tuple(shape[:2])
        channels = 1 if self._gray else shape[2]
        self._channel_first = channels == 1
        new = (1, *self._size) if self._channel_first else (*self._size, channels)
        self.observation_space = spaces.Box(0, 255, new, np.uint8)

    def observation(self, obs: Any) -> np.ndarray:
        image = np.asarray(obs)
        image = image[..., None] if image.ndim == 2 else image
        channels = image.transpose(2, 0, 1)
        if self._gray or self._resized:
            pixels = (image.astype(np.float32) @ LUMA)[None] if self._gray else channels.astype(np.float32)
            pixels = self._at_size(pixels) if self._resized else pixels
            channels = (pixels + 0.5).clip(0, 255).astype(np.uint8)
        return channels if self._channel_first else channels.transpose(1, 2, 0)

    def _at_size(self, pixels: np.ndarray) -> np.ndarray:
        """[channels, height, width]. A new row is the sum of a few old ones: a third of the time that a
        product of matrices takes, which along the columns is the faster of the two."""
        rows = sum(pixels[:, old] * weight for old, weight in zip(*self._rows, strict=True))
        return rows @ self._columns


def is_image(space: Any) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def resize_weights(before: int, after: int) -> np.ndarray:
    """[after, before]: a new pixel is the mean of what it covers of the old, as OpenCV's INTER_AREA."""
    edges, old = np.linspace(0, before, after + 1)[:, None], np.arange(before)
    weights = (np.minimum(edges[1:], old + 1) - np.maximum(edges[:-1], old)).clip(0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def resize_taps(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """The same without the zeros: which old pixels [taps, after] make a new one, and their weights."""
    weights = resize_weights(before, after)
    taps = int((weights > 0).sum(axis=1).max())
    old = np.minimum((weights > 0).argmax(axis=1)[:, None], before - taps) + np.arange(taps)
    return old.T, np.take_along_axis(weights, old, axis=1).T[..., None]


class FrameStack(gymnasium.Wrapper):
    """The last observations, the oldest first; after a reset, the first one k times. Images of one channel
    are stacked as [k, height, width], others along their channels, vectors one after another."""

    def __init__(self, env: gymnasium.Env, depth: int):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or not space.shape:
            raise UsageError(f"--env-options: frame_stack needs Box observations, not {space}")
        self._frames: deque[np.ndarray] = deque(maxlen=depth)
        self._one_channel = is_image(space) and space.shape[2:] in ((), (1,))
        self._axis = 2 if is_image(space) else 0
        low, high = (self._joined([x] * depth) for x in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([np.array(obs)] * (self._frames.maxlen or 1))
        return self._joined(list(self._frames)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(np.array(obs))  # a copy: some environments write into the same array again
        return self._joined(list(self._frames)), reward, terminated, truncated, info

    def _joined(self, frames: list[np.ndarray]) -> np.ndarray:
        if self._one_channel:
            return np.stack([frame.reshape(frame.shape[:2]) for frame in frames])
        return np.concatenate(frames, axis=self._axis)
