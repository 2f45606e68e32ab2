import jax
import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba.cleanba_ppo import Args
from cleanba.envs.envpool import Envs, env_spec
from cleanba.envs.frame_stack import DeviceFrameStack, Frames, frames_since_reset, stack_up
from cleanba.envs.spec import EnvStep

STACKED = make_spec("Stacked", (3, 1, 1), np.uint8, 2, stack=3)


def test_stacks_by_hand():
    """Two environments, four steps, stacks of three; the second environment is reset before its third
    step."""
    frame = np.array([[1, 11], [2, 12], [3, 13], [4, 14], [5, 15], [6, 16]], np.uint8)[:, :, None, None]
    since_reset = np.array([[2, 2], [2, 2], [2, 0], [2, 1]], np.int8)
    stacks = stack_up(Frames(frame, since_reset))[..., 0, 0]
    np.testing.assert_array_equal(stacks[:, 0], [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]])
    np.testing.assert_array_equal(stacks[:, 1], [[11, 12, 13], [12, 13, 14], [15, 15, 15], [15, 15, 16]])


def test_the_stack_of_each_environment_is_remembered():
    frame_stack = DeviceFrameStack(STACKED, 3, jax.local_devices()[0])

    def see(env, frame, since_reset):
        env, since_reset = np.array(env, np.int32), np.array(since_reset, np.int8)
        frame = np.array(frame, np.uint8)[:, None, None]
        seen, (start, env_id, step) = frame_stack([frame], env, since_reset, env == 1, 10 + env, 100 + env)
        np.testing.assert_array_equal(start, env == 1)
        np.testing.assert_array_equal(env_id, 10 + env)
        np.testing.assert_array_equal(step, 100 + env)
        return np.asarray(seen)[..., 0, 0].tolist()

    assert see([0, 1], [1, 5], [0, 0]) == [[1, 1, 1], [5, 5, 5]]
    assert see([2, 0], [9, 2], [0, 1]) == [[9, 9, 9], [1, 1, 2]]
    assert see([1, 0], [6, 3], [1, 2]) == [[5, 5, 6], [1, 2, 3]]
    assert see([0, 1], [7, 7], [0, 2]) == [[7, 7, 7], [5, 6, 7]]


def test_only_stacked_images_are_taken_apart():
    assert env_spec(Args()).obs.stack == 4
    assert env_spec(Args(env_id="CartPole-v1")).obs.stack == 1
    frame_stack = DeviceFrameStack(env_spec(Args(env_id="CartPole-v1")), 2, jax.local_devices()[0])
    whole = np.zeros((2, 4)), np.ones(2, bool), np.arange(2), np.arange(2)
    obs, integers = frame_stack([whole[0]], np.arange(2), np.zeros(2), *whole[1:])
    assert obs is whole[0] and integers.tolist() == [[1, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("game", "preset", "steps"),
    [
        ("Breakout-v5", "machado", 60),  # steps until an episode is cut off
        pytest.param("Breakout-v5", "impala", 27_000, marks=pytest.mark.slow),
        ("RoadRunner-v5", "impala", 27_000),  # after a lost life games end without a word from EnvPool
    ],
)
def test_a_stack_follows_from_the_one_before_and_the_newest_frame(game, preset, steps):
    """As EnvPool has it, through lost lives, ends of games and truncations."""
    env = env_spec(Args(env_id=game, atari_preset=preset))
    env = env._replace(options=env.options | {"max_episode_steps": steps})
    n = 8
    envs, frame_stack = Envs(env, range(n), threads=2), DeviceFrameStack(env, n, jax.local_devices()[0])
    rng = np.random.default_rng(0)
    since_reset, before = np.full(n, -1, np.int8), EnvStep(*[np.zeros(n, bool)] * 7)
    begun = silent = 0
    envs.reset()
    for _ in range(500):
        env_step = envs.receive()
        since_reset = frames_since_reset(since_reset, [env_step.obs], before.terminated | before.truncated)
        begun, silent = (
            begun + (since_reset == 0).sum(),
            silent + ((since_reset == 0) & ~before.game_over).sum(),
        )
        ids = env_step.env
        seen, *_ = frame_stack([env_step.obs[:, -1]], ids, since_reset, ids > 0, ids, ids)
        np.testing.assert_array_equal(seen, env_step.obs)
        envs.send(env.action.random(rng, n), env_step.env)
        before = env_step
    assert begun > n
    assert (silent > n) == (game == "RoadRunner-v5")  # all are silent about the first
