"""Gymnasium's environments, and the user's own, in worker processes."""

import copy
import difflib
import functools
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.machinery import PathFinder
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.gymnasium_make import VECTOR, Recipe, find_spec, make_env, make_vector_env, parameters
from cleanba.envs.shared_rows import OBS, layout, with_bool_mask
from cleanba.envs.spaces import action_spec, obs_specs, parse_options
from cleanba.envs.spec import ACTION_MASK, ArraySpec, EnvSpec, EnvStep
from cleanba.envs.worker import to_action
from cleanba.envs.worker_job import Job
from cleanba.envs.workers import Workers
from cleanba.envs.wrappers import OPTIONS

OWN = "own/"  # before the name of what `cleanba.train` got as make_env
ENTRY_POINTS = ("entry_point", "vector_entry_point")  # of what Gymnasium has registered


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
        patience: float | None = None,  # seconds to wait for a step
    ):
        self.batch = batch or len(seeds)
        self._env, self._all = env, len(seeds)
        recipe = Recipe(_spec(env.env_id), env.options, rendered)
        # Vector environments step all at once: one for each batch that is received.
        workers = len(seeds) // self.batch if recipe.is_vector else min(threads, len(seeds))
        fields, eager = layout(env, len(seeds), workers), self.batch < len(seeds)
        pickled = _pickled(env.env_id, recipe)
        job = Job(pickled, list(seeds), workers, fields, eager, background, recipe.is_vector)
        self._workers = Workers(env.env_id, job, patience)
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
    options = {} if args.frame_stack is None else {"frame_stack": args.frame_stack}
    return describe(args.env_id, options | parse_options(args.env_options))


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
    mask = obs.get(ACTION_MASK) if isinstance(obs, dict) else None
    if mask is not None and action.kind == "discrete" and mask.shape != (action.n,):
        raise UsageError(
            f"--env-id {env_id} has an action_mask of shape {mask.shape}; it needs one entry "
            f"for each of the {action.n} actions"
        )
    return EnvSpec("gymnasium", env_id, options, with_bool_mask(obs, action.n), action)


def default_options(env_id: str) -> dict[str, Any]:
    """What can be given as --env-options: our own, what the environment is registered with, and what its
    entry point shows. It may take more."""
    spec = _spec(env_id)
    registered = {"max_episode_steps": spec.max_episode_steps} if spec.max_episode_steps else {}
    return OPTIONS | registered | _signature_defaults(spec) | spec.kwargs


def _signature_defaults(spec: Any) -> dict[str, Any]:
    try:
        named = {p.name: p.default for p in parameters(spec.entry_point) if p.default is not p.empty}
    except Exception:  # no signature, as in C, or a package that is missing
        return {}
    return {name: default for name, default in named.items() if name != "render_mode"}


def check_options(options: dict[str, Any]) -> None:
    """Of our own; the environment checks the others."""
    for name, value in options.items():
        default = OPTIONS.get(name, value)
        kinds = (int, float) if isinstance(default, float) else type(default)
        fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
        if name == "vectorization_mode":
            fits, default = value in (default, VECTOR), VECTOR
        elif name == "resize":
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
    if env_id not in gymnasium.registry:
        return False
    return any(callable(getattr(gymnasium.registry[env_id], name)) for name in ENTRY_POINTS)


def factory_of(env_id: str) -> str:
    """The name of the class or function that is all there is to an id: neither options nor a time limit were
    registered with it. Else an empty text."""
    spec = gymnasium.registry[env_id]
    if spec.kwargs or spec.max_episode_steps or not callable(spec.entry_point):
        return ""
    name = str(getattr(spec.entry_point, "__name__", ""))
    return name if name.isidentifier() else "…"


def register(env_id: str, make: Callable[..., gymnasium.Env]) -> None:
    """A factory from Python under an id, which models and run folders then name."""
    gymnasium.registry.pop(env_id, None)  # one of the same name would only cause a warning
    try:
        gymnasium.register(env_id, entry_point=make)
    except gymnasium.error.Error as error:
        raise UsageError(f"--env-id {env_id} is no name for an environment: {error}") from error


def make_one(env_id: str, options: dict[str, Any]) -> gymnasium.Env:
    """In this process, as the workers have it: it takes actions as a policy gives them."""
    return PolicyActions(make_env(Recipe(_spec(env_id), options)))


class PolicyActions(gymnasium.ActionWrapper):
    def action(self, action: Any) -> Any:
        return to_action(self.env.action_space, np.asarray(action))


def _spec(env_id: str) -> Any:
    try:
        return find_spec(env_id)
    except LookupError as unknown:
        module = env_id.rpartition(":")[0]
        near = difflib.get_close_matches(str(unknown.args[0]), gymnasium.registry, n=3, cutoff=0.6)
        named = [f"{module}:{x}" if module else x for x in near]
        hint = f"did you mean {', '.join(named)}? " if near else ""
        if env_id.startswith(OWN):
            hint = "it was the make_env of a training in Python: give cleanba.evaluate the same, or an id: "
        elif not module:
            hint += "one of your own needs the module that registers it: "
        hint = hint.strip() if module else f"{hint}--env-id module:Id"
        hint = hint or f"{module} was imported, and registers no such id"
        raise UsageError(f"--env-id {env_id} is not registered with Gymnasium; {hint}") from None


def _spaces(env_id: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Of observations and of actions."""
    spec, key = _spec(env_id), _space_key(env_id, options)
    if key not in _known_spaces:
        _known_spaces[key] = (spec, *_spaces_of_new(env_id, Recipe(spec, options)))
    return _known_spaces[key][1:3]


def render_fps(env: EnvSpec) -> float | None:
    """How many of our steps are a second, if the environment says so in its metadata."""
    _spaces(env.env_id, env.options)
    fps = _known_spaces[_space_key(env.env_id, env.options)][3]
    if isinstance(fps, int | float) and 0 < fps <= 1000:
        return fps / env.options.get("action_repeat", 1)
    return None


def _space_key(env_id: str, options: dict[str, Any]) -> tuple[int, str]:
    return id(_spec(env_id)), json.dumps(options, sort_keys=True)


# By identity of Gymnasium's spec, which is kept: another may be registered under the same id.
_known_spaces: dict[tuple[int, str], tuple[Any, ...]] = {}


def _spaces_of_new(env_id: str, recipe: Recipe) -> tuple[Any, Any, Any]:
    """And the images per second in its metadata."""
    single = "single_" if recipe.is_vector else ""
    try:
        with redirect_stdout(sys.stderr):  # standard output belongs to the command
            env: Any = make_vector_env(recipe, 1) if recipe.is_vector else make_env(recipe)
            observations, actions = (getattr(env, f"{single}{x}_space") for x in ("observation", "action"))
            env.close()
    except UsageError:
        raise
    except (gymnasium.error.Error, TypeError) as error:
        raise UsageError(f"--env-id {env_id} with {recipe.options}: {error}") from error
    except (Exception, SystemExit) as error:
        text = traceback.format_exc().rstrip()
        raise UsageError(f"--env-id {env_id} with {recipe.options} cannot be made\n{text}") from error
    return observations, actions, (env.metadata or {}).get("render_fps")


def _pickled(env_id: str, recipe: Recipe) -> bytes:
    """With what a worker cannot import: classes and functions of the script itself, or of a file that was
    given as an algorithm."""
    recipe = recipe._replace(spec=_with_callable_entry_points(recipe.spec))
    names = {getattr(getattr(recipe.spec, name), "__module__", None) for name in ENTRY_POINTS}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    by_value = [m for m in modules if PathFinder.find_spec(m.__name__.split(".")[0]) is None]
    try:
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(recipe)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"--env-id {env_id} cannot be sent to its worker processes ({reason})") from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _with_callable_entry_points(spec: Any) -> Any:
    """`__main__` is another one in a worker."""
    found = copy.copy(spec)
    for name in ENTRY_POINTS:
        if str(entry_point := getattr(spec, name)).startswith("__main__:"):
            names = entry_point.split(":")[1].split(".")
            setattr(found, name, functools.reduce(getattr, names, sys.modules["__main__"]))
    return found
