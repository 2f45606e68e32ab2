"""What travels with an environment on the actor's device: a counter of the steps of its episode."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.delays import delays
from helpers.equivalence import check_lag, digests

from cleanba import cleanba_ppo
from cleanba.agents.agent import ActorCriticRecord, row_keys
from cleanba.agents.algorithm import Decision, Published, Rollout
from cleanba.runtime.devices import LEARNERS
from cleanba.sebulba.actor import Actor

SIZES = dict(local_num_envs=8, num_steps=8, num_minibatches=2, concurrency=True, inference_batch=2)


def count_and_act(key, published, obs, state, episode_start, env_id, step):
    """A random action; the counter is written down as the value, the version that added to it as its sum."""
    count = jnp.where(episode_start, 1, state["count"] + 1)
    versions = state["versions"] * 3 + published.extra  # it tells in which order which versions were used
    action = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(row_keys(key, env_id, step))
    value = count.astype(jnp.float32)
    record = ActorCriticRecord(versions.astype(jnp.float32) % 4096, value)
    return Decision(action, record), {"count": count, "versions": versions}


@pytest.fixture
def counted(run):
    """The rollouts of a run, and its rows."""

    def train(updates, **flags):
        rollouts = []

        def prepare(published, rollout):
            states = ("first_state", "last_state")
            whole_rollout = {
                name: gathered(part, axis=0 if name in states else 1)
                for name, part in rollout._asdict().items()
            }
            jax.debug.callback(lambda x: rollouts.append(jax.device_get(x)), Rollout(**whole_rollout))
            return whole.prepare(published, rollout)

        def make_algorithm(*inputs):
            nonlocal whole
            whole = cleanba_ppo.make_algorithm(*inputs)
            return whole._replace(
                init=lambda key: Published(whole.init(key).params, jnp.zeros((), jnp.int32)),
                act=count_and_act,
                initial_state=lambda n: dict.fromkeys(("count", "versions"), jnp.zeros(n, jnp.int32)),
                prepare=prepare,
                next_extra=lambda published, *rest: published.extra + 1,
            )

        whole = None
        module = type(
            "Counting", (), {"Args": cleanba_ppo.Args, "make_algorithm": staticmethod(make_algorithm)}
        )
        _, rows = run(algorithm=module, **SIZES | flags, total_timesteps=updates * 64)
        jax.effects_barrier()
        return rollouts[:: len(rollouts) // updates], rows  # each learner has called

    return train


def gathered(part, axis):
    """Of all learners."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, LEARNERS, axis=axis, tiled=True), part)


def expected_counts(rollouts):
    """[updates, T, N] by a plain loop: an environment's count restarts on the row after a reset row."""
    valid = np.concatenate([rollout.valid for rollout in rollouts])
    counts = np.zeros(valid.shape, int)
    for e in range(valid.shape[1]):
        count, starts = 0, True
        for t in range(len(valid)):
            count = 1 if starts else count + 1
            counts[t, e], starts = count, not valid[t, e]
    return counts.reshape(len(rollouts), -1, valid.shape[1])


@pytest.mark.parametrize("stepping", ["sync", "async"])
@pytest.mark.parametrize(
    "layout", [{}, dict(learner_device_ids=(1, 2), num_actor_threads=2, local_num_envs=4)]
)
def test_the_state_belongs_to_its_environment(counted, stepping, layout):
    rollouts, rows = counted(12, env_stepping=stepping, **layout)
    counts = expected_counts(rollouts)
    assert (counts[1:, 0] == 1).any() and (counts[:, 0] > 8).any()  # episodes end, and cross rollouts
    for rollout, expected in zip(rollouts, counts, strict=True):
        np.testing.assert_array_equal(rollout.record.value, expected)
        np.testing.assert_array_equal(rollout.last_state["count"], expected[-1])
        np.testing.assert_array_equal(rollout.episode_start[:-1], expected == 1)
        np.testing.assert_array_equal(rollout.episode_start[-1], ~rollout.valid[-1])
    for before, after in itertools.pairwise(rollouts):
        jax.tree.map(np.testing.assert_array_equal, after.first_state, before.last_state)
    check_lag(rows, lag=1)


def test_calls_that_straddle_two_versions_take_each_rows_state_from_its_own(counted, monkeypatch):
    """The state remembers by which versions it was changed: a row of another version would show."""
    straddling, choose = [], Actor.choose

    def watched(self, obs, env, step):
        decision, version = choose(self, obs, env, step)
        straddling.append(len(set(version.tolist())) > 1)
        return decision, version

    monkeypatch.setattr(Actor, "choose", watched)
    sync = counted(12, env_stepping="sync")[1]
    assert not any(straddling)
    with delays():
        async_rows = counted(12, env_stepping="async", env_threads=2)[1]
    assert digests(async_rows) == digests(sync)
    assert any(straddling) and not all(straddling)
