"""What an environment was told and gave last, as entries of its observations (--last-action-reward).

They are made where actions and rewards pass, so that actors, learner, evaluation and bench all see the same
tree of observations.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanba.config.errors import UsageError
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec, EnvStep, VectorEnv

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"
FLOATS = np.dtype(np.float32)


def with_last_action(env: EnvSpec) -> EnvSpec:
    taken = [name for name in (LAST_ACTION, LAST_REWARD) if name in _entries(env.obs)]
    if taken:
        raise UsageError(f"--last-action-reward: {env.env_id} has an entry {taken[0]} already; leave it out")
    width = encode_action(env.action, np.zeros((1, *env.action.shape), env.action.dtype)).shape[1]
    entries = {LAST_ACTION: ArraySpec((width,), FLOATS), LAST_REWARD: ArraySpec((1,), FLOATS)}
    return env._replace(obs=_entries(env.obs) | entries)


def has_last_action(env: EnvSpec) -> bool:
    return isinstance(env.obs, Mapping) and {LAST_ACTION, LAST_REWARD} <= env.obs.keys()


def encode_action(spec: ActionSpec, action: np.ndarray) -> np.ndarray:
    """f32 [B, K]: one-hot, or the numbers of a box as the environment takes them."""
    if spec.kind == "box":
        return spec.clip(action).astype(FLOATS)
    ns = spec.ns or (spec.n,)
    numbers = action.reshape(len(action), len(ns))
    return np.concatenate([np.eye(n, dtype=FLOATS)[numbers[:, i]] for i, n in enumerate(ns)], axis=1)


class LastActionReward:
    """A `VectorEnv` whose observations have both entries. The action of a reset row is ignored, so the first
    observation of an episode has zeros."""

    def __init__(self, envs: VectorEnv, env: EnvSpec, num_envs: int):
        self.batch = envs.batch
        self._envs, self._action_spec = envs, env.action
        self._action = np.zeros((num_envs, *env.obs[LAST_ACTION].shape), FLOATS)
        self._ended = np.ones(num_envs, np.bool_)  # whether the next observation starts an episode

    def reset(self) -> None:
        self._ended[:] = True
        self._envs.reset()

    def send(self, action: np.ndarray, env: np.ndarray) -> None:
        self._action[env] = encode_action(self._action_spec, action)
        self._envs.send(action, env)

    def receive(self) -> EnvStep:
        step = self._envs.receive()
        continues = ~self._ended[step.env][:, None]
        self._ended[step.env] = step.terminated | step.truncated
        last = {LAST_ACTION: self._action[step.env] * continues}
        last |= {LAST_REWARD: step.reward[:, None] * continues}
        return step._replace(obs=_entries(step.obs) | last)

    def busy(self) -> list[int]:
        return self._envs.busy()

    def render(self) -> np.ndarray:
        return self._envs.render()

    def close(self) -> None:
        self._envs.close()


def _entries(obs: Any) -> dict[str, Any]:
    return dict(obs) if isinstance(obs, Mapping) else {"obs": obs}
