"""`cleanba report RUNS…`: tables, figures and a page from many runs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cleanba.analysis.report.summary import Summary
from cleanba.config.command_line import parse_command
from cleanba.config.errors import UsageError
from cleanba.runtime.code_version import code_version
from cleanba.runtime.command import command, need_extra

DESCRIPTION = """Compare runs, finished or not: run folders of Cleanba, or TensorBoard events of CleanRL's
scripts.

Writes a folder with a page, index.html, that works offline; every figure as PNG and SVG; every table as CSV
and Markdown."""


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """run folders, or folders that contain them at any depth"""
    group_by: tuple[str, ...] = ("exp_name",)
    """flags of the runs: runs with the same values form a group, which is averaged over seeds"""
    baseline: str | None = None
    """published scores to show beside the runs: cleanba-paper, or a CSV with the header game,system,score"""
    systems: tuple[str, ...] = ()
    """of the baseline, only the systems whose names contain one of these words; default: all of them"""
    steps: int | None = None
    """compare all runs at this step and ignore what came later; default: each run at its own end"""
    out: Path = Path("report")
    """folder for the report; an earlier report there is replaced, anything else never"""


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        args = parse_command(Args, argv=argv, prog=prog, description=DESCRIPTION)
        check(args)
        need_extra("a report", "matplotlib", "plot")
        show(make(args), args.out, console)


def check(args: Args) -> None:
    if not args.runs:
        raise UsageError("no folder given; give run folders or their parents, e.g. runs/")
    for root in args.runs:
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder; give run folders or their parents")
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps} is too small; give 1 or more")
    if not args.group_by:
        raise UsageError("--group-by is empty; name a flag, e.g. exp_name")
    if args.systems and not args.baseline:
        raise UsageError(f"--systems {' '.join(args.systems)} needs a --baseline")


def make(args: Args) -> Summary:
    from cleanba.analysis.report.make import make_report  # needs matplotlib

    code = code_version()
    version = f"cleanba {code.get('version', '')} {code.get('commit', '')[:10]}".strip()
    try:
        return make_report(
            list(args.runs),
            group_by=tuple(name.removeprefix("--").replace("-", "_") for name in args.group_by),
            baseline=args.baseline,
            systems=args.systems,
            steps=args.steps,
            out=args.out,
            made=f"{time.strftime('%Y-%m-%d %H:%M')} · {version}",
        )
    except OSError as error:  # a full disk; runs that cannot be read are listed in the report
        raise UsageError(f"--out {args.out} cannot be written ({error.strerror}); give another") from error


def show(summary: Summary, out: Path, console: Console) -> None:
    comparison = summary.comparison
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("group")
    table.add_column("complete runs", justify="right")
    if summary.aggregates:
        games = f"{len(summary.normalised.games)} of {len(comparison.games)} games"
        table.add_column(f"human-normalised IQM over {games}")
    for group in comparison.groups:
        standings = [x.standing for x in comparison.listed if x.group == group]
        cells = [group, f"{standings.count('counts')} of {len(standings)}"]
        if group in summary.aggregates:
            cells.append(str(summary.aggregates[group]["iqm"]))
        table.add_row(*map(Text, cells))
    console.print(table)
    notes = [f"{heading}: {len(lines)}" for heading, lines in summary.notes.items()]
    lines = ["", *notes, f"the report is {out / 'index.html'}"]
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
