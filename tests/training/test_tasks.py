"""Tasks beyond discrete actions on one array: they are learned, and the contract holds for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.equivalence import ALGORITHMS, digests, distance, sgd
from helpers.python_envs import LargestAllowed, NothingAllowed, TwoNumbers, use_python_envs

from cleanba import cleanba_ppo
from cleanba.agents.agent import act
from cleanba.agents.algorithm import Decision
from cleanba.config.errors import EnvError, NotFinite, UsageError

NORMALIZED = dict(normalize_observations=True, normalize_rewards=True)
PENDULUM = NORMALIZED | dict(env_id="Pendulum-v1", hiddens=(16, 16), separate_critic=True)
ppo_and_slowly_impala = pytest.mark.parametrize(
    "which", ["ppo", pytest.param("impala", marks=pytest.mark.slow)]
)


# ------------------------------------------------------------------------------------------- is it learned


def swing_up(run, steps, **flags):
    """The return of the last 100 episodes: -1,200 without a policy, about -150 with the best."""
    learning = dict(gamma=0.9, learning_rate=1e-3, ent_coef=0.0, clip_coef=0.2, update_epochs=10)
    sizes = dict(local_num_envs=8, num_steps=128, num_minibatches=16, hiddens=(64, 64), anneal_lr=False)
    _, rows = run(**PENDULUM | learning | sizes | dict(total_timesteps=steps) | flags)
    return rows[-1]["charts/avg_episodic_return"]


def test_pendulum_begins_to_swing_up(run):
    assert swing_up(run, 36_000) > -800


@pytest.mark.slow
def test_pendulum_is_solved(run):
    larger_batches = dict(local_num_envs=4, num_steps=1024, num_minibatches=64, anneal_lr=True)
    assert swing_up(run, 260_000, **larger_batches) > -200


@pytest.mark.parametrize(
    ("which", "envs"),
    [
        ("ppo", TwoNumbers),
        ("impala", LargestAllowed),
        pytest.param("ppo", LargestAllowed, marks=pytest.mark.slow),
        pytest.param("impala", TwoNumbers, marks=pytest.mark.slow),
    ],
)
def test_a_small_task_is_solved(run, monkeypatch, which, envs):
    use_python_envs(monkeypatch, envs)
    sizes = dict(local_num_envs=16, num_steps=16, total_timesteps=100 * 256, hiddens=(32,), ent_coef=0.001)
    sizes |= dict(
        learning_rate=5e-3, gamma=0.5, anneal_lr=False, max_grad_norm=0.5 if which == "ppo" else 40.0
    )
    outcome, rows = run(**ALGORITHMS[which] | sizes, save_model=True)
    assert rows[-2]["charts/avg_episodic_return"] > 0.9 * envs.BEST
    assert outcome.evaluation.scores()["episodic_return"] > 0.9 * envs.BEST


# ------------------------------------------------------------------------------------------- the contract


@ppo_and_slowly_impala
def test_the_same_command_gives_the_same_bits_in_sync_and_async(run, which):
    flags = ALGORITHMS[which] | PENDULUM | dict(concurrency=True, inference_batch=2)
    first, *others = [digests(run(**flags, env_stepping=way)[1]) for way in ("sync", "async", "async")]
    assert all(other == first for other in others) and len(set(first)) == 5


@ppo_and_slowly_impala
def test_layouts_agree(run, which):
    flags = ALGORITHMS[which] | PENDULUM | dict(local_num_envs=24, inference_batch=6, num_minibatches=2)
    flags |= dict(total_timesteps=5 * 16 * 24)
    one, rows = run(sgd(which), **flags)
    other = dict(learner_device_ids=(1, 2), num_actor_threads=2, local_num_envs=12)
    two, others = run(sgd(which), **flags | other)
    assert rows[0]["data_digest"] == others[0]["data_digest"]
    assert distance(one.model.params, two.model.params) < 1e-5
    assert one.model.extra.reward.rows == two.model.extra.reward.rows
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), one.model.extra, two.model.extra)


def test_a_resumed_run_continues_with_its_statistics(run):
    short, _ = run(**PENDULUM, total_timesteps=2 * 64)
    resumed, rows = run(**PENDULUM, resume=str(short.run_dir), total_timesteps=3 * 64)
    assert [row["update"] for row in rows] == [1, 2, 3]
    before, after = (outcome.model.extra.obs["obs"] for outcome in (short, resumed))
    assert (before.rows, after.rows) == (2 * 64, 3 * 64)
    assert rows[2]["losses/value_loss"] < 10 * rows[1]["losses/value_loss"], "rewards are not scaled any more"


@pytest.mark.parametrize("concurrency", [False, True])
def test_the_first_ratio_is_one(run, concurrency):
    """Params do not move here, so another ratio comes from other statistics than those that acted."""
    still = dict(learning_rate=lambda update, extra: 0.0)
    flags = PENDULUM | dict(update_epochs=1, num_minibatches=1, concurrency=concurrency)
    _, rows = run(still, **flags)
    assert [row["losses/approx_kl"] for row in rows] == pytest.approx([0] * 5, abs=1e-9)
    assert rows[-1]["losses/value_loss"] > 0


def test_a_discounted_return_crosses_updates_and_ends_with_its_episode(run):
    """The statistics are those of a plain loop over the rewards; episodes have 20 steps, updates 16."""
    rewards = []

    def watch(published, rollout, metrics, global_sum):
        jax.debug.callback(
            lambda *x: rewards.append(jax.tree.map(np.asarray, x)), *rollout[3:8], ordered=False
        )
        return published.extra

    flags = PENDULUM | dict(gamma=0.9, env_options='{"max_episode_steps": 20}', total_timesteps=4 * 64)
    run(dict(next_extra=watch), **flags)
    jax.effects_barrier()
    reward, terminated, truncated, valid, discounted = (np.concatenate(x) for x in zip(*rewards, strict=True))
    assert truncated.sum() == 4 * 3 and (~valid).sum() == 4 * 3
    sums = np.zeros(4, np.float32)
    for t in range(len(reward)):
        sums = np.float32(0.9) * sums + reward[t] * valid[t]
        np.testing.assert_allclose(discounted[t], sums, rtol=1e-5)
        sums[terminated[t] | truncated[t]] = 0


# ---------------------------------------------------------------------------------------------- bad input


def test_a_mask_that_forbids_everything_is_refused_by_name(run, monkeypatch):
    use_python_envs(monkeypatch, NothingAllowed)
    with pytest.raises(EnvError, match="environment 0 of LargestAllowed forbids every action at its step 3"):
        run()


def test_an_action_that_is_not_a_number_reaches_no_environment(run, monkeypatch):
    def broken(agent, key, published, obs, state, episode_start, env_id, step):
        decision, state = act(agent, key, published, obs, state, episode_start, env_id, step)
        action = jnp.where(((env_id == 2) & (step == 5))[:, None], jnp.nan, decision.action)
        return Decision(action, decision.record), state

    monkeypatch.setattr(cleanba_ppo, "act", broken)
    with pytest.raises(NotFinite, match="action is not finite in update 1, at step 5 of environment 2"):
        run(**PENDULUM)


def test_an_algorithm_that_does_not_normalize_says_so(run):
    with pytest.raises(UsageError, match="--normalize-observations has no effect"):
        run(dict(next_extra=None), **PENDULUM)
