"""Environments and actions that are not the built-in ones: pure Python, two numbers per action."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.equivalence import digests

from cleanba import cleanba_ppo
from cleanba.agents.agent import memoryless
from cleanba.envs.factory import BACKENDS
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec, EnvStep

TARGET = np.array([0.5, -0.5], np.float32)
ENV = EnvSpec(
    "python",
    "Target",
    {},
    {"constant": ArraySpec((1,), np.dtype(np.float32)), "step": ArraySpec((), np.dtype(np.int32))},
    ActionSpec("box", (2,), np.dtype(np.float32), low=(-1.0, -1.0), high=(1.0, 1.0)),
)
WEIGHTS = np.ones(2, np.float32)  # of the two numbers in the reward
LENGTH = 8  # of an episode


class Target:
    """The reward is the negative squared distance of the action [2] from a target. Episodes are truncated.
    The environments come in the order in which they were sent, in batches."""

    def __init__(self, env, seeds, threads, *, batch, background, rendered, patience):
        self.batch, self.steps = batch or len(seeds), np.zeros(len(seeds), np.int32)
        self.reward, self.sent = np.zeros(len(seeds), np.float32), []

    def reset(self):
        self.sent = list(range(len(self.steps)))

    def send(self, action, env):
        assert action.shape == (len(env), 2) and action.dtype == np.float32
        distance = (action - TARGET) ** 2 @ WEIGHTS
        reset = self.steps[env] == LENGTH
        self.reward[env] = np.where(reset, 0.0, -distance)
        self.steps[env] = np.where(reset, 0, self.steps[env] + 1)
        self.sent += env.tolist()

    def receive(self):
        env, self.sent = np.array(self.sent[: self.batch], np.int32), self.sent[self.batch :]
        truncated = self.steps[env] == LENGTH
        obs = {"constant": np.ones((len(env), 1), np.float32), "step": self.steps[env]}
        no = np.zeros(len(env), bool)
        return EnvStep(env, obs, self.reward[env], no, truncated, self.reward[env], truncated)

    def close(self):
        pass


class Normal(NamedTuple):
    """Independent normal distributions with a standard deviation of a half."""

    mean: Any  # [..., 2]

    def sample(self, keys):
        return self.mean + 0.5 * jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)

    def log_prob(self, action):
        return jnp.sum(-2.0 * (action - self.mean) ** 2, axis=-1)  # up to a constant

    def entropy(self):
        return jnp.zeros(self.mean.shape[:-1])

    def mode(self):
        return self.mean


def make_agent(args, env):
    network = nn.Dense(3)

    def apply(params, obs):
        answer = network.apply(params, obs["constant"])
        return Normal(answer[..., :2]), answer[..., 2]

    return memoryless(lambda key: network.init(key, jnp.zeros((1, 1))), apply)


@pytest.fixture
def train_on_target(run, monkeypatch):
    monkeypatch.setitem(
        BACKENDS, "python", SimpleNamespace(Envs=Target, describe=lambda env_id, options: ENV)
    )
    monkeypatch.setattr("cleanba.training.setup.env_spec", lambda args: ENV)
    monkeypatch.setattr(cleanba_ppo, "resolve_network", lambda args, env: "own")
    monkeypatch.setattr(cleanba_ppo, "make_agent", make_agent)
    sizes = dict(local_num_envs=8, num_steps=16, total_timesteps=60 * 128, learning_rate=0.02, ent_coef=0.0)

    def train(**flags):
        return run(**sizes | dict(gamma=0.5, num_minibatches=2) | flags)

    return train


def test_actions_of_two_numbers_are_learned(train_on_target):
    """In pure Python, from a dict of observations, with a distribution of the test's own."""
    outcome, rows = train_on_target(save_model=True)
    first, last = rows[1]["charts/avg_episodic_return"], rows[-2]["charts/avg_episodic_return"]
    # Per step, the noise costs 2 · 0.25 and stays, the distance of the first mean from the target about 0.5.
    assert last > first + 0.05 * LENGTH and last > -0.6 * LENGTH
    assert outcome.evaluation is not None and outcome.saved is not None
    mean = make_agent(None, ENV).apply(outcome.model.published, {"constant": np.ones((1, 1))})[0].mean
    np.testing.assert_allclose(mean[0], TARGET, atol=0.2)


def test_their_runs_are_the_same_again_in_sync_and_async(train_on_target):
    flags = dict(total_timesteps=4 * 128, concurrency=True, inference_batch=4)
    runs = [digests(train_on_target(**flags, env_stepping=s)[1]) for s in ("sync", "async", "async")]
    assert runs[0] == runs[1] == runs[2] and len(set(runs[0])) == 4


def test_the_digest_covers_every_number_of_an_action(train_on_target, monkeypatch):
    """Also one that changes nothing else."""
    monkeypatch.setitem(globals(), "WEIGHTS", np.array([1, 0], np.float32))
    flags = dict(total_timesteps=128)
    whole = train_on_target(**flags)[1]

    class SecondMoved(Normal):
        def sample(self, keys):
            return super().sample(keys) + jnp.array([0.0, 1e-6])

        def log_prob(self, action):
            return super().log_prob(action - jnp.array([0.0, 1e-6]))

    monkeypatch.setitem(globals(), "Normal", SecondMoved)
    moved = train_on_target(**flags)[1]
    assert whole[0]["data_digest"] != moved[0]["data_digest"]
