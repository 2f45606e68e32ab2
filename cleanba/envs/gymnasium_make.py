"""One Gymnasium environment from its id and options: here, to see its spaces, and in the workers."""

import inspect
import os
import sys
import traceback
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from cleanba.config.errors import UsageError
from cleanba.envs.wrappers import OPTIONS, with_checks, wrap

VECTOR = "vector_entry_point"  # in Gymnasium's words
OF_ONE_ENVIRONMENT = ("action_repeat", "frame_stack", "grayscale", "resize")


class Recipe(NamedTuple):
    """What a worker needs to make the same environment."""

    spec: Any  # Gymnasium's own: its entry point may be a class of the user's script
    options: dict[str, Any]
    rendered: bool = False

    @property
    def is_vector(self) -> bool:
        """What an id is registered with, if that is only a vector environment; else only if asked for."""
        asked = self.options.get("vectorization_mode") == VECTOR
        return asked or (self.spec.entry_point is None and self.spec.vector_entry_point is not None)


def find_spec(env_id: str) -> Any:
    """Gymnasium's, by an id or by `module:id`: then the module is imported, which registers the id."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import(env_id, module)
    if name not in gymnasium.registry:
        raise LookupError(name)
    return gymnasium.registry[name]


def _import(env_id: str, module: str) -> None:
    if "" not in sys.path:
        sys.path.append("")  # as with `python -m`: the module may lie where the command is started
    try:
        with redirect_stdout(sys.stderr):  # standard output belongs to the command
            import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise UsageError(
                f"--env-id {env_id}: there is no module {missing} among the installed packages, in "
                f"PYTHONPATH or in the current folder, {os.getcwd()}"
            ) from None
        raise UsageError(
            f"--env-id {env_id}: {module} cannot be imported\n{_own_traceback(error)}"
        ) from error


def _own_traceback(error: BaseException) -> str:
    """Without the frames of the machinery that imports."""
    frames = [f for f in traceback.extract_tb(error.__traceback__)[2:] if "importlib" not in f.filename]
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def make_env(recipe: Recipe) -> gymnasium.Env:
    options = OPTIONS | recipe.options
    kwargs = {name: value for name, value in recipe.options.items() if name not in OPTIONS}
    if recipe.rendered and _takes(recipe.spec.entry_point, "render_mode"):
        kwargs["render_mode"] = "rgb_array"
    limit = options["max_episode_steps"] or None
    # Its checker warns about what the workers refuse.
    env = gymnasium.make(recipe.spec, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    return wrap(with_checks(env), options)


def make_vector_env(recipe: Recipe, envs: int) -> VectorEnv:
    spec, options = recipe.spec, OPTIONS | recipe.options
    if spec.vector_entry_point is None:
        raise UsageError(f"--env-options: {spec.id} has no vector entry point; leave vectorization_mode out")
    for name in OF_ONE_ENVIRONMENT:
        if options[name] != OPTIONS[name]:
            raise UsageError(
                f"--env-options: {name} is for single environments; the vector environment of {spec.id} may "
                "have an option of its own"
            )
    kwargs = {name: value for name, value in recipe.options.items() if name not in OPTIONS}
    if options["max_episode_steps"]:
        kwargs["max_episode_steps"] = options["max_episode_steps"]
    if recipe.rendered and _takes(spec.vector_entry_point, "render_mode"):
        kwargs["render_mode"] = "rgb_array"
    env = gymnasium.make_vec(spec, envs, VECTOR, **kwargs)
    mode = env.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        env.close()
        raise UsageError(
            f"the vector environment of {spec.id} has the autoreset mode {mode}, which loses the last "
            "observations of episodes; it needs AutoresetMode.NEXT_STEP in its metadata"
        )
    return env


def _takes(entry_point: Any, name: str) -> bool:
    try:
        return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters(entry_point))
    except ValueError:  # no signature, as in C
        return True


def parameters(entry_point: Any) -> list[inspect.Parameter]:
    with redirect_stdout(sys.stderr):  # of an import
        make = entry_point if callable(entry_point) else load_env_creator(entry_point)
    return list(inspect.signature(make).parameters.values())
