"""How runs are compared: bits, distances, policy lag."""

import jax
import numpy as np
import optax

from cleanba import cleanba_impala, cleanba_ppo

ALGORITHMS = {
    "ppo": dict(algorithm=cleanba_ppo),
    "impala": dict(algorithm=cleanba_impala, num_minibatches=2),  # divides each learner's share of an actor
}


def sgd(which, scale=1.0):
    """Small rates, because plain SGD on images is chaotic: with PPO, five updates end 8e-8 apart at 0.001 and
    1e-5 apart at 0.002; with IMPALA, whose gradient is a sum over the 64 rows of a minibatch, up to 4e-5 at
    four times this rate and 4e-4 at eight times; CartPole's 1e-7 apart at ten times these rates."""
    rate = {"ppo": 0.001, "impala": 0.001 / 64}[which] * scale
    return dict(optimizer=optax.identity(), learning_rate=lambda update, extra: rate)


def digests(rows):
    return [(row["data_digest"], row["params_digest"]) for row in rows]


def distance(a, b):
    """The largest difference of any param."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


def check_lag(rows, lag):
    """Exact for every transition: the first params are used for `1 + lag` updates, then each for one."""
    logged = [(row["stats/policy_lag_min"], row["stats/policy_lag_max"]) for row in rows]
    assert logged == [(min(update, lag),) * 2 for update in range(len(rows))], "another lag"
