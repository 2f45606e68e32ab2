"""`cleanba report` says what is missing, damaged, or not comparable."""

import itertools
import json

import pytest
from helpers.report import compare_runs, make_run, notes_of

from cleanba.analysis.report.aggregates import band, normalised_scores
from cleanba.analysis.report.figures import Look, curves_of_game, time_axis
from cleanba.analysis.report.make import panel
from cleanba.analysis.report.notes import NO_COMMON_TIME
from cleanba.analysis.report.tables import scores_table

INCOMPLETE = "Incomplete runs: drawn as thin dotted lines, left out of all scores"
REPEATED = "Runs with the same group, game and seed: only one of them counts"


def test_runs_that_do_not_count_are_noted(tmp_path):
    for game in ("Breakout-v5", "Pong-v5"):
        for seed in (1, 2):
            make_run(tmp_path, game, "ppo", seed, [1.0, 2.0])
    make_run(tmp_path, "Breakout-v5", "ppo", 3, [9.0], updates=2, finished=False)  # short
    make_run(tmp_path, "Breakout-v5", "ppo", 2, [99.0], updates=2, finished=False, name="again")  # repeated
    make_run(tmp_path, "Pong-v5", "ppo", 4, [], updates=2, finished=False)  # empty
    make_run(tmp_path, "Pong-v5", "impala", 1, [1.0] * 4, episodes=7, gamma=0.9)  # other frames, few episodes
    make_run(tmp_path, "CartPole-v1", "impala", 2, [1.0] * 4, gamma=0.99)
    comparison = compare_runs(tmp_path)
    normalised = normalised_scores(comparison)
    assert normalised.games == ["Pong"] and set(normalised.groups) == {"impala", "ppo"}
    assert comparison.cell("ppo", "Breakout").scores.tolist() == [2, 2]
    assert notes_of(comparison) == {
        "Runs without data": ["Pong-v5__ppo__4__1700000000: no update yet"],
        INCOMPLETE: ["Breakout, ppo, seed 3: stopped at 100 of 200 steps"],
        REPEATED: ["Breakout, ppo, seed 2: again does not count"],
        "Missing seeds": [
            "CartPole-v1, impala: 1",
            "Pong, impala: 2",
            "Breakout, ppo: 4",
            "Pong, ppo: 3, 4",
            "impala, all games: 3, 4",
        ],
        "Games that some groups lack": ["Breakout: not in impala", "CartPole-v1: not in ppo"],
        "Settings that differ within a group": ["impala: gamma is 0.99 or 0.9"],
        "Scores taken at different numbers of frames": ["Pong: impala 1,600; ppo 800"],
        "Scores over fewer than 100 episodes": ["Pong, impala, seed 1: 7"],
        "Games with one complete run of a group: nothing shows how its scores vary between seeds": [
            "impala: CartPole-v1, Pong"
        ],
        "Games left out of the aggregates: they need a human score and a complete run of every group": [
            "Breakout: no complete run of impala",
            "CartPole-v1: no human score is known",
        ],
    }


def test_a_complete_comparison_has_no_notes(tmp_path):
    for group, seed in itertools.product(("ppo", "impala"), (1, 2)):
        make_run(tmp_path, "Breakout-v5", group, seed, episodes=100)
    assert notes_of(compare_runs(tmp_path)) == {}


@pytest.mark.parametrize(("updates", "expected"), [(97, ["Pong: impala 38,800; ppo 40,000"]), (99, None)])
def test_numbers_of_frames_may_differ_by_a_last_update(tmp_path, updates, expected):
    make_run(tmp_path, "Pong-v5", "ppo", returns=[1.0] * 100)
    make_run(tmp_path, "Pong-v5", "impala", returns=[1.0] * updates)
    found = notes_of(compare_runs(tmp_path))
    assert found.get("Scores taken at different numbers of frames") == expected


def test_a_group_without_complete_runs_has_no_note_on_its_curve(tmp_path):
    make_run(tmp_path, "Breakout-v5", updates=9, finished=False)
    found = notes_of(compare_runs(tmp_path))
    assert found[INCOMPLETE] == ["Breakout, ppo, seed 1: stopped at 300 of 900 steps"]
    assert not [heading for heading in found if heading.startswith("Mean curves")]


def test_repeated_runs_with_different_flags_can_be_separated(tmp_path):
    for rate in (0.1, 0.2):
        make_run(tmp_path, "Breakout-v5", learning_rate=rate, name=f"with {rate}")
    (line,) = notes_of(compare_runs(tmp_path))[REPEATED]
    assert line == (
        "Breakout, ppo, seed 1: with 0.1 does not count; it has a different learning_rate: "
        "use --group-by exp_name learning_rate to separate them"
    )
    by_rate = compare_runs(tmp_path, group_by=("learning_rate",))
    assert {x.standing for x in by_rate.listed} == {"counts"}


def test_seeds_without_common_time_have_a_line_each(tmp_path):
    make_run(tmp_path, "Breakout-v5", seed=1)
    late = make_run(tmp_path, "Breakout-v5", seed=2)
    rows = [json.loads(line) for line in (late / "metrics.jsonl").read_text().splitlines()]
    for entry in rows:
        entry["seconds"] += 100.0
    (late / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    comparison = compare_runs(tmp_path)
    cell = comparison.cell("ppo", "Breakout")
    assert band(cell, "seconds") is None and band(cell, "step") is not None
    assert notes_of(comparison)[NO_COMMON_TIME] == ["Breakout, ppo"]
    drawn = panel(comparison, "Breakout", "seconds")
    assert [list(x) for x, _ in drawn.seeds["ppo"]] == [[2.0, 4.0, 6.0], [102.0, 104.0, 106.0]]
    assert not panel(comparison, "Breakout", "step").seeds
    look = {"ppo": Look.of_group(0)}
    (axes,) = curves_of_game(drawn, look, time_axis(drawn.longest())).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[2.0, 4.0, 6.0], [102.0, 104.0, 106.0]]
    assert axes.get_xlim() == (0, pytest.approx(1.04 * 106))


def test_a_run_without_episodes_is_not_a_missing_seed(tmp_path):
    make_run(tmp_path, "Breakout-v5", seed=1)
    make_run(tmp_path, "Breakout-v5", seed=2, returns=[1.0] * 9)
    comparison = compare_runs(tmp_path, steps=50)  # before the first update
    assert [x.standing for x in comparison.listed] == ["no episode"] * 2
    assert scores_table(comparison).rows[0][1].small == "0 of 2 runs"
    assert "Missing seeds" not in notes_of(comparison)


def test_a_group_without_complete_runs_is_left_out_of_the_aggregates(tmp_path):
    make_run(tmp_path, "Breakout-v5", "a")
    make_run(tmp_path, "Breakout-v5", "b", finished=False, updates=9)
    comparison = compare_runs(tmp_path)
    normalised = normalised_scores(comparison)
    assert normalised.games == ["Breakout"] and list(normalised.groups) == ["a"]
    assert notes_of(comparison)["Groups left out of the aggregates"] == [
        "b: no complete run of an Atari game"
    ]


def test_different_env_ids_of_a_game_are_noted(tmp_path):
    for seed, env_id in enumerate(["Breakout-v5", "BreakoutNoFrameskip-v4"]):
        make_run(tmp_path, env_id, seed=seed)
    found = notes_of(compare_runs(tmp_path))
    assert found["Games with more than one env id"] == ["Breakout: Breakout-v5 and BreakoutNoFrameskip-v4"]
