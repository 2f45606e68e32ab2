"""Tables, figures and a page from many runs: `cleanba report RUNS…`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.command import command, need_extra
from cleanba.sebulba.records import code_version

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
    """folder for the report; one that is there is replaced"""


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        args = tyro.cli(Args, args=argv, prog=prog, description=DESCRIPTION)
        check(args)
        report(args, console)


def check(args: Args) -> None:
    need_extra("a report", "matplotlib", "plot")
    if not args.runs:
        raise UsageError("no folder is given; give those of runs, e.g. runs/")
    for place in args.runs:
        if not place.is_dir():
            raise UsageError(f"{place} is not a folder; give folders of runs")
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps} is too small; give 1 or more")
    if not args.group_by:
        raise UsageError("--group-by is empty; name a flag, e.g. exp_name")


def report(args: Args, console: Console) -> None:
    from cleanrl_utils.report.compare import ReportError  # matplotlib comes with them
    from cleanrl_utils.report.make import make_report

    code = code_version()
    version = f"cleanba {code.get('version', '')} {code.get('commit', '')[:10]}".strip()
    try:
        made = make_report(
            list(args.runs),
            by=tuple(name.removeprefix("--").replace("-", "_") for name in args.group_by),
            baseline=args.baseline,
            steps=args.steps,
            out=args.out,
            made=f"{time.strftime('%Y-%m-%d %H:%M')} · {version}",
        )
    except ReportError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--out {args.out} cannot be written ({error}); give another") from error
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("group", "runs that count", "of"):
        table.add_column(name, justify="left" if name == "group" else "right")
    if made.aggregates:
        table.add_column("IQM × human", justify="right")
    for group in made.comparison.groups:
        listed = [x for x in made.comparison.listed if x.group == group]
        cells = [group, str(sum(x.standing == "counts" for x in listed)), str(len(listed))]
        if group in made.aggregates:
            cells.append("{:.2f} [{:.2f}, {:.2f}]".format(*made.aggregates[group]["iqm"]))
        table.add_row(*cells)
    console.print(table)
    told = [f"{kind}: {len(lines)}" for kind, lines in made.problems.items()]
    console.print(
        "\n".join(["", *told, f"the report is {args.out / 'index.html'}"]),
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


if __name__ == "__main__":
    main()
