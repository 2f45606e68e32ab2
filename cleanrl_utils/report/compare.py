"""What a report says: runs sorted into groups and games, what counts, what does not, and what follows."""

import csv
import difflib
import itertools
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cleanrl_utils import statistics
from cleanrl_utils.atari_scores import game_of, human_normalized
from cleanrl_utils.report.runs import Curve, Run
from cleanrl_utils.statistics import AGGREGATES, Estimate

POINTS = 120  # of a drawn curve
EFFICIENCY_POINTS = 40  # of an aggregate against frames
EFFICIENCY_REPS = 500  # of its bootstrap: it is one for each point
PROFILE_POINTS = 101
NO_SETTINGS = {"env_id", "seed", "runs_dir", "resume"}  # differ from run to run anyway


class ReportError(Exception):
    """Nothing can be reported. One line that says why and what to give instead."""


class Cell(NamedTuple):
    """One game of one group."""

    runs: list[Run]  # complete ones, one of each seed: they count
    short: list[Run]  # they are drawn, and do not count
    silent: list[Run]  # no game has ended in them

    @property
    def everyone(self) -> list[Run]:
        return [*self.runs, *self.short, *self.silent]

    @property
    def scores(self) -> np.ndarray:
        return np.array([run.score for run in self.runs])


class Listed(NamedTuple):
    """A run, and what became of it."""

    run: Run
    group: str
    game: str
    standing: str  # counts, short, repeated, no game ended, or not read
    other_flags: tuple[str, ...] = ()  # of a repeated one: those that differ from the run that counts


class Comparison(NamedTuple):
    by: tuple[str, ...]  # flags whose values make a group
    groups: list[str]
    games: list[str]
    cells: dict[tuple[str, str], Cell]  # by group and game
    listed: list[Listed]
    published: dict[str, dict[str, float]]  # scores by system and game
    steps: int | None  # at which all are compared; None: each at its own end
    failed: list[str]  # folders that could not be looked into

    def cell(self, group: str, game: str) -> Cell:
        return self.cells.get((group, game), Cell([], [], []))


class Band(NamedTuple):
    """A mean over seeds, with a 95 % bootstrap interval."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


# ------------------------------------------------------------------------------------------------- sorting


def compare(
    runs: list[Run],
    by: tuple[str, ...],
    published: dict[str, dict[str, float]] | None = None,
    steps: int | None = None,
    failed: list[str] | None = None,
) -> Comparison:
    """`runs` were read up to `steps`. Those whose flags are lost are in no group."""
    _check_flags(runs, by)
    listed: list[Listed] = []
    places: dict[tuple[str, str, str], list[Run]] = {}
    for run in sorted(
        runs, key=lambda run: (*_order(run, by), game_name(run), natural(str(run.seed)), run.path)
    ):
        if is_lost(run, by):
            listed.append(Listed(run, group_of(run, by), game_name(run), "not read"))
        else:
            places.setdefault((group_of(run, by), game_name(run), str(run.seed)), []).append(run)
    cells: dict[tuple[str, str], Cell] = {}
    for (group, game, _), same in places.items():
        best = max(same, key=lambda run: (len(run.curve.value) > 0, run.is_complete, run.path.name))
        listed += [Listed(run, group, game, *standing(run, best)) for run in same]
        cell = cells.setdefault((group, game), Cell([], [], []))
        {"counts": cell.runs, "short": cell.short}.get(standing(best, best)[0], cell.silent).append(best)
    groups = list(dict.fromkeys(group for group, _ in cells))
    games = sorted({game for _, game in cells}, key=natural)
    return Comparison(by, groups, games, cells, listed, published or {}, steps, failed or [])


def standing(run: Run, best: Run) -> tuple[str, tuple[str, ...]]:
    """Of a run and the best one with the same group, game and seed."""
    if run is not best:
        names = sorted((run.args.keys() | best.args.keys()) - NO_SETTINGS)
        return "repeated", tuple(n for n in names if run.args.get(n) != best.args.get(n))
    if not len(run.curve.value):
        return "no game ended", ()
    return "counts" if run.is_complete else "short", ()


def is_lost(run: Run, by: tuple[str, ...]) -> bool:
    """It cannot be put anywhere, or has nothing to show."""
    return run.state in ("damaged", "empty") or not run.env_id or not set(by) & run.args.keys()


def _check_flags(runs: list[Run], by: tuple[str, ...]) -> None:
    known = sorted(set().union(*(run.args for run in runs)))
    if "env_id" in by:
        raise ReportError("--group-by env_id: games are told apart in any case; leave it out")
    for name in by:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ReportError(
                f"--group-by {name}: no run has such a flag; {hint}They have {', '.join(known)}"
            )


def group_of(run: Run, by: tuple[str, ...]) -> str:
    values = [as_text(run.args.get(name, "–")) for name in by]
    if by == ("exp_name",):  # speaks for itself
        return values[0]
    return ", ".join(f"{name} {value}" for name, value in zip(by, values, strict=True))


def _order(run: Run, by: tuple[str, ...]) -> tuple[Any, ...]:
    """Of its group: numbers as numbers."""
    values = [run.args.get(name) for name in by]
    return tuple(
        (0, x, []) if isinstance(x, int | float) and math.isfinite(x) else (1, 0, natural(as_text(x)))
        for x in values
    )


def game_name(run: Run) -> str:
    """Of an Atari game its name, as its env ids differ between libraries."""
    return game_of(run.env_id) or as_text(run.env_id)


def natural(text: str) -> list[Any]:
    """2 before 10."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part.lower()) for part in parts]


def as_text(value: Any) -> str:
    """Of anything that came from a file, fit to be shown and written."""
    if isinstance(value, float):
        value = f"{value:g}"
    elif not isinstance(value, str):
        value = json.dumps(value, default=str)
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "�", value)


def read_published(path: Path) -> dict[str, dict[str, float]]:
    """Of a CSV with the columns game, system and score."""
    found: dict[str, dict[str, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
            if not {"game", "system", "score"} <= set(table.fieldnames):
                found_names = "; ".join(table.fieldnames) or "nothing"
                raise ReportError(
                    f"--baseline {path} needs a first line with game, system and score, and commas between; "
                    f"it has {found_names}"
                )
            for row in table:
                if not row["game"] or not row["system"]:
                    raise ReportError(f"--baseline {path}, line {table.line_num}: no game or no system")
                game = as_text(row["game"].strip())
                scores = found.setdefault(f"{as_text(row['system'].strip())} (published)", {})
                name = game_of(game) or game
                if name in scores:
                    twice = f"{game} of {row['system'].strip()} comes twice"
                    raise ReportError(f"--baseline {path}, line {table.line_num}: {twice}")
                with suppress(TypeError, ValueError):
                    scores[name] = float(row["score"])
                if not math.isfinite(scores.get(name, math.nan)):
                    line = f"--baseline {path}, line {table.line_num}"
                    raise ReportError(f"{line}: the score {row['score']!r} is no number")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReportError(f"--baseline {path} cannot be read ({error}); give a CSV") from error
    return found


# ------------------------------------------------------------------------------------------------- curves


def band(cell: Cell, axis: str) -> Band | None:
    """Over the axis "step" or "seconds", where all runs are that count; None if there is no such place."""
    start, end = in_common(cell, axis)
    if start > end:
        return None
    grid = np.linspace(start, end, POINTS)
    values = np.array([np.interp(grid, getattr(run.curve, axis), run.curve.value) for run in cell.runs])
    low, high = statistics.mean_band(values)
    return Band(grid, values.mean(0), low, high)


def in_common(cell: Cell, axis: str) -> tuple[float, float]:
    """Where all curves of the runs that count are; the start is after the end if that is nowhere."""
    curves = [getattr(run.curve, axis) for run in cell.runs]
    return max((x[0] for x in curves), default=math.inf), min((x[-1] for x in curves), default=-math.inf)


# ---------------------------------------------------------------------------------------------- over games


class OverGames(NamedTuple):
    """Human-normalised scores over the games that all groups can be compared on."""

    games: list[str]
    left_out: dict[str, str]  # other games, and why
    scores: dict[str, list[np.ndarray]]  # of the groups: [runs] for each of the games
    published: dict[str, list[np.ndarray]]  # of systems that have them all: [1] for each

    @property
    def all_scores(self) -> dict[str, list[np.ndarray]]:
        return self.scores | self.published


def over_games(comparison: Comparison) -> OverGames:
    """Games that have a human score, and of each group a run that counts. A group without any run that counts
    takes no part: it would leave no game to the others."""
    groups = [
        group
        for group in comparison.groups
        if any(comparison.cell(group, game).runs for game in comparison.games if game_of(game))
    ]
    left_out: dict[str, str] = {}
    for game in comparison.games:
        lacking = [group for group in groups if not comparison.cell(group, game).runs]
        if game_of(game) is None:
            left_out[game] = "no human score is known"
        elif lacking or not groups:
            left_out[game] = f"no complete run of {', '.join(lacking or comparison.groups)}"
    games = [game for game in comparison.games if game not in left_out]
    scores = {g: [_normalised(game, comparison.cell(g, game).scores) for game in games] for g in groups}
    published = {
        system: [_normalised(game, np.array([has[game]])) for game in games]
        for system, has in comparison.published.items()
        if has.keys() >= set(games)
    }
    return OverGames(games, left_out, scores, published) if games else OverGames([], left_out, {}, {})


def _normalised(game: str, scores: np.ndarray) -> np.ndarray:
    zero, one = (human_normalized(game, score) for score in (0.0, 1.0))
    assert zero is not None and one is not None
    return zero + (one - zero) * scores


def aggregates(over: OverGames) -> dict[str, dict[str, Estimate]]:
    """By group or system, then by the name of the aggregate."""
    return {
        who: {name: statistics.aggregate(scores, name) for name in AGGREGATES}
        for who, scores in over.all_scores.items()
    }


def profiles(over: OverGames) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """The share of runs above each normalised score, from 0 to where 95 % of all runs are below it."""
    everything = np.concatenate([run for scores in over.all_scores.values() for run in scores])
    thresholds = np.linspace(0, max(1.0, float(np.percentile(everything, 95))), PROFILE_POINTS)
    return thresholds, {
        who: statistics.performance_profile(scores, thresholds) for who, scores in over.all_scores.items()
    }


def efficiency(comparison: Comparison, over: OverGames) -> dict[str, Band]:
    """The interquartile mean against frames, as far as all runs go."""
    runs = {(group, game): comparison.cell(group, game).runs for group in over.scores for game in over.games}
    frames = [run.curve.step * run.frames for cell in runs.values() for run in cell]
    if not frames:
        return {}
    grid = np.linspace(max(x[0] for x in frames), min(x[-1] for x in frames), EFFICIENCY_POINTS)
    if grid[0] >= grid[-1]:
        return {}
    found = {}
    for group in over.scores:
        curves = [
            np.array([_normalised(game, _at(grid, run.curve, run.frames)) for run in runs[group, game]])
            for game in over.games
        ]
        value, low, high = statistics.aggregate_curve(curves, "iqm", reps=EFFICIENCY_REPS)
        found[group] = Band(grid, value, low, high)
    return found


def _at(frames: np.ndarray, curve: Curve, frames_per_step: int) -> np.ndarray:
    return np.interp(frames, curve.step * frames_per_step, curve.value)


def improvements(comparison: Comparison) -> dict[tuple[str, str], tuple[Estimate, int]]:
    """Of each two groups: how likely a run of the first is better than one of the second on a game that both
    have, and how many games that are. Raw scores will do."""
    found = {}
    for a, b in itertools.combinations(comparison.groups, 2):
        pairs = [
            (comparison.cell(a, game).scores, comparison.cell(b, game).scores) for game in comparison.games
        ]
        pairs = [(x, y) for x, y in pairs if len(x) and len(y)]
        if pairs:
            estimate = statistics.probability_of_improvement([x for x, _ in pairs], [y for _, y in pairs])
            found[a, b] = estimate, len(pairs)
    return found


# ------------------------------------------------------------------------------------------ what differs


def settings(comparison: Comparison) -> dict[str, dict[str, list[str]]]:
    """By flag or circumstance, then by group: its values there. Only what differs; circumstances always."""
    of_group: dict[str, list[Run]] = {group: [] for group in comparison.groups}
    for x in comparison.listed:
        if x.standing != "not read":
            of_group[x.group].append(x.run)

    def values(get: Callable[[Run], dict[str, Any]], name: str) -> dict[str, list[str]]:
        return {
            group: list(dict.fromkeys(as_text(get(run).get(name, "–")) for run in runs))
            for group, runs in of_group.items()
        }

    every = list(itertools.chain.from_iterable(of_group.values()))
    flags = dict.fromkeys(itertools.chain.from_iterable(run.args for run in every))
    found = {name: values(lambda run: run.args, name) for name in flags if name not in NO_SETTINGS}
    found = {n: v for n, v in found.items() if len(set(itertools.chain.from_iterable(v.values()))) > 1}
    about = dict.fromkeys(itertools.chain.from_iterable(run.about for run in every))
    return found | {name: values(lambda run: run.about, name) for name in about}
