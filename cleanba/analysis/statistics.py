"""Aggregate scores, their confidence intervals and pairwise comparisons, after Agarwal et al. 2021 ("Deep RL
at the edge of the statistical precipice").

All intervals are 95 % percentile bootstraps: runs are resampled with replacement, and the interval is the
middle 95 % of the results. Resampling is stratified by game, so that only runs vary and games do not. A game
with a single run therefore adds no width.

Games may have different numbers of runs. Each game counts once in the median, the mean and the probability
of improvement; each run counts once in the IQM, the optimality gap and the performance profile, where a game
with twice the runs weighs twice as much.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

Scores = Sequence[np.ndarray]  # one group's normalised scores, [runs] per game
Intervals = tuple[np.ndarray, np.ndarray, np.ndarray]  # value, low and high, [points] each

CHUNK = 4_000_000  # scores resampled at once: 32 MB, and as much again for each copy


class Estimate(NamedTuple):
    value: float
    low: float  # of the 95 % interval
    high: float

    def __str__(self) -> str:
        interval = f" [{self.low:.2f}, {self.high:.2f}]" if self.high > self.low else ""
        return f"{self.value:.2f}{interval}"


# ---------------------------------------------------------------------------------------------- Aggregates
# From flat [..., R], all runs game by game, and sizes [G], the runs per game, to [...].


def game_means(flat: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[..., G]"""
    return np.add.reduceat(flat, np.cumsum(sizes) - sizes, axis=-1) / sizes


def median(flat: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.median(game_means(flat, sizes), axis=-1)


def interquartile_mean(flat: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean of the runs without the best and the worst quarter, each rounded down."""
    cut = flat.shape[-1] // 4
    return np.sort(flat, axis=-1)[..., cut : flat.shape[-1] - cut].mean(axis=-1)


def mean(flat: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return game_means(flat, sizes).mean(axis=-1)


def optimality_gap(flat: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean shortfall from a score of 1; lower is better. Scores above 1 do not compensate for others."""
    return np.maximum(1.0 - flat, 0.0).mean(axis=-1)


AGGREGATES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "median": median,
    "iqm": interquartile_mean,
    "mean": mean,
    "optimality gap": optimality_gap,
}


# ----------------------------------------------------------------------------------------------- Estimates


def aggregate(scores: Scores, name: str, *, reps: int = 2000, seed: int = 0) -> Estimate:
    """One of the AGGREGATES over all games."""
    curves = [np.reshape(game, (-1, 1)) for game in scores]
    value, low, high = aggregate_curve(curves, name, reps=reps, seed=seed)
    return Estimate(value.item(), low.item(), high.item())


def aggregate_curve(curves: Sequence[np.ndarray], name: str, *, reps: int = 2000, seed: int = 0) -> Intervals:
    """An aggregate at every point of curves, [runs, points] per game. Resamples whole runs, not points."""
    flat, sizes = _concatenate(curves)
    by_point = np.ascontiguousarray(flat.T)  # [points, R]
    function = AGGREGATES[name]
    drawn = resample(np.random.default_rng(seed), sizes, reps)
    step = max(1, CHUNK // drawn.size)
    bounds = []
    for start in range(0, len(by_point), step):
        resampled = np.take(by_point[start : start + step], drawn, axis=1)  # [step, reps, R]
        bounds.append(_interval(function(resampled, sizes)))
    low, high = np.concatenate(bounds, axis=-1)
    return function(by_point, sizes), low, high


def performance_profile(
    scores: Scores, thresholds: np.ndarray, *, reps: int = 2000, seed: int = 0
) -> Intervals:
    """The share of runs with a score above each threshold."""
    flat, sizes = _concatenate(scores)
    above = (flat > np.asarray(thresholds)[:, None]).astype(float)  # [thresholds, R]
    counts = _resample_counts(np.random.default_rng(seed), sizes, reps)
    low, high = _interval(above @ counts.T / len(flat))
    return above.mean(axis=-1), low, high


def probability_of_improvement(x: Scores, y: Scores, *, reps: int = 2000, seed: int = 0) -> Estimate:
    """The probability that a run of x beats a run of y on the same game, averaged over games; a tie is half a
    win. x and y list the same games in the same order; the runs of both are resampled."""
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} games and y has {len(y)}: give the same games of both")
    rng = np.random.default_rng(seed)
    values, resampled = [], []
    for x_runs, y_runs in zip(_checked(x), _checked(y), strict=True):
        wins = (x_runs[:, None] > y_runs) + 0.5 * (x_runs[:, None] == y_runs)  # [runs of x, runs of y]
        x_counts, y_counts = (_resample_counts(rng, np.array([n]), reps) for n in wins.shape)
        values.append(wins.mean())
        resampled.append(((x_counts @ wins) * y_counts).sum(axis=-1) / wins.size)
    low, high = _interval(np.mean(resampled, axis=0))
    return Estimate(float(np.mean(values)), float(low), float(high))


def few_runs_interval(value: float, sizes: Sequence[tuple[int, int]]) -> Estimate:
    """A probability of improvement with the score interval of Newcombe 2006 (method 5, of the Mann-Whitney
    statistic), for [games] pairs of numbers of runs. Where every run of one side beats every run of the
    other, resampling shows no uncertainty at all, however few they are."""
    theta = np.linspace(0, 1, 10_001)
    at_one, at_zero = (1 - theta) / (2 - theta), theta / (1 + theta)
    variances = [(1 + ((m + n) / 2 - 1) * (at_one + at_zero)) / (m * n) for m, n in sizes]
    variance = theta * (1 - theta) * np.sum(variances, axis=0) / len(sizes) ** 2
    inside = theta[np.abs(theta - value) <= 1.96 * np.sqrt(variance) + 1e-9]
    return Estimate(value, float(inside[0]), float(inside[-1]))


def mean_band(curves: np.ndarray, *, reps: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Low and high, [points] each, of the mean of curves [seeds, points]. Resamples whole seeds, not points.

    With three seeds the band goes from the lowest to the highest: one draw in 27 takes the lowest three
    times, which is more than the 2.5 % that an interval leaves out at either end.
    """
    flat, _ = _concatenate([curves])
    drawn, times = _distinct_draws(len(flat), reps, seed)
    means = flat.T @ drawn.T / len(flat)  # [points, K]
    order = np.argsort(means, axis=-1)
    means = np.take_along_axis(means, order, axis=-1)
    up_to = np.cumsum(times[order], axis=-1)  # how many draws have this mean or a lower one

    def quantile(q: float) -> np.ndarray:
        below = math.floor(q * (reps - 1))
        a, b = (
            np.take_along_axis(means, (up_to <= k).sum(-1, keepdims=True), axis=-1)[:, 0]
            for k in (below, min(below + 1, reps - 1))
        )
        return a + (b - a) * (q * (reps - 1) - below)

    return quantile(0.025), quantile(0.975)


@cache
def _distinct_draws(runs: int, reps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each run is drawn, [K, runs], and how often that draw came up among `reps`, [K]: three runs
    can be drawn in ten ways only."""
    counts = _resample_counts(np.random.default_rng(seed), np.array([runs]), reps)
    return np.unique(counts, axis=0, return_counts=True)


# ----------------------------------------------------------------------------------------------- Bootstrap


def _checked(games: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.asarray(game, float) for game in games]
    if not arrays or not all(array.size for array in arrays):
        raise ValueError("no scores: at least one game is needed, and every game must have a run")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("a score is NaN or infinite: leave such runs out")
    return arrays


def _concatenate(games: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All runs of all games [R, ...], and the number of runs per game [G]."""
    arrays = _checked(games)
    return np.concatenate(arrays), np.array([len(array) for array in arrays])


def resample(rng: np.random.Generator, sizes: np.ndarray, reps: int) -> np.ndarray:
    """For each run the index of one drawn from the same game, [reps, R]."""
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return first + rng.integers(np.repeat(sizes, sizes), size=(reps, len(first)))


def _resample_counts(rng: np.random.Generator, sizes: np.ndarray, reps: int) -> np.ndarray:
    """How often each run is drawn, f64 [reps, R]: enough for statistics that are sums over runs."""
    drawn = resample(rng, sizes, reps)
    drawn += np.arange(reps)[:, None] * drawn.shape[1]
    return np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)


def _interval(resampled: np.ndarray) -> np.ndarray:
    """The ends of the 95 % interval, from [..., reps] to [2, ...]."""
    return np.percentile(resampled, [2.5, 97.5], axis=-1)
