"""Gymnasium's environments in worker processes: an actor thread sees what it sees of EnvPool."""

import inspect
from collections import Counter
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers.own_envs import LENGTH, Cue

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.envs import gymnasium_envs
from cleanba.envs.factory import env_spec, make_envs
from cleanba.envs.gymnasium_make import _takes
from cleanba.envs.shared_rows import ObsWriter
from cleanba.envs.spaces import obs_specs
from cleanba.envs.spec import ActionSpec, ArraySpec
from cleanba.envs.worker import to_action, to_actions

CUE = "helpers.own_envs:Cue-v0"


def spec(env_id=CUE, options="{}", **flags):
    return env_spec(Args(env_id=env_id, env_options=options, **flags))


def play(env, steps, *, threads=2, batch=None, seeds=(5, 6, 7, 8), action=0):
    """Rows of each environment: (observation, reward, terminated, truncated)."""
    rows = {e: [] for e in range(len(seeds))}
    with closing(make_envs(env, list(seeds), threads, batch=batch)) as envs:
        envs.reset()
        while any(len(x) < steps for x in rows.values()):
            step = envs.receive()
            assert len(step.env) == envs.batch and step.env.dtype == np.int32
            for i, e in enumerate(step.env.tolist()):
                flags = bool(step.terminated[i]), bool(step.truncated[i])
                assert step.game_over[i] == any(flags)
                rows[e].append((step.obs[i].tolist(), float(step.reward[i]), *flags))
            envs.send(np.full(len(step.env), action, np.int32), step.env)
    return {e: x[:steps] for e, x in rows.items()}


def expected(seed, steps, action=0):
    """The same from Gymnasium itself, with a reset row after each end, whose action is ignored."""
    env = gymnasium.make(CUE, disable_env_checker=True)
    rows, over = [(env.reset(seed=seed)[0].tolist(), 0.0, False, False)], False
    while len(rows) < steps:
        if over:
            rows.append((env.reset()[0].tolist(), 0.0, False, False))
        else:
            obs, reward, *flags, _ = env.step(np.int64(action))
            rows.append((obs.tolist(), reward, *flags))
        over = any(rows[-1][2:])
    return rows


@pytest.mark.parametrize(
    ("threads", "batch"), [(1, None), (2, None), (4, None), (3, 2), (2, 1)], ids=lambda x: str(x)
)
def test_rows_are_those_of_gymnasium_whatever_steps_them(threads, batch):
    steps = 3 * LENGTH
    rows = play(spec(), steps, threads=threads, batch=batch)
    assert rows == {e: expected(seed, steps) for e, seed in enumerate((5, 6, 7, 8))}
    ends = [(i, *row[2:]) for i, row in enumerate(rows[0]) if any(row[2:])]
    assert ends == [(LENGTH, True, False), (2 * LENGTH + 1, False, True)]


def test_all_are_received_in_order():
    env = spec(options='{"delay": 0.01}')
    with closing(make_envs(env, range(6), 3)) as envs:
        envs.reset()
        for _ in range(10):
            step = envs.receive()
            assert step.env.tolist() == [0, 1, 2, 3, 4, 5]
            envs.send(np.zeros(6, np.int32), step.env)


def test_one_that_hangs_does_not_keep_others_from_being_received():
    """Environment 1 does from its third step on."""
    env = spec("helpers.own_envs:Faulty-v0", '{"fault": "hangs"}')
    with closing(make_envs(env, [2, 3, 4], 3, batch=1)) as envs:
        envs.reset()
        received, later = Counter(), 0
        while later < 20:
            (e,) = envs.receive().env.tolist()
            received[e] += 1
            later += received[1] == 3
            envs.send(np.zeros(1, np.int32), np.array([e]))
        assert received[1] == 3


def test_spaces_of_every_kind():
    env = spec("helpers.own_envs:Odd-v0")
    floats = np.dtype(np.float32)
    assert env.obs == {"a/b": ArraySpec((3,), floats), "c": ArraySpec((2, 2), floats)}
    assert env.action == ActionSpec.box(np.full(4, -1.0), np.full(4, 2.0))
    with closing(make_envs(env, [1, 2], 2)) as envs:
        envs.reset()
        first = envs.receive()
        assert first.obs["a/b"].tolist() == [[0, 1, 0]] * 2
        envs.send(np.array([[0, 1, 2, 9], [-9, 0, 0, 0]], np.float32), first.env)
        obs = envs.receive().obs["c"]
        assert obs.tolist() == [[[0, 1], [2, 2]], [[-1, 0], [0, 0]]]  # clipped to the bounds


def test_an_action_at_a_bound_lies_in_a_space_of_doubles():
    """Of four bytes, 0.3 is 0.30000001."""
    space, row = spaces.Box(-0.3, 0.3, (2, 1), np.float64), np.array([0.3, -0.3], np.float32)
    assert float(row[0]) > 0.3 and to_action(space, row).tolist() == [[0.3], [-0.3]]
    assert space.contains(to_action(space, row))
    assert to_actions(space, row[None]).tolist() == [[[0.3], [-0.3]]]


def test_keys_with_a_slash_and_nested_ones():
    box = spaces.Box(0, 9, (1,), np.float32)
    space = spaces.Dict({"cam/left": box, "cam": spaces.Dict(right=box)})
    specs = obs_specs("Own-v0", space)
    assert specs.keys() == {"cam/left", "cam/right"}
    rows = {f"obs/{name}": np.zeros((2, *part.shape), part.dtype) for name, part in specs.items()}
    obs = {"cam/left": np.full(1, 3, np.float32), "cam": {"right": np.full(1, 4, np.float32)}}
    ObsWriter(space, rows).write(1, obs, check_numbers=True)
    assert {name: x.tolist() for name, x in rows.items()} == {
        "obs/cam/left": [[0], [3]],
        "obs/cam/right": [[0], [4]],
    }
    with pytest.raises(UsageError, match="--env-id Own-v0 has two observations of one name among cam/left "):
        obs_specs("Own-v0", spaces.Dict({"cam/left": box, "cam": spaces.Dict(left=box)}))


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(0, 7, (2,), np.int64), np.int32),
        (spaces.Box(-(2**31) + 1, 2**31 - 1, (2,), np.int64), np.int32),
        (spaces.Box(0, 2**40, (2,), np.int64), np.float32),
        (spaces.Box(0, 2**33, (2,), np.uint64), np.float32),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), np.float32),
        (spaces.Box(-9, 9, (2,), np.int16), np.int16),
        (spaces.MultiDiscrete([3, 4]), np.int32),
        (spaces.MultiBinary(2), np.int8),
    ],
)
def test_whole_numbers_that_do_not_fit_into_32_bits_become_floats(space, dtype):
    assert obs_specs("Own-v0", space) == ArraySpec((2,), np.dtype(dtype))


def test_a_mask_of_another_length_is_refused():
    class Masked(Cue):
        observation_space = spaces.Dict(action_mask=spaces.MultiBinary(4), cue=Cue.observation_space)

    gymnasium_envs.register("Masked-v0", Masked)
    needs = r"action_mask of shape \(4,\); it needs one entry for each of the 3 actions"
    with pytest.raises(UsageError, match=needs):
        spec("Masked-v0")


def test_rewards_are_scaled_and_clipped_for_learning_only():
    env = spec("helpers.own_envs:Odd-v0", '{"reward_scale": 0.5, "reward_clip": 1, "action_repeat": 2}')
    with closing(make_envs(env, [1], 1)) as envs:
        envs.reset()
        envs.send(np.zeros((1, 4), np.float32), envs.receive().env)
        step = envs.receive()
        assert (step.reward.tolist(), step.raw_reward.tolist()) == ([1.0], [6.0])


def test_a_time_limit_truncates():
    rows = play(spec(options='{"max_episode_steps": 3}'), 5, seeds=[1])[0]
    assert [row[2:] for row in rows] == [(False, False)] * 3 + [(False, True), (False, False)]


def test_the_first_environment_is_rendered():
    with closing(make_envs(spec(), [1, 2], 2, rendered=True)) as envs:
        envs.reset()
        envs.send(np.zeros(2, np.int32), envs.receive().env)
        envs.receive()
        image = envs.render()
    assert (image.shape, image.dtype, image.max()) == ((32, 48, 3), np.uint8, 1)


def first_image(env_id):
    with closing(make_envs(spec(f"helpers.own_envs:{env_id}"), [1], 1, rendered=True)) as envs:
        envs.reset()
        envs.receive()
        return envs.render()


def test_a_class_that_takes_no_render_mode_may_render():
    assert first_image("OneWayToRender-v0").shape == (32, 48, 3)
    with pytest.raises(UsageError, match="NoImage-v0 cannot be recorded: it renders no image; leave the"):
        first_image("NoImage-v0")


def test_what_has_no_signature_is_given_the_render_mode():
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(dict)
    assert _takes(dict, "render_mode")


def test_the_flag_stacks_frames_here_too():
    env = spec("helpers.own_envs:Pixels-v0", '{"grayscale": true}', frame_stack=4)
    assert env.obs == ArraySpec((4, 12, 16), np.dtype(np.uint8), stack=4)


def test_envpool_is_taken_where_it_has_the_id():
    assert spec("CartPole-v1").backend == "envpool"
    assert spec("CartPole-v1", env_backend="gymnasium").backend == "gymnasium"
    assert spec("MountainCarContinuous-v0").action.kind == "box"
    assert spec(CUE).backend == "gymnasium"


def test_a_class_that_the_user_has_registered_is_taken_whatever_envpool_has():
    assert spec("Catch-v0").backend == "envpool"
    gymnasium.register("Catch-v0", entry_point=Cue)
    try:
        assert spec("Catch-v0").obs == ArraySpec((3,), np.dtype(np.float32))
    finally:
        del gymnasium.registry["Catch-v0"]


@pytest.mark.parametrize(
    ("env_id", "options", "problem"),
    [
        ("CartPool-v1", "{}", "is not an EnvPool or Gymnasium environment; did you mean CartPole-v1"),
        ("helpers.own_envs:Cu-v0", "{}", "with Gymnasium; did you mean helpers.own_envs:Cue-v0"),
        ("no_such_module:Cue-v0", "{}", "no module no_such_module .*PYTHONPATH or in the current folder"),
        ("helpers.own_envs:NoEnvironment-v0", "{}", "must inherit from the gymnasium.Env class"),
        ("helpers.own_envs:NoSpaces-v0", "{}", "cannot be made\n(?s:.*)no attribute 'observation_space'"),
        (CUE, '{"wind": 3}', "unexpected keyword argument 'wind'"),
        (CUE, '{"resize": [84, 84]}', "resize needs images, but observations are Box"),
        (CUE, '{"frame_stack": 0}', "frame_stack is 0; give a value like 1"),
        (CUE, '{"resize": [84]}', r"resize is \[84\]; give a value like \[84, 84\]"),
        (CUE, '{"grayscale": 1}', "grayscale is 1; give a value like False"),
    ],
)
def test_bad_input_is_refused(env_id, options, problem):
    with pytest.raises(UsageError, match=problem):
        spec(env_id, options)


def test_the_options_of_an_environment_are_what_it_is_registered_with_and_can_be_made_with():
    gymnasium.register("Limited-v0", entry_point=Cue, max_episode_steps=7)
    try:
        options = gymnasium_envs.default_options("Limited-v0")
    finally:
        del gymnasium.registry["Limited-v0"]
    assert options["delay"] == 0.0 and options["max_episode_steps"] == 7 and "render_mode" not in options


@pytest.mark.parametrize(("fault", "says"), [("math.sqrt(-1)", "ValueError"), ("exit(3)", "SystemExit: 3")])
def test_a_module_that_fails_shows_where(tmp_path, monkeypatch, fault, says):
    (tmp_path / "broken_module.py").write_text(f"import math\n\n{fault}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=rf'(?s)broken_module.py", line 3.*{says}') as raised:
        spec("broken_module:Any-v0")
    assert "importlib" not in str(raised.value)
