"""Small environments, most in pure Python, whose best return is known."""

from types import SimpleNamespace

import numpy as np

from cleanba.envs.envpool import Envs
from cleanba.envs.factory import BACKENDS
from cleanba.envs.spec import ACTION_MASK, ActionSpec, ArraySpec, EnvSpec, EnvStep

LENGTH = 8  # steps of an episode, which is then truncated
FLOATS = np.dtype(np.float32)


class PythonEnvs:
    """A `VectorEnv` of environments that are received in the order in which they were sent, in batches."""

    CUES_CHANGE = True  # with each step, not only with each episode

    def __init__(self, env, seeds, threads, *, batch=None, background=False, rendered=False, patience=None):
        self.batch = batch or len(seeds)
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.steps = np.zeros(len(seeds), int)
        self.reward = np.zeros(len(seeds), np.float32)
        self.sent: list[int] = []

    def reset(self):
        self.cues = np.array([self.cue(rng) for rng in self.rngs])
        self.sent = list(range(len(self.rngs)))

    def send(self, action, env):
        for e, a in zip(env.tolist(), action, strict=True):
            is_reset = self.steps[e] == LENGTH  # its action is ignored
            self.reward[e] = 0.0 if is_reset else self.score(e, a)
            self.steps[e] = 0 if is_reset else self.steps[e] + 1
            if is_reset or self.CUES_CHANGE:
                self.cues[e] = self.cue(self.rngs[e])
        self.sent += env.tolist()

    def receive(self):
        env, self.sent = np.array(self.sent[: self.batch], np.int32), self.sent[self.batch :]
        truncated, never = self.steps[env] == LENGTH, np.zeros(len(env), bool)
        reward = self.reward[env]
        return EnvStep(env, self.observe(env), reward, never, truncated, reward, truncated)

    def close(self):
        pass


class TwoNumbers(PythonEnvs):
    """Repeat the two numbers that are shown, of 3 and of 4: a point for each."""

    SPEC = EnvSpec("python", "TwoNumbers", {}, ArraySpec((7,), FLOATS), ActionSpec.multi_discrete([3, 4]))
    BEST = 2 * LENGTH

    def cue(self, rng):
        return rng.integers([3, 4])

    def score(self, e, action):
        return (action == self.cues[e]).sum()

    def observe(self, env):
        return np.concatenate([np.eye(n)[self.cues[env, i]] for i, n in enumerate((3, 4))], 1, dtype=FLOATS)


class LargestAllowed(PythonEnvs):
    """Take the largest of the actions that are allowed; one that is not fails the test. After an episode's
    end nothing is allowed."""

    SPEC = EnvSpec(
        "python",
        "LargestAllowed",
        {},
        {"bias": ArraySpec((1,), FLOATS), ACTION_MASK: ArraySpec((5,), np.dtype(np.bool_))},
        ActionSpec("discrete", n=5),
    )
    BEST = LENGTH

    def cue(self, rng):
        return rng.permutation([True, True, False, False, False])

    def score(self, e, action):
        assert self.cues[e][action], "a forbidden action was taken"
        return action == np.flatnonzero(self.cues[e])[-1]

    def observe(self, env):
        over = self.steps[env] == LENGTH
        return {"bias": np.ones((len(env), 1), FLOATS), ACTION_MASK: self.cues[env] & ~over[:, None]}


class NothingAllowed(LargestAllowed):
    """From the third step on."""

    def observe(self, env):
        obs = super().observe(env)
        return obs | {ACTION_MASK: obs[ACTION_MASK] & (self.steps[env] < 3)[:, None]}


class TMaze(PythonEnvs):
    """A corridor with a fork at its end. The first observation shows on which side the point is, the others
    only whether this is the fork. Without a memory the side is a guess."""

    SPEC = EnvSpec("python", "TMaze", {}, ArraySpec((2,), FLOATS), ActionSpec("discrete", n=2))
    CUES_CHANGE = False

    def cue(self, rng):
        return rng.integers(2)

    def score(self, e, action):
        return self.steps[e] == LENGTH - 1 and action == self.cues[e]

    def observe(self, env):
        cue = np.where(self.steps[env] == 0, 2 * self.cues[env] - 1, 0)
        return np.stack([cue, self.steps[env] == LENGTH - 1], axis=1).astype(FLOATS)

    def receive(self):
        """The fork is the end, no matter of time."""
        step = super().receive()
        return step._replace(terminated=step.truncated, truncated=step.terminated)


class PositionsOnly(Envs):
    """CartPole whose velocities are out of sight."""

    SPEC = EnvSpec("python", "CartPole-v1", {}, ArraySpec((2,), FLOATS), ActionSpec("discrete", n=2))

    def receive(self):
        step = super().receive()
        return step._replace(obs=step.obs[:, [0, 2]])


def use_python_envs(monkeypatch, envs):
    """The only environments of runs in this test."""
    backend = SimpleNamespace(Envs=envs, describe=lambda env_id, options: envs.SPEC)
    monkeypatch.setitem(BACKENDS, "python", backend)
    monkeypatch.setattr("cleanba.training.setup.env_spec", lambda args: envs.SPEC)
