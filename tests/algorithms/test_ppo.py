import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba.agents.agent import ActorCriticRecord, memoryless
from cleanba.agents.algorithm import Published, Rollout
from cleanba.agents.distributions import Categorical
from cleanba.cleanba_ppo import (
    Args,
    Batch,
    Moments,
    advantage_moments,
    make_algorithm,
    minibatches,
    ppo_loss,
    prepare,
)
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology

ENV = make_spec("Vectors", (5,), np.float32, 3)


def make_plan(**flags):
    sizes = dict(num_steps=8, local_num_envs=6, num_actor_threads=1, num_minibatches=4)
    return BatchPlan.create(Args(**(sizes | flags)), Topology((0,), (0,)))


# ---------------------------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize("chunk_flags", [{}, dict(gradient_chunk=5), dict(gradient_accumulation_steps=7)])
def test_an_epoch_takes_every_row_once_and_each_minibatch_a_share_of_every_environment(chunk_flags):
    slots = minibatches(jax.random.key(0), jnp.arange(6), plan=make_plan(**chunk_flags))
    t, env, mask = (np.asarray(x).reshape(4, -1) for x in slots)
    assert sorted(zip(t[mask], env[mask], strict=True)) == [(a, b) for a in range(8) for b in range(6)]
    for m in range(4):
        np.testing.assert_array_equal(np.bincount(env[m][mask[m]]), [2] * 6)  # 8 steps / 4 minibatches


def test_an_environment_has_the_same_minibatches_wherever_it_is():
    key, plan = jax.random.key(0), make_plan(gradient_chunk=1000)
    half = make_plan(local_num_envs=3, gradient_chunk=1000)
    whole = minibatches(key, jnp.arange(6), plan=plan)
    part = minibatches(key, jnp.array([5, 0, 3]), plan=half)  # other columns, another order

    def steps(slots, m, column):
        return set(np.asarray(slots.t)[m, 0][np.asarray(slots.env)[m, 0] == column].tolist())

    for m in range(4):
        assert [steps(part, m, c) for c in range(3)] == [steps(whole, m, e) for e in (5, 0, 3)]


def test_steps_that_do_not_divide_into_minibatches_are_refused():
    args = Args(num_steps=10, num_minibatches=4)
    with pytest.raises(
        UsageError, match="--num-steps 10 cannot be split into --num-minibatches 4; try 8 or 12"
    ):
        make_algorithm(args, ENV, BatchPlan.create(args, Topology((0,), (0,))))


# ------------------------------------------------------------------------------------------------- prepare


def test_what_is_prepared_from_a_rollout():
    """One environment, two steps, gamma 0.5, lambda 1; the policy values an observation at 10 times it."""

    def column(*x, dtype=np.float32):
        return np.array(x, dtype)[:, None]

    policy = memoryless(init=lambda key: None, apply=lambda params, obs: (None, params * obs[:, 0]))
    rollout = Rollout(
        obs=np.array([1.0, 2.0, 3.0], np.float32).reshape(3, 1, 1),
        action=column(0, 1, dtype=np.int32),
        record=ActorCriticRecord(logprob=column(-0.1, -0.2), value=column(4.0, 6.0)),
        reward=column(1.0, 2.0),
        terminated=column(0, 0, dtype=bool),
        truncated=column(0, 0, dtype=bool),
        valid=column(1, 1, dtype=bool),
    )
    batch = prepare(
        Published(np.float32(10)), rollout, agent=policy, gamma=0.5, gae_lambda=1.0, normalize_rewards=False
    )
    # V(obs[2]) = 30 by the learner's params; row 1: 2 + 15 - 6 = 11; row 0: 1 + 3 - 4 + 0.5 * 11 = 5.5
    np.testing.assert_allclose(batch.advantage, column(5.5, 11.0))
    np.testing.assert_allclose(batch.target, column(9.5, 17.0))
    for name in ("obs", "action", "valid"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(rollout, name))
    np.testing.assert_array_equal(batch.logprob, rollout.record.logprob)


# ---------------------------------------------------------------------------------------------------- loss


def rows_of(**fields):
    count = len(fields["advantage"])
    defaults = dict(
        obs=np.zeros((count, 1), np.float32),
        action=np.zeros(count, np.int32),
        logprob=np.full(count, np.log(0.5), np.float32),
        advantage=np.zeros(count, np.float32),
        target=np.zeros(count, np.float32),
        valid=np.ones(count, bool),
    )
    return Batch(**(defaults | {k: np.asarray(v) for k, v in fields.items()}))


# Two actions; params are their probabilities and the value of every observation.
HAND = memoryless(
    init=lambda key: None,
    apply=lambda params, obs: (
        Categorical(jnp.broadcast_to(jnp.log(params["p"]), (len(obs), 2))),
        jnp.broadcast_to(params["v"], (len(obs),)),
    ),
)
PARAMS = {"p": jnp.array([0.6, 0.4]), "v": jnp.array(1.0)}
PLAIN = Moments(jnp.array(0.0), jnp.array(1.0))


def loss_of(rows, mask=None, moments=PLAIN, params=PARAMS, **coefficients):
    coefficients = dict(clip_coef=0.1, vf_coef=0.5, ent_coef=0.01) | coefficients
    mask = np.ones(len(rows.valid), bool) if mask is None else np.asarray(mask)
    return ppo_loss(Published(params), rows, mask, moments, agent=HAND, **coefficients)


def test_the_loss_by_hand():
    # Ratios: action 0 0.6 / 0.5 = 1.2, action 1 0.4 / 0.5 = 0.8, clipped to 1.1 and 0.9.
    rows = rows_of(action=[0, 0, 1, 1], advantage=[2.0, -2.0, 2.0, -2.0], target=[3.0, 1.0, 1.0, 1.0])
    loss = loss_of(rows)
    policy = -2 * 1.1 + 2 * 1.2 - 2 * 0.8 + 2 * 0.9  # the worse of clipped and not
    value = 0.5 * 2.0**2
    entropy = -4 * (0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    kl = 2 * (1.2 - 1 - np.log(1.2)) + 2 * (0.8 - 1 - np.log(0.8))
    assert float(loss.metrics["policy_loss"]) == pytest.approx(policy, rel=1e-5)
    assert float(loss.metrics["value_loss"]) == pytest.approx(value, rel=1e-5)
    assert float(loss.metrics["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(loss.metrics["approx_kl"]) == pytest.approx(kl, rel=1e-4)
    assert float(loss.total) == pytest.approx(policy + 0.5 * value - 0.01 * entropy, rel=1e-5)
    assert float(loss.denominator) == float(loss.rows) == 4


def test_advantages_are_normalized_with_the_given_moments():
    rows = rows_of(action=[0], advantage=[7.0], logprob=[np.log(0.6)])
    loss = loss_of(rows, moments=Moments(jnp.array(3.0), jnp.array(2.0)))
    assert float(loss.metrics["policy_loss"]) == pytest.approx(-2.0)


def test_reset_rows_and_padding_contribute_nothing():
    good = rows_of(action=[0, 1], advantage=[2.0, -1.0], target=[3.0, 0.5])
    bad = rows_of(
        action=[0, 1, 1, 0],
        advantage=[2.0, -1.0, 1e9, -1e9],
        target=[3.0, 0.5, 1e9, 1e9],
        logprob=[np.log(0.5), np.log(0.5), -1e9, 0.0],
        valid=[True, True, False, True],
    )
    mask = [True, True, True, False]
    for a, b in zip(jax.tree.leaves(loss_of(good)), jax.tree.leaves(loss_of(bad, mask)), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-6)
    gradients = [
        jax.grad(lambda p, r=rows, m=m: loss_of(r, m, params=p).total)(PARAMS)
        for rows, m in ((good, None), (bad, mask))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *gradients)


def test_moments_are_those_of_the_valid_rows():
    rows = rows_of(advantage=[1.0, 3.0, 100.0, 100.0], valid=[True, True, False, True])
    moments = advantage_moments(rows, np.array([True, True, True, False]), lambda x: x, normalize=True)
    assert float(moments.mean) == 2.0
    assert float(moments.std) == pytest.approx(1.0)  # of the population, not of a sample


def test_moments_are_global():
    """Two learners with different counts: as if the rows were one learner's."""
    first, second = rows_of(advantage=[1.0, 3.0, 5.0]), rows_of(advantage=[7.0])
    together = rows_of(advantage=[1.0, 3.0, 5.0, 7.0])

    def moments(rows, global_sum):
        return advantage_moments(rows, np.ones(len(rows.valid), bool), global_sum, normalize=True)

    axis = jnp.stack([first.advantage, np.pad(second.advantage, (0, 2))])
    valid = jnp.array([[True] * 3, [True, False, False]])
    parallel = jax.vmap(
        lambda a, v: moments(
            rows_of(advantage=np.zeros(3))._replace(advantage=a, valid=v), lambda x: jax.lax.psum(x, "i")
        ),
        axis_name="i",
    )(axis, valid)
    expected = moments(together, lambda x: x)
    np.testing.assert_allclose(parallel.mean, [expected.mean] * 2)
    np.testing.assert_allclose(parallel.std, [expected.std] * 2, rtol=1e-6)


def test_without_normalization_advantages_stay_as_they_are():
    moments = advantage_moments(rows_of(advantage=[5.0]), np.array([True]), lambda x: x, normalize=False)
    assert (float(moments.mean), float(moments.std)) == (0.0, 1.0)


# ------------------------------------------------------------------------------------------------ schedule


def test_the_learning_rate_follows_the_update_index():
    args = Args(total_timesteps=4 * 16_384, learning_rate=1.0)
    plan = BatchPlan.create(args, Topology((0,), (0,)))
    rate = make_algorithm(args, ENV, plan).learning_rate
    assert [rate(u, ()) for u in range(4)] == [1.0, 0.75, 0.5, 0.25]
    constant = make_algorithm(Args(total_timesteps=4 * 16_384, anneal_lr=False), ENV, plan).learning_rate
    assert constant(3, ()) == 2.5e-4
