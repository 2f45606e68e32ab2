"""IMPALA (Espeholt et al. 2018) on the Sebulba architecture.

This file is the whole algorithm: its arguments, its minibatches, its loss with V-trace. Threads, devices,
queues and logging are in `cleanba/sebulba`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from cleanba.sebulba.algorithm import Algorithm, Loss, Params, Slots, linear_schedule
from cleanba.sebulba.args import BatchPlan, RunArgs, check_divides
from cleanba.sebulba.envs import EnvSpec
from cleanba.sebulba.networks import Policy, act, entropy_of, logprob_of, make_policy
from cleanba.sebulba.returns import vtrace
from cleanba.sebulba.rollout import Rollout
from cleanba.sebulba.train import run_command

# --------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(RunArgs):
    exp_name: str = "cleanba_impala"
    num_steps: int = 20  # Espeholt et al. 2018, as the learning rate and the coefficients
    concurrency: bool = True
    learning_rate: float = 6e-4
    max_grad_norm: float = 40.0

    @property
    def rows_together(self) -> int:
        return self.num_steps  # V-trace needs whole sequences


# --------------------------------------------------------------------------- from a rollout to minibatches


class Batch(NamedTuple):
    """T+1 rows of N environments, of which the last one only bootstraps; a chunk has some of the columns."""

    obs: Array  #             [T+1, N, ...]
    action: Array  #     i32  [T+1, N]
    logprob: Array  #    f32  [T+1, N], of the policy that acted
    reward: Array  #     f32  [T+1, N]
    terminated: Array  # bool [T+1, N]
    valid: Array  #      bool [T+1, N], False in the last row


def prepare(params: Params, rollout: Rollout) -> Batch:
    def with_last_row(x: Array) -> Array:
        return jnp.pad(x, ((0, 1), (0, 0)))

    return Batch(
        obs=rollout.obs,
        action=with_last_row(rollout.action),
        logprob=with_last_row(rollout.logprob),
        reward=with_last_row(rollout.reward),
        terminated=with_last_row(rollout.terminated),
        valid=with_last_row(rollout.valid),
    )


def minibatches(key: Array, env_id: Array, *, plan: BatchPlan) -> Slots:
    """Minibatch m takes the environments with e mod M == m, whole: a learner that holds some of the
    environments holds its share of every minibatch."""
    parts = plan.num_minibatches
    columns = jnp.argsort(env_id % parts, stable=True).reshape(parts, -1)
    per_chunk = plan.chunk_rows // plan.num_steps
    padding = plan.chunks * per_chunk - columns.shape[1]
    mask = jnp.ones(columns.shape, bool)
    columns, mask = (jnp.pad(x, ((0, 0), (0, padding))) for x in (columns, mask))
    shape = (parts, plan.chunks, plan.num_steps + 1, per_chunk)
    t = jnp.arange(plan.num_steps + 1)[:, None]

    def over_rows(x: Array) -> Array:
        return jnp.broadcast_to(x.reshape(parts, plan.chunks, 1, per_chunk), shape)

    return Slots(t=jnp.broadcast_to(t, shape), env=over_rows(columns), mask=over_rows(mask))


# -------------------------------------------------------------------------------------------------- loss


def impala_loss(
    params: Params,
    chunk: Batch,
    mask: Array,
    statistics: None,
    *,
    policy: Policy,
    gamma: float,
    vf_coef: float,
    ent_coef: float,
) -> Loss:
    rows, columns = chunk.action.shape
    logits, value = policy.apply(params, chunk.obs.reshape(rows * columns, *chunk.obs.shape[2:]))
    logits, value = logits.reshape(rows, columns, -1), value.reshape(rows, columns)
    valid = (chunk.valid & mask)[:-1]
    logprob = logprob_of(logits, chunk.action)[:-1]
    target, advantage = vtrace(
        reward=chunk.reward[:-1],
        value=value[:-1],
        last_value=value[-1],
        log_rho=logprob - chunk.logprob[:-1],
        terminated=chunk.terminated[:-1],
        valid=valid,
        gamma=gamma,
    )
    policy_loss = jnp.sum(-advantage * logprob, where=valid)
    value_loss = jnp.sum(0.5 * (target - value[:-1]) ** 2, where=valid)
    entropy = jnp.sum(entropy_of(logits)[:-1], where=valid)

    loss = policy_loss + vf_coef * value_loss - ent_coef * entropy
    metrics = dict(loss=loss, policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
    return Loss(total=loss, denominator=None, metrics=metrics, rows=jnp.sum(valid).astype(jnp.float32))


# ---------------------------------------------------------------------------------------------- together


def make_algorithm(args: Args, env: EnvSpec, plan: BatchPlan) -> Algorithm:
    parts = plan.learners * args.num_minibatches
    check_divides(
        "--local-num-envs",
        args.local_num_envs,
        parts,
        f"over {plan.learners} learners and --num-minibatches {args.num_minibatches}",
    )
    policy = make_policy(args, env)
    return Algorithm(
        init=policy.init,
        act=partial(act, policy),
        prepare=prepare,
        minibatches=partial(minibatches, plan=plan),
        statistics=lambda rows, mask, global_sum: None,
        loss=partial(
            impala_loss, policy=policy, gamma=args.gamma, vf_coef=args.vf_coef, ent_coef=args.ent_coef
        ),
        optimizer=optax.chain(
            optax.clip_by_global_norm(args.max_grad_norm),
            # As PyTorch's: the square root gets epsilon added, and the average starts at zero.
            optax.scale_by_rms(decay=0.99, eps=0.01, eps_in_sqrt=False, initial_scale=0.0),
        ),
        learning_rate=linear_schedule(args, plan),
        epochs=1,
    )


def main(default: Args = Args(), argv: list[str] | None = None, prog: str | None = None) -> None:
    run_command(default, make_algorithm, description="Train an agent with IMPALA.", argv=argv, prog=prog)


if __name__ == "__main__":
    main()
