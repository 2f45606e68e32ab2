"""Tables, figures and a page from many runs: `cleanba report RUNS…`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

# Not here but below: what imports jax or matplotlib. The processes that draw import this file, too.
if TYPE_CHECKING:
    from rich.console import Console

    from cleanrl_utils.report.make import Report

DESCRIPTION = """Compare runs: folders of Cleanba, or of TensorBoard events that CleanRL's scripts left. They
may be finished, running or broken.

It makes a folder with a page, index.html, that needs no network; every figure as PNG and SVG; every table as
CSV and Markdown."""


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUNS")]
    """folders of runs, or folders with such folders somewhere in them"""
    group_by: tuple[str, ...] = ("exp_name",)
    """flags of the runs: those with the same values are a group, and their seeds are averaged"""
    baseline: Path | None = None
    """CSV with game, system and score: published scores to show beside the runs"""
    steps: int | None = None
    """compare after so many steps, what came later does not count; default: each run at its own end"""
    out: Path = Path("report")
    """folder for the report; a report that is there is replaced"""


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    from cleanba.sebulba.command import command, need_extra

    with command() as console:
        args = tyro.cli(Args, args=argv, prog=prog, description=DESCRIPTION)
        check(args)
        need_extra("a report", "matplotlib", "plot")
        tell(args, report(args), console)


def check(args: Args) -> None:
    from cleanba.sebulba.args import UsageError

    if not args.runs:
        raise UsageError("no folder is given; give those of runs, e.g. runs/")
    for place in args.runs:
        if not place.is_dir():
            raise UsageError(f"{place} is not a folder; give folders of runs")
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps} is too small; give 1 or more")
    if not args.group_by:
        raise UsageError("--group-by is empty; name a flag, e.g. exp_name")


def report(args: Args) -> "Report":
    from cleanba.sebulba.args import UsageError
    from cleanba.sebulba.records import code_version
    from cleanrl_utils.report.compare import ReportError
    from cleanrl_utils.report.make import make_report

    code = code_version()
    version = f"cleanba {code.get('version', '')} {code.get('commit', '')[:10]}".strip()
    try:
        return make_report(
            list(args.runs),
            by=tuple(name.removeprefix("--").replace("-", "_") for name in args.group_by),
            baseline=args.baseline,
            steps=args.steps,
            out=args.out,
            made=f"{time.strftime('%Y-%m-%d %H:%M')} · {version}",
        )
    except ReportError as error:
        raise UsageError(str(error)) from error
    except OSError as error:  # a full disk; whatever cannot be read is in the report
        raise UsageError(f"--out {args.out} cannot be written ({error.strerror}); give another") from error


def tell(args: Args, made: "Report", console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("group")
    table.add_column("runs that count", justify="right")
    if made.aggregates:
        table.add_column(f"IQM × human over {len(made.over.games)} of {len(made.comparison.games)} games")
    for group in made.comparison.groups:
        standings = [x.standing for x in made.comparison.listed if x.group == group]
        cells = [group, f"{standings.count('counts')} of {len(standings)}"]
        if group in made.aggregates:
            value, low, high = made.aggregates[group]["iqm"]
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]" if high > low else f"{value:.2f}")
        table.add_row(*map(Text, cells))
    console.print(table)
    told = [f"{kind}: {len(lines)}" for kind, lines in made.problems.items()]
    lines = ["", *told, f"the report is {args.out / 'index.html'}"]
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
