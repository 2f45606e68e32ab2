"""From run folders to a report's folder."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from cleanrl_utils.report import compare, figures, notes, tables
from cleanrl_utils.report.compare import Comparison, OverGames, ReportError
from cleanrl_utils.report.figures import STEPS, Look, Looks, Panel
from cleanrl_utils.report.page import Card, Page, Picture
from cleanrl_utils.report.runs import find_runs, read_run
from cleanrl_utils.report.tables import Table, as_csv, as_markdown
from cleanrl_utils.statistics import Estimate

FEW = 20  # runs or figures that one process does sooner than others have started
MOST_WORKERS = 4  # each needs about 100 MiB
MARK = '<meta name="generator" content="cleanba report">'  # in a page: its folder may be replaced


class Report(NamedTuple):
    comparison: Comparison
    over: OverGames
    aggregates: dict[str, dict[str, Estimate]]  # by group or system
    improvements: dict[tuple[str, str], tuple[Estimate, int]]  # of two groups, and over how many games
    problems: dict[str, list[str]]


@contextmanager
def workers(tasks: int) -> Iterator[Executor | None]:
    """Other processes, if they are worth their start. Not forked: jax may have threads in this one."""
    cores = len(os.sched_getaffinity(0))
    if tasks <= FEW or cores == 1:
        yield None
        return
    with ProcessPoolExecutor(min(cores, MOST_WORKERS), mp_context=get_context("spawn")) as pool:
        yield pool


def each(pool: Executor | None, function: Any, tasks: list[Any]) -> list[Any]:
    if pool is None:
        return [function(task) for task in tasks]
    return list(pool.map(function, tasks, chunksize=1 + len(tasks) // 100))


def make_report(
    places: list[Path],
    *,
    by: tuple[str, ...],
    baseline: Path | None = None,
    steps: int | None = None,
    out: Path,
    made: str = "",
) -> Report:
    """Reads everything, then writes everything."""
    folders, failed = find_runs(places)
    if not folders:
        raise ReportError(f"no run is in {', '.join(map(str, places))}; give folders of runs, or those above")
    published = compare.read_published(baseline) if baseline else {}
    with workers(len(folders)) as pool, replaced(out) as folder:
        runs = each(pool, partial(read_run, steps=steps), folders)
        comparison = compare.compare(runs, by, published, steps, failed)
        if not comparison.groups:
            first = f"{runs[0].path.name}: {runs[0].damage or 'no update yet'}"
            raise ReportError(f"no run has anything to show ({first}); wait for its first update")
        over = compare.over_games(comparison)
        report = Report(
            comparison,
            over,
            compare.aggregates(over),
            compare.improvements(comparison),
            notes.problems(comparison, over),
        )
        all_tables = make_tables(report)
        for table in all_tables.values():
            write_text(folder / "tables" / f"{table.name}.csv", as_csv(table))
            write_text(folder / "tables" / f"{table.name}.md", as_markdown(table))
        page = draw(report, all_tables, folder / "figures", pool, made)
        write_text(folder / "index.html", page.html())
    return report


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `out` when it is complete. Only a report is replaced."""
    if out.exists():
        page = out / "index.html"
        is_report = page.is_file() and MARK in page.read_text(encoding="utf-8", errors="replace")[:2000]
        if not out.is_dir() or (any(out.iterdir()) and not is_report):
            raise ReportError(f"--out {out} exists and is no report; give another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".report-", dir=out.parent))
    except OSError as error:
        raise ReportError(f"--out {out} cannot be written ({error.strerror}); give another folder") from error
    try:
        yield new
        new.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        new.rename(out)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------------- tables


def make_tables(report: Report) -> dict[str, Table]:
    comparison = report.comparison
    found = [
        tables.groups_table(comparison),
        tables.scores_table(comparison),
        tables.settings_table(comparison),
        tables.runs_table(comparison),
    ]
    if report.aggregates:
        found.append(tables.aggregates_table(report.over, report.aggregates))
    if report.improvements:
        found.append(tables.improvements_table(report.improvements))
    if report.problems:
        found.append(tables.problems_table(report.problems))
    return {table.name: table for table in found}


# ------------------------------------------------------------------------------------------------ figures


class Drawing(NamedTuple):
    """A figure that is still to be drawn, maybe in another process."""

    name: str  # of its files
    alt: str  # what it shows, in words
    make: Callable[[], Figure]


def draw(
    report: Report, all_tables: dict[str, Table], folder: Path, pool: Executor | None, made: str
) -> Page:
    comparison = report.comparison
    looks = {group: Look.of_group(i) for i, group in enumerate(comparison.groups)}
    looks |= {system: Look.of_published(i) for i, system in enumerate(comparison.published)}
    drawings = over_all_games(report, looks)
    files = file_names(comparison.games)
    for game, file in files.items():
        for column in ("step", "seconds"):
            one = panel(comparison, game, column)
            axis = STEPS if column == "step" else figures.time_axis(one.longest())
            make = partial(figures.curves_of_game, one, looks, axis)
            drawings.append(Drawing(f"curves/{file}-{column}", f"{game}: return over {axis.label}", make))
    drawn = each(pool, partial(draw_one, folder=folder), drawings)
    pictures = {d.name: Picture(d.name, svg, d.alt) for d, svg in zip(drawings, drawn, strict=True)}
    cards = [
        Card(game, pictures[f"curves/{file}-step"], pictures[f"curves/{file}-seconds"])
        for game, file in files.items()
    ]
    return Page(
        comparison,
        report.over,
        report.aggregates,
        report.problems,
        looks,
        cards,
        pictures,
        all_tables,
        made,
    )


def draw_one(drawing: Drawing, folder: Path) -> str:
    with figures.styled():
        return figures.save(drawing.make(), folder / drawing.name)


def file_names(games: list[str]) -> dict[str, str]:
    """Games may have any name; each gets a file name of its own."""
    found: dict[str, str] = {}
    for number, game in enumerate(games):
        safe = re.sub(r"[^\w.+-]", "-", game, flags=re.ASCII)[:60]
        found[game] = safe if safe not in found.values() else f"{safe}-{number}"
    return found


def panel(comparison: Comparison, game: str, column: str) -> Panel:
    """Over the "step" or the "seconds" of a curve."""
    cells = {group: comparison.cell(group, game) for group in comparison.groups}
    bands = {group: band for group, cell in cells.items() if (band := compare.band(cell, column))}
    short = {
        group: [(getattr(run.curve, column), run.curve.value) for run in cell.short]
        for group, cell in cells.items()
        if cell.short
    }
    published = {system: has[game] for system, has in comparison.published.items() if game in has}
    return Panel(game, bands, short, published)


def over_all_games(report: Report, looks: Looks) -> list[Drawing]:
    """The largest first, so that no process is left with it at the end."""
    comparison, over = report.comparison, report.over
    panels = [panel(comparison, game, "step") for game in comparison.games]
    found = [Drawing("overview", "return of all games", partial(figures.overview, panels, looks))]
    if over.games:
        make = partial(figures.aggregates_figure, report.aggregates, looks, len(over.games))
        found.append(Drawing("aggregates", "aggregate scores", make))
        make = partial(figures.profiles_figure, *compare.profiles(over), looks)
        found.append(Drawing("profiles", "performance profiles", make))
        if bands := compare.efficiency(comparison, over):
            make = partial(figures.efficiency_figure, bands, looks)
            found.append(Drawing("efficiency", "sample efficiency", make))
    if report.improvements:
        make = partial(figures.improvements_figure, report.improvements, looks)
        found.append(Drawing("improvement", "probability of improvement", make))
    return found
