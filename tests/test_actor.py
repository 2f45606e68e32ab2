"""An actor with environments that follow a script: what it asks of the policy, what it hands over."""

import numpy as np
import pytest

from cleanba.cleanba_ppo import Args
from cleanba.sebulba.actor import Actor
from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.channel import Channel, ChannelClosed
from cleanba.sebulba.envs import EnvSpec, EnvStep, Episode
from cleanba.sebulba.networks import Decision
from cleanba.sebulba.topology import Topology

T, N = 3, 2
ENV = EnvSpec("Scripted", {}, (1,), np.dtype(np.float32), 10)
# Environment 0 ends with step 2, the last of the first rollout; environment 1 is truncated at step 3.
TERMINATED = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], bool)
TRUNCATED = np.array([[0, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0]], bool)


class Scripted:
    """Observation: 100 · environment + steps so far. Reward: the action."""

    def __init__(self):
        self.steps = 0

    def obs(self):
        return np.array([[0.0], [100.0]], np.float32) + self.steps

    def reset(self):
        return self.obs()

    def step(self, action):
        terminated, truncated = TERMINATED[self.steps], TRUNCATED[self.steps]
        self.steps += 1
        reward = action.astype(np.float32)
        return EnvStep(self.obs(), reward, terminated, truncated, 10 * reward, terminated | truncated)


def run_actor(inference_batch):
    asked = []

    def act(params, obs, env_id, step):
        asked.append((params, obs[:, 0].tolist(), env_id.tolist(), step.tolist()))
        return Decision(env_id % 7 + step, obs[:, 0] / 2, obs[:, 0] * 2)

    topology = Topology((0,), (1, 2))
    sizes = dict(num_steps=T, local_num_envs=N, num_actor_threads=1, total_timesteps=2 * T * N)
    plan = BatchPlan.create(Args(**sizes, num_minibatches=1, inference_batch=inference_batch), topology)
    actor = Actor(
        act=act,
        envs=Scripted(),
        env=ENV,
        env_id=np.array([8, 9], np.int32),
        plan=plan,
        mesh=topology.learner_mesh(),
        learner_devices=topology.learner_devices(),
        params=Channel(2),
        rollouts=Channel(2),
        first_update=0,
        progress=np.zeros(1, np.int64),
    )
    for version in ("version 0", "version 1"):
        actor.params.put(version)
    actor.run()
    assert actor.progress[0] == 2 * T
    return [actor.rollouts.get() for _ in range(2)], asked


@pytest.mark.parametrize("inference_batch", [1, 2])
def test_two_rollouts_to_the_letter(inference_batch):
    (first, second), _ = run_actor(inference_batch)
    step = np.arange(2 * T + 1)[:, None]
    obs = np.array([[0.0, 100.0]]) + step  # [2T + 1, N]
    action = np.array([[1, 2]]) + step[:-1]  # 8 % 7 + step, 9 % 7 + step
    valid = np.array([[1, 1], [1, 1], [1, 1], [0, 1], [1, 0], [1, 1]], bool)  # False after an end
    for u, collected in enumerate((first, second)):
        rollout, rows = collected.rollout, slice(u * T, u * T + T)
        np.testing.assert_array_equal(rollout.obs[..., 0], obs[u * T : u * T + T + 1])
        np.testing.assert_array_equal(rollout.action, action[rows])
        np.testing.assert_array_equal(rollout.logprob, obs[rows] / 2)
        np.testing.assert_array_equal(rollout.value, obs[rows] * 2)
        np.testing.assert_array_equal(rollout.reward, action[rows])
        np.testing.assert_array_equal(rollout.terminated, TERMINATED[rows])
        np.testing.assert_array_equal(rollout.truncated, TRUNCATED[rows])
        np.testing.assert_array_equal(rollout.valid, valid[rows])
        for digested, expected in zip(
            collected.transitions, (action, action, TERMINATED, TRUNCATED), strict=True
        ):
            np.testing.assert_array_equal(digested, expected[rows])
        np.testing.assert_array_equal(collected.env_id, [8, 9])
    assert first.episodes == [Episode(10.0 * (1 + 2 + 3), 3)]
    assert second.episodes == [Episode(10.0 * (2 + 3 + 4 + 5), 4)]


def test_the_policy_is_asked_with_the_environments_and_their_steps():
    """In calls of one size; steps go on over updates; each rollout uses one version of the params."""
    _, asked = run_actor(inference_batch=1)
    assert asked[:2] == [("version 0", [0.0], [8], [0]), ("version 0", [100.0], [9], [0])]
    assert asked[-2:] == [("version 1", [5.0], [8], [5]), ("version 1", [105.0], [9], [5])]
    _, asked = run_actor(inference_batch=2)
    assert asked[T] == ("version 1", [3.0, 103.0], [8, 9], [3, 3])


def test_an_actor_notices_the_end_within_a_step():
    """Its params channel is closed while it collects."""
    topology = Topology((0,), (0,))
    plan = BatchPlan.create(Args(num_steps=1000, local_num_envs=N, num_actor_threads=1), topology)
    params = Channel(1)
    steps = []

    def act(params_, obs, env_id, step):
        steps.append(step)
        params.close()
        return Decision(env_id * 0, obs[:, 0], obs[:, 0])

    params.put("version 0")
    actor = Actor(
        act,
        Scripted(),
        ENV,
        np.arange(N),
        plan,
        topology.learner_mesh(),
        topology.learner_devices(),
        params,
        Channel(1),
        0,
        np.zeros(1, np.int64),
    )
    with pytest.raises(ChannelClosed):
        actor.run()
    assert len(steps) == 1
