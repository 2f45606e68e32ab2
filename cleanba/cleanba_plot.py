"""`cleanba plot RUN…`: draw the learning curves of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cleanba.config.command_line import parse_command
from cleanba.config.errors import UsageError
from cleanba.records.run_folder import METRICS
from cleanba.runtime.command import command, need_extra


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """run folders"""
    out: Path = Path("learning_curve.png")
    """file to write; its suffix gives the format"""
    labels: tuple[str, ...] = ()
    """one per run; default: the folders' names"""


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        args = parse_command(Args, argv=argv, prog=prog, description="Draw the learning curves of runs.")
        check(args)
        need_extra("a plot", "matplotlib", "plot")
        draw(args)
        console.print(str(args.out), soft_wrap=True, highlight=False, markup=False)


def check(args: Args) -> None:
    if not args.runs:
        raise UsageError("no run given; give run folders, e.g. runs/*")
    for run_dir in args.runs:
        if not (run_dir / METRICS).is_file():
            raise UsageError(f"{run_dir} is not a run folder: it has no {METRICS}")
    if args.labels and len(args.labels) != len(args.runs):
        counts = f"--labels has {len(args.labels)} names for {len(args.runs)} runs"
        raise UsageError(f"{counts}; give one for each")


def draw(args: Args) -> None:
    from cleanba.records.plot import FORMATS, plot_runs  # needs matplotlib

    if args.out.suffix[1:] not in FORMATS:
        raise UsageError(f"--out {args.out} has no known format; end it with .png, .svg or .pdf")
    try:
        plot_runs(args.runs, args.out, args.labels or None)
    except OSError as error:
        raise UsageError(f"--out {args.out} cannot be written ({error.strerror}); give another") from error


if __name__ == "__main__":
    main()
