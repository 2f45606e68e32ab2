import os
from collections import Counter
from pathlib import Path

import gymnasium.spaces as spaces
import numpy as np
import pytest

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.envs.envpool import Envs, _encoder, env_spec
from cleanba.envs.episodes import Episode, EpisodeTracker
from cleanba.envs.factory import env_threads
from cleanba.envs.seeding import env_seeds
from cleanba.envs.spaces import action_spec, obs_specs
from cleanba.envs.spec import EnvStep


def make(env_id, preset="impala", seeds=(1, 2, 3, 4), batch=None, **options):
    env = env_spec(Args(env_id=env_id, atari_preset=preset))
    return Envs(env._replace(options=env.options | options), list(seeds), threads=2, batch=batch)


def first_obs(envs):
    envs.reset()
    return envs.receive().obs


def step(envs, action):
    """Step all environments."""
    envs.send(np.asarray(action, np.int32), np.arange(len(action), dtype=np.int32))
    return envs.receive()


def play(envs, steps, seed=0):
    """Take random actions; returns the observations and steps."""
    rng = np.random.default_rng(seed)
    obs = [first_obs(envs)]
    taken = []
    for _ in range(steps):
        taken.append(step(envs, rng.integers(0, 4, len(obs[0]))))
        obs.append(taken[-1].obs)
    return np.stack(obs), EnvStep(*(np.stack(x) for x in zip(*taken, strict=True)))


# ------------------------------------------------------------------------------------------- what is made


def test_the_presets_differ_where_their_papers_do():
    assert env_spec(Args(env_id="Breakout-v5", atari_preset="machado")).action.n == 18
    assert env_spec(Args(env_id="Breakout-v5", atari_preset="impala")).action.n == 4
    assert env_spec(Args(atari_preset="machado")).options["repeat_action_probability"] == 0.25
    assert env_spec(Args(atari_preset="impala")).options["noop_max"] == 30
    assert env_spec(Args(env_id="CartPole-v1")).options == {}


@pytest.mark.parametrize(
    ("env_id", "shape", "dtype", "actions"),
    [
        ("Breakout-v5", (4, 84, 84), np.uint8, 18),
        ("CartPole-v1", (4,), np.float32, 2),
        ("Catch-v0", (10, 5), np.float32, 3),
        ("Taxi-v3", (500,), np.float32, 6),  # a number: one-hot
    ],
)
def test_boxes_stay_as_they_are_and_numbers_become_one_hot(env_id, shape, dtype, actions):
    spec = env_spec(Args(env_id=env_id))
    assert (spec.obs.shape, spec.obs.dtype, spec.action.n) == (shape, dtype, actions)
    envs = make(env_id, preset="machado")
    for obs in (first_obs(envs), step(envs, np.zeros(4)).obs):
        assert (obs.shape, obs.dtype) == ((4, *shape), dtype)


def test_discrete_observations_are_one_hot():
    obs = first_obs(make("Taxi-v3"))
    np.testing.assert_array_equal(obs.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("breakout-v4", "--env-id breakout-v4 is not an EnvPool environment; did you mean Breakout-v5"),
        ("qqqqqq", "`cleanba envs` lists what exists"),
        ("intersection-multi-agent-v0", "has several agents; choose an environment with one"),
    ],
)
def test_environments_that_cannot_be_trained_are_refused(env_id, message):
    with pytest.raises(UsageError, match=message):
        env_spec(Args(env_id=env_id))


def test_a_dict_of_observations_stays_a_dict():
    spec = env_spec(Args(env_id="MiniGrid-Empty-5x5-v0"))
    assert spec.obs["image"].is_image and spec.obs["direction"].shape == (4,)
    obs = first_obs(make("MiniGrid-Empty-5x5-v0"))
    assert {name: (x.shape[1:], x.dtype) for name, x in obs.items()} == {
        name: (x.shape, x.dtype) for name, x in spec.obs.items()
    }
    np.testing.assert_array_equal(obs["direction"].sum(axis=1), 1)


def test_entries_of_nested_dicts_have_a_path():
    """A key may have a / of its own."""
    entries = dict(goal=spaces.Dict(at=spaces.Box(0, 1, (2,))), speed=spaces.Box(0, 1, ()))
    space = spaces.Dict(entries | {"goal/far": spaces.Box(0, 1, (1,))})
    assert {name: spec.shape for name, spec in obs_specs("Nested", space).items()} == {
        "goal/at": (2,),
        "speed": (),
        "goal/far": (1,),
    }
    numbers = np.arange(3, dtype=np.float32)
    obs = {"goal": {"at": numbers[:2]}, "speed": numbers[1], "goal/far": numbers[2:]}
    encoded = _encoder(space)(obs)
    assert {name: x.tolist() for name, x in encoded.items()} == {
        "goal/at": [0, 1],
        "speed": 1,
        "goal/far": [2],
    }


def test_continuous_actions_are_clipped_to_the_bounds():
    """Pendulum's are -2 to 2: a larger one does what 2 does."""
    spec = env_spec(Args(env_id="Pendulum-v1"))
    assert (spec.action.shape, spec.action.low, spec.action.high) == ((1,), (-2.0,), (2.0,))
    received = []
    for torque in (2.0, 50.0):
        envs = make("Pendulum-v1", seeds=(1, 1))
        envs.reset()
        envs.receive()
        envs.send(np.full((2, 1), torque, np.float32), np.arange(2, dtype=np.int32))
        received.append(envs.receive())
    np.testing.assert_array_equal(received[0].obs, received[1].obs)
    np.testing.assert_array_equal(received[0].reward, received[1].reward)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-np.inf, 1, (2,)), "has actions without bounds"),
        (spaces.Box(0, 5, (2,), np.int32), "wrap it so that they are Discrete, MultiDiscrete"),
        (spaces.Discrete(3, start=1), "wrap it so that they are Discrete"),
        (spaces.Tuple([spaces.Discrete(2)]), "wrap it so that they are Discrete"),
    ],
)
def test_actions_that_no_policy_can_take_are_refused(space, message):
    with pytest.raises(UsageError, match=message):
        action_spec("Odd", space)


@pytest.mark.parametrize("space", [spaces.Tuple([spaces.Discrete(2)]), spaces.Text(3)])
def test_observations_that_no_network_can_see_are_refused(space):
    with pytest.raises(UsageError, match=f"--env-id Odd has {type(space).__name__} observations"):
        obs_specs("Odd", space)


def test_options_go_over_those_of_the_preset():
    options = env_spec(Args(env_options='{"frame_skip": 2, "noop_max": 5}')).options
    assert (options["frame_skip"], options["noop_max"], options["stack_num"]) == (2, 5, 4)
    assert env_spec(Args(env_id="CartPole-v1", env_options='{"max_episode_steps": 9}')).options == {
        "max_episode_steps": 9
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"frame_skp": 2}', "Breakout-v5 has no option 'frame_skp'; it has frame_skip"),
        ('{"num_envs": 2}', "has no option 'num_envs'"),
        ('{"frame_skip": "2"}', "frame_skip of Breakout-v5 is '2'; give a value like 4"),
        ('{"frame_skip": 0}', "frame_skip of Breakout-v5 is 0; give a value like 4"),
        ('{"frame_skip": true}', "frame_skip of Breakout-v5 is True; give a value like 4"),
        ("{frame_skip: 2}", "is not JSON"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_options_that_the_environment_does_not_have_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        env_spec(Args(env_options=options))


def test_environment_threads_are_shared_out(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    assert env_threads(Args(), actors=2, background=False) == 7  # (16 - 2) / 2
    assert env_threads(Args(), actors=2, background=True) == 8  # all of them
    assert env_threads(Args(env_threads=3), actors=2, background=False) == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert env_threads(Args(), actors=4, background=False) == 1


# -------------------------------------------------------------------------------------------------- seeds


def test_seeds_belong_to_environments_and_never_meet():
    seeds = env_seeds(1, range(4096))
    assert len(set(seeds)) == 4096
    assert all(0 <= s < 2**31 for s in seeds)
    assert env_seeds(1, range(100, 104)) == seeds[100:104]
    assert not set(seeds) & set(env_seeds(2, range(4096)))


def test_an_environment_plays_the_same_wherever_it_is():
    """Sticky actions make episodes random; environments 2 and 3 are the same alone, in a pool of four, and
    when stepped by other threads."""
    together, _ = play(make("Breakout-v5", "machado", seeds=env_seeds(1, range(4))), 60)
    actions = np.random.default_rng(0)
    alone = make("Breakout-v5", "machado", seeds=env_seeds(1, range(2, 4)))
    obs = [first_obs(alone)]
    for _ in range(60):
        obs.append(step(alone, actions.integers(0, 4, 4)[2:]).obs)
    np.testing.assert_array_equal(together[:, 2:], np.stack(obs))
    assert (together[-1, 2] != together[-1, 3]).any()


def test_environments_that_come_in_any_order_play_the_same():
    """Actions depend on the environment and its step; two of four are received as they become ready."""

    def play_60(envs):
        obs = [[] for _ in range(4)]
        envs.reset()
        while min(map(len, obs)) < 60:
            env_step = envs.receive()
            assert len(env_step.env) == envs.batch
            for e, row in zip(env_step.env, env_step.obs, strict=True):
                obs[e].append(row)
            envs.send(np.array([(e + len(obs[e])) % 4 for e in env_step.env], np.int32), env_step.env)
        return np.stack([rows[:60] for rows in obs])

    sync, by_two = (play_60(make("Breakout-v5", "machado", batch=batch)) for batch in (4, 2))
    np.testing.assert_array_equal(sync, by_two)


# ----------------------------------------------------------------------------------- resets, lives, games


def test_the_row_after_an_episode_is_a_reset_not_a_transition():
    """Whatever action it is given, and it gives no reward."""
    first, second = make("CartPole-v1", seeds=[7]), make("CartPole-v1", seeds=[7])
    first_obs(first), first_obs(second)
    while True:
        last, _ = step(first, [0]), step(second, [0])
        if last.terminated[0]:
            break
    after_0, after_1 = step(first, [0]), step(second, [1])
    np.testing.assert_array_equal(after_0.obs, after_1.obs)
    assert after_0.reward[0] == 0 and not after_0.terminated[0]
    assert abs(last.obs[0, 2]) > 0.2 and abs(after_0.obs[0, 2]) < 0.05  # the fallen pole, then a new one


def test_a_lost_life_ends_an_episode_but_not_the_game():
    _, steps = play(make("Breakout-v5", "impala"), 800)
    assert steps.terminated.sum() > steps.game_over.sum() > 0
    assert not (steps.game_over & ~steps.terminated).any()


def test_without_episodic_life_only_the_game_ends():
    _, steps = play(make("Breakout-v5", "machado"), 800)
    assert steps.game_over.sum() > 0
    np.testing.assert_array_equal(steps.terminated, steps.game_over)


def test_truncation_is_not_termination():
    _, steps = play(make("Breakout-v5", "impala", max_episode_steps=20), 50)
    assert steps.truncated.any() and not (steps.truncated & steps.terminated).any()
    assert (steps.game_over >= steps.truncated).all()


def test_rewards_are_clipped_for_learning_and_raw_for_reports():
    _, steps = play(make("SpaceInvaders-v5", "impala"), 400)
    assert set(np.unique(steps.reward)) <= {-1.0, 0.0, 1.0}
    assert steps.raw_reward.max() >= 5  # the cheapest invader
    np.testing.assert_array_equal(np.sign(steps.raw_reward), steps.reward)


def step_of(raw, terminated=False, truncated=False, game_over=False):
    flags = [np.array([x]) for x in (terminated, truncated)]
    return EnvStep(np.array([0]), np.zeros(1), np.zeros(1), *flags, np.array([raw]), np.array([game_over]))


def test_a_return_runs_through_lost_lives_without_reset_rows():
    tracker = EpisodeTracker(1)
    yes, no = np.array([True]), np.array([False])
    assert tracker.add(step_of(2.0), yes) == {}
    assert tracker.add(step_of(3.0, terminated=True), yes) == {}  # a lost life
    assert tracker.add(step_of(100.0), no) == {}  # its reset row counts neither reward nor step
    assert tracker.add(step_of(4.0, terminated=True, game_over=True), yes) == {0: Episode(9.0, 3)}
    assert tracker.add(step_of(0.0), no) == {}
    assert tracker.add(step_of(5.0, truncated=True, game_over=True), yes) == {0: Episode(5.0, 1)}


def test_environments_in_the_background_let_others_go_first():
    """Their threads, and no other one of the process."""

    def policies():
        tasks = Path("/proc/self/task").iterdir()
        return Counter(os.sched_getscheduler(int(task.name)) for task in tasks)

    before = policies()
    envs = Envs(env_spec(Args(env_id="CartPole-v1")), range(4), threads=3, background=True)
    assert (policies() - before)[os.SCHED_IDLE] >= 3
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    envs.reset()
    assert len(envs.receive().env) == 4
