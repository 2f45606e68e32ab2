"""From run folders to a report's folder."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from cleanrl_utils.report import compare, figures, tables
from cleanrl_utils.report.compare import Comparison, OverGames, ReportError
from cleanrl_utils.report.figures import STEPS, Axis, Look, Looks, Panel
from cleanrl_utils.report.page import Card, Page, Picture
from cleanrl_utils.report.runs import find_runs, read_run
from cleanrl_utils.report.tables import Table, as_csv, as_markdown
from cleanrl_utils.statistics import Estimate

FEW = 20  # runs or figures that one process does sooner than others have started
MOST_WORKERS = 8


class Report(NamedTuple):
    comparison: Comparison
    over: OverGames
    aggregates: dict[str, dict[str, Estimate]]  # by group or system
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
    folders = find_runs(places)
    if not folders:
        raise ReportError(f"no run is in {', '.join(map(str, places))}; give folders of runs, or those above")
    published = compare.read_published(baseline) if baseline else {}
    with workers(len(folders)) as pool:
        comparison = compare.compare(each(pool, read_run, folders), by, published, steps)
        over = compare.over_games(comparison)
        report = Report(
            comparison,
            over,
            compare.aggregates(over) if over.games else {},
            compare.problems(comparison, over),
        )
        all_tables = make_tables(report)
        clear(out)
        for table in all_tables.values():
            write_table(table, out / "tables")
        page = draw(report, all_tables, out / "figures", pool, made)
    (out / "index.html").write_text(page.html())
    return report


def clear(out: Path) -> None:
    """Of an earlier report, so that nothing of it stays."""
    if (out / "index.html").exists():
        for name in ("figures", "tables"):
            shutil.rmtree(out / name, ignore_errors=True)
    for name in ("figures", "tables"):
        (out / name).mkdir(parents=True, exist_ok=True)


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
    if improvements := compare.improvements(comparison):
        found.append(tables.improvements_table(improvements))
    if report.problems:
        found.append(tables.problems_table(report.problems))
    return {table.name: table for table in found}


def write_table(table: Table, folder: Path) -> None:
    (folder / f"{table.name}.csv").write_text(as_csv(table))
    (folder / f"{table.name}.md").write_text(as_markdown(table))


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
    axes = (STEPS, figures.time_axis(max(x.run.seconds for x in comparison.listed)))
    panels = {(game, axis): panel(comparison, game, axis) for game in comparison.games for axis in axes}
    drawings = over_all_games(report, looks, [panels[game, STEPS] for game in comparison.games])
    drawings += [
        Drawing(
            file_of(game, axis),
            f"{game}: return over {axis.label}",
            partial(figures.curves_of_game, one, looks, axis),
        )
        for (game, axis), one in panels.items()
    ]
    drawn = each(pool, partial(draw_one, folder=folder), drawings)
    pictures = {d.name: Picture(d.name, svg, d.alt) for d, svg in zip(drawings, drawn, strict=True)}
    cards = [Card(game, *(pictures[file_of(game, axis)] for axis in axes)) for game in comparison.games]
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


def file_of(game: str, axis: Axis) -> str:
    """Games may have any name."""
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in game)
    return f"curves/{safe}-{axis.name}"


def panel(comparison: Comparison, game: str, axis: Axis) -> Panel:
    column = "step" if axis is STEPS else "seconds"
    cells = {group: comparison.cell(group, game) for group in comparison.groups}
    bands = {group: band for group, cell in cells.items() if (band := compare.band(cell, column))}
    short = {
        group: [(getattr(run.curve, column), run.curve.value) for run in cell.short]
        for group, cell in cells.items()
        if cell.short
    }
    published = {system: has[game] for system, has in comparison.published.items() if game in has}
    return Panel(game, bands, short, published)


def over_all_games(report: Report, looks: Looks, panels: list[Panel]) -> list[Drawing]:
    """The largest first, so that no process is left with it at the end."""
    over = report.over
    found = [Drawing("overview", "return of all games", partial(figures.overview, panels, looks, STEPS))]
    if over.games:
        make = partial(figures.aggregates_figure, report.aggregates, looks)
        found.append(Drawing("aggregates", "aggregate scores", make))
        make = partial(figures.profiles_figure, *compare.profiles(over), looks)
        found.append(Drawing("profiles", "performance profiles", make))
        if bands := compare.efficiency(report.comparison, over):
            make = partial(figures.efficiency_figure, bands, looks)
            found.append(Drawing("efficiency", "sample efficiency", make))
    if improvements := compare.improvements(report.comparison):
        make = partial(figures.improvements_figure, improvements, looks)
        found.append(Drawing("improvement", "probability of improvement", make))
    return found
