"""List environments, or show one: `cleanba envs [WORD|ID]`."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from cleanba.config.command_line import parse_command
from cleanba.config.errors import UsageError
from cleanba.envs.factory import BACKENDS, describe_default
from cleanba.envs.spec import ArraySpec, EnvSpec
from cleanba.runtime.command import command
from cleanba.runtime.messages import show


@dataclass(frozen=True)
class Args:
    word: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[WORD|ID]")] = ""
    """an environment's id, to see its observations, actions and options; or a part of ids, to list them"""


def run(args: Args, console: Console) -> None:
    found = {backend: module.list_envs() for backend, module in BACKENDS.items()}
    for backend, ids in found.items():
        if args.word in ids:
            show(console, "\n".join(describe_lines(backend, args.word)))
            return
    if ":" in args.word:  # a module to import
        show(console, "\n".join(describe_lines("gymnasium", args.word)))
        return
    every = dict.fromkeys(env_id for ids in found.values() for env_id in ids)
    matching = [env_id for env_id in every if args.word.lower() in env_id.lower()]
    if not matching:
        raise UsageError(f"no environment has {args.word!r} in its id; `cleanba envs` lists all")
    show(console, "\n".join(matching))


def describe_lines(backend: str, env_id: str) -> list[str]:
    env = describe_default(backend, env_id)
    lines = [f"{env_id} ({backend})", *obs_lines(env), f"actions: {action_line(env)}"]
    lines.append("options, for --env-options, with their defaults:")
    options = BACKENDS[backend].default_options(env_id)
    return lines + [f"  {name}: {value!r}" for name, value in sorted(options.items())]


def obs_lines(env: EnvSpec) -> list[str]:
    if isinstance(env.obs, ArraySpec):
        return [f"observations: {env.obs}"]
    return ["observations:", *(f"  {name}: {spec}" for name, spec in env.obs.items())]


def action_line(env: EnvSpec) -> str:
    bounds: list[Any] = sorted(set(zip(env.action.low, env.action.high, strict=True)))
    return f"{env.action}" + "".join(f", from {low:g} to {high:g}" for low, high in bounds)


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        description = "List the environments that can be trained on, or show one."
        run(parse_command(Args, argv=argv, prog=prog, description=description), console)


if __name__ == "__main__":
    main()
