"""`cleanba report` groups runs and computes scores, curves and aggregates."""

import csv

import pytest
from helpers.report import compare_runs, make_run, notes_of

from cleanba.analysis.report.aggregates import aggregates, band, efficiency, improvements, normalised_scores
from cleanba.analysis.report.compare import settings
from cleanba.analysis.report.published import BASELINES, Published, read_baseline, read_published
from cleanba.analysis.report.tables import as_csv, as_markdown, duration, groups_table, scores_table
from cleanba.config.errors import UsageError


def test_scores_are_means_over_seeds(tmp_path):
    for seed, last in enumerate([3.0, 5.0, 10.0], 1):
        make_run(tmp_path, "Breakout-v5", "ppo", seed, [0.0, last])
    make_run(tmp_path, "Breakout-v5", "impala", 1, [0.0, 16.1])
    table = scores_table(compare_runs(tmp_path))
    (game, impala, ppo) = table.rows[0]
    assert table.header == ["Game", "impala", "ppo"] and game.text == "Breakout"
    assert ppo.text == "6.00 ± 3.61"  # deviations -3, -1 and 4: the root of 26 / 2
    assert ppo.parts["human-normalised"] == pytest.approx((6 - 1.7) / (30.5 - 1.7))
    assert impala.text == "16.1" and impala.small == "0.50 × human · 1 run"  # (16.1 - 1.7) / 28.8
    assert impala.is_best and not ppo.is_best


def test_a_table_has_a_column_for_a_group_without_scores(tmp_path):
    make_run(tmp_path, "Breakout-v5", "a|b")
    make_run(tmp_path, "Breakout-v5", "c", updates=9, finished=False)
    table = scores_table(compare_runs(tmp_path))
    header, values = csv.reader(as_csv(table).splitlines())
    assert dict(zip(header, values, strict=True))["c runs left out"] == "1"
    assert as_markdown(table).splitlines()[::2] == [
        "| Game | a\\|b | c |",
        "| Breakout | 3.00 (0.05 × human · 1 run) | – (0 of 1 runs) |",
    ]


def test_speed_and_time_of_a_group(tmp_path):
    make_run(tmp_path, "Breakout-v5", seed=1, returns=[1.0] * 900)  # 1,800 s
    make_run(tmp_path, "Breakout-v5", seed=2, returns=[1.0] * 900, updates=901, finished=False)
    table = groups_table(compare_runs(tmp_path))
    assert [value.text for value in table.rows[0]] == ["ppo", "1", "1 of 2", "50", "60.0 min"]
    assert as_csv(table).splitlines()[0].endswith("Time seconds")
    assert [duration(x).text for x in (9.9, 119, 7199, 7200)] == ["9.9 s", "119.0 s", "120.0 min", "2.0 h"]


def test_a_band_covers_what_all_complete_runs_have(tmp_path):
    make_run(tmp_path, "Breakout-v5", "ppo", 1, [0.0, 2.0, 4.0])
    make_run(tmp_path, "Breakout-v5", "ppo", 2, [2.0, 4.0, 6.0, 8.0])
    make_run(tmp_path, "Breakout-v5", "ppo", 3, [50.0], updates=3, finished=False)
    cell = compare_runs(tmp_path).cell("ppo", "Breakout")
    by_step, by_time = band(cell, "step"), band(cell, "seconds")
    assert (by_step.x[0], by_step.x[-1], by_time.x[-1]) == (100, 300, 6)
    assert by_step.mean[[0, -1]].tolist() == [1, 5] and by_time.mean[-1] == 5
    assert by_step.low[-1] == 4 and by_step.high[-1] == 6


def test_all_runs_can_be_compared_at_the_same_steps(tmp_path):
    make_run(tmp_path, "Breakout-v5", "ppo", 1, [1.0, 2.0, 3.0, 4.0])
    make_run(tmp_path, "Breakout-v5", "ppo", 2, [5.0, 6.0, 7.0], updates=9, finished=False)
    make_run(tmp_path, "Breakout-v5", "ppo", 3, [8.0])
    cell = compare_runs(tmp_path, steps=250).cell("ppo", "Breakout")
    assert cell.scores.tolist() == [2, 6]
    assert [run.seed for run in cell.short] == [3]


def test_runs_are_grouped_by_any_flags(tmp_path):
    make_run(tmp_path, "Breakout-v5", seed=1, gamma=0.9, num_steps=128)
    make_run(tmp_path, "Breakout-v5", seed=2, gamma=0.9, num_steps=20)
    make_run(tmp_path, "Breakout-v5", seed=3, gamma=0.99, num_steps=20)
    assert compare_runs(tmp_path, group_by=("num_steps",)).groups == ["num_steps 20", "num_steps 128"]
    comparison = compare_runs(tmp_path, group_by=("gamma", "num_steps"))
    assert comparison.groups == [
        "gamma 0.9, num_steps 20",
        "gamma 0.9, num_steps 128",
        "gamma 0.99, num_steps 20",
    ]
    assert settings(comparison)["gamma"] == dict(
        zip(comparison.groups, [["0.9"], ["0.9"], ["0.99"]], strict=True)
    )
    assert "seed" not in settings(comparison) and "layout" in settings(comparison)
    with pytest.raises(UsageError, match="--group-by gama: no run has this flag; did you mean gamma"):
        compare_runs(tmp_path, group_by=("gama",))


def test_runs_without_flags_form_no_group(tmp_path):
    make_run(tmp_path, "Breakout-v5")
    lost = make_run(tmp_path, "Breakout-v5", seed=2)
    (lost / "args.json").write_text("{")
    (tmp_path / "another tool").mkdir()
    (tmp_path / "another tool" / "args.json").write_text('{"lr": 1}')
    comparison = compare_runs(tmp_path)
    assert (comparison.groups, comparison.games) == (["ppo"], ["Breakout"])
    assert sorted(x.standing for x in comparison.listed) == ["counts", "not read", "not read"]


def test_aggregates_are_over_games_that_all_groups_have(tmp_path):
    """Normalised by hand: Breakout 1.7 and 30.5, Boxing 0.1 and 12.1 are 0 and 1."""
    for group, boxing in (("a", 12.1), ("b", 6.1)):
        make_run(tmp_path, "Breakout-v5", group, 1, [1.7, 30.5])
        make_run(tmp_path, "Boxing-v5", group, 1, [0.1, boxing])
    comparison = compare_runs(tmp_path)
    normalised = normalised_scores(comparison)
    assert normalised.games == ["Boxing", "Breakout"]
    found = aggregates(normalised)
    assert found["a"]["mean"].value == pytest.approx(1) and found["b"]["mean"].value == pytest.approx(0.75)
    assert found["b"]["optimality gap"].value == pytest.approx(0.25)
    curve = efficiency(comparison, normalised)["b"]
    assert curve.x[[0, -1]].tolist() == [400, 800]  # four frames per step
    assert curve.mean[[0, -1]] == pytest.approx([0, 0.75])
    (estimate, games) = improvements(comparison)["a", "b"]
    assert estimate.value == 0.75 and games == 2  # better on one game, the same on the other


def test_published_scores_are_shown_beside_the_runs(tmp_path):
    make_run(tmp_path / "runs", "Breakout-v5", "ppo", 1, [1.0, 16.1])
    make_run(tmp_path / "runs", "Pong-v5", "ppo", 1, [1.0, 14.6])
    file = tmp_path / "scores.csv"
    file.write_text(
        "game,system,score\nBreakout,DQN,30.5\nPong,DQN,14.6\n"
        "BreakoutNoFrameskip-v4,Rainbow,59.3\nAlien,DQN,3\n"
    )
    published = read_published(file)
    assert published.scores == {
        "DQN (published)": {"Breakout": 30.5, "Pong": 14.6, "Alien": 3},
        "Rainbow (published)": {"Breakout": 59.3},
    }
    comparison = compare_runs(tmp_path / "runs", published=published)
    found = aggregates(normalised_scores(comparison))
    assert found["DQN (published)"]["mean"] == pytest.approx((1, 1, 1))
    assert "Rainbow (published)" not in found  # it lacks a game
    table = scores_table(comparison)
    assert table.header[1:] == ["ppo", "DQN (published)", "Rainbow (published)"]
    assert [value.text for value in table.rows[0]] == ["Breakout", "16.1", "30.5", "59.3"]
    found_notes = notes_of(comparison)
    lacking = found_notes["Published systems left out of the aggregates: they lack scores for some games"]
    assert lacking == ["Rainbow (published): Pong"]
    assert found_notes["Published scores of games without runs"] == ["DQN (published): Alien"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("game,score\nPong,1\n", "must be a CSV with the header game,system,score; it has game; score"),
        ("Game;System;Score\nPong;DQN;1\n", "it has game;system;score"),
        ("game,system,score\nPong,DQN,many\n", "line 2: the score 'many' is not a number"),
        ("game,system,score\nPong,DQN\n", "line 2: the score None is not a number"),
        ("game,system,score\nPong,DQN,nan\n", "line 2: the score 'nan' is not a number"),
        ("game,system,score\nPong\n", "line 2: the game or the system is missing"),
        ("game,system,score\nPong,DQN,1\nPong-v5,DQN,2\n", "line 3: a second score of DQN for Pong-v5"),
    ],
)
def test_a_bad_baseline_is_refused(tmp_path, text, message):
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_published(tmp_path / "b.csv")


def test_the_baseline_that_comes_with_cleanba():
    """Every system has all 57 games, and its source is named; the figures are those of the paper's tables."""
    assert [*BASELINES] == ["cleanba-paper"]
    published = read_baseline("cleanba-paper")
    assert len(published.scores) == 11 and {len(scores) for scores in published.scores.values()} == {57}
    assert published.scores["CleanRL PPO (Sync), 1 A100, 10 CPU (published)"]["Alien"] == 3231.13
    assert "Huang et al. 2023" in published.source and "arXiv 2310.00036" in published.source
    some = read_baseline("cleanba-paper", ("cleanrl", "moolib"))
    assert {name.split()[0] for name in some.scores} == {"CleanRL", "Moolib"} and len(some.scores) == 3


def test_a_csv_of_scores_may_name_its_source(tmp_path):
    (tmp_path / "b.csv").write_text("# Mnih et al.\n# 2015\ngame,system,score\nPong,DQN,18.9\nPong,DQN,1\n")
    with pytest.raises(UsageError, match="line 5: a second score of DQN for Pong"):
        read_published(tmp_path / "b.csv")
    (tmp_path / "b.csv").write_text("# Mnih et al.\n# 2015\ngame,system,score\nPong,DQN,18.9\n")
    expected = Published({"DQN (published)": {"Pong": 18.9}}, "Mnih et al. 2015")
    assert read_published(tmp_path / "b.csv") == expected


def test_evaluation_scores_stand_beside_those_of_training(tmp_path):
    for seed, evaluation in enumerate(
        ['{"scores": {"episodic_return": 5.0}}', None, "[]", '{"scores": {"epi'], 1
    ):
        path = make_run(tmp_path, "CartPole-v1", "ppo", seed, [0.0, 4.0])
        if evaluation:
            (path / "evaluation.json").write_text(evaluation)
    going_on = make_run(tmp_path, "CartPole-v1", "ppo", 5, [0.0, 4.0], finished=False)
    (going_on / "evaluation.json").write_text('{"scores": {"episodic_return": 9.0}}')  # of an earlier end
    make_run(tmp_path, "CartPole-v1", "impala", 1, [0.0, 3.0])
    table = scores_table(compare_runs(tmp_path))
    assert table.header == ["Game", "impala", "ppo", "ppo (evaluation)"]
    assert [value.text for value in table.rows[0]] == ["CartPole-v1", "3.00", "4.00 ± 0.00", "5.00"]
    assert table.rows[0][3].small == "1 of 5 runs"
    assert scores_table(compare_runs(tmp_path, steps=100)).header == ["Game", "impala", "ppo"]


def test_one_run_that_beats_two_proves_little(tmp_path):
    """Resampling would give an interval without width. The score interval at its lower end, by hand: with 1
    and 2 runs the variance at θ is θ(1-θ)(1 + ((1-θ)/(2-θ) + θ/(1+θ)) / 2) / 2; at 0.2830 it is 0.1338, and
    1.96 times its root is 0.7170, the distance from 1."""
    for group, seed, score in (("a", 1, 9.0), ("b", 1, 1.0), ("b", 2, 2.0)):
        make_run(tmp_path, "Pong-v5", group, seed, [0.0, score])
    ((estimate, _),) = improvements(compare_runs(tmp_path)).values()
    assert estimate == pytest.approx((1, 0.2830, 1), abs=2e-4)
    assert str(estimate) == "1.00 [0.28, 1.00]"
