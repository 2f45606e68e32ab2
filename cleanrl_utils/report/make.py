"""From run folders to a report's folder."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

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
    return list(pool.map(function, tasks, chunksize=max(1, len(tasks) // 64)))


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


def draw(
    report: Report, all_tables: dict[str, Table], folder: Path, pool: Executor | None, made: str
) -> Page:
    comparison, over = report.comparison, report.over
    looks = {group: Look.of_group(i) for i, group in enumerate(comparison.groups)}
    looks |= {system: Look.of_published(i) for i, system in enumerate(comparison.published)}
    longest = max((x.run.seconds for x in comparison.listed), default=0.0)
    axes = (STEPS, figures.time_axis(longest))
    panels = [[panel(comparison, game, axis) for axis in axes] for game in comparison.games]
    tasks = [
        (one, axis, file_of(one.game, axis)) for both in panels for one, axis in zip(both, axes, strict=True)
    ]
    drawn = each(pool, partial(draw_game, looks=looks, folder=folder), tasks)
    pictures = [
        Picture(file, svg, f"{one.game}: return over {axis.label}")
        for (one, axis, file), svg in zip(tasks, drawn, strict=True)
    ]
    cards = [
        Card(game, *pair)
        for game, pair in zip(comparison.games, zip(pictures[::2], pictures[1::2], strict=True), strict=True)
    ]
    over_all = draw_over_games(report, looks, folder, [both[0] for both in panels])
    return Page(
        comparison, over, report.aggregates, report.problems, looks, cards, over_all, all_tables, made
    )


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


def file_of(game: str, axis: Axis) -> str:
    """Games may have any name."""
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in game)
    return f"curves/{safe}-{axis.name}"


def draw_game(task: tuple[Panel, Axis, str], looks: Looks, folder: Path) -> str:
    one, axis, file = task
    with figures.styled():
        return figures.save(figures.curves_of_game(one, looks, axis), folder / file)


def draw_over_games(report: Report, looks: Looks, folder: Path, panels: list[Panel]) -> dict[str, Picture]:
    comparison, over = report.comparison, report.over
    with figures.styled():
        drawn = {"overview": (figures.overview(panels, looks, STEPS), "return of all games")}
        if over.games:
            drawn["aggregates"] = (figures.aggregates_figure(report.aggregates, looks), "aggregate scores")
            thresholds, found = compare.profiles(over)
            drawn["profiles"] = (figures.profiles_figure(thresholds, found, looks), "performance profiles")
            if bands := compare.efficiency(comparison, over):
                drawn["efficiency"] = (figures.efficiency_figure(bands, looks), "sample efficiency")
        if improvements := compare.improvements(comparison):
            figure = figures.improvements_figure(improvements, looks)
            drawn["improvement"] = (figure, "probability of improvement")
        return {
            name: Picture(name, figures.save(figure, folder / name), alt)
            for name, (figure, alt) in drawn.items()
        }
