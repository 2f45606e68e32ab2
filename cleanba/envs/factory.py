"""From flags to environments: the one place that knows the backends."""

import difflib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs import gymnasium_envs
from cleanba.envs.last_action import LastActionReward, has_last_action, with_last_action
from cleanba.envs.spec import EnvSpec, VectorEnv
from cleanba.runtime.machine import available_cores, free_cores

# Modules with env_spec, describe, default_options, list_envs and Envs.
BACKENDS: dict[str, Any] = {}
# Also of those that are not installed. The first that has an id is taken.
NAMES = {"envpool": "EnvPool", "gymnasium": "Gymnasium"}

if find_spec("envpool"):  # it has no wheels for every system
    from cleanba.envs import envpool

    BACKENDS["envpool"] = envpool
BACKENDS["gymnasium"] = gymnasium_envs


def backend(name: str) -> Any:
    if name not in BACKENDS:
        raise UsageError(
            f"{NAMES.get(name, name)} is not installed; pip install {name}, or take another --env-id"
        )
    return BACKENDS[name]


def backend_of(env_id: str) -> str:
    """The one that --env-backend auto takes. `module:Id` is a module to import, which is Gymnasium's
    convention; and who has registered a class or function under an id means that one."""
    if ":" in env_id or gymnasium_envs.is_own(env_id):
        return "gymnasium"
    known = {name: BACKENDS[name].list_envs() for name in NAMES if name in BACKENDS}
    for name, ids in known.items():
        if env_id in ids:
            return name
    lower = {known_id.lower(): known_id for ids in known.values() for known_id in ids}
    near = [lower[x] for x in difflib.get_close_matches(env_id.lower(), lower, n=3, cutoff=0.6)]
    hint = f"did you mean {', '.join(near)}?" if near else "`cleanba envs` lists all."
    hint += " Your own is module:Id"
    installed = " or ".join(shown for name, shown in NAMES.items() if name in BACKENDS)
    article = "an" if installed.startswith("E") else "a"
    raise UsageError(f"--env-id {env_id} is not {article} {installed} environment; {hint}")


def origin(env: EnvSpec) -> str:
    """Whose it is: several libraries may have the same id, and a class of the user's own."""
    is_own = env.backend == "gymnasium" and gymnasium_envs.is_own(env.env_id)
    return "a class or function given in Python" if is_own else NAMES.get(env.backend, env.backend)


def env_spec(args: RunArgs) -> EnvSpec:
    name = backend_of(args.env_id) if args.env_backend == "auto" else args.env_backend
    env = backend(name).env_spec(args)
    return with_last_action(env) if args.last_action_reward else env


def describe_default(name: str, env_id: str) -> EnvSpec:
    """The environment with its backend's own options."""
    return backend(name).describe(env_id, {})


def describe(env: EnvSpec) -> EnvSpec:
    """What the same environment is here; a model may come from another machine or version."""
    found = backend(env.backend).describe(env.env_id, env.options)
    return with_last_action(found) if has_last_action(env) and not has_last_action(found) else found


def make_envs(
    env: EnvSpec,
    seeds: Sequence[int],
    threads: int,
    *,
    batch: int | None = None,  # None: all
    background: bool = False,  # they let every other thread of the machine go first
    rendered: bool = False,
    patience: float | None = None,  # seconds to wait for a step; None: without end
) -> VectorEnv:
    options = dict(batch=batch, background=background, rendered=rendered, patience=patience)
    envs = backend(env.backend).Envs(env, seeds, threads, **options)
    return LastActionReward(envs, env, len(seeds)) if has_last_action(env) else envs


def env_threads(args: RunArgs, actors: int, *, background: bool) -> int:
    """EnvPool's threads, or the worker processes of Gymnasium's environments, per actor."""
    cores = available_cores() if background else free_cores()
    return args.env_threads or max(1, cores // actors)
