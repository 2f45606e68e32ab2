"""What follows from the runs that count: mean curves, and scores aggregated over games."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from cleanba.analysis import statistics
from cleanba.analysis.report.compare import Cell, Comparison
from cleanba.analysis.report.runs import Run
from cleanba.analysis.statistics import AGGREGATES, Estimate
from cleanba.evaluation.atari_scores import game_of, human_normalized

CURVE_POINTS = 120
EFFICIENCY_POINTS = 40
EFFICIENCY_REPS = 500  # bootstrap samples for each of these points
PROFILE_POINTS = 101

Aggregates = dict[str, dict[str, Estimate]]  # by group or published system, then by aggregate
Improvements = dict[tuple[str, str], tuple[Estimate, int]]  # by pair of groups, with the number of games


class Band(NamedTuple):
    """A curve with its 95 % bootstrap interval."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(cell: Cell, axis: str) -> Band | None:
    """The mean curve over "step" or "seconds", where all runs that count have data; None if nowhere."""
    start, end = common_range(cell, axis)
    if start > end:
        return None
    grid = np.linspace(start, end, CURVE_POINTS)
    values = np.array([np.interp(grid, getattr(run.curve, axis), run.curve.value) for run in cell.runs])
    return Band(grid, values.mean(0), *statistics.mean_band(values))


def common_range(cell: Cell, axis: str) -> tuple[float, float]:
    """Start and end of where all runs that count have data; start > end if nowhere."""
    curves = [getattr(run.curve, axis) for run in cell.runs]
    return max((x[0] for x in curves), default=math.inf), min((x[-1] for x in curves), default=-math.inf)


# ----------------------------------------------------------------------------------- human-normalised scores


class NormalisedScores(NamedTuple):
    """Human-normalised scores on the games that all groups can be compared on."""

    games: list[str]
    left_out: dict[str, str]  # other games, and the reason
    groups: dict[str, list[np.ndarray]]  # [runs] per game
    published: dict[str, list[np.ndarray]]  # [1] per game, of the systems that have all games

    @property
    def everyone(self) -> dict[str, list[np.ndarray]]:
        return self.groups | self.published


def normalised_scores(comparison: Comparison) -> NormalisedScores:
    """On games with a human score and a complete run of every group. Groups without any complete run of such
    a game are ignored: otherwise no game would be left for the others."""
    atari = [game for game in comparison.games if game_of(game)]
    groups = [g for g in comparison.groups if any(comparison.cell(g, game).runs for game in atari)]
    left_out: dict[str, str] = {}
    for game in comparison.games:
        missing = [group for group in groups if not comparison.cell(group, game).runs]
        if game not in atari:
            left_out[game] = "no human score is known"
        elif missing or not groups:
            left_out[game] = f"no complete run of {', '.join(missing or comparison.groups)}"
    games = [game for game in comparison.games if game not in left_out]
    if not games:
        return NormalisedScores([], left_out, {}, {})
    scores = {g: [_normalise(game, comparison.cell(g, game).scores) for game in games] for g in groups}
    published = {
        system: [_normalise(game, np.array([scores[game]])) for game in games]
        for system, scores in comparison.published.items()
        if scores.keys() >= set(games)
    }
    return NormalisedScores(games, left_out, scores, published)


def _normalise(game: str, scores: np.ndarray) -> np.ndarray:
    zero, one = (human_normalized(game, score) for score in (0.0, 1.0))
    assert zero is not None and one is not None
    return zero + (one - zero) * scores


def aggregates(normalised: NormalisedScores) -> Aggregates:
    return {
        who: {name: statistics.aggregate(scores, name) for name in AGGREGATES}
        for who, scores in normalised.everyone.items()
    }


def profiles(normalised: NormalisedScores) -> dict[str, Band]:
    """The share of runs above each normalised score, from 0 to the 95th percentile of all runs."""
    pooled = np.concatenate([game for scores in normalised.everyone.values() for game in scores])
    thresholds = np.linspace(0, max(1.0, float(np.percentile(pooled, 95))), PROFILE_POINTS)
    return {
        who: Band(thresholds, *statistics.performance_profile(scores, thresholds))
        for who, scores in normalised.everyone.items()
    }


def efficiency(comparison: Comparison, normalised: NormalisedScores) -> dict[str, Band]:
    """The interquartile mean against frames, where all runs of the normalised games have data."""
    groups, games = normalised.groups, normalised.games
    runs = {(group, game): comparison.cell(group, game).runs for group in groups for game in games}
    frames = [run.curve.step * run.frames for cell in runs.values() for run in cell]
    grid = np.linspace(max(x[0] for x in frames), min(x[-1] for x in frames), EFFICIENCY_POINTS)
    if grid[0] >= grid[-1]:
        return {}
    found = {}
    for group in groups:
        curves = [
            _normalise(game, np.array([_over_frames(run, grid) for run in runs[group, game]]))
            for game in games
        ]
        found[group] = Band(grid, *statistics.aggregate_curve(curves, "iqm", reps=EFFICIENCY_REPS))
    return found


def _over_frames(run: Run, grid: np.ndarray) -> np.ndarray:
    return np.interp(grid, run.curve.step * run.frames, run.curve.value)


def improvements(comparison: Comparison) -> Improvements:
    """For each pair of groups: the probability that a run of the first beats one of the second, over the
    games that both have. Raw scores suffice, as only their order matters."""
    found = {}
    for a, b in itertools.combinations(comparison.groups, 2):
        games = [game for game in comparison.games if all(comparison.cell(g, game).runs for g in (a, b))]
        if games:
            x, y = ([comparison.cell(group, game).scores for game in games] for group in (a, b))
            estimate = statistics.probability_of_improvement(x, y)
            if estimate.low == estimate.high:
                sizes = [(len(of_x), len(of_y)) for of_x, of_y in zip(x, y, strict=True)]
                estimate = statistics.few_runs_interval(estimate.value, sizes)
            found[a, b] = estimate, len(games)
    return found
