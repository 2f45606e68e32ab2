"""Aggregates against numbers worked out by hand and plain Python; intervals against closed forms, and against
the exact distribution over all resamples where there are few enough to list."""

import itertools
import tracemalloc

import numpy as np
import pytest

from cleanba.analysis import statistics
from cleanba.analysis.statistics import (
    AGGREGATES,
    Estimate,
    aggregate,
    aggregate_curve,
    mean_band,
    performance_profile,
    probability_of_improvement,
)


def games(*scores):
    return [np.array(game, float) for game in scores]


def random_games(seed, sizes=(3, 1, 5, 2, 4), points=()):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.5 * i, 1, (runs, *points)) for i, runs in enumerate(sizes)]


# ------------------------------------------------------------------------------------------------- By hand


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (range(1, 9), 4.5),  # of 3, 4, 5 and 6
        ([1000, 0, 100, -7, 3, 2, 1, 10], 4.0),  # of 1, 2, 3 and 10
        ([0, 1, 2, 3, 4, 5, 90], 3.0),  # of 7 runs, one is cut at each end
        ([1, 2, 6], 3.0),  # of 3 runs, none is cut
    ],
)
def test_iqm_by_hand(runs, expected):
    assert aggregate(games(runs), "iqm").value == pytest.approx(expected)
    assert aggregate([np.array([run], float) for run in runs], "iqm").value == pytest.approx(expected)


def test_games_with_different_numbers_of_runs_by_hand():
    scores = games([1, 2, 3], [10])  # game means 2 and 10
    assert aggregate(scores, "mean").value == 6
    assert aggregate(scores, "median").value == 6
    assert aggregate(scores, "iqm").value == 2.5  # of the runs 2 and 3
    assert aggregate(games([0, 0, 0], [1]), "optimality gap").value == 0.75  # three of four runs score 0


def test_the_median_is_of_games_not_of_runs():
    assert aggregate(games([0, 0, 9], [1, 1, 1], [2, 2, 2]), "median").value == 2  # of 3, 1, 2
    assert aggregate(games([0, 4], [3, 5]), "median").value == 3  # between 2 and 4


def test_scores_above_1_do_not_close_the_optimality_gap():
    scores = games([0.5, 3.0], [-1.0, 1.0])
    assert aggregate(scores, "optimality gap").value == (0.5 + 0 + 2 + 0) / 4


def test_probability_of_improvement_by_hand():
    # 1 ties with 1 and loses to 3, 2 beats 1 and loses to 3: 1.5 of 4. 5 beats 4, ties with 5, loses to 6.
    x, y = games([1, 2], [5]), games([1, 3], [4, 5, 6])
    assert probability_of_improvement(x, y).value == (1.5 / 4 + 1.5 / 3) / 2
    assert probability_of_improvement(y, x).value == 1 - (1.5 / 4 + 1.5 / 3) / 2
    assert probability_of_improvement(x, x) == (0.5, *probability_of_improvement(x, x)[1:])
    assert probability_of_improvement(games([3, 4]), games([1, 2])) == Estimate(1, 1, 1)


def test_performance_profile_by_hand():
    value, low, high = performance_profile(games([0, 0.5, 2], [1]), np.array([-1, 0, 0.4, 0.5, 1, 2]))
    np.testing.assert_array_equal(value, [1, 0.75, 0.75, 0.5, 0.25, 0])
    # The second game has a single run, always a quarter. Of the first game, all draws or none can be above.
    np.testing.assert_array_equal(low, [1, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(high, [1, 1, 1, 1, 0.75, 0])


@pytest.mark.parametrize("name", AGGREGATES)
def test_single_runs_give_intervals_without_width(name):
    """The bootstrap has nothing to vary, with one game or many."""
    one = 0.7 if name == "optimality gap" else 0.3
    assert aggregate(games([0.3]), name) == pytest.approx((one, one, one))
    value, low, high = aggregate(games([0.3], [0.6], [2.0], [-1.0]), name)
    assert value == low == high


# ----------------------------------------------------------------------------------------- In plain Python


def plain(name, scores):
    """The definitions, run by run."""
    means = sorted(sum(game) / len(game) for game in scores)
    runs = sorted(run for game in scores for run in game)
    if name == "mean":
        return sum(means) / len(means)
    if name == "median":
        return (means[(len(means) - 1) // 2] + means[len(means) // 2]) / 2
    if name == "iqm":
        for _ in range(len(runs) // 4):
            runs.remove(max(runs))
            runs.remove(min(runs))
        return sum(runs) / len(runs)
    return sum(1 - run for run in runs if run < 1) / len(runs)


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("seed", range(5))
def test_aggregates_against_plain_python(name, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, size=rng.integers(1, 9))
    flat = rng.normal(0.5, 1, (2, 3, sizes.sum()))
    actual = AGGREGATES[name](flat, sizes)
    assert actual.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        scores = np.split(flat[i, j], np.cumsum(sizes)[:-1])
        assert actual[i, j] == pytest.approx(plain(name, scores))
        assert aggregate(scores, name, reps=2).value == pytest.approx(plain(name, scores))


# ----------------------------------------------------------------------------------------------- Intervals


def resamples(scores):
    """All resamples, equally likely: n^n for a game with n runs, and all combinations over games."""
    return itertools.product(*(itertools.product(game, repeat=len(game)) for game in scores))


def assert_close_to_exact(low, high, exact):
    """20,000 draws estimate a probability of 2.5 % with a standard error of 0.11 %; 0.4 % is allowed."""
    for drawn, p in ((low, 0.025), (high, 0.975)):
        below, above = (
            np.quantile(exact, p - 0.004, method="lower"),
            np.quantile(exact, p + 0.004, method="higher"),
        )
        assert below - 1e-9 <= drawn <= above + 1e-9


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_against_all_resamples(name):
    scores = games([0.1, 0.35, 1.7], [0.2, 0.55, 0.9, 1.45])
    exact = [plain(name, resample) for resample in resamples(scores)]
    assert len(exact) == 27 * 256
    _, low, high = aggregate(scores, name, reps=20_000)
    assert_close_to_exact(low, high, exact)


def test_probability_of_improvement_against_all_resamples():
    x, y = games([0.1, 0.5, 1.7], [1.0, 2.0]), games([0.3, 0.5, 0.6], [1.5, 3.0])
    pairs = [
        sum((a > b) + (a == b) / 2 for a, b in itertools.product(xs, ys)) / 9
        for [xs], [ys] in itertools.product(resamples(x[:1]), resamples(y[:1]))
    ]
    others = [
        sum(a > b for a, b in itertools.product(xs, ys)) / 4
        for [xs], [ys] in itertools.product(resamples(x[1:]), resamples(y[1:]))
    ]
    exact = np.add.outer(pairs, others).ravel() / 2
    _, low, high = probability_of_improvement(x, y, reps=20_000)
    assert_close_to_exact(low, high, exact)


def test_performance_profile_against_all_resamples():
    scores, thresholds = games([0, 1, 2], [0.5, 1.5, 2.5, 3.5]), np.linspace(-0.25, 3.75, 9)
    flat = np.array([np.concatenate(resample) for resample in resamples(scores)])
    _, low, high = performance_profile(scores, thresholds, reps=20_000)
    for i, threshold in enumerate(thresholds):
        assert_close_to_exact(low[i], high[i], (flat > threshold).mean(axis=-1))


def test_mean_band_against_all_resamples():
    curves = np.random.default_rng(0).normal(size=(5, 4))
    exact = np.array([np.mean(drawn, axis=0) for [drawn] in resamples([curves])])
    assert exact.shape == (5**5, 4)
    low, high = mean_band(curves, reps=20_000)
    for i in range(4):
        assert_close_to_exact(low[i], high[i], exact[:, i])


def test_resampling_two_runs_is_like_tossing_two_coins():
    """The mean of 0 and 1 is 0, 1/2 or 1 in 1/4, 1/2 and 1/4 of the draws, and the mean of eight such games
    is Binomial(16, 1/2) / 16: 3 heads or fewer have a probability of 1.1 %, 4 or fewer of 3.8 %."""
    drawn = statistics.resample(np.random.default_rng(0), np.array([2]), 40_000)
    _, counts = np.unique(drawn.sum(axis=-1), return_counts=True)
    np.testing.assert_allclose(counts / 40_000, [0.25, 0.5, 0.25], atol=0.01)
    assert aggregate(games([0, 1]), "mean") == Estimate(0.5, 0, 1)
    eight = games(*[[0, 1]] * 8)
    assert aggregate(eight, "mean", reps=20_000) == Estimate(0.5, 4 / 16, 12 / 16)
    half = games(*[[0.5]] * 8)
    assert probability_of_improvement(eight, half, reps=20_000) == Estimate(0.5, 4 / 16, 12 / 16)


def test_the_width_follows_from_the_standard_error():
    """The mean of n runs drawn from n has a standard deviation of std / sqrt(n), and is close to normal."""
    runs = np.random.default_rng(0).normal(size=100)
    standard_error = runs.std() / 10
    value, low, high = aggregate([runs], "mean", reps=20_000)
    assert value == pytest.approx(runs.mean())
    assert (low, high) == pytest.approx(value + 1.96 * standard_error * np.array([-1, 1]), abs=0.01)
    band_low, band_high = mean_band(runs[:, None], reps=20_000)
    assert (band_low.item(), band_high.item()) == pytest.approx((low, high))
    # Variances of independent games add up; that of half their sum is a quarter.
    others = np.random.default_rng(1).normal(5, 2, size=25)
    standard_error = np.sqrt((runs.var() / 100 + others.var() / 25) / 4)
    value, low, high = aggregate([runs, others], "mean", reps=20_000)
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.05)


def test_95_percent_intervals_cover_the_truth():
    """A bootstrap of 20 runs covers it a little less often, as it underestimates the spread."""
    runs = np.random.default_rng(0).normal(1.0, 2.0, (200, 20))
    intervals = [aggregate([sample], "mean", reps=500, seed=i) for i, sample in enumerate(runs)]
    covered = np.mean([low <= 1.0 <= high for _, low, high in intervals])
    assert 0.9 <= covered <= 0.97


@pytest.mark.parametrize("name", AGGREGATES)
def test_games_are_not_resampled(name):
    """If the runs of each game are equal, the interval has no width, to the last bit."""
    scores = [np.full(1 + i % 3, score) for i, score in enumerate(np.random.default_rng(0).normal(size=57))]
    value, low, high = aggregate(scores, name)
    assert value == low == high


def test_games_are_not_resampled_in_comparisons_and_profiles():
    x, y = games([0, 0, 0], [5, 5], [9, 9]), games([1, 1], [5, 5], [8, 8, 8])
    assert probability_of_improvement(x, y) == Estimate(0.5, 0.5, 0.5)
    value, low, high = performance_profile(x, np.arange(10))
    np.testing.assert_array_equal(value, low)
    np.testing.assert_array_equal(value, high)


def test_both_sides_of_an_improvement_are_resampled():
    varied, constant = games([0, 1, 2, 3]), games([1.5] * 4)
    for x, y in ((varied, constant), (constant, varied)):
        assert probability_of_improvement(x, y, reps=20_000) == Estimate(0.5, 0, 1)  # 1/16 of draws are 0


def test_the_band_of_three_seeds_spans_the_lowest_to_the_highest():
    curves = np.random.default_rng(0).normal(size=(3, 120))
    low, high = mean_band(curves)
    np.testing.assert_allclose(low, curves.min(axis=0))
    np.testing.assert_allclose(high, curves.max(axis=0))


# ---------------------------------------------------------------------------------------------- Properties


@pytest.mark.parametrize("name", ["median", "iqm", "mean"])
def test_aggregates_scale_and_shift_with_the_scores(name):
    scores = random_games(0)
    expected = [3 * bound - 2 for bound in aggregate(scores, name)]
    assert aggregate([3 * game - 2 for game in scores], name) == pytest.approx(expected)
    flipped = aggregate([-game for game in scores], name)
    value, low, high = aggregate(scores, name)
    assert flipped == pytest.approx((-value, -high, -low))


def test_below_1_the_optimality_gap_is_1_minus_the_mean():
    scores = [game - 10 for game in random_games(0, sizes=(3, 3, 3))]
    value, low, high = aggregate(scores, "mean")
    assert aggregate(scores, "optimality gap") == pytest.approx((1 - value, 1 - high, 1 - low))
    assert aggregate([game + 100 for game in scores], "optimality gap") == Estimate(0, 0, 0)


def test_an_improvement_depends_only_on_the_order_of_runs():
    x, y = random_games(0), random_games(1)
    expected = probability_of_improvement(x, y)
    assert probability_of_improvement([np.exp(g) for g in x], [np.exp(g) for g in y]) == expected
    assert expected.low < expected.value < expected.high


def test_profiles_shift_with_the_scores_and_fall_with_the_threshold():
    scores, thresholds = random_games(0), np.linspace(-2, 4, 30)
    profile = performance_profile(scores, thresholds)
    np.testing.assert_array_equal(profile, performance_profile([g + 8 for g in scores], thresholds + 8))
    assert all((np.diff(line) <= 0).all() for line in profile)


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_curve_has_the_same_draws_at_every_point(name):
    """Whole runs are resampled, so each point is as if it were alone."""
    curves = random_games(0, points=(6,))
    value, low, high = aggregate_curve(curves, name, reps=200, seed=3)
    for i in range(6):
        alone = aggregate([game[:, i] for game in curves], name, reps=200, seed=3)
        assert (value[i], low[i], high[i]) == pytest.approx(alone)


def test_a_band_has_the_same_draws_at_every_point():
    curves = np.random.default_rng(0).normal(size=(6, 5))
    band = np.array(mean_band(curves, reps=200, seed=3))
    alone = [mean_band(curves[:, [i]], reps=200, seed=3) for i in range(5)]
    np.testing.assert_allclose(band, np.concatenate(alone, axis=1))
    np.testing.assert_allclose(mean_band(3 * curves - 2, reps=200, seed=3), 3 * band - 2)


def test_chunks_do_not_change_the_result(monkeypatch):
    curves = random_games(0, points=(7,))
    expected = aggregate_curve(curves, "iqm", reps=50)
    for chunk in (1, 2 * 50 * 15):  # one point at a time; two at a time, then the last one
        monkeypatch.setattr(statistics, "CHUNK", chunk)
        np.testing.assert_array_equal(aggregate_curve(curves, "iqm", reps=50), expected)


def test_memory_does_not_grow_with_the_points():
    curves = [np.zeros((3, 200)) for _ in range(57)]  # 200 points x 500 draws x 171 runs x 8 bytes: 137 MB
    tracemalloc.start()
    try:
        aggregate_curve(curves, "iqm", reps=500)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_the_same_seed_gives_the_same_draws():
    x, y, curves = random_games(0), random_games(1), random_games(2, points=(3,))
    calls = {
        "aggregate": lambda seed: aggregate(x, "iqm", reps=100, seed=seed),
        "curve": lambda seed: aggregate_curve(curves, "mean", reps=100, seed=seed),
        "profile": lambda seed: performance_profile(x, np.linspace(0, 2, 9), reps=100, seed=seed),
        "improvement": lambda seed: probability_of_improvement(x, y, reps=100, seed=seed),
        "band": lambda seed: mean_band(curves[2], reps=100, seed=seed),
    }
    for name, call in calls.items():
        np.testing.assert_array_equal(call(0), call(0), err_msg=name)
        assert not np.array_equal(call(0), call(1)), name


@pytest.mark.parametrize("scores", [[], games([1, 2], [])])
def test_no_scores_are_refused(scores):
    calls = [
        lambda: aggregate(scores, "mean"),
        lambda: aggregate_curve([game[:, None] for game in scores], "mean"),
        lambda: performance_profile(scores, np.array([0.5])),
        lambda: probability_of_improvement(scores, scores),
        lambda: mean_band(np.zeros((0, 3))),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="every game must have a run"):
            call()


def test_nan_and_infinite_scores_are_refused():
    with pytest.raises(ValueError, match="NaN or infinite"):
        aggregate(games([1, 2, 3, np.nan]), "iqm")
    with pytest.raises(ValueError, match="NaN or infinite"):
        probability_of_improvement(games([1, 2]), games([1, np.inf]))


def test_different_numbers_of_games_are_refused():
    with pytest.raises(ValueError, match="x has 2 games and y has 1"):
        probability_of_improvement(games([1], [2]), games([1]))
