"""Policies with a memory: they learn what needs one, and the contract holds for them."""

import itertools

import jax
import numpy as np
import pytest
from helpers.delays import delays
from helpers.equivalence import ALGORITHMS, check_lag, digests, distance, sgd
from helpers.python_envs import (
    LENGTH,
    LargestAllowed,
    PositionsOnly,
    TMaze,
    TwoNumbers,
    use_python_envs,
)
from helpers.videos import read_video

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.agents.algorithm import Rollout
from cleanba.agents.networks import make_agent
from cleanba.agents.returns import vtrace
from cleanba.bench.device_rates import DeviceBench
from cleanba.config.errors import UsageError
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.model import load_model
from cleanba.sebulba.actor import Actor
from cleanba.training.setup import make_setup

LSTM = dict(recurrent="lstm", recurrent_width=8, last_action_reward=True)
SHORT = dict(env_options='{"max_episode_steps": 12}')  # episodes are cut off, too
each_algorithm = pytest.mark.parametrize("which", ALGORITHMS)
ppo_and_slowly_impala = pytest.mark.parametrize(
    "which", ["ppo", pytest.param("impala", marks=pytest.mark.slow)]
)


# ------------------------------------------------------------------------------------------- is it learned


def find_the_side(run, monkeypatch, which, updates, **flags):
    """The share of the last 100 episodes that take the right side: 0.5 is a guess."""
    use_python_envs(monkeypatch, TMaze)
    sizes = dict(local_num_envs=32, num_steps=18, num_minibatches=2, total_timesteps=updates * 18 * 32)
    learning = dict(learning_rate=5e-3, gamma=0.9, ent_coef=0.01, hiddens=(16,), anneal_lr=False)
    learning |= dict(max_grad_norm=0.5) if which == "ppo" else {}
    _, rows = run(**ALGORITHMS[which] | sizes | learning | dict(recurrent_width=16) | flags)
    return rows[-1]["charts/avg_episodic_return"]


@pytest.mark.parametrize(
    ("which", "kind"), [pytest.param("ppo", "gru", marks=pytest.mark.slow), ("impala", "lstm")]
)
def test_a_memory_begins_to_find_the_side(run, monkeypatch, which, kind):
    assert find_the_side(run, monkeypatch, which, 30, recurrent=kind) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@each_algorithm
def test_a_memory_finds_the_side(run, monkeypatch, which, kind):
    assert find_the_side(run, monkeypatch, which, 150, recurrent=kind) >= 0.9


@each_algorithm
def test_without_a_memory_the_side_is_a_guess(run, monkeypatch, which):
    assert 0.3 < find_the_side(run, monkeypatch, which, 40) < 0.7


def balance(run, monkeypatch, which, **flags):
    """The mean length of the last 100 episodes, of at most 500 steps."""
    use_python_envs(monkeypatch, PositionsOnly)
    sizes = dict(local_num_envs=16, num_steps=64, num_minibatches=4, total_timesteps=250_000)
    learning = dict(learning_rate=1e-3, hiddens=(64,), recurrent_width=64, ent_coef=0.0)
    learning |= dict(normalize_observations=True, normalize_rewards=True)
    _, rows = run(**ALGORITHMS[which] | sizes | learning | flags)
    return rows[-1]["charts/avg_episodic_return"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@each_algorithm
def test_positions_alone_are_enough_with_a_memory(run, monkeypatch, which):
    assert balance(run, monkeypatch, which, recurrent="lstm") > 400
    assert balance(run, monkeypatch, which) < 200


# ------------------------------------------------------------------------------------------- the contract


@pytest.fixture
def straddling(monkeypatch):
    """Of each call, whether it has rows of two versions."""
    found, choose = [], Actor.choose

    def watched(self, obs, env, step):
        decision, version = choose(self, obs, env, step)
        found.append(len(set(version.tolist())) > 1)
        return decision, version

    monkeypatch.setattr(Actor, "choose", watched)
    return found


@ppo_and_slowly_impala
def test_the_same_bits_in_sync_and_in_async_with_delays(run, straddling, which):
    flags = (
        ALGORITHMS[which] | LSTM | dict(local_num_envs=8, num_steps=8, inference_batch=2, concurrency=True)
    )
    flags |= dict(num_minibatches=2, total_timesteps=12 * 64)
    _, sync = run(**flags, env_stepping="sync", env_threads=1)
    assert not any(straddling)
    with delays():
        _, ready_first = run(**flags, env_stepping="async", env_threads=2)
    assert any(straddling)
    check_lag(ready_first, lag=1)
    assert digests(sync) == digests(ready_first) and len(set(digests(sync))) == 12


LAYOUTS = {
    "three learners": dict(local_num_envs=24, learner_device_ids=(1, 2, 3)),
    "two threads, two learners": dict(local_num_envs=12, num_actor_threads=2, learner_device_ids=(1, 2)),
    "four threads": dict(local_num_envs=6, num_actor_threads=4),
}


@pytest.mark.slow
@each_algorithm
def test_layouts_agree(run, which):
    flags = ALGORITHMS[which] | LSTM | dict(inference_batch=6, num_minibatches=2, gradient_chunk=48)
    flags |= dict(total_timesteps=5 * 16 * 24)
    parts = sgd(which, scale=10)
    one, rows = run(parts, **flags | dict(local_num_envs=24))
    start, _ = run(sgd(which, scale=0.0), **flags | dict(local_num_envs=24, total_timesteps=16 * 24))
    assert distance(start.model.params, one.model.params) > 5e-4
    for name, layout in LAYOUTS.items():
        other, other_rows = run(parts, **flags | layout)
        assert rows[0]["data_digest"] == other_rows[0]["data_digest"], name
        assert distance(one.model.params, other.model.params) < 1e-5, name


# -------------------------------------------------------------------------- where the memory starts anew


def watched_rollouts(run, module, **flags):
    """Of a run whose params never move."""
    rollouts, whole = [], module.make_algorithm

    def make_algorithm(*inputs):
        algorithm = whole(*inputs)

        def prepare(published, rollout):
            jax.debug.callback(lambda x: rollouts.append(jax.device_get(x)), rollout)
            return algorithm.prepare(published, rollout)

        return algorithm._replace(prepare=prepare, learning_rate=lambda update, extra: 0.0)

    fake = type("Watched", (), {"Args": module.Args, "make_algorithm": staticmethod(make_algorithm)})
    outcome, rows = run(algorithm=fake, **flags)
    jax.effects_barrier()
    return outcome, rows, rollouts


STILL = LSTM | SHORT | dict(num_minibatches=2, total_timesteps=4 * 64)


def test_the_memory_starts_anew_on_the_row_after_the_reset_row(run):
    """A plain loop over what was seen: values, and the state at each rollout's ends."""
    outcome, _, rollouts = watched_rollouts(run, cleanba_ppo, **STILL)
    agent = make_agent(outcome.model.args, outcome.model.env)
    apply = jax.jit(agent.apply)
    state, starts, ends = agent.initial_state(4), np.ones(4, bool), 0
    for rollout in rollouts:
        assert isinstance(rollout, Rollout)
        compare(rollout.first_state, state)
        for t in range(16):
            obs = {name: x[t] for name, x in rollout.obs.items()}
            _, value, state = apply(outcome.model.published, obs, state, starts)
            np.testing.assert_allclose(rollout.record.value[t], value, atol=1e-5)
            np.testing.assert_array_equal(rollout.episode_start[t], starts)
            starts = ~rollout.valid[t]
            ends += starts.sum()
        np.testing.assert_array_equal(rollout.episode_start[16], starts)
        compare(rollout.last_state, state)
    assert ends > 8 and sum(rollout.truncated.sum() for rollout in rollouts) > 0


def compare(tree, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), tree, expected)


def test_the_first_ratio_is_one(run):
    """Params do not move, so another ratio comes from another memory than the one that acted."""
    _, rows, _ = watched_rollouts(run, cleanba_ppo, **STILL, update_epochs=1)
    assert [row["losses/approx_kl"] for row in rows] == pytest.approx([0] * 4, abs=1e-9)
    assert rows[-1]["losses/value_loss"] > 0


def test_the_last_value_comes_from_the_last_state(run):
    """The value after the last step of a rollout is the first one of the next."""
    outcome, _, rollouts = watched_rollouts(run, cleanba_ppo, **STILL, gae_lambda=0.0)
    args = dict(gamma=0.99, gae_lambda=0.0, normalize_rewards=False)
    agent = make_agent(outcome.model.args, outcome.model.env)
    for rollout, following in itertools.pairwise(rollouts):
        batch = cleanba_ppo.prepare(outcome.model.published, rollout, agent=agent, **args)
        last, value = following.record.value[0], rollout.record.value[-1]
        delta = rollout.reward[-1] + 0.99 * ~rollout.terminated[-1] * last - value
        np.testing.assert_allclose(batch.advantage[-1], delta * rollout.valid[-1], atol=1e-5)


def test_impalas_loss_is_that_of_what_the_actor_saw(run):
    """Params do not move: the learner's values and probabilities are the actor's, from V-trace without
    weights."""
    outcome, _, rollouts = watched_rollouts(run, cleanba_impala, **STILL)
    published, agent = outcome.model.published, make_agent(outcome.model.args, outcome.model.env)
    coefficients = dict(gamma=0.99, vf_coef=0.5, ent_coef=0.0)
    for rollout, following in itertools.pairwise(rollouts):
        chunk, everywhere = cleanba_impala.prepare(published, rollout), np.ones((17, 4), bool)
        loss = cleanba_impala.impala_loss(published, chunk, everywhere, None, agent=agent, **coefficients)
        value, logprob, valid = rollout.record.value, rollout.record.logprob, rollout.valid
        last_value = following.record.value[0]
        steps = dict(reward=rollout.reward, terminated=rollout.terminated, valid=valid, gamma=0.99)
        target, advantage = vtrace(value=value, last_value=last_value, log_rho=np.zeros_like(value), **steps)
        expected = np.sum(0.5 * (target - value) ** 2, where=valid)
        assert loss.metrics["value_loss"] == pytest.approx(float(expected), rel=1e-4)
        expected = np.sum(-advantage * logprob, where=valid)
        assert loss.metrics["policy_loss"] == pytest.approx(float(expected), rel=1e-4)


# ------------------------------------------------------------------------------------ all that goes with it


KINDS: dict = {  # of observations and actions
    "several numbers": TwoNumbers,
    "dict, masks": LargestAllowed,
    "continuous": dict(env_id="Pendulum-v1", env_options='{"max_episode_steps": 12}'),
    "images": dict(env_id="Breakout-v5", atari_preset="impala", frame_stack=2, channels=(2,)),
}
FAST = {("ppo", "dict, masks"), ("impala", "continuous")}


@pytest.mark.parametrize(
    ("which", "kind"),
    [
        pytest.param(*both, marks=[] if both in FAST else pytest.mark.slow)
        for both in itertools.product(ALGORITHMS, KINDS)
    ],
)
def test_the_learner_sees_what_the_actor_saw_whatever_the_kind(run, monkeypatch, which, kind):
    """From each rollout's first state the learner finds the probabilities of the actions again."""
    flags = ALGORITHMS[which] | LSTM | dict(num_minibatches=2, total_timesteps=4 * 64, gradient_chunk=16)
    if isinstance(KINDS[kind], dict):
        flags |= KINDS[kind]
    else:
        use_python_envs(monkeypatch, KINDS[kind])
        flags |= dict(last_action_reward=False)  # the observations of these are as they are
    module = flags.pop("algorithm")
    outcome, _, rollouts = watched_rollouts(run, module, **flags)
    agent = make_agent(outcome.model.args, outcome.model.env)
    unroll = jax.jit(agent.unroll)
    for rollout in rollouts:
        obs, start = jax.tree.map(lambda x: x[:-1], (rollout.obs, rollout.episode_start))
        policy, _, state = unroll(outcome.model.published, obs, rollout.first_state, start)
        seen, acted = policy.log_prob(rollout.action), rollout.record.logprob
        np.testing.assert_allclose(seen[rollout.valid], acted[rollout.valid], atol=1e-5)
        compare(state, rollout.last_state)
    assert len(rollouts) == 4 and not all(rollout.valid.all() for rollout in rollouts)


@ppo_and_slowly_impala
def test_models_and_resumed_runs_have_the_memory(run, which):
    flags = ALGORITHMS[which] | LSTM | dict(num_minibatches=2, normalize_observations=True)
    short, _ = run(**flags, total_timesteps=2 * 64, save_model=True, capture_video=True)
    frames = short.evaluation.episodes[0].length + 1  # that of the reset, too
    assert len(read_video(short.run_dir / "replay.mp4")[1]) == frames
    assert evaluate(load_model(short.saved), episodes=10, seed=1) == short.evaluation
    started, _ = run(dict(learning_rate=lambda update, extra: 0.0), **flags, init_from=str(short.saved))
    jax.tree.map(np.testing.assert_array_equal, started.model.params, short.model.params)
    resumed, rows = run(**flags, resume=str(short.run_dir), total_timesteps=3 * 64)
    assert [row["update"] for row in rows] == [1, 2, 3]
    assert resumed.model.params["params"]["core"]["recurrent"].shape == (8, 32)


def test_an_evaluation_starts_the_memory_anew_with_each_episode(run, monkeypatch):
    """A plain loop finds each state again: an episode of the maze and its reset row make nine steps."""
    use_python_envs(monkeypatch, TMaze)
    outcome, _ = run(**LSTM | dict(last_action_reward=False), num_minibatches=2, total_timesteps=64)
    model, seen = outcome.model, []

    def play(*inputs, greedy):
        jax.debug.callback(lambda *x: seen.append(jax.device_get(x)), *inputs[2:5], ordered=True)
        return model.algorithm.play(*inputs, greedy=greedy)

    monkeypatch.setattr("cleanba.evaluation.evaluate.MAX_ENVS", 2)
    evaluate(model._replace(algorithm=model.algorithm._replace(play=play)), episodes=6, seed=1)
    jax.effects_barrier()
    agent = make_agent(model.args, model.env)
    state = agent.initial_state(2)
    for t, (obs, before, start) in enumerate(seen):
        compare(before, state)
        starts = np.full(2, t % (LENGTH + 1) == 0)
        np.testing.assert_array_equal(start, starts)
        _, _, state = agent.apply(model.published, obs, state, starts)
    assert len(seen) > 2 * LENGTH


def test_a_bench_feeds_the_memory():
    sizes = dict(env_id="CartPole-v1", local_num_envs=4, num_steps=8, num_minibatches=2, num_actor_threads=1)
    args = cleanba_ppo.Args(**sizes, **LSTM, total_timesteps=64)
    bench = DeviceBench(make_setup(args, cleanba_ppo.make_algorithm))
    assert min(*bench.infer(0.01, 1), *bench.learn(0.01, 1), *bench.copy(0.01, 1)) > 0


def test_an_algorithm_without_a_memory_says_so(run):
    with pytest.raises(UsageError, match="--recurrent has no effect in this algorithm; leave it out"):
        run(dict(initial_state=lambda envs: ()), **LSTM, num_minibatches=2)
