"""Gymnasium's environments, and the user's own, in worker processes."""

import copy
import difflib
import functools
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.gymnasium_make import Recipe, find_spec, make_env
from cleanba.envs.shared_rows import OBS, layout, with_bool_mask
from cleanba.envs.spaces import action_spec, obs_specs, parse_options
from cleanba.envs.spec import ArraySpec, EnvSpec, EnvStep
from cleanba.envs.worker_job import Job
from cleanba.envs.workers import Workers
from cleanba.envs.wrappers import OPTIONS


class Envs:
    """A `VectorEnv` of Gymnasium's environments."""

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        threads: int,  # worker processes
        *,
        batch: int | None = None,  # None: all
        background: bool = False,  # the workers let every other process of the machine go first
        rendered: bool = False,
    ):
        self.batch = batch or len(seeds)
        self._env, self._all = env, len(seeds)
        workers = min(threads, len(seeds))
        recipe = _pickled(env.env_id, Recipe(_spec(env.env_id), env.options, rendered))
        fields, eager = layout(env, len(seeds), workers), self.batch < len(seeds)
        self._workers = Workers(env.env_id, Job(recipe, list(seeds), workers, fields, eager, background))
        self._rows = self._workers.rows
        self._ready: list[int] = []

    def reset(self) -> None:
        env = np.arange(self._all)
        self._workers.send(-1 - env, env)

    def send(self, action: np.ndarray, env: np.ndarray) -> None:
        self._rows["action"][env] = self._env.action.clip(action)
        self._workers.send(env, env)

    def receive(self) -> EnvStep:
        while len(self._ready) < self.batch:
            self._ready += self._workers.wait()
        env, self._ready = self._ready[: self.batch], self._ready[self.batch :]
        rows: Any = (
            np.array(env, np.int32) if self.batch < self._all else np.arange(self._all, dtype=np.int32)
        )
        step = {name: self._rows[name][rows] for name in self._rows if name not in ("action", "current")}
        obs = {name.removeprefix(OBS): x for name, x in step.items() if name.startswith(OBS)}
        return EnvStep(
            env=rows,
            obs=obs[""] if isinstance(self._env.obs, ArraySpec) else obs,
            reward=step["reward"],
            terminated=step["terminated"],
            truncated=step["truncated"],
            raw_reward=step["raw_reward"],
            game_over=step["terminated"] | step["truncated"],
        )

    def busy(self) -> list[int]:
        current = self._rows["current"]
        return current[current >= 0].tolist()

    def render(self) -> np.ndarray:
        image = self._workers.render()
        if image is None or image.ndim != 3:
            raise UsageError(
                f"{self._env.env_id} cannot be recorded: it renders no image; leave the video out"
            )
        return image

    def close(self) -> None:
        self._workers.close()


def env_spec(args: RunArgs) -> EnvSpec:
    return describe(args.env_id, parse_options(args.env_options))


def describe(env_id: str, options: dict[str, Any]) -> EnvSpec:
    """Shapes and actions. An environment is made for them, but not started."""
    options = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}  # JSON has lists
    check_options(options)
    observations, actions = _spaces(env_id, options)
    action = action_spec(env_id, actions)
    obs, stack = obs_specs(env_id, observations), options.get("frame_stack", 1)
    # Colours are stacked along the last axis, and a height may happen to be the depth of the stack.
    if isinstance(obs, ArraySpec) and obs.is_image and obs.shape[0] == stack and obs.shape[2] != 3 * stack:
        obs = ArraySpec(obs.shape, obs.dtype, stack)
    return EnvSpec("gymnasium", env_id, options, with_bool_mask(obs, action.n), action)


def default_options(env_id: str) -> dict[str, Any]:
    """What can be given as --env-options: our own, and what the environment is registered with. It may take
    more."""
    return OPTIONS | _spec(env_id).kwargs


def check_options(options: dict[str, Any]) -> None:
    """Of our own; the environment checks the others."""
    for name, value in options.items():
        default = OPTIONS.get(name, value)
        kinds = (int, float) if isinstance(default, float) else type(default)
        fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
        if name == "resize":
            fits = fits and len(value) in (0, 2) and all(type(x) is int and 0 < x <= 4096 for x in value)
            default = [84, 84]
        elif name in OPTIONS and not isinstance(default, bool):
            fits = fits and (default if name in ("frame_stack", "action_repeat") else 0) <= value < 2**31
        if not fits:
            raise UsageError(f"--env-options: {name} is {json.dumps(value)}; give a value like {default!r}")


def list_envs() -> list[str]:
    return sorted(gymnasium.registry)


def is_own(env_id: str) -> bool:
    """Packages register their environments by name, not by class or function."""
    return env_id in gymnasium.registry and callable(gymnasium.registry[env_id].entry_point)


def register(env_id: str, make: Callable[..., gymnasium.Env]) -> None:
    """A factory from Python under an id, which models and run folders then name."""
    gymnasium.registry.pop(env_id, None)  # one of the same name would only cause a warning
    try:
        gymnasium.register(env_id, entry_point=make)
    except gymnasium.error.Error as error:
        raise UsageError(f"--env-id {env_id} is no name for an environment: {error}") from error


def _spec(env_id: str) -> Any:
    try:
        return find_spec(env_id)
    except LookupError as unknown:
        near = difflib.get_close_matches(str(unknown.args[0]), gymnasium.registry, n=3, cutoff=0.6)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        hint += "one of your own needs the module that registers it: --env-id module:Id"
        raise UsageError(f"--env-id {env_id} is not registered with Gymnasium; {hint}") from None


def _spaces(env_id: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Of observations and of actions."""
    spec = _spec(env_id)
    key = (id(spec), json.dumps(options, sort_keys=True))
    if key not in _known_spaces:
        _known_spaces[key] = (spec, *_spaces_of_new(env_id, Recipe(spec, options)))
    return _known_spaces[key][1:]


# By identity of Gymnasium's spec, which is kept: another may be registered under the same id.
_known_spaces: dict[tuple[int, str], tuple[Any, Any, Any]] = {}


def _spaces_of_new(env_id: str, recipe: Recipe) -> tuple[Any, Any]:
    try:
        env = make_env(recipe)
    except UsageError:
        raise
    except (gymnasium.error.Error, TypeError) as error:
        raise UsageError(f"--env-id {env_id} with {recipe.options}: {error}") from error
    except Exception as error:
        text = traceback.format_exc().rstrip()
        raise UsageError(f"--env-id {env_id} with {recipe.options} cannot be made\n{text}") from error
    spaces = env.observation_space, env.action_space
    env.close()
    return spaces


def _pickled(env_id: str, recipe: Recipe) -> bytes:
    """With what a worker cannot import: classes and functions of the script itself, or of a file that was
    given as an algorithm."""
    recipe = recipe._replace(spec=_with_callable_entry_point(recipe.spec))
    module = sys.modules.get(getattr(recipe.spec.entry_point, "__module__", None) or "")
    by_value = module is not None and PathFinder.find_spec(module.__name__.split(".")[0]) is None
    try:
        if by_value and module is not None:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(recipe)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"--env-id {env_id} cannot be sent to its worker processes ({reason})") from error
    finally:
        if by_value and module is not None:
            cloudpickle.unregister_pickle_by_value(module)


def _with_callable_entry_point(spec: Any) -> Any:
    """`__main__` is another one in a worker."""
    if not str(spec.entry_point).startswith("__main__:"):
        return spec
    found = copy.copy(spec)
    names = spec.entry_point.split(":")[1].split(".")
    found.entry_point = functools.reduce(getattr, names, sys.modules["__main__"])
    return found
