"""EnvPool behind a small adapter; the only module that imports it."""

import difflib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import envpool
import gymnasium.spaces as spaces
import numpy as np

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.atari import ATARI_PRESETS
from cleanba.envs.spaces import action_spec, flat_entries, four_bytes, obs_specs, parse_options
from cleanba.envs.spec import ACTION_MASK, ArraySpec, EnvSpec, EnvStep

# gymnasium complains about the bounds in EnvPool's own spaces.
warnings.filterwarnings("ignore", message=".*precision lowered by casting to float32")


class Envs:
    """A `VectorEnv` of EnvPool's."""

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        threads: int,
        *,
        batch: int | None = None,  # None: all
        background: bool = False,  # its threads let every other thread of the machine go first
        rendered: bool = False,
        patience: float | None = None,  # EnvPool waits without end
    ):
        self.batch = batch or len(seeds)
        self._env = env
        make = partial(
            envpool.make,
            env.env_id,
            env_type="gymnasium",
            num_envs=len(seeds),
            batch_size=self.batch,
            env_seed=list(seeds),
            num_threads=min(threads, len(seeds)),
            **env.options | ({"render_mode": "rgb_array"} if rendered else {}),
        )
        self._pool: Any = _in_background(make) if background else make()
        observations, actions = _spaces(env.env_id, **env.options)
        self._encode = _encoder(observations)
        self._action_shape, self._action_dtype = actions.shape, actions.dtype

    def reset(self) -> None:
        self._pool.async_reset()

    def send(self, action: np.ndarray, env: np.ndarray) -> None:
        if self._env.action.kind != "discrete":
            action = self._env.action.clip(action).astype(self._action_dtype)
            action = action.reshape(len(env), *self._action_shape)
        self._pool.send(action, env)

    def receive(self) -> EnvStep:
        obs, reward, terminated, truncated, info = self._pool.recv()
        game_ended = info["terminated"] != 0 if "terminated" in info else terminated
        return EnvStep(
            env=info["env_id"],
            obs=_with_mask(self._encode(obs), info.get(ACTION_MASK)),
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            raw_reward=info.get("reward", reward).astype(np.float32),
            game_over=game_ended | truncated,
        )

    def busy(self) -> list[int]:
        return []  # EnvPool does not tell

    def render(self) -> np.ndarray:
        try:
            return self._pool.render(env_ids=[0])[0]
        except RuntimeError as error:
            raise UsageError(
                f"{self._env.env_id} cannot be recorded: {error}; leave the video out"
            ) from error

    def close(self) -> None:
        """EnvPool ends its threads with the pool."""


def env_spec(args: RunArgs) -> EnvSpec:
    """With the Atari preset for Atari games, and the user's options over it."""
    preset, known = ATARI_PRESETS[args.atari_preset], default_options(args.env_id)
    options = dict(preset) if preset.keys() <= known.keys() else {}
    if args.frame_stack is not None:
        if "stack_num" not in known:
            raise UsageError(f"--frame-stack: {args.env_id} stacks no frames; leave it out")
        options["stack_num"] = args.frame_stack
    return describe(args.env_id, options | parse_options(args.env_options))


def describe(env_id: str, options: dict[str, Any]) -> EnvSpec:
    """Shapes and actions, without starting an environment."""
    check_options(env_id, options)
    observations, actions = _spaces(env_id, **options)
    spec = _make_spec(env_id, **options)
    if spec.config.max_num_players > 1:
        raise UsageError(f"--env-id {env_id} has several agents; choose an environment with one")
    obs, stack = obs_specs(env_id, observations), options.get("stack_num", 1)
    if isinstance(obs, ArraySpec) and obs.is_image and obs.shape[0] == stack:
        obs = ArraySpec(obs.shape, obs.dtype, stack)
    if f"info:{ACTION_MASK}" in spec.state_array_spec:
        obs = _with_mask(obs, ArraySpec((int(actions.n),), np.dtype(np.bool_)))
    return EnvSpec("envpool", env_id, options, obs, action_spec(env_id, actions))


# EnvPool's own business: how many environments there are and how they are stepped and seeded.
ENGINE_OPTIONS = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path"),
    *("seed", "env_seed", "gym_reset_return_info", "reward_threshold", "render_mode"),
}


AT_LEAST_ONE = {"max_episode_steps", "frame_skip", "frame_stack", "stack_num"}


def default_options(env_id: str) -> dict[str, Any]:
    """What can be given as --env-options, with EnvPool's defaults."""
    config = _make_spec(env_id).config
    return {name: value for name, value in config._asdict().items() if name not in ENGINE_OPTIONS}


def check_options(env_id: str, options: dict[str, Any]) -> None:
    known = default_options(env_id)
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or sorted(known)
            raise UsageError(f"--env-options: {env_id} has no option {name!r}; it has {', '.join(near)}")
        too_few = name in AT_LEAST_ONE and isinstance(value, int) and value < 1
        if not _is_like(value, known[name]) or too_few:
            raise UsageError(
                f"--env-options: {name} of {env_id} is {value!r}; give a value like {known[name]!r}"
            )


def _is_like(value: Any, known: Any) -> bool:
    """Of the same type."""
    if isinstance(known, tuple):
        return isinstance(value, tuple) and len(value) == len(known) and all(map(_is_like, value, known))
    if isinstance(known, bool) or isinstance(value, bool):
        return type(value) is type(known)
    if isinstance(known, float):
        return isinstance(value, int | float)
    return isinstance(value, type(known))


def list_envs() -> list[str]:
    return sorted(envpool.list_all_envs())


def _in_background(make: Callable[[], Any]) -> Any:
    """Threads inherit the scheduling policy of the thread that starts them, and cannot go back to the normal
    one: so EnvPool is made in a thread of its own."""

    def in_background() -> Any:
        with suppress(OSError, AttributeError):  # some systems and sandboxes have no such policy
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread
        return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_background).result()


def _make_spec(env_id: str, **options: Any) -> Any:
    if env_id not in envpool.list_all_envs():
        known = {name.lower(): name for name in envpool.list_all_envs()}
        nearest = [known[n] for n in difflib.get_close_matches(env_id.lower(), known, n=3, cutoff=0.6)]
        hint = f"did you mean {', '.join(nearest)}?" if nearest else "`cleanba envs` lists what exists"
        raise UsageError(f"--env-id {env_id} is not an EnvPool environment; {hint}")
    try:
        return envpool.make_spec(env_id, **options)
    except ImportError as missing_system_library:
        raise UsageError(f"--env-id {env_id}: {missing_system_library}") from missing_system_library
    except (TypeError, ValueError, RuntimeError, FileNotFoundError) as error:
        raise UsageError(f"--env-id {env_id} with {options}: {error}") from error


@functools.cache
def _spaces(env_id: str, **options: Any) -> tuple[Any, Any]:
    """Of observations and of actions."""
    spec = _make_spec(env_id, **options)
    return spec.gymnasium_observation_space, spec.gymnasium_action_space


def _encoder(space: Any) -> Callable[[Any], Any]:
    """Turns EnvPool's observations into arrays as `obs_specs` describes them."""
    match space:
        case spaces.Discrete():
            one_hot = np.eye(int(space.n), dtype=np.float32)
            return lambda obs: one_hot[obs.reshape(len(obs))]
        case spaces.Dict():
            parts = {keys: _encoder(part) for keys, part in flat_entries(space).items()}
            return lambda obs: {"/".join(keys): encode(_entry(obs, keys)) for keys, encode in parts.items()}
        case _:
            dtype = four_bytes(space)
            return lambda obs: obs.astype(dtype, copy=False)


def _entry(obs: Any, keys: tuple[str, ...]) -> Any:
    """Of nested observations."""
    return functools.reduce(lambda part, key: part[key], keys, obs)


def _with_mask(obs: Any, mask: Any) -> Any:
    """EnvPool has the mask in `info`; learners need it where the observations are."""
    if mask is None:
        return obs
    return (obs if isinstance(obs, dict) else {"obs": obs}) | {ACTION_MASK: mask}
