"""`cleanba runs [FOLDER]`: list runs, with what became of them and how to resume them."""

import json
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cleanba.analysis.report.runs import find_runs
from cleanba.config.command_line import parse_command
from cleanba.config.errors import UsageError
from cleanba.records.run_folder import ARGS, MAX_COUNT, METRICS, is_number
from cleanba.records.run_status import RunStatus, run_status
from cleanba.runtime.command import command
from cleanba.runtime.files import last_written
from cleanba.runtime.messages import printable, say, show

DESCRIPTION = """List the runs in a folder, last the one that wrote last: what became of them, how far
they are, their mean return over the last episodes and in the evaluation, and how long ago they last
wrote. Below the table are the commands that continue the stopped ones."""
STYLES = {"running": "green", "stopped": "yellow", "empty": "dim", "damaged": "red"}
MAX_COMMANDS = 10
MIN_NAME = 12  # columns of a folder's name, however narrow the terminal
MAX_WIDTH = 10_000  # columns, without a terminal


@dataclass(frozen=True)
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER ...]")] = (
        Path("runs"),
    )
    """run folders, or folders that contain them at any depth"""
    json: bool = False
    """print one JSON object per run instead of a table"""


def run(args: Args, console: Console) -> None:
    for root in args.folders:
        if not root.is_dir():
            raise UsageError(f"there is no folder {root}; name the folder that your runs are in")
    found, unreadable = find_runs(args.folders, tensorboard=False)
    for problem in unreadable:
        say(problem)
    runs = sorted(map(run_status, found), key=wrote_at)
    if args.json:
        for status in runs:
            show(console, json.dumps(as_record(status)))
        return
    if not runs:
        show(console, f"no runs in {shlex.join(map(str, args.folders))}")
        return
    if console.is_terminal:
        console.print(table(runs, args.folders, console.width))
    else:  # for grep and files: nothing is folded or cut
        console.width = MAX_WIDTH
        console.print(table(runs, (), None))
    resumable = [status.resume_command for status in reversed(runs) if status.resume_command]
    commands = [x for x in resumable if printable(x) == x]  # no other is safe to show, or to paste
    if commands:
        show(console, "\n".join(["", "continue a stopped run:", *commands[:MAX_COMMANDS]]))
    if more := len(resumable) - min(len(commands), MAX_COMMANDS):
        show(console, f"… and {more} more; --json has all")


def wrote_at(status: RunStatus) -> float:
    return last_written([status.folder / METRICS, status.folder / ARGS])


def as_record(status: RunStatus) -> dict[str, Any]:
    return {
        "folder": str(status.folder),
        "state": status.state,
        "algorithm": status.algorithm,
        "env_id": status.flags.get("env_id"),
        "exp_name": status.flags.get("exp_name"),
        "seed": status.flags.get("seed"),
        "step": steps(status),
        "total_steps": total_steps(status),
        "return": status.episodic_return,
        "evaluation": status.evaluation or None,
        "last_written": wrote_at(status),
        "resume": status.resume_command,
        "resumes_at": status.resumes_at if status.resume_command else None,
    }


def steps(status: RunStatus) -> int:
    step = status.last.get("global_step", 0)
    return step if isinstance(step, int) else 0


def total_steps(status: RunStatus) -> int | None:
    """Those of whole updates."""
    sizes = [status.record.get("plan", {}).get(name) for name in ("updates", "batch_size")]
    return sizes[0] * sizes[1] if all(is_number(size, MAX_COUNT) for size in sizes) else None


def table(runs: list[RunStatus], roots: tuple[Path, ...], width: int | None) -> Table:
    """One line per run within this `width`, and folder names without what comes before a root; with room,
    also the speed and the evaluation."""
    wide = width is None or width >= 120
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    made.add_column("run", no_wrap=True)
    rows = [row(status, wide) for status in runs]
    names = ("state", "steps", "return", *(["evaluation", "steps/s"] if wide else []), "ago")
    columns = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for name in names:
        made.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    left = MAX_WIDTH if width is None else max(MIN_NAME, width - sum(columns) - 2 * len(columns))
    for status, (state, *numbers) in zip(runs, rows, strict=True):
        folder = Text(fold(folder_name(status.folder, roots), left))
        made.add_row(folder, Text(state, style=STYLES.get(state, "")), *map(Text, numbers))
    return made


def folder_name(folder: Path, roots: tuple[Path, ...]) -> str:
    """Without the root, if there is only one and this is not it."""
    short = folder.relative_to(roots[0]) if len(roots) == 1 else folder
    return printable(str(folder if short == Path() else short))


def fold(name: str, width: int) -> str:
    """In lines of up to `width`, which end after / or __ where they can."""
    lines = [""]
    for part in re.findall(r".+?(?:/|__|$)", name):
        while len(lines[-1] + part) > width:
            if not lines[-1].strip():  # a part that is too long for a line of its own
                cut = width - len(lines[-1])
                lines[-1], part = lines[-1] + part[:cut], part[cut:]
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def row(status: RunStatus, wide: bool) -> list[str]:
    """All but its name."""
    total, done = total_steps(status), steps(status)
    progress = short(done) if not total or done >= total else f"{short(done)}/{short(total)}"
    resumes_at = status.resumes_at if status.resume_command else None
    if resumes_at is not None and resumes_at < done:
        progress += f", resumes at {short(resumes_at)}"
    evaluation, speed = status.evaluation.get("episodic_return"), status.last.get("charts/SPS")
    extra = [_number(evaluation), "" if speed is None else f"{speed:,.0f}"] if wide else []
    age = ago(time.time() - wrote_at(status))
    return [status.state, progress, _number(status.episodic_return), *extra, age]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def short(number: int) -> str:
    """1.5M"""
    for scale, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= 0.9995 * scale:  # which is rounded up
            return f"{number / scale:.3g}{unit}"
    return str(number)


def ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        run(parse_command(Args, argv=argv, prog=prog, description=DESCRIPTION), console)


if __name__ == "__main__":
    main()
