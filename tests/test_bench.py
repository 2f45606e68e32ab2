"""`cleanba bench`: what is compared, what is made of the numbers, and a small one from end to end."""

import dataclasses
import json
import time
from types import SimpleNamespace

import pytest

from cleanba import cleanba_bench, cleanba_impala, cleanba_ppo
from cleanba.cleanba_bench import Bench, Part, make_run
from cleanba.sebulba.args import BatchPlan, UsageError
from cleanba.sebulba.bottleneck import Measured, bottleneck
from cleanba.sebulba.ceilings import Stepping, steps_per_second, ways_to_step
from cleanba.sebulba.topology import Topology
from cleanba.sebulba.trial import Training
from cleanba.sebulba.tune import Setting, neighbours, possible, tune

ONE_DEVICE = Topology((0,), (0,))
GIVEN = Setting(num_actor_threads=2, local_num_envs=64, inference_batch=32, gradient_chunk=256, env_threads=7)


# ------------------------------------------------------------------------------------------- measurements


def test_the_speeds_of_threads_add_up():
    def work():
        time.sleep(0.02)
        return 6

    assert 100 < steps_per_second([work, work], seconds=0.3) <= 600


def test_ways_to_step_are_the_runs_own_and_few_others():
    plan = BatchPlan.create(cleanba_impala.Args(), ONE_DEVICE)  # 2 × 64, async by 32
    cores = dict(cores=16, free_cores=14)
    assert ways_to_step(plan, threads=7, **cores, background=False) == [
        Stepping(2, 64, 32, 7),  # the run's own
        Stepping(2, 64, 32, 8),
        Stepping(1, 128, 64, 16),
        Stepping(2, 64, 64, 8),
        Stepping(1, 128, 64, 14),
    ]
    assert ways_to_step(plan, threads=8, **cores, background=True)[:2] == [
        Stepping(2, 64, 32, 8, background=True),
        Stepping(2, 64, 32, 8),
    ]
    tiny = cleanba_ppo.Args(local_num_envs=1, num_actor_threads=1)
    plan = BatchPlan.create(tiny, ONE_DEVICE)
    assert ways_to_step(plan, threads=2, cores=2, free_cores=2, background=False) == [Stepping(1, 1, 1, 1)]


def test_the_first_updates_of_a_training_do_not_count():
    seconds = [30.0, 5.0, 2.0, 1.0, 4.0]
    rows = [
        {
            "charts/SPS_update": 100 / s,
            "stats/update_seconds": s,
            "stats/actor_environment_seconds": s / 2,
            "stats/learner_learning_seconds": 1.0,
            "stats/digest_seconds": 0.1,
        }
        for s in seconds
    ]
    rows[-1]["stats/actor_waiting_seconds"] = 1.0  # not all updates have to wait
    training = Training.of(rows)
    assert training == ([50.0, 100.0, 25.0], {"environment": 0.5, "waiting": 0.0}, {"learning": 0.5})
    assert len(Training.of(rows * 4).rates) == 15


def test_the_ceiling_is_measured_on_both_sides_of_the_training(monkeypatch):
    """On a machine that slows down: environments at 1000, then at 600 steps/s; in between, the training."""
    own, best = Stepping(1, 8, 4, 2), Stepping(1, 8, 8, 2)
    order = []

    class Slowing:
        def __init__(self):
            self.own = own

        def rounds(self, number):
            order.append(number)
            rate = 1000.0 if len(order) == 1 else 600.0
            return {own: [rate - 100] * number, best: [rate] * number}

    shown = []
    run = SimpleNamespace(plan=SimpleNamespace(batch_size=15_000))  # five at 750 steps/s: 100 s

    def train(run, make_algorithm, seconds, expected):
        order.append("training")
        assert expected == pytest.approx(1 / (1 / 900 + 1 / 4500))
        return Training([700.0, 720.0, 740.0], {}, {})

    monkeypatch.setattr(cleanba_bench, "measure_devices", lambda *_: {"learning": Part("", [4500.0])})
    monkeypatch.setattr(cleanba_bench, "measure_training", train)
    found = cleanba_bench.measure(run, None, Slowing(), Bench(repeats=4), now=shown.append)
    assert order == [2, "training", 2]
    assert shown == ["environments", "training, about 2 min: 5 updates", "environments again"]
    assert found.parts["ceiling"] == (str(best), [1000.0, 1000.0, 600.0, 600.0])
    assert found.parts["ceiling"].rate == 800 and found.parts["training"].rate == 720
    assert found.parts["environments"].how == str(own) and list(found.stepped) == [own, best]
    order.clear()
    cleanba_bench.measure(run, None, Slowing(), Bench(repeats=4, train_seconds=120), now=shown.append)
    assert shown[4] == "training"  # as long as asked for


# --------------------------------------------------------------------------------------------- bottleneck

FAST = Measured(
    ceiling=1000.0,
    environments=950.0,
    inference=10_000.0,
    learning=2000.0,
    training=500.0,
    actor=dict(environment=0.5, inference=0.1, handover=0.1, waiting=0.1),
    learner=dict(learning=0.4, waiting=0.6, publishing=0.0),
    platform="gpu",
)


def test_all_of_the_actors_time_is_accounted_for():
    time_of = FAST._replace(actor=FAST.actor | dict(inference=0.2)).time_of_actors()
    assert time_of == pytest.approx(
        dict(environment=0.5, inference=0.05, queueing=0.15, handover=0.1, waiting=0.1, python=0.1)
    )
    time_of = FAST._replace(actor=FAST.actor | dict(inference=0.55)).time_of_actors()  # 125 % in all
    assert time_of == pytest.approx(
        dict(environment=0.4, inference=0.05, queueing=0.39, handover=0.08, waiting=0.08, python=0)
    )


@pytest.mark.parametrize(
    ("changes", "actor", "flags", "told"),
    [
        (dict(training=930.0), {}, {}, "environment-bound, 93 %: more cores help, nothing else does"),
        ({}, dict(waiting=0.3), {}, "actors wait 30 % for the learner: `--concurrency` lets them overlap"),
        (
            {},
            dict(waiting=0.3),
            dict(concurrency=True),
            "learner-bound: it learns 40 % of the time, actors wait 30 % for it: a larger `--gradient-chunk` "
            "(now 256), `--compute-dtype bfloat16` or more `--learner-device-ids` help",
        ),
        (
            dict(learner=dict(learning=0.97)),
            dict(inference=0.4),  # the device learns
            dict(concurrency=True, compute_dtype="bfloat16", deterministic=False),
            "a larger `--gradient-chunk` (now 256) or more `--learner-device-ids` help",
        ),
        (
            {},
            dict(inference=0.36, environment=0.4),
            dict(concurrency=True),
            "actors wait 31 % for the GPU, which learns: lower `--gradient-chunk`",
        ),
        (
            {},
            dict(inference=0.36, environment=0.4),
            {},  # at lag 0 nothing learns meanwhile
            "calls of the policy take 31 % of the actors' time longer than alone",
        ),
        (
            {},
            dict(inference=0.36, environment=0.4),
            dict(concurrency=True, learner_device_ids=(1,), inference_batch=32),
            "calls of the policy take 31 % of the actors' time longer than alone, because cores and Python's "
            "lock are taken: a larger `--inference-batch` (now 32) needs fewer",
        ),
        (
            dict(inference=1000.0),
            dict(inference=0.4, environment=0.4),
            {},
            "inference takes 40 % of the actors' time",
        ),
        ({}, dict(handover=0.3), {}, "copies to the learners take 30 % of the actors' time"),
        ({}, dict(environment=0.3), {}, "Python takes 40 % of the actors' time"),
        (
            dict(training=880.0, inference=5500.0),
            dict(environment=0.67, inference=0.16, handover=0.05, waiting=0.0),
            dict(concurrency=True),
            "mostly environment-bound, 88 %: more cores help. Then: inference takes 16 % of the actors' time",
        ),
        (dict(environments=600.0), {}, {}, "environments are stepped at 60 % of their ceiling: step them as"),
        (
            dict(platform="cpu", learning=625.0, inference=5000.0, environments=1000.0, training=300.0),
            {},
            {},
            "bound by the cores, which do everything (alone: learning 48 %, inference 6 %, stepping env",
        ),
        (
            dict(platform="cpu", training=300.0, environments=1000.0),
            {},
            {},
            "bound by Python and waiting, 52 % of the time",
        ),
        (
            dict(platform="cpu", training=300.0, inference=400.0),
            {},
            {},
            "fewer `--num-actor-threads` (now 2) with more environments each, and so larger batches, help",
        ),
        (
            dict(platform="cpu", training=300.0, environments=1000.0, learner=dict(learning=0.98)),
            {},
            {},
            "stepping environments 30 % of the time): more cores help",  # which the learner shares
        ),
    ],
)
def test_the_bottleneck_is_named_with_what_to_change(changes, actor, flags, told):
    measured = FAST._replace(actor=FAST.actor | actor, **changes)
    assert told in bottleneck(measured, cleanba_ppo.Args(**flags))


def test_more_cores_are_no_advice_where_the_learner_never_waits():
    measured = FAST._replace(actor=FAST.actor | dict(environment=0.7), learner=dict(learning=0.97))
    told = bottleneck(measured, cleanba_ppo.Args(concurrency=True))
    assert told.startswith("learner-bound: it learns 97 % of the time")


# ------------------------------------------------------------------------------------------------- tuning


def test_neighbours_keep_the_environments_and_share_the_cores_out():
    threads, inference, chunk, env_threads = neighbours(GIVEN, actor_devices=1, cores=16, free_cores=14)
    assert threads == [Setting(1, 128, 64, 256, 14), Setting(4, 32, 16, 256, 3)]
    assert [s.inference_batch for s in inference] == [16, 64]
    assert [s.gradient_chunk for s in chunk] == [128, 512]
    assert [s.env_threads for s in env_threads] == [4, 7, 8]
    odd = Setting(3, 5, 5, 256, 1)
    assert neighbours(odd, actor_devices=1, cores=2, free_cores=2)[0] == [Setting(1, 15, 15, 256, 3)]


def test_settings_that_would_be_refused_are_not_tried():
    args = cleanba_bench.ImpalaArgs(env_id="CartPole-v1", local_num_envs=8, num_actor_threads=1)
    run = make_run(args, cleanba_impala.make_algorithm)
    accept = lambda setting: possible(run, cleanba_impala.make_algorithm, setting)  # noqa: E731
    assert accept(Setting(1, 8, 3, 40, 1)) is None  # 3 does not divide 8
    assert accept(Setting(4, 2, 2, 40, 1)) is None  # 4 minibatches of 2 environments
    assert accept(Setting(1, 8, 4, 512, 1)) == Setting(1, 8, 4, 40, 1)  # a chunk is at most a minibatch


def speed(setting):
    """Best with 4 threads and chunks of 64."""
    return 1000 - 100 * abs(setting.num_actor_threads - 4) - abs(setting.gradient_chunk - 64)


EACH = dict(expected=608.0, seconds_each=1.0)  # of the given setting


def options(setting):
    return neighbours(setting, actor_devices=1, cores=16, free_cores=14)


def test_tuning_goes_on_as_far_as_it_helps():
    tuned = tune(GIVEN, options, speed, **EACH, seconds=1e9, repeats=3)
    assert tuned.best._replace(env_threads=0) == Setting(4, 32, 16, 64, 0)
    assert tuned.is_better and tuned.given_again == [608] * 3 and tuned.best_again == [1000] * 3
    assert tuned.gain == pytest.approx(1000 / 608 - 1)
    assert len(tuned.tried) == len(set(tuned.tried)) < 20
    assert "--num-actor-threads 4 --local-num-envs 32" in cleanba_bench.advice(tuned)


def test_noise_does_not_pick_the_winner():
    rates = iter([100, 130] + [100] * 50)  # one lucky measurement

    tuned = tune(GIVEN, options, lambda setting: next(rates), **EACH, seconds=1e9, repeats=3)
    assert tuned.best != GIVEN and not tuned.is_better
    assert "keep your flags" in cleanba_bench.advice(tuned)
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
    """Comparing alone takes six more."""
    tuned = tune(GIVEN, options, pytest.fail, expected=20.0, seconds_each=50, seconds=300, repeats=3)
    assert tuned == ({GIVEN: 20.0}, GIVEN, [], [])
    assert "no time to try others; give more --tune-minutes" in cleanba_bench.advice(tuned)


def test_what_was_measured_is_kept_when_tuning_is_interrupted(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        record = json.loads((tmp_path / "bench.json").read_text())
        assert record["parts"]["training"]["steps_per_second"] > 0 and (tmp_path / "bench.png").exists()
        raise UsageError("as if by Ctrl-C")

    monkeypatch.setattr(cleanba_bench, "tune_run", interrupted)
    with pytest.raises(SystemExit):
        cleanba_bench.main(["impala", *SMALL.split(), *QUICK.split(), "--out", str(tmp_path)])
    assert json.loads((tmp_path / "bench.json").read_text())["tune"] is None


# ---------------------------------------------------------------------------------------------- end to end

SMALL = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 8 --hiddens 16"
QUICK = "--seconds 0.1 --repeats 1 --train-seconds 0.4 --tune --tune-minutes 0.05"


def test_a_small_benchmark(tmp_path, capsys):
    cleanba_bench.main(["impala", *SMALL.split(), *QUICK.split(), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "bench.json").read_text())
    parts = record["parts"]
    assert list(parts) == ["ceiling", "environments", "inference", "learning", "copies", "training"]
    for part in parts.values():
        assert part["label"] in said and f"{part['steps_per_second']:,.0f}" in said
        assert min(part["rates"]) > 0
    assert parts["ceiling"]["steps_per_second"] >= parts["environments"]["steps_per_second"]
    assert parts["training"]["steps_per_second"] < parts["ceiling"]["steps_per_second"]
    assert parts["learning"]["how"].startswith(f"{len(parts['learning']['rates'])} × ")
    assert record["bottleneck"] in said and record["tune"]["advice"] in said
    assert record["machine"]["cores"] and record["plan"]["batch_size"] == 32
    assert record["command"].startswith("cleanba bench impala --env-id CartPole-v1")
    assert (tmp_path / "bench.png").stat().st_size > 20_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--track", "--track has no place in a benchmark of one process; leave it out"),
        ("impala --resume auto", "--resume has no place"),
        ("--distributed", "--distributed has no place"),
        ("ppo --seconds 0", "--seconds 0.0 is too small"),
        ("--out /dev/null", "--out /dev/null cannot be written"),
        ("sac", "cannot measure 'sac'; give ppo or impala"),
        ("--env-id Brekout-v5", "did you mean Breakout"),
    ],
)
def test_bad_input_is_refused_at_once(argv, message, capsys):
    with pytest.raises(SystemExit) as exit:
        cleanba_bench.main(argv.split())
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(("argv", "defaults"), [("--help", "cleanba_ppo)"), ("impala -h", "cleanba_impala)")])
def test_help_has_the_flags_of_both(argv, defaults, capsys):
    with pytest.raises(SystemExit) as exit:
        cleanba_bench.main(argv.split())
    said = capsys.readouterr().out
    assert exit.value.code == 0
    for text in ("ppo", "impala", "bench options", "--tune-minutes", "--gradient-chunk", defaults):
        assert text in said


def test_the_flags_are_those_of_the_training():
    own = {field.name for field in dataclasses.fields(cleanba_bench.Bench)}
    for ours, theirs in (
        (cleanba_bench.PPOArgs(), cleanba_ppo.Args()),
        (cleanba_bench.ImpalaArgs(), cleanba_impala.Args()),
    ):
        assert {name: value for name, value in vars(ours).items() if name not in own} == vars(theirs)
