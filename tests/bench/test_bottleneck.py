"""What `cleanba bench` names as the bottleneck, from hand-made measurements."""

import pytest

from cleanba import cleanba_ppo
from cleanba.bench.bottleneck import RunSpeed, bottleneck

GPU_RUN = RunSpeed(
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
    shares = GPU_RUN._replace(actor=GPU_RUN.actor | dict(inference=0.2)).actor_time()
    assert shares == pytest.approx(
        dict(environment=0.5, inference=0.05, queueing=0.15, handover=0.1, waiting=0.1, python=0.1)
    )
    shares = GPU_RUN._replace(actor=GPU_RUN.actor | dict(inference=0.55)).actor_time()  # 125 % in all
    assert shares == pytest.approx(
        dict(environment=0.4, inference=0.05, queueing=0.39, handover=0.08, waiting=0.08, python=0)
    )


@pytest.mark.parametrize(
    ("changes", "actor", "flags", "message"),
    [
        (dict(training=930.0), {}, {}, "environment-bound, 93 %: more cores help, nothing else does"),
        (
            {},
            dict(waiting=0.3),
            {},
            "actors wait for the learner 30 % of the time: `--concurrency` lets them overlap",
        ),
        (
            {},
            dict(waiting=0.3),
            dict(concurrency=True),
            "learner-bound: the learner is busy 40 % of the time, actors wait for it 30 % of the time: "
            "a larger `--gradient-chunk` (now 256), `--compute-dtype bfloat16` "
            "or more `--learner-device-ids` help",
        ),
        (
            dict(learner=dict(learning=0.97)),
            dict(inference=0.4),  # slow, as the device is learning
            dict(concurrency=True, compute_dtype="bfloat16", deterministic=False),
            "a larger `--gradient-chunk` (now 256) or more `--learner-device-ids` help",
        ),
        (
            {},
            dict(inference=0.36, environment=0.4),
            dict(concurrency=True),
            "actors wait 31 % of the time for the GPU, which is learning: lower `--gradient-chunk`",
        ),
        (
            {},
            dict(inference=0.36, environment=0.4),
            {},  # at lag 0 the learner is idle meanwhile
            "policy calls spend 31 % of the actors' time waiting for cores and Python's lock",
        ),
        (
            {},
            dict(inference=0.36, environment=0.4),
            dict(concurrency=True, learner_device_ids=(1,), inference_batch=32),
            "policy calls spend 31 % of the actors' time waiting for cores and Python's lock: "
            "a larger `--inference-batch` (now 32) needs fewer calls",
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
        (dict(environments=600.0), {}, {}, "environments run at 60 % of their ceiling: set `--env-stepping`"),
        (
            dict(platform="cpu", learning=625.0, inference=5000.0, environments=1000.0, training=300.0),
            {},
            {},
            "CPU-bound, as the cores do everything (alone: learning 48 %, inference 6 %, stepping env",
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
            "fewer `--num-actor-threads` (now 2) with more environments each (larger batches) or a GPU help",
        ),
        (
            dict(platform="cpu", training=300.0, environments=1000.0, learner=dict(learning=0.98)),
            {},
            {},
            "stepping environments 30 % of the time): more cores help",  # the learner shares them
        ),
    ],
)
def test_the_bottleneck_is_named_with_what_to_change(changes, actor, flags, message):
    measured = GPU_RUN._replace(actor=GPU_RUN.actor | actor, **changes)
    assert message in bottleneck(measured, cleanba_ppo.Args(**flags))


def test_an_algorithm_with_a_network_of_its_own_gets_no_advice_about_flags_for_networks():
    cpu = GPU_RUN._replace(platform="cpu", learning=625.0, inference=5000.0, training=300.0)
    gpu = GPU_RUN._replace(learner=dict(learning=0.97))
    for speed, named in ((cpu, "--network"), (gpu, "--compute-dtype")):
        args = cleanba_ppo.Args(concurrency=True)
        assert named in bottleneck(speed, args) and named not in bottleneck(speed, args, own_network=True)


def test_more_cores_are_no_advice_where_the_learner_never_waits():
    measured = GPU_RUN._replace(actor=GPU_RUN.actor | dict(environment=0.7), learner=dict(learning=0.97))
    message = bottleneck(measured, cleanba_ppo.Args(concurrency=True))
    assert message.startswith("learner-bound: the learner is busy 97 % of the time")
