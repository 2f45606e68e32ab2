"""--last-action-reward and --frame-stack: what the policy sees beside, or instead of, stacked frames."""

import numpy as np
import pytest

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.envs.factory import describe, env_spec, make_envs
from cleanba.envs.last_action import encode_action, with_last_action
from cleanba.envs.spec import ActionSpec


def test_actions_are_encoded_as_their_kind_is():
    assert encode_action(ActionSpec("discrete", n=3), np.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    several = ActionSpec.multi_discrete([2, 3])
    assert encode_action(several, np.array([[1, 0]])).tolist() == [[0, 1, 1, 0, 0]]
    box = ActionSpec.box(np.array([-1, -1]), np.array([1, 1]))
    assert encode_action(box, np.array([[0.5, 7.0]])).tolist() == [[0.5, 1.0]]  # as the environment takes it


def test_observations_hold_the_last_action_and_reward_and_zeros_where_an_episode_starts():
    env = env_spec(Args(env_id="CartPole-v1", last_action_reward=True))
    assert {name: spec.shape for name, spec in env.obs.items()} == {
        "obs": (4,),
        "last_action": (2,),
        "last_reward": (1,),
    }
    envs, ids, rng = (
        make_envs(env, [1, 2, 3], threads=1),
        np.arange(3, dtype=np.int32),
        np.random.default_rng(0),
    )
    envs.reset()
    seen, starts = envs.receive().obs, np.ones(3, bool)
    ends = action = reward = np.zeros(3, np.int32)
    begun = 0
    for _ in range(60):
        expected = np.where(starts[:, None], 0, np.eye(2)[action])
        np.testing.assert_array_equal(seen["last_action"], expected)
        np.testing.assert_array_equal(seen["last_reward"][:, 0], np.where(starts, 0, reward))
        begun += starts.sum()
        action = rng.integers(2, size=3, dtype=np.int32)
        envs.send(action, ids)
        step = envs.receive()
        seen, reward, starts = step.obs, step.reward, ends.astype(bool)
        ends = step.terminated | step.truncated
    assert begun > 3


def test_a_described_environment_keeps_its_entries():
    env = env_spec(Args(env_id="CartPole-v1", last_action_reward=True))
    assert describe(env) == env


def test_entries_that_exist_already_are_refused():
    env = env_spec(Args(env_id="CartPole-v1", last_action_reward=True))
    with pytest.raises(
        UsageError, match="--last-action-reward: CartPole-v1 has an entry last_action already"
    ):
        with_last_action(env)


def test_frames_are_stacked_as_asked():
    single = env_spec(Args(env_id="Pong-v5", frame_stack=1))
    assert single.obs.shape == (1, 84, 84) and single.obs.stack == 1
    assert env_spec(Args(env_id="Pong-v5", frame_stack=2)).obs.stack == 2
    assert env_spec(Args(env_id="Pong-v5")).obs.stack == 4
    with pytest.raises(UsageError, match="--frame-stack: CartPole-v1 stacks no frames; leave it out"):
        env_spec(Args(env_id="CartPole-v1", frame_stack=1))
