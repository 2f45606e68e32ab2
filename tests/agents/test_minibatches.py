"""Minibatches of whole environments, for IMPALA and for policies with a memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba import cleanba_ppo
from cleanba.cleanba_ppo import Args
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology

ENV = make_spec("Vectors", (5,), np.float32, 3)


def make_algorithm(learners=(0,), **flags):
    sizes = dict(num_steps=8, local_num_envs=6, num_actor_threads=1, num_minibatches=2, recurrent="gru")
    args = Args(**sizes | flags)
    plan = BatchPlan.create(args, Topology((0,), learners))
    return cleanba_ppo.make_algorithm(args, ENV, plan), plan


@pytest.mark.parametrize("flags", [{}, dict(gradient_chunk=16), dict(gradient_chunk=5)])
def test_an_epoch_takes_every_environment_once_and_whole(flags):
    algorithm, plan = make_algorithm(**flags)
    slots = algorithm.minibatches(jax.random.key(0), jnp.arange(6))
    assert slots.t.shape == (2, plan.chunks, 8, plan.chunk_rows // 8)
    assert plan.chunk_rows == {16: 16, 5: 8}.get(flags.get("gradient_chunk"), 24)
    assert (np.asarray(slots.t) == np.arange(8)[:, None]).all()
    for m in range(2):
        env, mask = np.asarray(slots.env)[m], np.asarray(slots.mask)[m]
        assert (env == env[:, :1]).all()  # a column is one environment
        assert sorted(env[:, 0][mask[:, 0]].tolist()) == [m, m + 2, m + 4]


def test_an_environment_has_the_same_minibatch_wherever_it_is():
    algorithm, _ = make_algorithm(local_num_envs=4)
    env_id = np.array([7, 2, 5, 0])  # other columns, another order
    slots = algorithm.minibatches(jax.random.key(0), jnp.asarray(env_id))
    for m in range(2):
        assert sorted(env_id[np.asarray(slots.env)[m, 0, 0]] % 2) == [m, m]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (dict(local_num_envs=6, num_minibatches=4), "over 1 learners and --num-minibatches 4; try 4 or 8"),
        (dict(num_minibatches=8), "--num-minibatches 8 is too many .* 6 environments; give at most 6"),
        (dict(gradient_accumulation_steps=4), "--gradient-accumulation-steps 4 .* give at most 3"),
        (dict(learners=(0, 1), num_minibatches=2), "over 2 learners and --num-minibatches 2; try 4 or 8"),
    ],
)
def test_sizes_that_do_not_fit_name_those_that_do(flags, message):
    with pytest.raises(UsageError, match=message):
        make_algorithm(**flags)
