import jax
import numpy as np

from cleanba.cleanba_ppo import Args
from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.envs import EnvSpec
from cleanba.sebulba.rollout import RolloutBuffer, env_ids_of_actors, env_ids_of_columns
from cleanba.sebulba.topology import Topology

ENV = EnvSpec("Vectors", {}, (2,), np.dtype(np.float32), 3)


def make_plan(topology, **flags):
    return BatchPlan.create(Args(num_steps=4, **flags), topology)


def test_each_learner_gets_its_slice_of_the_environments():
    topology = Topology((0,), (1, 2))
    plan = make_plan(topology, local_num_envs=6, num_actor_threads=1)
    buffer = RolloutBuffer(plan, ENV)
    rng = np.random.default_rng(0)
    obs, reward = rng.normal(size=(5, 6, 2)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32)
    for t in range(5):
        buffer.write(t, obs=obs[t])
    for t in range(4):
        buffer.write(t, reward=reward[t])
    np.testing.assert_array_equal(buffer.rows("reward"), reward)
    np.testing.assert_array_equal(buffer.rows("obs"), obs)

    rollout = buffer.shard_over_envs(topology.learner_mesh(), topology.learner_devices())
    np.testing.assert_array_equal(rollout.obs, obs)
    np.testing.assert_array_equal(rollout.reward, reward)
    for learner, device in enumerate(topology.learner_devices()):
        (shard,) = [s for s in rollout.obs.addressable_shards if s.device == device]
        np.testing.assert_array_equal(shard.data, obs[:, learner * 3 : learner * 3 + 3])
    assert {s.device for s in rollout.obs.addressable_shards} == set(jax.local_devices()[1:3])


def test_environments_are_counted_by_process_then_device_then_thread():
    plan = make_plan(Topology((0, 1), (2,), 2), local_num_envs=3, num_actor_threads=2)
    np.testing.assert_array_equal(
        env_ids_of_actors(plan, process=1), [[12, 13, 14], [15, 16, 17], [18, 19, 20], [21, 22, 23]]
    )


def test_a_learners_columns_are_its_slices_of_all_actors():
    plan = make_plan(Topology((0,), (1, 2)), local_num_envs=4, num_actor_threads=2)
    np.testing.assert_array_equal(env_ids_of_columns(plan, process=0), [[0, 1, 4, 5], [2, 3, 6, 7]])
