"""The measurements of `cleanba bench`: the environments alone, the training, and their order."""

import time
from types import SimpleNamespace

import pytest

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.bench.ceilings import Stepping, stepping_candidates, steps_per_second
from cleanba.bench.measure import Bench, Part, measure
from cleanba.bench.trial import TrainingSpeed
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology

ONE_DEVICE = Topology((0,), (0,))


def test_the_speeds_of_threads_add_up():
    def work():
        time.sleep(0.02)
        return 6

    assert 100 < steps_per_second([work, work], seconds=0.3) <= 600


def test_stepping_candidates_are_the_runs_own_and_a_few_others():
    plan = BatchPlan.create(cleanba_impala.Args(), ONE_DEVICE)  # 2 × 64, async by 32
    cores = dict(cores=16, free_cores=14)
    assert stepping_candidates(plan, threads=7, **cores, background=False) == [
        Stepping(2, 64, 32, 7),  # the run's own
        Stepping(2, 64, 32, 8),
        Stepping(1, 128, 64, 16),
        Stepping(2, 64, 64, 8),
        Stepping(1, 128, 64, 14),
    ]
    assert stepping_candidates(plan, threads=8, **cores, background=True)[:2] == [
        Stepping(2, 64, 32, 8, background=True),
        Stepping(2, 64, 32, 8),
    ]
    tiny = cleanba_ppo.Args(local_num_envs=1, num_actor_threads=1)
    plan = BatchPlan.create(tiny, ONE_DEVICE)
    assert stepping_candidates(plan, threads=2, cores=2, free_cores=2, background=False) == [
        Stepping(1, 1, 1, 1)
    ]


def test_the_first_updates_of_a_training_do_not_count():
    seconds = [30.0, 5.0, 2.0, 1.0, 4.0]
    rows = [
        {
            "charts/SPS_update": 100 / s,
            "stats/update_seconds": s,
            "stats/actor_total_seconds": s,
            "stats/learner_total_seconds": s,
            "stats/actor_environment_seconds": s / 2,
            "stats/learner_learning_seconds": 1.0,
            "stats/digest_seconds": 0.1,
        }
        for s in seconds
    ]
    rows[-1]["stats/actor_waiting_seconds"] = 1.0  # missing where an update did not wait
    training = TrainingSpeed.from_rows(rows)
    assert training == ([50.0, 100.0, 25.0], {"environment": 0.5, "waiting": 0.0}, {"learning": 0.5})
    assert len(TrainingSpeed.from_rows(rows * 4).rates) == 15


def test_the_ceiling_is_measured_on_both_sides_of_the_training(monkeypatch):
    """On a machine that slows down: environments run at 1000 steps/s before the training, at 600 after it."""
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
    setup = SimpleNamespace(plan=SimpleNamespace(batch_size=15_000))  # five updates at 750 steps/s: 100 s

    def train(setup, make_algorithm, seconds, expected):
        order.append("training")
        assert expected == pytest.approx(1 / (1 / 900 + 1 / 4500))
        return TrainingSpeed([700.0, 720.0, 740.0], {}, {})

    monkeypatch.setattr("cleanba.bench.measure.measure_devices", lambda *_: {"learning": Part("", [4500.0])})
    monkeypatch.setattr("cleanba.bench.measure.measure_training", train)
    result = measure(setup, None, Slowing(), Bench(repeats=4), status=shown.append)
    assert order == [2, "training", 2]
    assert shown == ["environments", "training, about 2 min: 5 updates", "environments again"]
    assert result.parts["ceiling"] == (str(best), [1000.0, 1000.0, 600.0, 600.0])
    assert result.parts["ceiling"].rate == 800 and result.parts["training"].rate == 720
    assert result.parts["environments"].how == str(own) and list(result.stepped) == [own, best]
    order.clear()
    measure(setup, None, Slowing(), Bench(repeats=4, train_seconds=120), status=shown.append)
    assert shown[4] == "training"  # as long as asked for
