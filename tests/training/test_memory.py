"""Policies with a memory: they learn what needs one, and the contract holds for them."""

import itertools

import jax
import numpy as np
import pytest
from helpers.delays import delays
from helpers.equivalence import ALGORITHMS, check_lag, digests, distance, sgd
from helpers.python_envs import PositionsOnly, TMaze, use_python_envs

from cleanba import cleanba_ppo
from cleanba.agents.algorithm import Rollout
from cleanba.agents.networks import make_agent
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


@pytest.mark.parametrize(("which", "kind"), [("ppo", "gru"), ("impala", "lstm")])
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


@ppo_and_slowly_impala
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


STILL = LSTM | SHORT | dict(num_minibatches=2, update_epochs=1, total_timesteps=4 * 64)


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
            starts = ~rollout.valid[t]
            ends += starts.sum()
        compare(rollout.last_state, state)
    assert ends > 8 and sum(rollout.truncated.sum() for rollout in rollouts) > 0


def compare(tree, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), tree, expected)


def test_the_first_ratio_is_one(run):
    """Params do not move, so another ratio comes from another memory than the one that acted."""
    _, rows, _ = watched_rollouts(run, cleanba_ppo, **STILL)
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


# ------------------------------------------------------------------------------------ all that goes with it


@ppo_and_slowly_impala
def test_models_and_resumed_runs_have_the_memory(run, which):
    flags = ALGORITHMS[which] | LSTM | dict(num_minibatches=2, normalize_observations=True)
    short, _ = run(**flags, total_timesteps=2 * 64, save_model=True)
    model = load_model(next(short.run_dir.glob("*.cleanrl_model")))
    one, two = (evaluate(model, episodes=3, seed=1) for _ in range(2))
    assert one == two
    resumed, rows = run(**flags, resume=str(short.run_dir), total_timesteps=3 * 64)
    assert [row["update"] for row in rows] == [1, 2, 3]
    assert resumed.model.params["params"]["core"]["recurrent"].shape == (8, 32)


def test_a_bench_feeds_the_memory():
    sizes = dict(env_id="CartPole-v1", local_num_envs=4, num_steps=8, num_minibatches=2, num_actor_threads=1)
    args = cleanba_ppo.Args(**sizes, **LSTM, total_timesteps=64)
    bench = DeviceBench(make_setup(args, cleanba_ppo.make_algorithm))
    assert min(*bench.infer(0.01, 1), *bench.learn(0.01, 1), *bench.copy(0.01, 1)) > 0


def test_an_algorithm_without_a_memory_says_so(run):
    with pytest.raises(UsageError, match="--recurrent has no effect in this algorithm; leave it out"):
        run(dict(initial_state=lambda envs: ()), **LSTM, num_minibatches=2)
