"""What people expect around a Gymnasium environment, as options. In numpy: worker processes start faster
without more, and OpenCV is not needed."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cleanba.config.errors import UsageError

OPTIONS: dict[str, Any] = {  # with values that change nothing
    "action_repeat": 1,  # take each action this many times, and add up the rewards
    "frame_stack": 1,  # observe the last k frames or vectors
    "grayscale": False,  # images only
    "max_episode_steps": 0,  # truncate episodes after this many steps; 0: as the environment is registered
    "resize": (),  # images only: (height, width)
    "reward_clip": 0.0,  # learn from rewards between -this and this; 0: from all. Reported ones stay raw
    "reward_scale": 1.0,  # learn from rewards times this, before they are clipped
}
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
        self._pick = [resize_weights(a, b) for a, b in zip(shape[:2], self._size, strict=True)]
        self._resized = tuple(self._size) != tuple(shape[:2])
        channels = 1 if self._gray else shape[2]
        self._channel_first = channels == 1
        new = (1, *self._size) if self._channel_first else (*self._size, channels)
        self.observation_space = spaces.Box(0, 255, new, np.uint8)

    def observation(self, obs: Any) -> np.ndarray:
        image = np.asarray(obs)
        image = image[..., None] if image.ndim == 2 else image
        if self._gray or self._resized:
            pixels = image.astype(np.float32)
            pixels = (pixels @ LUMA)[..., None] if self._gray else pixels
            if self._resized:
                rows, columns = self._pick
                pixels = np.einsum("ab,bcd->acd", rows, pixels, optimize=True)
                pixels = np.einsum("ab,cbd->cad", columns, pixels, optimize=True)
            image = (pixels + 0.5).clip(0, 255).astype(np.uint8)
        return np.moveaxis(image, 2, 0) if self._channel_first else image


def is_image(space: Any) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def resize_weights(before: int, after: int) -> np.ndarray:
    """[after, before]: a new pixel is the mean of what it covers of the old, as OpenCV's INTER_AREA."""
    edges, old = np.linspace(0, before, after + 1)[:, None], np.arange(before)
    weights = (np.minimum(edges[1:], old + 1) - np.maximum(edges[:-1], old)).clip(0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


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
