"""The contract: same seed, same run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cleanba.sebulba.algorithm import Loss
from cleanba.sebulba.networks import Decision

# Small, because plain SGD on pictures is chaotic: 8e-8 apart after five updates at 0.001, 1e-5 at 0.002.
SGD = dict(optimizer=optax.identity(), learning_rate=lambda update: 0.001)
ATARI = dict(env_id="Breakout-v5", network="impala", channels=(4, 4), hiddens=(16,), num_steps=16)


def digests(rows):
    return [(row["data_digest"], row["params_digest"]) for row in rows]


def distance(a, b):
    """The largest difference of any param."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


@pytest.mark.parametrize("concurrency", [False, True], ids=["lag0", "lag1"])
def test_the_same_command_twice_gives_the_same_bits(run, concurrency):
    flags = dict(num_actor_threads=2, concurrency=concurrency, total_timesteps=12 * 16 * 8)
    first, again = (digests(run(**flags)[1]) for _ in range(2))
    assert first == again
    assert len(first) == 12
    assert len({params for _, params in first}) == len({data for data, _ in first}) == 12


@pytest.mark.parametrize("concurrency", [False, True], ids=["lag0", "lag1"])
def test_the_same_command_twice_gives_the_same_bits_on_atari(run, concurrency):
    """Sticky actions, two threads, two learners, batches cut in two, short and padded chunks."""
    flags = ATARI | dict(
        num_actor_threads=2,
        learner_device_ids=(1, 2),
        concurrency=concurrency,
        inference_batch=2,
        gradient_accumulation_steps=3,
        total_timesteps=3 * 16 * 8,
    )
    first, again = (digests(run(**flags)[1]) for _ in range(2))
    assert first == again and len(first) == 3


def test_another_seed_is_another_run(run):
    one, two = (digests(run(seed=seed)[1]) for seed in (1, 2))
    assert not set(one) & set(two)


LAYOUTS = {
    "a0-l0": dict(local_num_envs=8, num_actor_threads=1),
    "a0-l1,2": dict(local_num_envs=8, num_actor_threads=1, learner_device_ids=(1, 2)),
    "a0-l1,2,3,4": dict(local_num_envs=8, num_actor_threads=1, learner_device_ids=(1, 2, 3, 4)),
    "a0,1-l2,3": dict(
        local_num_envs=4, num_actor_threads=1, actor_device_ids=(0, 1), learner_device_ids=(2, 3)
    ),
    "a0-l0, two threads": dict(local_num_envs=4, num_actor_threads=2),
}


@pytest.mark.parametrize(
    ("env", "concurrency"),
    [
        pytest.param({}, False, id="CartPole-lag0"),
        pytest.param({}, True, id="CartPole-lag1"),
        pytest.param(ATARI, False, id="Breakout-lag0", marks=pytest.mark.slow),
        pytest.param(ATARI, True, id="Breakout-lag1", marks=pytest.mark.slow),
    ],
)
def test_layouts_with_the_same_environments_give_the_same_run(run, env, concurrency):
    """The same data to the bit in the first update; the same params up to float reassociation after five."""
    same = env | dict(inference_batch=4, concurrency=concurrency, total_timesteps=5 * 16 * 8)
    runs = {name: run(SGD, **same, **layout) for name, layout in LAYOUTS.items()}
    reference, reference_rows = runs.pop("a0-l0")
    for name, (outcome, rows) in runs.items():
        assert rows[0]["data_digest"] == reference_rows[0]["data_digest"], name
        assert distance(outcome.params, reference.params) < 1e-5, name
    start, _ = run(SGD | dict(learning_rate=lambda update: 0.0), **same, **LAYOUTS["a0-l0"])
    assert distance(start.params, reference.params) > 1e-3, "SGD did not move: no test"


def test_chunks_change_no_more_than_the_last_bits(run):
    whole, _ = run(SGD, gradient_chunk=1000)
    for flags in (dict(gradient_chunk=3), dict(gradient_accumulation_steps=5)):
        chunked, _ = run(SGD, **flags)
        assert distance(whole.params, chunked.params) < 1e-5


def test_how_environments_are_stepped_changes_no_bit(run):
    assert digests(run(env_threads=1)[1]) == digests(run(env_threads=4)[1])


@pytest.mark.parametrize(("concurrency", "versions"), [(False, [0, 1, 2, 3, 4]), (True, [0, 0, 1, 2, 3])])
def test_the_policy_lag_is_exact(run, concurrency, versions):
    """The only param counts the updates, and the policy reports it as the value of every observation."""
    seen = []

    def act(key, params, obs, env_id, step):
        zeros = jnp.zeros(len(obs), jnp.int32)
        return Decision(zeros, zeros.astype(jnp.float32), params + zeros)

    def prepare(params, rollout):
        jax.debug.callback(lambda value: seen.append(float(value)), rollout.value.mean())
        return rollout.value

    def loss(params, rows, mask, statistics):
        one = jnp.ones(())
        return Loss(-params, denominator=one, metrics={}, rows=one)  # the gradient is -1: an update adds 1

    run(
        dict(
            init=lambda key: jnp.zeros(()),
            act=act,
            prepare=prepare,
            statistics=lambda rows, mask, global_sum: jnp.zeros(()),
            loss=loss,
            optimizer=optax.identity(),
            learning_rate=lambda update: 1.0,
            epochs=1,
        ),
        concurrency=concurrency,
        num_minibatches=1,
    )
    jax.effects_barrier()
    assert seen == versions
