"""The options around a Gymnasium environment."""

import itertools

import numpy as np
import pytest
from helpers.own_envs import Pixels

from cleanba.cleanba_ppo import Args
from cleanba.envs.factory import env_spec
from cleanba.envs.spec import ArraySpec
from cleanba.envs.wrappers import OPTIONS, Image, resize_taps, resize_weights, wrap

UINT8 = np.dtype(np.uint8)


def made(**options):
    env = wrap(Pixels(), OPTIONS | options)
    first, _ = env.reset(seed=3)
    return env, first


def test_the_defaults_change_nothing():
    env = Pixels()
    assert wrap(env, OPTIONS) is env


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("{}", ArraySpec((12, 16, 3), UINT8)),
        ('{"grayscale": true}', ArraySpec((1, 12, 16), UINT8)),
        ('{"grayscale": true, "frame_stack": 4}', ArraySpec((4, 12, 16), UINT8, stack=4)),
        ('{"resize": [6, 8]}', ArraySpec((6, 8, 3), UINT8)),
        ('{"resize": [6, 8], "frame_stack": 2}', ArraySpec((6, 8, 6), UINT8)),
        ('{"frame_stack": 12}', ArraySpec((12, 16, 36), UINT8)),  # as high as it is deep
    ],
)
def test_observations_are_described_as_they_come(options, expected):
    env = env_spec(Args(env_id="helpers.own_envs:Pixels-v0", env_options=options))
    assert env.obs == expected
    _, first = made(**{name: tuple(x) if isinstance(x, list) else x for name, x in env.options.items()})
    assert (first.shape, first.dtype) == (expected.shape, expected.dtype)


def test_grey_is_the_weighted_mean_of_the_colours():
    image = np.zeros((12, 16, 3), np.uint8)
    image[0, 0], image[0, 1] = (100, 0, 0), (255, 255, 255)
    grey = Image(Pixels(), grayscale=True, size=()).observation(image)
    assert grey[0, 0, :3].tolist() == [30, 255, 0]  # 29.9


def test_resizing_takes_the_mean_of_what_a_pixel_covers():
    assert resize_weights(4, 2).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]
    assert np.allclose(resize_weights(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])
    assert resize_weights(2, 4).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    for before, after in [(210, 84), (160, 84), (84, 210), (5, 5), (3, 2)]:
        old, weights = resize_taps(before, after)
        whole = np.zeros((after, before), np.float32)
        for pixels, weight in zip(old, weights[..., 0], strict=True):
            whole[np.arange(after), pixels] += weight
        assert (whole == resize_weights(before, after)).all()
    image = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
    half = Image(Pixels(), grayscale=False, size=(6, 8)).observation(image)
    means = image.reshape(6, 2, 8, 2, 3).mean(axis=(1, 3))
    assert np.abs(half - means).max() <= 0.5


def test_a_stack_starts_with_the_first_frame_and_then_moves():
    env, first = made(grayscale=True, frame_stack=3)
    assert (first == first[0]).all()
    stacks = [first, *(env.step(np.int64(0))[0] for _ in range(3))]
    for before, after in itertools.pairwise(stacks):
        assert (after[:-1] == before[1:]).all() and (after[-1] != before[-1]).any()


def test_a_repeated_action_adds_up_rewards_and_stops_at_the_end():
    env, _ = made(action_repeat=4)
    plain = Pixels()
    plain.reset(seed=3)
    alone = [plain.step(np.int64(0)) for _ in range(6)]
    first, last = env.step(np.int64(0)), env.step(np.int64(0))
    assert first[1] == sum(step[1] for step in alone[:4]) and not first[2]
    assert last[1] == sum(step[1] for step in alone[4:]) and last[2]
