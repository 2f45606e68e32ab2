"""IMPALA (Espeholt et al. 2018) on the Sebulba architecture. Values are those of the paper.

This file is the whole algorithm: its arguments, its minibatches, its loss with V-trace. cleanba_ppo.py shows
what the engine does with these functions.
"""

# First, for signals while the others are imported.
import cleanba.runtime.early_signals  # isort: skip  # noqa: F401

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from cleanba.agents.agent import Agent, act, play
from cleanba.agents.algorithm import Algorithm, Loss, PerEnv, Published, Rollout, Slots, linear_schedule
from cleanba.agents.minibatches import check_whole_environments, whole_environments
from cleanba.agents.networks import make_agent, resolve_network
from cleanba.agents.normalization import discount_of_returns, next_statistics
from cleanba.agents.returns import vtrace
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.flags import RunArgs
from cleanba.config.marks import NOT_NEGATIVE
from cleanba.envs.spec import EnvSpec
from cleanba.training.train import run_command

# --------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(RunArgs):
    exp_name: str = "cleanba_impala"
    num_steps: int = 20  # Espeholt et al. 2018, as the learning rate and the coefficients
    concurrency: bool = True
    learning_rate: float = 6e-4
    max_grad_norm: float = 40.0
    ent_coef: Annotated[float, NOT_NEGATIVE] = 0.01
    """coefficient of the entropy bonus"""
    vf_coef: Annotated[float, NOT_NEGATIVE] = 0.5
    """coefficient of the value loss"""

    @property
    def sequence_length(self) -> int:
        return self.num_steps  # V-trace needs whole sequences


# --------------------------------------------------------------------------- from a rollout to minibatches


class Batch(NamedTuple):
    """T+1 rows of N environments, of which the last one only bootstraps; a chunk has some of the columns."""

    obs: Array  #             [T+1, N, ...]
    action: Array  #          [T+1, N, ...]
    logprob: Array  #    f32  [T+1, N], of the policy that acted
    reward: Array  #     f32  [T+1, N]
    terminated: Array  # bool [T+1, N]
    valid: Array  #      bool [T+1, N], False in the last row
    episode_start: Any = ()  # bool [T+1, N]; only with a memory
    first_state: PerEnv = PerEnv(())  # a tree [N, ...]: the memory before the first row


def prepare(published: Published, rollout: Rollout, *, normalize_rewards: bool = False) -> Batch:
    def with_last_row(x: Array) -> Array:
        return jnp.pad(x, ((0, 1), *[(0, 0)] * (x.ndim - 1)))

    reward = rollout.reward
    if normalize_rewards:
        reward = published.extra.reward.scale_rewards(reward)
    return Batch(
        obs=rollout.obs,
        action=with_last_row(rollout.action),
        logprob=with_last_row(rollout.record.logprob),
        reward=with_last_row(reward),
        terminated=with_last_row(rollout.terminated),
        valid=with_last_row(rollout.valid),
        episode_start=rollout.episode_start,
        first_state=PerEnv(rollout.first_state),
    )


def minibatches(key: Array, env_id: Array, *, plan: BatchPlan) -> Slots:
    """Of whole environments, with the row that only bootstraps."""
    return whole_environments(env_id, plan=plan, rows=plan.num_steps + 1)


# -------------------------------------------------------------------------------------------------- loss


def impala_loss(
    published: Published,
    chunk: Batch,
    mask: Array,
    statistics: None,
    *,
    agent: Agent,
    gamma: float,
    vf_coef: float,
    ent_coef: float,
) -> Loss:
    distribution, value, _ = agent.unroll(published, chunk.obs, chunk.first_state.values, chunk.episode_start)
    valid = (chunk.valid & mask)[:-1]
    logprob = distribution.log_prob(chunk.action)[:-1]
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
    entropy = jnp.sum(distribution.entropy()[:-1], where=valid)

    loss = policy_loss + vf_coef * value_loss - ent_coef * entropy
    metrics = dict(loss=loss, policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
    return Loss(total=loss, denominator=None, metrics=metrics, rows=jnp.sum(valid).astype(jnp.float32))


# ---------------------------------------------------------------------------------------------- together


def make_algorithm(args: Args, env: EnvSpec, plan: BatchPlan) -> Algorithm:
    check_whole_environments(plan)
    agent = make_agent(args, env)
    return Algorithm(
        init=agent.init,
        initial_state=agent.initial_state,
        act=partial(act, agent),
        play=partial(play, agent),
        prepare=partial(prepare, normalize_rewards=args.normalize_rewards),
        next_extra=next_statistics(args, env),
        return_discount=discount_of_returns(args),
        minibatches=partial(minibatches, plan=plan),
        statistics=lambda rows, mask, global_sum: None,
        loss=partial(
            impala_loss, agent=agent, gamma=args.gamma, vf_coef=args.vf_coef, ent_coef=args.ent_coef
        ),
        optimizer=optax.chain(
            optax.clip_by_global_norm(args.max_grad_norm),
            # As PyTorch's: the square root gets epsilon added, and the average starts at zero.
            optax.scale_by_rms(decay=0.99, eps=0.01, eps_in_sqrt=False, initial_scale=0.0),
        ),
        learning_rate=linear_schedule(args, plan),
        epochs=1,
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
