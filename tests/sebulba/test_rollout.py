import jax
import numpy as np
import pytest
from helpers.specs import LIKE, make_spec

from cleanba.cleanba_ppo import Args
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import NotFinite
from cleanba.config.topology import Topology
from cleanba.envs.spec import ArraySpec
from cleanba.runtime.devices import learner_devices, learner_mesh
from cleanba.sebulba.rollout import (
    RolloutBuffer,
    digested_names,
    env_ids_of_actors,
    env_ids_of_columns,
    obs_names,
)

ENV = make_spec("Vectors", (2,), np.float32, 3)


def make_plan(topology, **flags):
    return BatchPlan.create(Args(num_steps=4, **flags), topology)


def test_each_learner_gets_its_slice_of_the_environments():
    topology = Topology((0,), (1, 2))
    plan = make_plan(topology, local_num_envs=6, num_actor_threads=1)
    buffer = RolloutBuffer(plan, ENV, LIKE)
    rng = np.random.default_rng(0)
    obs, reward = rng.normal(size=(5, 6, 2)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32)
    for slots in np.array_split(rng.permutation(5 * 6), 4):  # in any order, four batches
        t, env = np.divmod(slots, 6)
        buffer.write(t, env, obs=[obs[t, env]])
        t, env = t[t < 4], env[t < 4]
        buffer.write(t, env, reward=[reward[t, env]])
    names = digested_names(LIKE)
    assert names == ["action", "logprob", "value", "reward", "terminated", "truncated"]
    np.testing.assert_array_equal(buffer.digested()[names.index("reward")], reward)

    rollout = buffer.shard_over_envs(learner_mesh(topology), learner_devices(topology))
    np.testing.assert_array_equal(rollout.obs, obs)
    np.testing.assert_array_equal(rollout.reward, reward)
    for learner, device in enumerate(learner_devices(topology)):
        (shard,) = [s for s in rollout.obs.addressable_shards if s.device == device]
        np.testing.assert_array_equal(shard.data, obs[:, learner * 3 : learner * 3 + 3])
    assert {s.device for s in rollout.obs.addressable_shards} == set(jax.local_devices()[1:3])


def test_of_stacked_frames_each_is_kept_once():
    """Two of a stack of three come from before the first step."""
    topology = Topology((0,), (1, 2))
    plan = make_plan(topology, local_num_envs=4, num_actor_threads=1)
    buffer = RolloutBuffer(plan, make_spec("Images", (3, 1, 1), np.uint8, 3, stack=3), LIKE)
    frame = np.arange(7 * 4, dtype=np.uint8).reshape(7, 4, 1, 1)
    since_reset = np.arange(5 * 4, dtype=np.int8).reshape(5, 4)
    buffer.write_before(np.arange(4), [frame[:2].swapaxes(0, 1)])
    for env in range(4):
        buffer.write(np.arange(5), np.full(5, env), obs=[frame[2:, env]], since_reset=[since_reset[:, env]])
    obs = buffer.shard_over_envs(learner_mesh(topology), learner_devices(topology)).obs
    np.testing.assert_array_equal(obs.frame, frame)
    np.testing.assert_array_equal(obs.since_reset, since_reset)


def test_entries_of_observations_are_named():
    entry = ArraySpec((2,), np.dtype(np.float32))
    assert obs_names(ENV) == ["obs"]
    assert obs_names(ENV._replace(obs={"map": entry, "letter": entry})) == ["obs/letter", "obs/map"]


@pytest.mark.parametrize("name", ["obs", "value", "logprob", "reward"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_the_first_number_that_is_not_finite_is_named(name, bad):
    """At step 2 of the fourth of six environments, which the second of two learners gets."""
    plan = make_plan(Topology((0,), (1, 2)), local_num_envs=6)
    buffer = RolloutBuffer(plan, ENV, LIKE)
    for t in range(plan.num_steps + 1):
        rows = {n: np.zeros(6, np.float32) for n in ("value", "logprob", "reward")}
        rows = {"obs": np.zeros((6, 2), np.float32)} | (rows if t < plan.num_steps else {})
        if t == 2:
            rows[name][3] = bad
        record = [rows.pop(n) for n in ("logprob", "value") if n in rows]
        arrays = {n: [x] for n, x in rows.items()} | (dict(record=record) if record else {})
        buffer.write(np.full(6, t), np.arange(6), **arrays)
    with pytest.raises(NotFinite, match=f"{name} is not finite in update 8, at step 2 of environment 13"):
        buffer.check_finite(np.arange(10, 16), update=7)


def test_environments_are_counted_by_process_then_device_then_thread():
    plan = make_plan(Topology((0, 1), (2,), 2), local_num_envs=3, num_actor_threads=2)
    np.testing.assert_array_equal(
        env_ids_of_actors(plan, process=1), [[12, 13, 14], [15, 16, 17], [18, 19, 20], [21, 22, 23]]
    )


def test_a_learners_columns_are_its_slices_of_all_actors():
    plan = make_plan(Topology((0,), (1, 2)), local_num_envs=4, num_actor_threads=2)
    np.testing.assert_array_equal(env_ids_of_columns(plan, process=0), [[0, 1, 4, 5], [2, 3, 6, 7]])
