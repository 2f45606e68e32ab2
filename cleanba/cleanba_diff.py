"""`cleanba diff RUN RUN`: compare two runs, update by update."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cleanba.analysis.diff import (
    check_comparable,
    first_difference,
    read_run,
    show_circumstances,
    show_outcome,
)
from cleanba.config.command_line import parse_command
from cleanba.runtime.command import command

DESCRIPTION = """Compare two runs by the digests of their updates.

Exit code: 0 identical, as far as both go; 1 not identical; 2 not comparable."""


@dataclass(frozen=True)
class Args:
    run_a: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """run folder"""
    run_b: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """run folder"""


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        args = parse_command(Args, argv=argv, prog=prog, description=DESCRIPTION)
        a, b = read_run(args.run_a), read_run(args.run_b)
        check_comparable(a, b)
        difference = first_difference(a, b)
        lines = [f"A  {a.path}", f"B  {b.path}", *show_circumstances(a, b), *show_outcome(a, b, difference)]
        console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)
        sys.exit(0 if difference is None else 1)


if __name__ == "__main__":
    main()
