"""A trained policy as a function of observations, for programs that step their environments themselves."""

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from cleanba.config.errors import UsageError
from cleanba.envs.factory import NAMES
from cleanba.envs.gymnasium_envs import make_one
from cleanba.envs.last_action import LAST_ACTION, LAST_REWARD, encode_action, has_last_action
from cleanba.envs.seeding import EVALUATION
from cleanba.envs.spec import ACTION_MASK, ActionSpec, ArraySpec, EnvSpec
from cleanba.envs.wrappers import OPTIONS
from cleanba.evaluation.model import Model, save_model

MAX_CALLS = 2**31  # i32; then its random numbers begin anew


class PolicyState(NamedTuple):
    """What is remembered of B environments: given back by each call, and needed by the next."""

    memory: Any  # that of a recurrent network, a tree [B, ...]; empty without one
    episode_start: np.ndarray  # bool [B], whether the next observation starts an episode
    last_action: np.ndarray  # [B, ...]


class Policy:
    """`action, state = policy(obs, state)`.

    `obs` is what the environment gives, of one environment or of a batch [B, ...]; the action is of the same
    kind. Without a state, an episode starts. Images are not scaled, nothing is normalized: the policy does
    that. Frames are stacked, made grey and resized by the environment, as in training: `make_env` makes one
    like that. Sampled actions come from `seed` and the number of calls so far.
    """

    def __init__(self, model: Model, *, seed: int = 1):
        self.model = model
        key = jax.random.fold_in(jax.random.key(seed), EVALUATION)
        self._play = {g: jax.jit(partial(model.algorithm.play, key, greedy=g)) for g in (False, True)}
        self._published = jax.device_put(model.published, jax.local_devices()[0])
        self._calls = itertools.count()

    @property
    def env_id(self) -> str:
        return self.model.env.env_id

    @property
    def observation(self) -> Any:
        """Shape and type of what it sees: an ArraySpec, or a dict of them."""
        return seen_by_user(self.model.env)

    @property
    def action(self) -> ActionSpec:
        return self.model.env.action

    def __repr__(self) -> str:
        obs = self.observation
        seen = ", ".join(f"{k} {x}" for k, x in obs.items()) if isinstance(obs, Mapping) else str(obs)
        return f"Policy({self.env_id}: {seen} -> {self.action}, {self.model.steps:,} steps)"

    def __call__(
        self, obs: Any, state: PolicyState | None = None, greedy: bool = False, *, reward: Any = None
    ) -> tuple[Any, PolicyState]:
        """`greedy` takes the most probable action instead of sampling. `reward` is the last one; only a
        policy trained with --last-action-reward needs it."""
        leaves, is_batch = as_rows(self.env_id, self.observation, obs)
        rows = len(next(iter(leaves.values())))
        state = self.initial_state(rows) if state is None else state
        if len(state.episode_start) != rows:
            raise UsageError(
                f"the state is of {len(state.episode_start)} environments, the observations of {rows}; "
                f"start with policy.initial_state({rows}), or without a state"
            )
        if has_last_action(self.model.env):
            leaves |= self._last(state, reward)
        seen = leaves if isinstance(self.model.env.obs, Mapping) else leaves[""]
        row, call = np.arange(rows, dtype=np.int32), next(self._calls) % MAX_CALLS
        action, memory = self._play[bool(greedy)](
            self._published, seen, state.memory, state.episode_start, row, np.full(rows, call, np.int32)
        )
        action = self.action.clip(np.asarray(action)).astype(self.action.dtype)
        state = PolicyState(memory, np.zeros(rows, np.bool_), action)
        if self.action.kind != "box":
            action = action.astype(np.int64)  # as Gymnasium's spaces have it
        return (action if is_batch else action[0]), state

    def initial_state(self, rows: int = 1) -> PolicyState:
        """Of environments that all start an episode."""
        last_action = np.zeros((rows, *self.action.shape), self.action.dtype)
        memory = self.model.algorithm.initial_state(rows)
        return PolicyState(memory, np.ones(rows, np.bool_), last_action)

    def reset(self, state: PolicyState, done: Any) -> PolicyState:
        """In a batch, for the environments whose episode has ended (bool [B]): their next observation starts
        a new one. (For a single environment, go on without a state.)"""
        done = np.atleast_1d(np.asarray(done))
        if done.shape != state.episode_start.shape or done.dtype != np.bool_:
            raise UsageError(f"`done` is {_say(done)}; give bool {list(state.episode_start.shape)}")
        return state._replace(episode_start=state.episode_start | done)

    def make_env(self, **options: Any) -> gymnasium.Env:
        """One of the environments it was trained in, with all of --env-options; `options` go over them, such
        as render_mode. Only Gymnasium's and your own."""
        env = self.model.env
        if env.backend != "gymnasium":
            raise UsageError(
                f"{env.env_id} was stepped by {NAMES.get(env.backend, env.backend)}, not by Gymnasium; make "
                f"one that gives the same observations ({self!r})"
            )
        return make_one(env.env_id, env.options | options)

    def save(self, path: str | Path) -> Path:
        """As a model file, for `cleanba.load` and `cleanba eval`."""
        save_model(Path(path), self.model)
        return Path(path)

    def _last(self, state: PolicyState, reward: Any) -> dict[str, np.ndarray]:
        """What --last-action-reward adds to the observations."""
        continues = ~state.episode_start[:, None]
        if reward is None and continues.any():
            raise UsageError(
                "this policy also sees its last reward (--last-action-reward); give it: "
                "policy(obs, state, reward=reward)"
            )
        rewards = np.zeros(len(continues)) if reward is None else np.atleast_1d(np.asarray(reward, float))
        if rewards.shape != (len(continues),):
            raise UsageError(f"the reward is {_say(rewards)}; give one number per observation")
        learned = learning_reward(self.model.env, rewards).astype(np.float32)
        action = encode_action(self.action, state.last_action)
        return {LAST_ACTION: action * continues, LAST_REWARD: learned[:, None] * continues}


def learning_reward(env: EnvSpec, reward: np.ndarray) -> np.ndarray:
    """What was learned from, of what the environment gives."""
    if env.backend != "gymnasium":
        return np.sign(reward) if env.options.get("reward_clip") else reward
    options = OPTIONS | env.options
    limit = options["reward_clip"] or np.inf
    return np.clip(reward * options["reward_scale"], -limit, limit)


def seen_by_user(env: EnvSpec) -> Any:
    """Without the entries that --last-action-reward has added."""
    if not has_last_action(env):
        return env.obs
    entries = {name: x for name, x in env.obs.items() if name not in (LAST_ACTION, LAST_REWARD)}
    return entries["obs"] if list(entries) == ["obs"] else entries


def as_rows(env_id: str, specs: Any, obs: Any) -> tuple[dict[str, np.ndarray], bool]:
    """Observations [B, ...] by name, in the types that the network takes, and whether they were a batch. A
    single array has the empty name."""
    given, expected = _entries(obs), _entries(specs)
    if given.keys() != expected.keys():
        raise UsageError(f"observations of {env_id} are {_kind(specs)}; given: {_kind(obs)}")
    found = {name: _encoded(name, spec, given[name]) for name, spec in expected.items()}
    batched = {name: _is_batch(env_id, name, expected[name], x) for name, x in found.items()}
    is_batch = next(iter(batched.values()))
    rows = {name: x if is_batch else x[None] for name, x in found.items()}
    if len({len(x) for x in rows.values()}) > 1 or len(set(batched.values())) > 1:
        shapes = ", ".join(f"{name} {_say(x)}" for name, x in found.items())
        raise UsageError(f"the entries of the observations are not of the same environments: {shapes}")
    return rows, is_batch


def _entries(obs: Any) -> dict[str, Any]:
    """Those of nested dicts are a/b, as in training."""
    if not isinstance(obs, Mapping):
        return {"": obs}
    flat: dict[str, Any] = {}
    for name, part in obs.items():
        flat |= {f"{name}/{key}" if key else name: x for key, x in _entries(part).items()}
    return flat


def _kind(tree: Any) -> str:
    if not isinstance(tree, Mapping):
        return "one array"
    return f"a dict with the entries {', '.join(sorted(_entries(tree)))}"


def _encoded(name: str, spec: ArraySpec, given: Any) -> np.ndarray:
    x = np.asarray(given)
    if x.ndim == 0 and len(spec.shape) == 1 and x.dtype.kind in "iu":  # discrete: one-hot
        if not 0 <= x < spec.shape[0]:
            raise UsageError(f"the observation {name} is {x}; give a number from 0 to {spec.shape[0] - 1}")
        return (np.arange(spec.shape[0]) == x).astype(spec.dtype)
    if not np.can_cast(x.dtype, spec.dtype, "same_kind") and name != ACTION_MASK:
        raise UsageError(
            f"observations {name} are {x.dtype}; give {spec.dtype}, as in training".replace("  ", " ")
        )
    return x.astype(spec.dtype)


def _is_batch(env_id: str, name: str, spec: ArraySpec, x: np.ndarray) -> bool:
    if x.shape == spec.shape:
        return False
    if x.shape[1:] == spec.shape and len(x):
        return True
    shape = ", ".join(map(str, spec.shape))
    hint = f"; {spec.stack} frames are stacked in each" if spec.stack > 1 else ""
    what = f"observations {name}".rstrip()
    raise UsageError(
        f"{what} of {env_id} are [{shape}], or [B, {shape}] for a batch; given: {list(x.shape)}{hint}"
    )


def _say(x: np.ndarray) -> str:
    return f"{x.dtype} {list(x.shape)}"
