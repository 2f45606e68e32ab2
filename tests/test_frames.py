import jax
import numpy as np
import pytest

from cleanba.cleanba_ppo import Args
from cleanba.sebulba.envs import Envs, EnvSpec, EnvStep, env_spec
from cleanba.sebulba.frames import Frames, Sight, ages, stack_up

STACKED = EnvSpec("Stacked", {"stack_num": 3}, (3, 1, 1), np.dtype(np.uint8), 2)


def test_stacks_by_hand():
    """Two environments, four steps, stacks of three; the second one's third step begins a game."""
    frame = np.array([[1, 11], [2, 12], [3, 13], [4, 14], [5, 15], [6, 16]], np.uint8)[:, :, None, None]
    age = np.array([[2, 2], [2, 2], [2, 0], [2, 1]], np.int8)
    stacks = stack_up(Frames(frame, age))[..., 0, 0]
    np.testing.assert_array_equal(stacks[:, 0], [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]])
    np.testing.assert_array_equal(stacks[:, 1], [[11, 12, 13], [12, 13, 14], [15, 15, 15], [15, 15, 16]])


def test_sight_remembers_each_environment():
    sight = Sight(STACKED, 3, jax.local_devices()[0])

    def see(env, frame, age):
        env, age = np.array(env, np.int32), np.array(age, np.int8)
        frame = np.array(frame, np.uint8)[:, None, None]
        seen, env_id, step = sight(env, frame, age, 10 + env, 100 + env)
        np.testing.assert_array_equal(env_id, 10 + env)
        np.testing.assert_array_equal(step, 100 + env)
        return np.asarray(seen)[..., 0, 0].tolist()

    assert see([0, 1], [1, 5], [0, 0]) == [[1, 1, 1], [5, 5, 5]]
    assert see([2, 0], [9, 2], [0, 1]) == [[9, 9, 9], [1, 1, 2]]
    assert see([1, 0], [6, 3], [1, 2]) == [[5, 5, 6], [1, 2, 3]]
    assert see([0, 1], [7, 7], [0, 2]) == [[7, 7, 7], [5, 6, 7]]


def test_only_stacked_pictures_are_taken_apart():
    assert env_spec(Args()).stack == 4
    assert env_spec(Args(env_id="CartPole-v1")).stack == 1
    sight = Sight(env_spec(Args(env_id="CartPole-v1")), 2, jax.local_devices()[0])
    whole = np.zeros((2, 4)), np.arange(2), np.arange(2)
    assert sight(np.arange(2), whole[0], np.zeros(2), *whole[1:]) == whole


@pytest.mark.parametrize(
    ("game", "preset", "steps"),
    [
        ("Breakout-v5", "machado", 60),  # steps until a game is cut off
        ("Breakout-v5", "impala", 27_000),
        ("RoadRunner-v5", "impala", 27_000),  # after a lost life games end that EnvPool says nothing of
    ],
)
def test_a_stack_follows_from_the_one_before_and_the_newest_frame(game, preset, steps):
    """As EnvPool has it, through lost lives, ends of games and truncations."""
    env = env_spec(Args(env_id=game, atari_preset=preset))
    env = env._replace(options=env.options | {"max_episode_steps": steps})
    n = 8
    envs, sight = Envs(env, range(n), threads=2), Sight(env, n, jax.local_devices()[0])
    rng = np.random.default_rng(0)
    age, before = np.full(n, -1, np.int8), EnvStep(*[np.zeros(n, bool)] * 7)
    begun = silent = 0
    envs.reset()
    for _ in range(500):
        came = envs.receive()
        age = ages(age, came.obs, before.terminated | before.truncated)
        begun, silent = begun + (age == 0).sum(), silent + ((age == 0) & ~before.game_over).sum()
        seen, *_ = sight(came.env, came.obs[:, -1], age, came.env, came.env)
        np.testing.assert_array_equal(seen, came.obs)
        envs.send(rng.integers(env.num_actions, size=n).astype(np.int32), came.env)
        before = came
    assert begun > n
    assert (silent > n) == (game == "RoadRunner-v5")  # all are silent about the first
