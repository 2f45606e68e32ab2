import difflib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.specs import make_spec

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.agents.agent import ActorCriticRecord, memoryless
from cleanba.agents.algorithm import Published, Rollout
from cleanba.agents.distributions import Categorical
from cleanba.cleanba_impala import Args, Batch, impala_loss, make_algorithm, minibatches, prepare
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology

ENV = make_spec("Vectors", (5,), np.float32, 3)


def make_plan(topology=Topology((0,), (0,)), **flags):
    sizes = dict(num_steps=5, local_num_envs=12, num_actor_threads=1, num_minibatches=3)
    return BatchPlan.create(Args(**(sizes | flags)), topology)


# ---------------------------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize("chunk_flags", [{}, dict(gradient_chunk=14), dict(gradient_accumulation_steps=3)])
def test_a_minibatch_takes_whole_environments_by_their_index(chunk_flags):
    plan = make_plan(**chunk_flags)
    env_id = np.array([25, 26, 27, 28, 29, 30, 7, 8, 9, 10, 11, 12])
    slots = minibatches(jax.random.key(0), env_id, plan=plan)
    t, env, mask = map(np.asarray, slots)  # [M, chunks, T+1, columns]
    assert t.shape[2] == 6 and t.shape[1] * t.shape[3] >= 4
    np.testing.assert_array_equal(t, np.broadcast_to(np.arange(6)[:, None], t.shape))
    for m in range(3):
        columns = env[m, :, 0][mask[m, :, 0]]
        assert sorted(env_id[columns]) == sorted(e for e in env_id if e % 3 == m)
    assert (env == env[:, :, :1]).all() and (mask == mask[:, :, :1]).all()


def test_chunks_hold_whole_sequences():
    assert make_plan(gradient_chunk=14).chunk_rows == 10  # two sequences of 5; a third would be 15
    assert make_plan(gradient_chunk=1).chunk_rows == 5  # one is the least
    default = BatchPlan.create(Args(), Topology((0,), (0,)))
    assert (default.batch_size, default.chunks, default.chunk_rows) == (
        2_560,
        3,
        220,
    )  # 32 columns: 11, 11, 10


def test_environments_that_do_not_divide_are_refused():
    args = Args(local_num_envs=60, num_minibatches=4)
    topology = Topology((0,), (0, 1))
    with pytest.raises(UsageError, match="--local-num-envs 60 cannot be split over 2 learners.*try 56 or 64"):
        make_algorithm(args, ENV, BatchPlan.create(args, topology))


# ---------------------------------------------------------------------------------------------------- loss

# Two actions; params are their probabilities and a factor that makes values of observations.
HAND = memoryless(
    init=lambda key: None,
    apply=lambda params, obs: (
        Categorical(jnp.broadcast_to(jnp.log(params["p"]), (len(obs), 2))),
        params["v"] * obs[:, 0],
    ),
)
PARAMS = {"p": jnp.array([0.8, 0.2]), "v": jnp.array(1.0)}


def chunk_of(columns):
    """Two steps and the last row of each column."""
    last = np.zeros((1, columns))
    return Batch(
        obs=np.tile(np.array([1.0, 2.0, 4.0], np.float32)[:, None, None], (1, columns, 1)),
        action=np.concatenate([np.tile([[0], [1]], (1, columns)), last]).astype(np.int32),
        logprob=np.concatenate([np.full((2, columns), np.log(0.5)), last]).astype(np.float32),
        reward=np.concatenate([np.ones((2, columns)), last]).astype(np.float32),
        terminated=np.zeros((3, columns), bool),
        valid=np.concatenate([np.ones((2, columns)), last]).astype(bool),
    )


def loss_of(chunk, mask, params=PARAMS):
    return impala_loss(
        Published(params), chunk, mask, None, agent=HAND, gamma=0.5, vf_coef=0.5, ent_coef=0.01
    )


def test_the_loss_by_hand():
    # Weights: 0.8 / 0.5 clipped to 1, 0.2 / 0.5 = 0.4. Values 1, 2, 4.
    # Row 1: delta = 0.4 (1 + 2 - 2) = 0.4, target 2.4
    # Row 0: delta = 1 + 1 - 1 = 1, target 1 + 1 + 0.5 * 0.4 = 2.2
    # Advantages: row 0: 1 + 0.5 * 2.4 - 1 = 1.2;  row 1: 0.4 (1 + 0.5 * 4 - 2) = 0.4
    loss = loss_of(chunk_of(1), np.ones((3, 1), bool))
    policy = -1.2 * np.log(0.8) - 0.4 * np.log(0.2)
    value = 0.5 * (1.2**2 + 0.4**2)
    entropy = -2 * (0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    assert float(loss.metrics["policy_loss"]) == pytest.approx(policy, rel=1e-5)
    assert float(loss.metrics["value_loss"]) == pytest.approx(value, rel=1e-5)
    assert float(loss.metrics["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(loss.total) == pytest.approx(policy + 0.5 * value - 0.01 * entropy, rel=1e-5)
    assert float(loss.rows) == 2 and loss.denominator is None


def test_padding_and_reset_rows_contribute_nothing():
    one = chunk_of(1)
    two = chunk_of(2)
    masked = np.array([[True, False]] * 3)
    for a, b in zip(
        jax.tree.leaves(loss_of(one, np.ones((3, 1), bool))),
        jax.tree.leaves(loss_of(two, masked)),
        strict=True,
    ):
        assert float(a) == pytest.approx(float(b), rel=1e-6)
    reset = one._replace(
        valid=np.array([[False], [True], [False]]),
        reward=np.array([[1e6], [1.0], [0.0]], np.float32),
        logprob=np.array([[-1e6], [np.log(0.5)], [0.0]], np.float32),
    )
    loss = loss_of(reset, np.ones((3, 1), bool))
    assert float(loss.metrics["policy_loss"]) == pytest.approx(-0.4 * np.log(0.2), rel=1e-5)
    assert float(loss.rows) == 1


def test_what_is_prepared_has_a_last_row_that_is_not_valid():
    column = np.ones((2, 3), np.float32)
    record = ActorCriticRecord(column, column)
    flags = [column.astype(bool)] * 3
    rollout = Rollout(np.zeros((3, 3, 1)), column, record, column, *flags)
    batch = prepare(None, rollout, normalize_rewards=False)
    assert {x.shape[0] for x in jax.tree.leaves(batch)} == {3}
    assert not np.asarray(batch.valid[-1]).any() and np.asarray(batch.valid[:-1]).all()


def test_the_optimizer_is_pytorchs_rmsprop():
    args = Args()
    optimizer = make_algorithm(args, ENV, BatchPlan.create(args, Topology((0,), (0,)))).optimizer
    state = optimizer.init(jnp.zeros(1))
    average = 0.0
    for gradient in (2.0, -1.0, 0.5):
        average = 0.99 * average + 0.01 * gradient**2
        direction, state = optimizer.update(jnp.array([gradient]), state)
        assert float(direction[0]) == pytest.approx(gradient / (np.sqrt(average) + 0.01), rel=1e-5)
    direction, _ = optimizer.update(jnp.array([4000.0]), optimizer.init(jnp.zeros(1)))
    assert float(direction[0]) == pytest.approx(40 / (np.sqrt(0.01 * 1600) + 0.01), rel=1e-5)  # clipped to 40
    assert isinstance(optimizer, optax.GradientTransformation)


def test_the_two_algorithms_share_no_block_of_six_lines():
    """What both need belongs into the machinery. Imports and the call that starts training may be alike."""

    def code(module):
        lines = [line.strip() for line in inspect.getsource(module).splitlines()]
        return [line for line in lines if line and not line.startswith(("import ", "from ", "#"))]

    first, second = code(cleanba_ppo), code(cleanba_impala)
    blocks = difflib.SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    shared = [first[block.a : block.a + block.size] for block in blocks if block.size >= 6]
    assert not [block for block in shared if "run_command" not in "".join(block)]
