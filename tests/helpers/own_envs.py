"""Gymnasium environments of a user's own. Worker processes import this module, so it needs nothing else."""

import os
import random
import signal
import subprocess
import time
from functools import partial

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

LENGTH = 6  # steps of an episode, which is then terminated, or truncated after every second reset


class Cue(gymnasium.Env):
    """Take the action that is shown; every fifth step is slow if `delay` is."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, delay=0.0, render_mode=None):
        self.delay, self.render_mode, self.resets = delay, render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.resets = 0, self.resets + 1
        return self.observe(), {}

    def step(self, action):
        assert isinstance(action, np.int64)
        if self.delay and random.random() < 0.2:
            time.sleep(self.delay)
        reward = float(action == self.cue)
        self.steps += 1
        over, cut = self.steps == LENGTH, self.resets % 2 == 0
        return self.observe(), reward, over and not cut, over and cut, {}

    def observe(self):
        self.cue = self.np_random.integers(3)
        return np.eye(3, dtype=np.float32)[self.cue]

    def render(self):
        return np.full((32, 48, 3), self.steps, np.uint8)


class Pixels(Cue):
    """Colour images; the red channel shows the cue, and grows with the steps."""

    observation_space = spaces.Box(0, 255, (12, 16, 3), np.uint8)

    def observe(self):
        super().observe()
        image = np.zeros((12, 16, 3), np.uint8)
        image[..., 0] = 10 * self.steps
        image[:, 4 * self.cue : 4 * self.cue + 4] = 250
        return image


class Odd(Cue):
    """Actions in a matrix, observations in nested dicts, with a mask."""

    action_space = spaces.Box(-1.0, 2.0, (2, 2), np.float64)
    observation_space = spaces.Dict(
        a=spaces.Dict(b=spaces.Discrete(3, start=5)), c=spaces.Box(-9.0, 9.0, (2, 2), np.float64)
    )

    def observe(self):
        return {"a": {"b": 6}, "c": self.last}

    def reset(self, **how):
        self.last = np.zeros((2, 2))
        return super().reset(**how)

    def step(self, action):
        assert action.shape == (2, 2) and action.dtype == np.float64
        self.last, self.steps = action, self.steps + 1
        return self.observe(), 3.0, False, False, {}


class Faulty(Cue):
    """Goes wrong in its third step, in the environments whose seed is odd."""

    def __init__(self, fault="", **how):
        super().__init__(**how)
        self.fault, self.odd = fault, False

    def reset(self, *, seed=None, options=None):
        self.odd = self.odd if seed is None else seed % 2 == 1
        if self.odd and self.fault == "raises in reset":
            raise ValueError("a bad start")
        return super().reset(seed=seed)

    def step(self, action):
        if self.odd and self.steps == 2:
            self.go_wrong()
        return super().step(action)

    def render(self):
        match self.fault:
            case "raises in render":
                raise ValueError("a bad image")
            case "is killed in render":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().render()

    def go_wrong(self):
        match self.fault:
            case "raises":
                raise ValueError("a bad step")
            case "hangs":
                time.sleep(1000)
            case "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exits":
                os._exit(7)
            case "leaves":
                raise SystemExit(3)
            case "forks":
                os.fork()
            case "a copy raises":
                if not os.fork():
                    raise ValueError("of the copy")
            case "forks and exits":
                subprocess.Popen(["sleep", "1000"])
                os._exit(7)
            case "prints":
                print("a line of the environment's own")
            case "prints and exits":
                print("its last words")
                os._exit(7)
            case "forks and prints":
                copy = os.fork()
                print("a line of both")
                if copy:
                    os.waitpid(copy, 0)

    def observe(self):
        obs = super().observe()
        bad = {"other shape": obs[:2], "other dtype": obs.astype(np.complex64), "NaN": obs * np.nan}
        return bad.get(self.fault, obs)


class Careless(Cue):
    """Returns what Gymnasium's API does not know."""

    def __init__(self, fault="", **how):
        super().__init__(**how)
        self.fault = fault

    def reset(self, **how):
        obs, info = super().reset(**how)
        return obs if self.fault == "old reset" else (obs, info)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        match self.fault:
            case "four values":
                return obs, reward, terminated, info
            case "None":
                return None
        reward = {"reward": "much", "long reward": "much" * 100_000}.get(self.fault, reward)
        return obs, reward, terminated, truncated, info


class NoEnvironment:
    pass


class NoSpaces(gymnasium.Env):
    pass


class NoImage(Cue):
    """Cannot be rendered, as most classes that somebody has written for a training."""

    def __init__(self):
        super().__init__()

    def render(self):
        return gymnasium.Env.render(self)


class OneWayToRender(NoImage):
    def render(self):
        return Cue.render(self)


class Together(SyncVectorEnv):
    """A native vector environment: steps several in one call."""

    OF = Cue

    def __init__(self, num_envs, mode="NextStep", **how):
        super().__init__([partial(self.OF, **how)] * num_envs, autoreset_mode=mode)


class OddTogether(Together):
    OF = Odd


class FaultyTogether(Together):
    OF = Faulty


for _name in ("Pixels", "Careless", "NoEnvironment", "NoSpaces", "NoImage", "OneWayToRender"):
    gymnasium.register(f"{_name}-v0", f"{__name__}:{_name}")
for _name, _together in {"Cue": "Together", "Odd": "OddTogether", "Faulty": "FaultyTogether"}.items():
    gymnasium.register(f"{_name}-v0", f"{__name__}:{_name}", vector_entry_point=f"{__name__}:{_together}")
gymnasium.register("OnlyTogether-v0", vector_entry_point=f"{__name__}:Together")
