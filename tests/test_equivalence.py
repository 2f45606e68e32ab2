"""The contract: same seed, same run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.sebulba.algorithm import Loss
from cleanba.sebulba.networks import Decision

ALGORITHMS = {
    "ppo": dict(algorithm=cleanba_ppo),
    "impala": dict(algorithm=cleanba_impala, num_minibatches=2),  # divides each learner's share of an actor
}
each_algorithm = pytest.mark.parametrize("which", ALGORITHMS)
ATARI = dict(env_id="Breakout-v5", network="impala", channels=(4, 4), hiddens=(16,), num_steps=16)


def sgd(which, scale=1.0):
    """Small, because plain SGD on pictures is chaotic: with PPO, five updates end 8e-8 apart at 0.001 and
    1e-5 apart at 0.002. IMPALA makes an eighth of the steps, with a sum over the 64 rows of a minibatch."""
    rate = {"ppo": 0.001, "impala": 8 * 0.001 / 64}[which] * scale
    return dict(optimizer=optax.identity(), learning_rate=lambda update: rate)


def digests(rows):
    return [(row["data_digest"], row["params_digest"]) for row in rows]


def distance(a, b):
    """The largest difference of any param."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


@each_algorithm
@pytest.mark.parametrize("concurrency", [False, True], ids=["lag0", "lag1"])
def test_the_same_command_twice_gives_the_same_bits(run, which, concurrency):
    flags = ALGORITHMS[which] | dict(
        num_actor_threads=2, concurrency=concurrency, total_timesteps=12 * 16 * 8
    )
    first, again = (digests(run(**flags)[1]) for _ in range(2))
    assert first == again
    assert len(first) == 12
    assert len({params for _, params in first}) == len({data for data, _ in first}) == 12


@pytest.mark.parametrize(
    ("which", "concurrency"),
    [
        pytest.param("ppo", False, id="ppo-lag0"),
        pytest.param("ppo", True, id="ppo-lag1", marks=pytest.mark.slow),
        pytest.param("impala", False, id="impala-lag0", marks=pytest.mark.slow),
        pytest.param("impala", True, id="impala-lag1"),
    ],
)
def test_the_same_command_twice_gives_the_same_bits_on_atari(run, which, concurrency):
    """Sticky actions, two threads, two learners, batches cut in two, more than one chunk."""
    flags = (
        ALGORITHMS[which]
        | ATARI
        | dict(
            num_actor_threads=2,
            learner_device_ids=(1, 2),
            concurrency=concurrency,
            inference_batch=2,
            gradient_accumulation_steps={"ppo": 3, "impala": 2}[which],  # 3: short and padded chunks
            total_timesteps=3 * 16 * 8,
        )
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
@each_algorithm
def test_layouts_with_the_same_environments_give_the_same_run(run, which, env, concurrency):
    """The same data to the bit in the first update; the same params up to float reassociation after five."""
    same = (
        ALGORITHMS[which] | env | dict(inference_batch=4, concurrency=concurrency, total_timesteps=5 * 16 * 8)
    )
    runs = {name: run(sgd(which), **same, **layout) for name, layout in LAYOUTS.items()}
    reference, reference_rows = runs.pop("a0-l0")
    for name, (outcome, rows) in runs.items():
        assert rows[0]["data_digest"] == reference_rows[0]["data_digest"], name
        assert distance(outcome.model.params, reference.model.params) < 1e-5, name
    start, _ = run(sgd(which, scale=0.0), **same, **LAYOUTS["a0-l0"])
    assert distance(start.model.params, reference.model.params) > 1e-3, "SGD did not move: no test"


@each_algorithm
def test_chunks_change_no_more_than_the_last_bits(run, which):
    same = ALGORITHMS[which] | dict(local_num_envs=12, total_timesteps=5 * 16 * 12)  # impala: six columns
    whole, _ = run(sgd(which), **same, gradient_chunk=1000)
    for flags in (dict(gradient_chunk=33), dict(gradient_accumulation_steps=5)):
        chunked, _ = run(sgd(which), **same, **flags)
        assert distance(whole.model.params, chunked.model.params) < 1e-5


@each_algorithm
def test_how_environments_are_stepped_changes_no_bit(run, which):
    one, four = (digests(run(**ALGORITHMS[which], env_threads=n)[1]) for n in (1, 4))
    assert one == four


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
