"""Make a report folder from run folders."""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from cleanba.analysis.report import aggregates, figures, tables
from cleanba.analysis.report.aggregates import Band, NormalisedScores
from cleanba.analysis.report.compare import Comparison, compare
from cleanba.analysis.report.figures import GREY, LARGE, NARROW, STEPS, Curve, Look, Looks, Panel
from cleanba.analysis.report.page import Image, Page
from cleanba.analysis.report.published import Published, read_baseline
from cleanba.analysis.report.runs import Run, find_runs, read_run
from cleanba.analysis.report.summary import Summary, summarize
from cleanba.analysis.report.tables import Table, as_csv, as_markdown
from cleanba.config.errors import UsageError
from cleanba.runtime.machine import available_cores

MAX_SERIAL_TASKS = 20  # one process has done these sooner than others have started
MAX_LINES = 3  # more published systems are drawn as one area, from the lowest to the highest
MAX_WORKERS = 4  # each needs about 100 MiB
PAGE = "index.html"
REPORT_MARK = '<meta name="generator" content="cleanba report">'  # a folder with this page may be replaced
REPORT_FILE = re.compile(
    r"index\.html|tables/(groups|scores|settings|runs|aggregates|improvement|notes)\.(csv|md)"
    r"|figures/((overview|aggregates|profiles|efficiency|improvement)|curves/.+-(step|seconds))\.(png|svg)"
)


def make_report(
    roots: list[Path],
    *,
    group_by: tuple[str, ...],
    baseline: str | None = None,
    systems: tuple[str, ...] = (),
    steps: int | None = None,
    out: Path,
    made: str = "",
) -> Summary:
    """Nothing appears at `out` until the report is complete."""
    folders, unopened = find_runs(roots)
    if not folders:
        raise UsageError(f"no run found in {', '.join(map(str, roots))}; give run folders or their parents")
    published = read_baseline(baseline, systems) if baseline else Published({})
    check_out(out, folders)
    with workers(len(folders)) as pool, replace_report(out) as folder:
        runs = run_tasks(pool, partial(read_run, steps=steps), folders)
        comparison = compare(runs, group_by, published, steps, unopened)
        if not comparison.groups:
            first = f"{runs[0].path.name}: {runs[0].damage or 'no update yet'}"
            raise UsageError(f"no run has data ({first}); wait for the first update")
        summary = summarize(comparison)
        all_tables = make_tables(summary)
        for table in all_tables.values():
            write_text(folder / "tables" / f"{table.name}.csv", as_csv(table))
            write_text(folder / "tables" / f"{table.name}.md", as_markdown(table))
        page = draw(summary, all_tables, folder / "figures", pool, made)
        write_text(folder / PAGE, page.html())
    return summary


def workers(tasks: int) -> AbstractContextManager[Executor | None]:
    """A pool of processes, or None if it is not worth starting. They are spawned, as forking is unsafe in a
    process that has loaded jax."""
    cores = available_cores()
    if tasks <= MAX_SERIAL_TASKS or cores == 1:
        return nullcontext()
    return ProcessPoolExecutor(min(cores, MAX_WORKERS), mp_context=get_context("spawn"))


def run_tasks(pool: Executor | None, function: Any, tasks: list[Any]) -> list[Any]:
    if pool is None:
        return [function(task) for task in tasks]
    return list(pool.map(function, tasks, chunksize=1 + len(tasks) // 100))


@contextmanager
def replace_report(out: Path) -> Iterator[Path]:
    """A new folder whose files take the place of an earlier report's at the end."""
    parent = out.resolve().parent  # of `.` and of a link, too
    try:
        parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".report-", dir=parent))
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written ({error.strerror}); give another folder") from error
    try:
        yield new
        for path in earlier_report(out):  # looked at again: it took a while
            path.unlink()
        files = [path for path in new.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == PAGE):  # the page comes last
            place = out / path.relative_to(new)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def check_out(out: Path, runs: list[Path]) -> None:
    """Nothing is lost in `out`: no run lies below it, nor anything else that is not of a report."""
    for run in runs:
        if run.resolve().is_relative_to(out.resolve()):
            raise UsageError(f"--out {out} contains {run}, which is read; give another folder")
    earlier_report(out)


def earlier_report(out: Path) -> list[Path]:
    """The files in `out`, which may be replaced: all are of a report."""
    if not out.exists():
        return []
    if not out.is_dir():
        raise UsageError(f"--out {out} exists and is not a report; give another folder")
    found = [path for path in out.rglob("*") if path.is_symlink() or not path.is_dir()]
    page = out / PAGE
    is_report = page.is_file() and REPORT_MARK in page.read_text("utf-8", "replace")[:2000]
    if found and not is_report:
        raise UsageError(f"--out {out} exists and is not a report; give another folder")
    for path in found:
        if path.is_symlink() or not REPORT_FILE.fullmatch(path.relative_to(out).as_posix()):
            what = f"--out {out} contains {path.name}, which is not of a report"
            raise UsageError(f"{what}; give another folder")
    return found


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------------- tables


def make_tables(summary: Summary) -> dict[str, Table]:
    always = (tables.groups_table, tables.scores_table, tables.settings_table, tables.runs_table)
    found = [make(summary.comparison) for make in always]
    if summary.aggregates:
        found.append(tables.aggregates_table(summary.normalised, summary.aggregates))
    if summary.improvements:
        found.append(tables.improvements_table(summary.improvements))
    if summary.notes:
        found.append(tables.notes_table(summary.notes))
    return {table.name: table for table in found}


# ------------------------------------------------------------------------------------------------ figures


class Drawing(NamedTuple):
    """A figure to be drawn, maybe in another process."""

    name: str  # of its files
    alt: str  # alternative text
    make: Callable[..., Figure]  # takes `looks`


def draw(
    summary: Summary, all_tables: dict[str, Table], folder: Path, pool: Executor | None, made: str
) -> Page:
    comparison = summary.comparison
    looks = {group: Look.of_group(i) for i, group in enumerate(comparison.groups)}
    looks |= {system: Look.of_published(i) for i, system in enumerate(comparison.published)}
    if len(comparison.published) > MAX_LINES:
        looks[area_name(comparison)] = Look(GREY, "solid")
    panels = {game: panel(comparison, game, "step") for game in comparison.games}
    drawings = [
        *over_all_games(summary, [*panels.values()])
    ]  # large ones first, so that no worker ends with one
    files = file_names(comparison.games)
    size = LARGE if len(files) == 1 else NARROW
    for game, file in files.items():
        for column in ("step", "seconds"):
            curves = panels[game] if column == "step" else panel(comparison, game, column)
            axis = STEPS if column == "step" else figures.time_axis(curves.longest())
            make = partial(figures.curves_of_game, curves, axis=axis, size=size)
            drawings.append(Drawing(f"curves/{file}-{column}", f"{game}: return over {axis.label}", make))
    drawn = run_tasks(pool, partial(draw_one, folder=folder, looks=looks), drawings)
    images = {image.name: image for image in drawn}
    cards = {
        game: (images[f"curves/{file}-step"], images[f"curves/{file}-seconds"])
        for game, file in files.items()
    }
    return Page(summary, looks, cards, images, all_tables, made)


def draw_one(drawing: Drawing, folder: Path, looks: Looks) -> Image:
    with figures.styled():
        svg = figures.save(drawing.make(looks=looks), folder / drawing.name)
    return Image(drawing.name, svg, drawing.alt)


def file_names(games: list[str]) -> dict[str, str]:
    """A distinct, safe file name for each game, as games may have any name."""
    found: dict[str, str] = {}
    for number, game in enumerate(games):
        safe = re.sub(r"[^\w.+-]", "-", game, flags=re.ASCII)[:60]
        found[game] = safe if safe not in found.values() else f"{safe}-{number}"
    return found


def panel(comparison: Comparison, game: str, column: str) -> Panel:
    """Curves over "step" or "seconds"."""
    cells = {group: comparison.cell(group, game) for group in comparison.groups}
    bands = {group: band for group, cell in cells.items() if (band := aggregates.band(cell, column))}
    seeds = {g: lines(cell.runs, column) for g, cell in cells.items() if cell.runs and g not in bands}
    short = {group: lines(cell.short, column) for group, cell in cells.items() if cell.short}
    scores = {system: scores[game] for system, scores in comparison.published.items() if game in scores}
    published = {system: (score, score) for system, score in scores.items()}
    if scores and len(comparison.published) > MAX_LINES:
        published = {area_name(comparison): (min(scores.values()), max(scores.values()))}
    return Panel(game, bands, seeds, short, published)


def lines(runs: list[Run], column: str) -> list[Curve]:
    return [(getattr(run.curve, column), run.curve.value) for run in runs]


def area_name(comparison: Comparison) -> str:
    return f"{len(comparison.published)} published systems"


def profiles(comparison: Comparison, normalised: NormalisedScores) -> dict[str, Band]:
    found = aggregates.profiles(normalised)
    systems = [found.pop(name) for name in [*found] if name in normalised.published]
    if len(systems) <= MAX_LINES:
        return found | dict(zip(normalised.published, systems, strict=True))
    curves = np.array([band.mean for band in systems])
    nowhere = np.full(curves.shape[1], np.nan)  # an area without a line
    return found | {area_name(comparison): Band(systems[0].x, nowhere, curves.min(0), curves.max(0))}


def over_all_games(summary: Summary, panels: list[Panel]) -> Iterator[Drawing]:
    comparison, normalised = summary.comparison, summary.normalised
    yield Drawing("overview", "return of all games", partial(figures.overview, panels))
    if normalised.games:
        make = partial(figures.aggregates_figure, summary.aggregates, len(normalised.games))
        yield Drawing("aggregates", "aggregate scores", make)
        make = partial(figures.profiles_figure, profiles(comparison, normalised))
        yield Drawing("profiles", "performance profiles", make)
        if bands := aggregates.efficiency(comparison, normalised):
            yield Drawing("efficiency", "sample efficiency", partial(figures.efficiency_figure, bands))
    if summary.improvements:
        make = partial(figures.improvements_figure, summary.improvements)
        yield Drawing("improvement", "probability of improvement", make)
