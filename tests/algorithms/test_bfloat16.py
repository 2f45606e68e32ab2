"""Learning in bfloat16 is learning in float32, on a small game with images."""

import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba.envs.envpool import Envs
from cleanba.envs.spec import EnvStep

SIZE = 6  # columns and rows of the field, each two pixels
CATCH = make_spec("ImageCatch", (1, 2 * SIZE, 2 * SIZE), np.uint8, 3)


class Catch(Envs):
    """A ball falls, a paddle in the last row goes left, stays or goes right: 1 for a catch, -1 otherwise."""

    def __init__(self, env, seeds, threads, *, batch, background, rendered, patience):
        self.batch = len(seeds)
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.env = np.arange(len(seeds), dtype=np.int32)
        self.ended = np.zeros(len(seeds), bool)

    def reset(self):
        self.row, self.column, self.paddle = np.zeros((3, self.batch), int)
        self.begin(self.env)
        self.reward = np.zeros(self.batch, np.float32)

    def begin(self, envs):
        self.row[envs] = 0
        self.column[envs] = [self.rngs[e].integers(SIZE) for e in envs]
        self.paddle[envs] = [self.rngs[e].integers(SIZE) for e in envs]

    def send(self, action, env):
        self.row += 1
        self.paddle = np.clip(self.paddle + action - 1, 0, SIZE - 1)
        again = np.flatnonzero(self.ended)  # a reset row: the action is ignored
        self.begin(again)
        self.ended = self.row == SIZE - 1
        self.reward = np.where(self.ended, np.where(self.column == self.paddle, 1, -1), 0).astype(np.float32)

    def receive(self):
        field = np.zeros((self.batch, SIZE, SIZE), np.uint8)
        field[self.env, self.row, self.column] = 255
        field[self.env, SIZE - 1, self.paddle] = 255
        obs = np.kron(field, np.ones((1, 2, 2), np.uint8))[:, None]
        never = np.zeros(self.batch, bool)
        return EnvStep(self.env, obs, self.reward, self.ended, never, self.reward, self.ended)


@pytest.fixture
def learn(run, monkeypatch):
    """The return of the last 100 episodes after each fifth of a training."""
    monkeypatch.setattr("cleanba.envs.envpool.Envs", Catch)
    monkeypatch.setattr("cleanba.envs.envpool.env_spec", lambda args: CATCH)
    sizes = dict(local_num_envs=32, num_steps=32, channels=(8,), hiddens=(64,), gradient_chunk=256)
    sizes |= dict(update_epochs=2, learning_rate=1e-3)

    def learn(dtype, seed, updates):
        options = sizes | dict(compute_dtype=dtype, seed=seed, total_timesteps=updates * 32 * 32)
        _, rows = run(**options)
        fifths = [updates * n // 5 - 1 for n in range(1, 6)]
        return [rows[i]["charts/avg_episodic_return"] for i in fifths]

    return learn


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bfloat16_learns_as_float32_does(learn):
    """Five seeds each: bands of one standard deviation overlap all the way, and both can play in the end."""
    curves = {
        dtype: np.array([learn(dtype, seed, updates=75) for seed in range(1, 6)])
        for dtype in ("float32", "bfloat16")
    }
    means = {dtype: curve.mean(axis=0) for dtype, curve in curves.items()}
    spread = {dtype: curve.std(axis=0, ddof=1) for dtype, curve in curves.items()}
    for dtype in curves:
        print(dtype, *(f"{m:.2f} ± {s:.2f}" for m, s in zip(means[dtype], spread[dtype], strict=True)))
    apart = abs(means["float32"] - means["bfloat16"])
    assert (apart <= spread["float32"] + spread["bfloat16"] + 0.02).all()
    assert min(mean[-1] for mean in means.values()) > 0.8
