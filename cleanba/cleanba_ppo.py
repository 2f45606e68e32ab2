"""Proximal policy optimization (Schulman et al. 2017) on the Sebulba architecture.

This file is the whole algorithm: its arguments, what it computes from a rollout, its minibatches, its loss.
Threads, devices, queues and logging are in `cleanba/sebulba`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cleanba.sebulba.algorithm import Algorithm, Loss, Params, Slots, linear_schedule
from cleanba.sebulba.args import BatchPlan, RunArgs, check_divides
from cleanba.sebulba.envs import EnvSpec
from cleanba.sebulba.networks import Policy, act, entropy_of, logprob_of, make_policy
from cleanba.sebulba.returns import gae
from cleanba.sebulba.rollout import Rollout
from cleanba.sebulba.train import run_command

# --------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class PPO:
    update_epochs: int = 4
    """passes over each batch"""
    gae_lambda: float = 0.95
    """trades bias for variance in the advantages"""
    norm_adv: bool = True
    """normalize the advantages of each minibatch"""
    clip_coef: float = 0.1
    """how far the policy may move from the one that acted"""
    target_kl: float | None = None
    """skip the update's remaining epochs when the mean KL divergence of an epoch is above this"""


@dataclass(frozen=True)
class Args(PPO, RunArgs):
    exp_name: str = "cleanba_ppo"


# --------------------------------------------------------------------------- from a rollout to minibatches


class Batch(NamedTuple):
    """T steps of N environments; the rows of a chunk have the same fields."""

    obs: Array  #            [T+1, N, ...], the last one never drawn
    action: Array  #    i32  [T, N]
    logprob: Array  #   f32  [T, N], of the policy that acted
    advantage: Array  # f32  [T, N]
    target: Array  #    f32  [T, N], for the value
    valid: Array  #     bool [T, N]


def prepare(params: Params, rollout: Rollout, *, policy: Policy, gamma: float, gae_lambda: float) -> Batch:
    _, last_value = policy.apply(params, rollout.obs[-1])  # the actors have not evaluated it
    advantage = gae(
        reward=rollout.reward,
        value=rollout.value,
        last_value=last_value,
        terminated=rollout.terminated,
        valid=rollout.valid,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    target = advantage + rollout.value
    return Batch(rollout.obs, rollout.action, rollout.logprob, advantage, target, rollout.valid)


def minibatches(key: Array, env_id: Array, *, plan: BatchPlan) -> Slots:
    """Each minibatch takes T/M steps of every environment, by a permutation that belongs to the environment:
    a learner that holds some of the environments holds its share of every minibatch."""
    steps, parts, envs = plan.num_steps, plan.num_minibatches, len(env_id)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, env_id)
    order = jax.vmap(lambda key: jax.random.permutation(key, steps))(keys)  # [N, T]
    t = order.reshape(envs, parts, steps // parts).swapaxes(0, 1).reshape(parts, -1)
    env = jnp.broadcast_to(jnp.repeat(jnp.arange(envs), steps // parts), t.shape)
    mask = jnp.ones(t.shape, bool)
    padding = plan.chunks * plan.chunk_rows - t.shape[1]
    padded = (jnp.pad(x, ((0, 0), (0, padding))) for x in (t, env, mask))
    return Slots(*(x.reshape(parts, plan.chunks, plan.chunk_rows) for x in padded))


# -------------------------------------------------------------------------------------------------- loss


class Moments(NamedTuple):
    mean: Array
    std: Array


def advantage_moments(rows: Batch, mask: Array, global_sum, *, normalize: bool) -> Moments:
    """Of the valid advantages in one minibatch of all learners."""
    if not normalize:
        return Moments(jnp.zeros(()), jnp.ones(()))
    valid = rows.valid & mask
    count = jnp.maximum(global_sum(jnp.sum(valid)), 1)
    mean = global_sum(jnp.sum(rows.advantage, where=valid)) / count
    variance = global_sum(jnp.sum((rows.advantage - mean) ** 2, where=valid)) / count
    return Moments(mean, jnp.sqrt(variance) + 1e-8)


def ppo_loss(
    params: Params,
    rows: Batch,
    mask: Array,
    moments: Moments,
    *,
    policy: Policy,
    clip_coef: float,
    vf_coef: float,
    ent_coef: float,
) -> Loss:
    """Sums over the valid rows of a chunk, never means: the learner adds them up over chunks and learners,
    and divides by the global count. A row that is not valid is a reset or padding (see returns.py)."""
    logits, value = policy.apply(params, rows.obs)
    valid = rows.valid & mask
    advantage = (rows.advantage - moments.mean) / moments.std
    log_ratio = jnp.where(valid, logprob_of(logits, rows.action) - rows.logprob, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - clip_coef, 1 + clip_coef)

    policy_loss = jnp.sum(jnp.maximum(-advantage * ratio, -advantage * clipped_ratio), where=valid)
    value_loss = jnp.sum(0.5 * (value - rows.target) ** 2, where=valid)
    entropy = jnp.sum(entropy_of(logits), where=valid)
    approx_kl = jnp.sum(ratio - 1 - log_ratio, where=valid)  # Schulman 2020, "Approximating KL divergence"

    loss = policy_loss + vf_coef * value_loss - ent_coef * entropy
    metrics = dict(
        loss=loss, policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, approx_kl=approx_kl
    )
    count = jnp.sum(valid).astype(jnp.float32)
    return Loss(total=loss, denominator=count, metrics=metrics, rows=count)


# ---------------------------------------------------------------------------------------------- together


def make_algorithm(args: Args, env: EnvSpec, plan: BatchPlan) -> Algorithm:
    check_divides(
        "--num-steps", args.num_steps, args.num_minibatches, f"into --num-minibatches {args.num_minibatches}"
    )
    policy = make_policy(args, env)
    target_kl = args.target_kl
    return Algorithm(
        init=policy.init,
        act=partial(act, policy),
        prepare=partial(prepare, policy=policy, gamma=args.gamma, gae_lambda=args.gae_lambda),
        minibatches=partial(minibatches, plan=plan),
        statistics=partial(advantage_moments, normalize=args.norm_adv),
        loss=partial(
            ppo_loss,
            policy=policy,
            clip_coef=args.clip_coef,
            vf_coef=args.vf_coef,
            ent_coef=args.ent_coef,
        ),
        optimizer=optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5)),
        learning_rate=linear_schedule(args, plan),
        epochs=args.update_epochs,
        stop_early=None if target_kl is None else lambda metrics: metrics["approx_kl"] > target_kl,
    )


def main(default: Args = Args(), argv: list[str] | None = None, prog: str | None = None) -> None:
    run_command(default, make_algorithm, description="Train an agent with PPO.", argv=argv, prog=prog)


if __name__ == "__main__":
    main()
