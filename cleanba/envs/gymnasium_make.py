"""One Gymnasium environment from its id and options: here, to see its spaces, and in the workers."""

import sys
import traceback
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium

from cleanba.config.errors import UsageError
from cleanba.envs.wrappers import OPTIONS, wrap


class Recipe(NamedTuple):
    """What a worker needs to make the same environment."""

    spec: Any  # Gymnasium's own: its entry point may be a class of the user's script
    options: dict[str, Any]
    rendered: bool = False


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
        import_module(module)
    except Exception as error:
        raise UsageError(
            f"--env-id {env_id}: {module} cannot be imported\n{_own_traceback(error)}"
        ) from error


def _own_traceback(error: Exception) -> str:
    """Without the frames of the machinery that imports."""
    frames = [f for f in traceback.extract_tb(error.__traceback__)[2:] if "importlib" not in f.filename]
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def make_env(recipe: Recipe) -> gymnasium.Env:
    options = OPTIONS | recipe.options
    kwargs = {name: value for name, value in recipe.options.items() if name not in OPTIONS}
    if recipe.rendered:
        kwargs["render_mode"] = "rgb_array"
    limit = options["max_episode_steps"] or None
    # Its checker warns about what the workers refuse.
    env = gymnasium.make(recipe.spec, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    return wrap(env, options)
