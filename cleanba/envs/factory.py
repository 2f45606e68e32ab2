"""From flags to environments: the one place that knows the backends."""

from collections.abc import Sequence
from typing import Any

from cleanba.config.flags import RunArgs
from cleanba.envs import envpool
from cleanba.envs.last_action import LastActionReward, has_last_action, with_last_action
from cleanba.envs.spec import EnvSpec, VectorEnv

BACKENDS: dict[str, Any] = {"envpool": envpool}  # modules with env_spec, describe and Envs


def env_spec(args: RunArgs) -> EnvSpec:
    env = BACKENDS["envpool"].env_spec(args)
    return with_last_action(env) if args.last_action_reward else env


def describe_default(backend: str, env_id: str) -> EnvSpec:
    """The environment with its backend's own options."""
    return BACKENDS[backend].describe(env_id, {})


def describe(env: EnvSpec) -> EnvSpec:
    """What the same environment is here; a model may come from another machine or version."""
    found = BACKENDS[env.backend].describe(env.env_id, env.options)
    return with_last_action(found) if has_last_action(env) and not has_last_action(found) else found


def make_envs(
    env: EnvSpec,
    seeds: Sequence[int],
    threads: int,
    *,
    batch: int | None = None,  # None: all
    background: bool = False,  # its threads let every other thread of the machine go first
    rendered: bool = False,
) -> VectorEnv:
    options = dict(batch=batch, background=background, rendered=rendered)
    envs = BACKENDS[env.backend].Envs(env, seeds, threads, **options)
    return LastActionReward(envs, env, len(seeds)) if has_last_action(env) else envs
