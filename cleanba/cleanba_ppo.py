"""Proximal policy optimization (Schulman et al. 2017) on the Sebulba architecture. Values are those of the
original Cleanba (Huang et al. 2023), which has them from CleanRL's PPO for Atari.

This file is the whole algorithm: its arguments, what it computes from a rollout, its minibatches, its loss.
What the engine (`cleanba/sebulba`) does with it, for each update:

    rollout = T steps of every environment, with actions from `act`               # actor threads
    batch = prepare(published, rollout)                                           # once
    for epoch in range(epochs):                                                   # --update-epochs
        slots = minibatches(key(update, epoch), env_id)                           # which rows, by [t, env]
        for m in range(num_minibatches):
            stats = statistics(rows of minibatch m, global_sum)
            for chunk in minibatch m:                                             # --gradient-chunk rows each
                gradient += grad(loss(published, rows of the chunk, stats).total) # by params, on each learner
            gradient = global_sum(gradient) / global_sum(denominator)             # once, over all processes
            params -= learning_rate(update, extra) * optimizer(gradient)
        if stop_early(mean metrics of the epoch): break
    extra = next_extra(published, rollout, mean metrics, global_sum)              # --normalize-observations
    publish (params, extra) to the actors

An algorithm is these functions. The loop itself, how environments are stepped, the policy lag, sharding and
what is logged are the engine's; they cannot be changed from here.
"""

# First, for signals while the others are imported.
import cleanba.runtime.early_signals  # isort: skip  # noqa: F401

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cleanba.agents.agent import Agent, act, play
from cleanba.agents.algorithm import Algorithm, Loss, PerEnv, Published, Rollout, Slots, linear_schedule
from cleanba.agents.minibatches import check_whole_environments, whole_environments
from cleanba.agents.networks import make_agent, resolve_network
from cleanba.agents.normalization import discount_of_returns, next_statistics
from cleanba.agents.returns import gae
from cleanba.config.batch_plan import BatchPlan, check_divides
from cleanba.config.flags import RunArgs
from cleanba.config.marks import FRACTION, NOT_NEGATIVE, POSITIVE
from cleanba.envs.spec import EnvSpec
from cleanba.training.train import run_command

# --------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(RunArgs):
    exp_name: str = "cleanba_ppo"
    update_epochs: Annotated[int, POSITIVE] = 4
    """epochs per update"""
    gae_lambda: Annotated[float, FRACTION] = 0.95
    """lambda of generalized advantage estimation"""
    norm_adv: bool = True
    """normalize the advantages of each minibatch"""
    clip_coef: Annotated[float, POSITIVE] = 0.1
    """clipping range of the probability ratio"""
    ent_coef: Annotated[float, NOT_NEGATIVE] = 0.01
    """coefficient of the entropy bonus"""
    vf_coef: Annotated[float, NOT_NEGATIVE] = 0.5
    """coefficient of the value loss"""
    target_kl: Annotated[float | None, POSITIVE] = None
    """skip the remaining epochs of an update once the mean KL divergence of an epoch exceeds this"""

    @property
    def sequence_length(self) -> int:
        return self.num_steps if self.recurrent else 1  # a memory needs whole sequences


# --------------------------------------------------------------------------- from a rollout to minibatches


class Batch(NamedTuple):
    """T steps of N environments; the rows of a chunk have the same fields."""

    obs: Array  #            [T+1, N, ...], the last one never drawn
    action: Array  #         [T, N, ...]
    logprob: Array  #   f32  [T, N], of the policy that acted
    advantage: Array  # f32  [T, N]
    target: Array  #    f32  [T, N], for the value
    valid: Array  #     bool [T, N]
    episode_start: Any = ()  # bool [T+1, N]; only with a memory
    first_state: PerEnv = PerEnv(())  # a tree [N, ...]: the memory before the first step


def prepare(
    published: Published,
    rollout: Rollout,
    *,
    agent: Agent,
    gamma: float,
    gae_lambda: float,
    normalize_rewards: bool = False,
) -> Batch:
    reward = rollout.reward
    if normalize_rewards:
        reward = published.extra.reward.scale_rewards(reward)
    last_obs = jax.tree.map(lambda x: x[-1], rollout.obs)  # the actors have not evaluated it
    _, last_value, _ = agent.apply(published, last_obs, rollout.last_state, ~rollout.valid[-1])
    advantage = gae(
        reward=reward,
        value=rollout.record.value,
        last_value=last_value,
        terminated=rollout.terminated,
        valid=rollout.valid,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    target = advantage + rollout.record.value
    batch = Batch(rollout.obs, rollout.action, rollout.record.logprob, advantage, target, rollout.valid)
    if agent.has_memory:
        batch = batch._replace(episode_start=rollout.episode_start, first_state=PerEnv(rollout.first_state))
    return batch


def sequences(key: Array, env_id: Array, *, plan: BatchPlan) -> Slots:
    """The minibatches of a policy with a memory: whole environments, the same ones in every epoch."""
    return whole_environments(env_id, plan=plan, rows=plan.num_steps)


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
    published: Published,
    rows: Batch,
    mask: Array,
    moments: Moments,
    *,
    agent: Agent,
    clip_coef: float,
    vf_coef: float,
    ent_coef: float,
) -> Loss:
    """Sums over the valid rows of a chunk, never means: the learner adds them up over chunks and learners,
    and divides by the global count. A row that is not valid is a reset or padding (see returns.py). Rows are
    [B], or [T, B] of whole sequences."""
    look = agent.unroll if mask.ndim == 2 else agent.apply
    distribution, value, _ = look(published, rows.obs, rows.first_state.values, rows.episode_start)
    valid = rows.valid & mask
    advantage = (rows.advantage - moments.mean) / moments.std
    log_ratio = jnp.where(valid, distribution.log_prob(rows.action) - rows.logprob, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - clip_coef, 1 + clip_coef)

    policy_loss = jnp.sum(jnp.maximum(-advantage * ratio, -advantage * clipped_ratio), where=valid)
    value_loss = jnp.sum(0.5 * (value - rows.target) ** 2, where=valid)
    entropy = jnp.sum(distribution.entropy(), where=valid)
    approx_kl = jnp.sum(ratio - 1 - log_ratio, where=valid)  # Schulman 2020, "Approximating KL divergence"

    loss = policy_loss + vf_coef * value_loss - ent_coef * entropy
    metrics = dict(
        loss=loss, policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, approx_kl=approx_kl
    )
    count = jnp.sum(valid).astype(jnp.float32)
    return Loss(total=loss, denominator=count, metrics=metrics, rows=count)


# ---------------------------------------------------------------------------------------------- together


def make_algorithm(args: Args, env: EnvSpec, plan: BatchPlan) -> Algorithm:
    parts = args.num_minibatches
    agent = make_agent(args, env)
    if agent.has_memory:
        check_whole_environments(plan)
    else:
        check_divides("--num-steps", args.num_steps, parts, f"into --num-minibatches {parts}")
    target_kl = args.target_kl
    return Algorithm(
        init=agent.init,
        act=partial(act, agent),
        play=partial(play, agent),
        prepare=partial(
            prepare,
            agent=agent,
            gamma=args.gamma,
            gae_lambda=args.gae_lambda,
            normalize_rewards=args.normalize_rewards,
        ),
        minibatches=partial(sequences if agent.has_memory else minibatches, plan=plan),
        statistics=partial(advantage_moments, normalize=args.norm_adv),
        loss=partial(
            ppo_loss,
            agent=agent,
            clip_coef=args.clip_coef,
            vf_coef=args.vf_coef,
            ent_coef=args.ent_coef,
        ),
        optimizer=optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5)),
        learning_rate=linear_schedule(args, plan),
        epochs=args.update_epochs,
        stop_early=None if target_kl is None else lambda metrics: metrics["approx_kl"] > target_kl,
        next_extra=next_statistics(args, env),
        return_discount=discount_of_returns(args),
        initial_state=agent.initial_state,
        resolved={"network": resolve_network(args, env)},
    )


def main(
    default: Args | Callable[[], Args] = Args(),
    argv: list[str] | None = None,
    prog: str | None = None,
    description: str | None = (__doc__ or "").split("\n\n")[0],
) -> None:
    run_command(default, make_algorithm, description=description, argv=argv, prog=prog)


if __name__ == "__main__":
    main()
