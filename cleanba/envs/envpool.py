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
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec, EnvStep
from cleanba.runtime.machine import available_cores, free_cores

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
    ):
        self.batch = batch or len(seeds)
        self._env_id = env.env_id
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
        self._encode = _encoding(_spaces(env.env_id, **env.options)[0])[2]

    def reset(self) -> None:
        self._pool.async_reset()

    def send(self, action: np.ndarray, env: np.ndarray) -> None:
        self._pool.send(action, env)

    def receive(self) -> EnvStep:
        obs, reward, terminated, truncated, info = self._pool.recv()
        game_ended = info["terminated"] != 0 if "terminated" in info else terminated
        return EnvStep(
            env=info["env_id"],
            obs=self._encode(obs),
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            raw_reward=info.get("reward", reward).astype(np.float32),
            game_over=game_ended | truncated,
        )

    def render(self) -> np.ndarray:
        try:
            return self._pool.render(env_ids=[0])[0]
        except RuntimeError as error:
            raise UsageError(f"{self._env_id} cannot be recorded: {error}; leave the video out") from error

    def close(self) -> None:
        """EnvPool ends its threads with the pool."""


def env_spec(args: RunArgs) -> EnvSpec:
    """With the Atari preset for Atari games; other environments have no options."""
    preset = ATARI_PRESETS[args.atari_preset]
    is_atari = preset.keys() <= set(_make_spec(args.env_id).config._fields)
    return describe(args.env_id, preset if is_atari else {})


def describe(env_id: str, options: dict[str, Any]) -> EnvSpec:
    """Shapes and number of actions, without starting an environment."""
    observations, actions = _spaces(env_id, **options)
    if not isinstance(actions, spaces.Discrete):
        kind = "continuous" if isinstance(actions, spaces.Box) else type(actions).__name__
        raise UsageError(
            f"--env-id {env_id} has {kind} actions, which are not supported yet; choose an environment "
            "with discrete actions"
        )
    shape, dtype, _ = _encoding(observations)
    obs, stack = ArraySpec(shape, dtype), options.get("stack_num", 1)
    if obs.is_image and shape[0] == stack:
        obs = ArraySpec(shape, dtype, stack)
    return EnvSpec("envpool", env_id, options, obs, ActionSpec("discrete", n=int(actions.n)))


def env_threads(args: RunArgs, actors: int, *, background: bool) -> int:
    """EnvPool's threads per actor."""
    cores = available_cores() if background else free_cores()
    return args.env_threads or max(1, cores // actors)


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
        hint = (
            f"did you mean {', '.join(nearest)}?" if nearest else "envpool.list_all_envs() lists what exists"
        )
        raise UsageError(f"--env-id {env_id} is not an EnvPool environment; {hint}")
    try:
        return envpool.make_spec(env_id, **options)
    except ImportError as missing_system_library:
        raise UsageError(f"--env-id {env_id}: {missing_system_library}") from missing_system_library


@functools.cache
def _spaces(env_id: str, **options: Any) -> tuple[Any, Any]:
    """Of observations and of actions."""
    spec = _make_spec(env_id, **options)
    return spec.gymnasium_observation_space, spec.gymnasium_action_space


def _encoding(space: Any) -> tuple[tuple[int, ...], np.dtype, Callable[[Any], np.ndarray]]:
    """Shape, dtype and encoder that turn EnvPool's observations into one array per environment: boxes stay as
    they are, discrete observations become one-hot, dicts one flat vector of their entries."""
    match space:
        case spaces.Discrete():
            one_hot = np.eye(int(space.n), dtype=np.float32)
            return (int(space.n),), one_hot.dtype, lambda obs: one_hot[obs.reshape(len(obs))]
        case spaces.Dict():
            parts = {name: _encoding(part) for name, part in space.items()}
            width = sum(int(np.prod(shape)) for shape, _, _ in parts.values())

            def encode(obs: Any) -> np.ndarray:
                flat = [part[2](obs[name]) for name, part in parts.items()]
                return np.concatenate([x.reshape(len(x), -1) for x in flat], axis=1, dtype=np.float32)

            return (width,), np.dtype(np.float32), encode
        case spaces.Box(dtype=np.float64):
            return space.shape, np.dtype(np.float32), lambda obs: obs.astype(np.float32)
        case spaces.Box():
            return space.shape, np.dtype(space.dtype), lambda obs: obs
        case _:
            kind = type(space).__name__
            raise UsageError(f"--env-id has observations of the kind {kind}; choose an environment without")
