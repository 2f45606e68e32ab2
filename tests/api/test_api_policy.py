"""`cleanba.load`, `cleanba.evaluate`, and policies as functions."""

import os
import sys
from contextlib import closing

import gymnasium
import jax
import numpy as np
import pytest
from helpers.models import make_model
from helpers.own_envs import LENGTH, Cue

import cleanba
from cleanba.envs.factory import make_envs
from cleanba.envs.seeding import EVALUATION, env_seeds
from cleanba.envs.spec import ArraySpec
from cleanba.evaluation.evaluate import evaluate as evaluate_model
from cleanba.evaluation.policy import Policy, as_rows

F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)


@pytest.fixture(scope="module")
def cartpole():
    return Policy(make_model())


@pytest.fixture(scope="module")
def recurrent():
    return Policy(make_model(recurrent="gru", recurrent_width=8))


@pytest.fixture
def registry():
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


# ----------------------------------------------------------------------------------------- as evaluated


def returns_of_first_episodes(model, seed, greedy):
    """With the policy as a function, of as many environments as there are episodes."""
    policy, n = Policy(model, seed=seed), 3
    seeds = env_seeds((seed, EVALUATION), range(n))
    total, over, state = np.zeros(n), np.zeros(n, np.bool_), None
    with closing(make_envs(model.env, seeds, threads=1)) as envs:
        envs.reset()
        obs = envs.receive().obs
        while not over.all():
            action, state = policy(obs, state, greedy)
            envs.send(action, np.arange(n, dtype=np.int32))
            step = envs.receive()
            total += step.raw_reward * ~over
            over |= step.game_over
            obs = step.obs
    return total


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("flags", [{}, dict(recurrent="lstm", recurrent_width=8)], ids=["plain", "lstm"])
def test_a_policy_plays_what_an_evaluation_plays(flags, greedy):
    model = make_model(**flags)
    expected = evaluate_model(model, episodes=3, seed=5, greedy=greedy)
    played = returns_of_first_episodes(model, 5, greedy)
    shorter = min(played)  # an episode that began later counts instead of one that never ended
    assert expected.returns.tolist() == played.tolist() and shorter > 5
    assert cleanba.evaluate(Policy(model), 3, seed=5, greedy=greedy) == expected


def test_in_its_own_environment_one_observation_at_a_time(train, registry):
    training = train(make_env=Cue, total_timesteps=64, recurrent="gru")
    policy = cleanba.load(training.policy.save(training.folder / "cue.cleanrl_model"), seed=5)
    with closing(policy.make_env()) as env:
        obs, _ = env.reset(seed=env_seeds((5, EVALUATION), range(1))[0])
        state, rewards, over = None, [], False
        while not over:
            action, state = policy(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
            over = terminated or truncated
    assert len(rewards) == LENGTH
    assert cleanba.evaluate(training, 1, seed=5).returns.tolist() == [sum(rewards)]


# -------------------------------------------------------------------------------------- as a function


def test_one_observation_or_a_batch(cartpole):
    obs = np.random.default_rng(0).standard_normal((6, 4))  # float64, as some environments give it
    many, _ = cartpole(obs, greedy=True)
    assert many.shape == (6,) and many.dtype == np.int64
    one = [cartpole(x, greedy=True)[0] for x in obs]
    assert one == many.tolist() and one[0].shape == ()
    assert cartpole(obs[0].tolist(), greedy=True)[0] == many[0]


def test_sampled_actions_follow_the_seed_and_change_from_call_to_call(cartpole):
    obs = np.zeros((32, 4))
    calls = [[Policy(cartpole.model, seed=s)(obs)[0].tolist() for _ in range(1)] for s in (1, 1, 2)]
    assert calls[0] == calls[1] != calls[2]
    assert cartpole(obs)[0].tolist() != cartpole(obs)[0].tolist()


def test_a_memory_belongs_to_its_environment_and_ends_with_the_episode(recurrent):
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((5, 3, 4))
    state, memories = None, []
    for x in obs:
        _, state = recurrent(x, state, greedy=True)
        memories.append(jax.tree.leaves(state.memory)[0])
    alone = None
    for x in obs[:, 1]:
        _, alone = recurrent(x, alone, greedy=True)
    assert np.allclose(jax.tree.leaves(alone.memory)[0][0], memories[-1][1], atol=1e-6)
    _, after = recurrent(obs[0], recurrent.reset(state, np.array([False, True, False])), greedy=True)
    after = jax.tree.leaves(after.memory)[0]
    assert np.allclose(after[1], memories[0][1], atol=1e-6)
    assert not np.allclose(after[0], memories[0][0], atol=1e-6)


def test_a_policy_that_sees_its_last_reward_asks_for_it(train):
    policy = train(last_action_reward=True, total_timesteps=64).policy
    assert policy.observation == ArraySpec((4,), F32)
    _, state = policy(np.zeros(4))
    with pytest.raises(cleanba.UsageError, match=r"also sees its last reward .* policy\(obs, state, reward="):
        policy(np.zeros(4), state)
    with pytest.raises(cleanba.UsageError, match="the reward is .* give one number per observation"):
        policy(np.zeros(4), state, reward=[1.0, 2.0])
    policy(np.zeros(4), state, reward=1.0)


def test_continuous_actions_are_within_their_bounds():
    policy = Policy(make_model(env_id="Pendulum-v1"))
    action, _ = policy(np.full((64, 3), 5.0))
    assert action.shape == (64, 1) and action.dtype == np.float32 and np.abs(action).max() <= 2.0
    assert policy(np.zeros(3))[0].shape == (1,)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(5), r"observations of CartPole-v1 are \[4\], or \[B, 4\] for a batch; given: \[5\]"),
        (np.zeros((2, 3, 4)), r"given: \[2, 3, 4\]"),
        (np.zeros((0, 4)), r"given: \[0, 4\]"),
        ({"a": np.zeros(4)}, "observations of CartPole-v1 are one array; given: a dict with the entries a"),
        (np.array(list("abcd")), "observations are <U1; give float32, as in training"),
    ],
)
def test_observations_that_do_not_fit_are_named(cartpole, obs, message):
    with pytest.raises(cleanba.UsageError, match=message):
        cartpole(obs)


def test_states_that_do_not_fit_are_named(cartpole):
    _, state = cartpole(np.zeros((3, 4)))
    with pytest.raises(cleanba.UsageError, match="the state is of 3 environments, the observations of 2"):
        cartpole(np.zeros((2, 4)), state)
    with pytest.raises(cleanba.UsageError, match=r"`done` is bool \[2\]; give bool \[3\]"):
        cartpole.reset(state, [True, False])
    with pytest.raises(cleanba.UsageError, match=r"CartPole-v1 was stepped by EnvPool, not by Gymnasium"):
        cartpole.make_env()


def test_dicts_images_and_discrete_observations():
    specs = {"a/b": ArraySpec((3,), F32), "image": ArraySpec((2, 8, 8), U8, stack=2)}
    image = np.zeros((2, 8, 8), np.uint8)
    rows, is_batch = as_rows("X", specs, {"a": {"b": 1}, "image": image})
    assert rows["a/b"].tolist() == [[0, 1, 0]] and rows["image"].shape == (1, 2, 8, 8) and not is_batch
    with pytest.raises(cleanba.UsageError, match=r"image .*given: \[8, 8\]; 2 frames are stacked in each"):
        as_rows("X", specs, {"a": {"b": 1}, "image": image[0]})
    with pytest.raises(cleanba.UsageError, match="observations image are float64; give uint8"):
        as_rows("X", specs, {"a": {"b": 1}, "image": image / 255})
    with pytest.raises(cleanba.UsageError, match="not of the same environments: a/b .*3.*, image uint8"):
        as_rows("X", specs, {"a": {"b": 1}, "image": image[None]})
    with pytest.raises(
        cleanba.UsageError,
        match="are a dict with the entries a/b, image; given: a dict with the entries image",
    ):
        as_rows("X", specs, {"image": image})
    with pytest.raises(cleanba.UsageError, match="a number from 0 to 2"):
        as_rows("X", specs, {"a": {"b": 3}, "image": image})


# ----------------------------------------------------------------------------------------------- files


def test_what_a_model_names_is_not_imported_unless_it_is_named_here(tmp_path, train, monkeypatch, registry):
    (tmp_path / "danger.py").write_text(
        "import gymnasium\nfrom helpers.own_envs import Cue\ngymnasium.register('Cue-v7', Cue)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    training = train(env_id="danger:Cue-v7", total_timesteps=64)
    path = training.policy.save(tmp_path / "m.cleanrl_model")
    monkeypatch.delitem(sys.modules, "danger")
    gymnasium.registry.pop("Cue-v7")
    with pytest.raises(cleanba.UsageError, match='allow it with env_id="danger:Cue-v7"'):
        cleanba.load(path)
    assert "danger" not in sys.modules
    policy = cleanba.load(path, env_id="danger:Cue-v7")
    assert cleanba.evaluate(policy, 2).env_id == "danger:Cue-v7"


@pytest.mark.parametrize("use", [cleanba.load, cleanba.evaluate])
def test_loading_is_deterministic_before_it_looks_for_devices(use, monkeypatch, tmp_path):
    def load_model(*_, **__):
        raise cleanba.UsageError(f"with {os.environ.get('XLA_FLAGS')}")

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr("cleanba.api.load_model", load_model)  # which starts JAX
    (tmp_path / "m.cleanrl_model").touch()
    with pytest.raises(cleanba.UsageError, match="with --xla_gpu_deterministic_ops=true"):
        use(tmp_path / "m.cleanrl_model")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (dict(env_options={"max_episode_steps": 3}), "env_options"),
        (dict(env_id="Pendulum-v1"), "env_id"),
        (dict(make_env=Cue), "make_env"),
        (dict(algorithm="a2c.py", env_id="A-v0"), "algorithm, env_id"),
    ],
)
def test_what_changes_a_loading_is_refused_for_a_policy(cartpole, given, names):
    with pytest.raises(cleanba.UsageError, match=rf"^{names}: only with a path; .* from load\(path, …\)"):
        cleanba.evaluate(cartpole, 1, **given)


def test_a_failed_video_is_reported_and_costs_no_evaluation(cartpole, tmp_path, capsys):
    evaluation = cleanba.evaluate(cartpole, 2, video=tmp_path / "nowhere/a.mp4")
    assert evaluation == cleanba.evaluate(cartpole, 2)
    failed = capsys.readouterr().err
    assert failed.startswith("the video failed: ") and "No such file or directory" in failed
    cleanba.evaluate(cartpole, 1, video=tmp_path / "a.mp4")
    assert (tmp_path / "a.mp4").exists() and capsys.readouterr().err == ""


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(cleanba.UsageError, match="no/such/file does not exist"):
        cleanba.load("no/such/file")
    with pytest.raises(cleanba.UsageError, match="episodes=0 is too small"):
        cleanba.evaluate("x", 0)
    with pytest.raises(cleanba.UsageError, match="seed=-1 is out of range"):
        cleanba.evaluate("x", seed=-1)
