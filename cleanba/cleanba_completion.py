"""`cleanba completion bash|zsh|fish`: a script with which the shell completes commands and flags."""

import dataclasses
import operator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, Union

import tyro

from cleanba.algorithms import ALGORITHMS, PRESETS
from cleanba.config.command_line import Flag, flags_of, parse_command
from cleanba.config.flags import RunArgs, as_groups, flag_groups
from cleanba.runtime.command import command

DESCRIPTION = """Print a script with which TAB completes commands, flags and their values.

bash: put `eval "$(cleanba completion bash)"` into ~/.bashrc, or faster at each start, write it to
~/.local/share/bash-completion/completions/cleanba once.

zsh: write it to a file _cleanba in a folder of $fpath.

fish: write it to ~/.config/fish/completions/cleanba.fish."""
OTHERS = ("runs", "eval", "envs", "diff", "plot", "report")  # commands with flags of their own


@dataclass(frozen=True)
class Args:
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """the shell: bash, zsh or fish"""


@dataclass(frozen=True)
class Nothing:
    """A command whose flags are not known before it starts."""


def shortened(flag: Flag) -> Flag:
    """With its default only: fish passes the script on as one argument, which may have 128 KiB."""
    return flag._replace(help="")


def in_groups(default: RunArgs) -> type:
    return as_groups({group: list(map(shortened, flags)) for group, flags in flag_groups(default).items()})


def all_commands() -> Any:
    """A union of dataclasses, one per command, for tyro."""
    algorithms = {name: import_module(module).Args for name, module in ALGORITHMS.items()}
    made = {name: in_groups(args()) for name, args in algorithms.items()}
    made |= {name: made[name.split("-")[0]] for name in PRESETS}
    for name in OTHERS:
        flags = flags_of(import_module(f"cleanba.cleanba_{name}").Args)
        made[name] = dataclasses.make_dataclass(name, [flag.field() for flag in flags])
    bench_args = import_module("cleanba.cleanba_bench").bench_args
    made["bench"] = in_groups(bench_args(algorithms["ppo"]))  # what it measures by default
    made |= {"train": Nothing, "launch": Nothing, "completion": Args}
    return Union[  # noqa: UP007
        tuple(operator.getitem(Annotated, (kind, tyro.conf.subcommand(name))) for name, kind in made.items())
    ]


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command():
        args = parse_command(Args, argv=argv, prog=prog, description=DESCRIPTION)
        config = (tyro.conf.OmitArgPrefixes,)
        tyro.cli(all_commands(), args=["--tyro-print-completion", args.shell], prog="cleanba", config=config)


if __name__ == "__main__":
    main()
