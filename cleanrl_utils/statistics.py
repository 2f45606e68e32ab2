"""What a few runs say about an algorithm, after Agarwal et al. 2021 ("Deep RL at the edge of the statistical
precipice"): aggregates over games, how sure they are, and how two algorithms compare.

All intervals are percentile bootstraps: runs are drawn again with replacement, as many as there were, and
the middle 95 % of what comes out is the interval. The draws are stratified, from the runs of the same game,
so that games are no source of chance. A game with one run thus seems certain: it adds no width.

Games may have different numbers of runs. Each game counts once in the median, the mean and the probability
of improvement; each run counts once in the IQM, the optimality gap and the performance profile, where a game
with twice the runs weighs twice as much.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Scores = Sequence[np.ndarray]  # of one group: [runs] per game, normalised scores

CHUNK = 4_000_000  # scores to resample at once: 32 MB, and as much again for a copy or two


class Estimate(NamedTuple):
    value: float
    low: float  # of the 95 % interval
    high: float


# ---------------------------------------------------------------------------------------------- Aggregates
# Of flat [..., R], all runs of all games one game after another, and sizes [G], their numbers, to [...].


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
    """How much the runs miss a score of 1 by; lower is better, and what is above 1 makes up for nothing."""
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


def aggregate_curve(
    curves: Sequence[np.ndarray],  # [runs, points] per game
    name: str,
    *,
    reps: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An aggregate at every point: value, low and high, [points] each. Whole runs are drawn, not points."""
    flat, sizes = _concatenate(curves)
    by_point = np.ascontiguousarray(flat.T)  # [points, R]
    function = AGGREGATES[name]
    drawn = _draw(np.random.default_rng(seed), sizes, reps)
    step = max(1, CHUNK // drawn.size)
    bounds = []
    for start in range(0, len(by_point), step):
        resampled = np.take(by_point[start : start + step], drawn, axis=1)  # [step, reps, R]
        bounds.append(_interval(function(resampled, sizes)))
    low, high = np.concatenate(bounds, axis=-1)
    return function(by_point, sizes), low, high


def performance_profile(
    scores: Scores, thresholds: np.ndarray, *, reps: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of runs with a score above each threshold: value, low and high, [thresholds] each."""
    flat, sizes = _concatenate(scores)
    above = (flat > np.asarray(thresholds)[:, None]).astype(float)  # [thresholds, R]
    times = _draw_times(np.random.default_rng(seed), sizes, reps)
    low, high = _interval(above @ times.T / len(flat))
    return above.mean(axis=-1), low, high


def probability_of_improvement(x: Scores, y: Scores, *, reps: int = 2000, seed: int = 0) -> Estimate:
    """How likely a run of x beats a run of y on the same game, on average over games; a tie is half a win.
    Game by game, x and y have the same order. Both their runs are drawn."""
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} games and y has {len(y)}: give the same games of both")
    rng = np.random.default_rng(seed)
    values, resampled = [], []
    for of_x, of_y in zip(_checked(x), _checked(y), strict=True):
        wins = (of_x[:, None] > of_y) + 0.5 * (of_x[:, None] == of_y)  # [runs of x, runs of y]
        times_x, times_y = (_draw_times(rng, np.array([n]), reps) for n in wins.shape)
        values.append(wins.mean())
        resampled.append(((times_x @ wins) * times_y).sum(axis=-1) / wins.size)
    low, high = _interval(np.mean(resampled, axis=0))
    return Estimate(float(np.mean(values)), float(low), float(high))


def mean_band(curves: np.ndarray, *, reps: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Low and high, [points] each, of the mean of curves [seeds, points]. Whole seeds are drawn, not points.

    With three seeds that is from the lowest to the highest: one draw in 27 takes the lowest three times,
    which is more than the 2.5 % that an interval leaves out at either end.
    """
    flat, sizes = _concatenate([curves])
    times = _draw_times(np.random.default_rng(seed), sizes, reps)
    low, high = _interval(flat.T @ times.T / len(flat))
    return low, high


# ----------------------------------------------------------------------------------------------- Bootstrap


def _checked(games: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.asarray(game, float) for game in games]
    if not arrays or not all(array.size for array in arrays):
        raise ValueError("no scores: there must be a game, and every game must have a run")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("a score is NaN or infinite: leave such runs out")
    return arrays


def _concatenate(games: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All runs of all games [R, ...], and the number of each game's [G]."""
    arrays = _checked(games)
    return np.concatenate(arrays), np.array([len(array) for array in arrays])


def _draw(rng: np.random.Generator, sizes: np.ndarray, reps: int) -> np.ndarray:
    """In place of each run one of the same game: their numbers, [reps, R]."""
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return first + rng.integers(np.repeat(sizes, sizes), size=(reps, len(first)))


def _draw_times(rng: np.random.Generator, sizes: np.ndarray, reps: int) -> np.ndarray:
    """How many times each run is drawn, f64 [reps, R]: enough for what is a sum over runs."""
    drawn = _draw(rng, sizes, reps)
    drawn += np.arange(reps)[:, None] * drawn.shape[1]
    return np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)


def _interval(resampled: np.ndarray) -> np.ndarray:
    """Of [..., reps] the ends of the 95 % interval, [2, ...]."""
    return np.percentile(resampled, [2.5, 97.5], axis=-1)
