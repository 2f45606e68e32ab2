"""`cleanba bench --tune`: the settings it tries, and which it recommends."""

import dataclasses

import pytest

from cleanba import cleanba_bench, cleanba_impala
from cleanba.bench.show import advice
from cleanba.bench.tune import Setting, feasible, neighbours, tune

GIVEN = Setting(num_actor_threads=2, local_num_envs=64, inference_batch=32, gradient_chunk=256, env_threads=7)


def test_neighbours_keep_the_environments_and_share_the_cores_out():
    threads, inference, chunk, env_threads = neighbours(GIVEN, actor_devices=1, cores=16, free_cores=14)
    assert threads == [Setting(1, 128, 64, 256, 14), Setting(4, 32, 16, 256, 3)]
    assert [s.inference_batch for s in inference] == [16, 64]
    assert [s.gradient_chunk for s in chunk] == [128, 512]
    assert [s.env_threads for s in env_threads] == [4, 7, 8]
    odd = Setting(3, 5, 5, 256, 1)
    assert neighbours(odd, actor_devices=1, cores=2, free_cores=2)[0] == [Setting(1, 15, 15, 256, 3)]


def test_settings_that_would_be_refused_are_not_tried():
    small = dict(env_id="CartPole-v1", local_num_envs=8, num_actor_threads=1)
    args = dataclasses.replace(cleanba_bench.bench_args(cleanba_impala.Args), **small)
    setup = cleanba_bench.bench_setup(args, cleanba_impala.make_algorithm)
    accept = lambda setting: feasible(setup, cleanba_impala.make_algorithm, setting)  # noqa: E731
    assert accept(Setting(1, 8, 3, 40, 1)) is None  # 3 does not divide 8
    assert accept(Setting(4, 2, 2, 40, 1)) is None  # 4 minibatches of 2 environments
    assert accept(Setting(1, 8, 4, 512, 1)) == Setting(1, 8, 4, 40, 1)  # a chunk is at most a minibatch


def speed(setting):
    """Fastest with 4 threads and chunks of 64."""
    return 1000 - 100 * abs(setting.num_actor_threads - 4) - abs(setting.gradient_chunk - 64)


EACH = dict(expected=608.0, seconds_each=1.0)  # of the given setting


def options(setting):
    return neighbours(setting, actor_devices=1, cores=16, free_cores=14)


def test_tuning_continues_as_long_as_it_helps():
    tuned = tune(GIVEN, options, speed, **EACH, seconds=1e9, repeats=3)
    assert tuned.best._replace(env_threads=0) == Setting(4, 32, 16, 64, 0)
    assert tuned.is_better and tuned.given_again == [608] * 3 and tuned.best_again == [1000] * 3
    assert tuned.gain == pytest.approx(1000 / 608 - 1)
    assert len(tuned.tried) == len(set(tuned.tried)) < 20
    assert "--num-actor-threads 4 --local-num-envs 32" in advice(tuned)


def test_noise_does_not_pick_the_winner():
    rates = iter([100, 130] + [100] * 50)  # one lucky trial

    tuned = tune(GIVEN, options, lambda setting: next(rates), **EACH, seconds=1e9, repeats=3)
    assert tuned.best != GIVEN and not tuned.is_better
    assert "keep your flags" in advice(tuned)
    assert not tuned._replace(given_again=[100, 110, 120], best_again=[115, 118, 125]).is_better
    assert tuned._replace(given_again=[100, 110, 120], best_again=[121, 125, 122]).is_better


@pytest.mark.parametrize(("minutes", "trials", "again"), [(5, 1, 0), (6, 1, 0), (9, 3, 3), (20, 14, 3)])
def test_tuning_keeps_its_time_and_leaves_enough_to_compare_again(minutes, trials, again):
    now = [0.0]

    def minute(setting):
        now[0] += 60
        return speed(setting)

    tuned = tune(GIVEN, options, minute, **EACH, seconds=60 * minutes, repeats=3, clock=lambda: now[0])
    assert (len(tuned.tried), len(tuned.best_again)) == (trials, again)
    assert now[0] <= 60 * minutes


def test_nothing_is_tried_that_would_take_too_long():
    """The comparison alone takes six trials."""
    tuned = tune(GIVEN, options, pytest.fail, expected=20.0, seconds_each=50, seconds=300, repeats=3)
    assert tuned == ({GIVEN: 20.0}, GIVEN, [], [])
    assert "no time to try alternatives; give more --tune-minutes" in advice(tuned)
