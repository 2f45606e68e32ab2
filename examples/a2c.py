"""Advantage actor-critic (Mnih et al. 2016), as an algorithm of your own: one file, outside the package.

python examples/a2c.py --env-id CartPole-v1 --save-model       train, save and evaluate
cleanba eval RUN --algorithm examples/a2c.py                   evaluate with this file's policy
cleanba bench examples/a2c.py --env-id CartPole-v1             measure
cleanba launch a0-l0-d2 examples/a2c.py --env-id CartPole-v1   two processes
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from cleanba.agents.agent import Agent, act, memoryless, play
from cleanba.agents.algorithm import Algorithm, Loss, Published, Rollout, linear_schedule
from cleanba.agents.distributions import Categorical
from cleanba.agents.returns import gae
from cleanba.cleanba_ppo import minibatches
from cleanba.config.batch_plan import BatchPlan, check_divides
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.config.marks import NOT_NEGATIVE
from cleanba.envs.spec import ArraySpec, EnvSpec
from cleanba.training.train import run_command


@dataclass(frozen=True)
class Args(RunArgs):
    exp_name: str = "a2c"
    num_steps: int = 16
    num_minibatches: int = 1  # one optimizer step per update
    learning_rate: float = 1e-2
    width: int = 64
    """units in each of the two hidden layers"""
    ent_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """coefficient of the entropy bonus"""


class Network(nn.Module):
    width: int
    actions: int

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Categorical, Array]:
        x = obs.reshape(len(obs), -1).astype(jnp.float32)
        for _ in range(2):
            x = nn.relu(nn.Dense(self.width)(x))
        return Categorical(nn.Dense(self.actions)(x)), nn.Dense(1)(x)[:, 0]


class Batch(NamedTuple):  # [T, N, ...] each, and [T+1, N, ...] of the observations
    obs: Array
    action: Array
    advantage: Array
    target: Array
    valid: Array


def prepare(published: Published, rollout: Rollout, *, agent: Agent, gamma: float) -> Batch:
    _, last_value, _ = agent.apply(published, rollout.obs[-1])
    value = rollout.record.value
    advantage = gae(
        reward=rollout.reward,
        value=value,
        last_value=last_value,
        terminated=rollout.terminated,
        valid=rollout.valid,
        gamma=gamma,
        gae_lambda=1.0,
    )
    return Batch(rollout.obs, rollout.action, advantage, advantage + value, rollout.valid)


def a2c_loss(
    published: Published, rows: Batch, mask: Array, _: None, *, agent: Agent, ent_coef: float
) -> Loss:
    """Sums over the valid rows: the engine adds them up and divides by the global count."""
    distribution, value, _ = agent.apply(published, rows.obs)
    valid = rows.valid & mask
    policy_loss = jnp.sum(-rows.advantage * distribution.log_prob(rows.action), where=valid)
    value_loss = jnp.sum(0.5 * (value - rows.target) ** 2, where=valid)
    entropy = jnp.sum(distribution.entropy(), where=valid)
    metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
    count = jnp.sum(valid).astype(jnp.float32)
    return Loss(policy_loss + 0.5 * value_loss - ent_coef * entropy, count, metrics, count)


def make_algorithm(args: Args, env: EnvSpec, plan: BatchPlan) -> Algorithm:
    if env.action.kind != "discrete":
        raise UsageError(f"{args.exp_name} is for discrete actions; {env.env_id} has {env.action}")
    if not isinstance(env.obs, ArraySpec):
        raise UsageError(f"{args.exp_name} is for one array to see; {env.env_id} has {', '.join(env.obs)}")
    check_divides("--num-steps", args.num_steps, args.num_minibatches, "as --num-minibatches asks")
    network: Any = Network(args.width, env.action.n)
    obs = jnp.zeros((1, *env.obs.shape), env.obs.dtype)
    agent = memoryless(init=lambda key: network.init(key, obs), apply=network.apply)
    return Algorithm(
        init=agent.init,
        act=partial(act, agent),
        play=partial(play, agent),
        prepare=partial(prepare, agent=agent, gamma=args.gamma),
        minibatches=partial(minibatches, plan=plan),
        statistics=lambda rows, mask, global_sum: None,
        loss=partial(a2c_loss, agent=agent, ent_coef=args.ent_coef),
        optimizer=optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_rms()),
        learning_rate=linear_schedule(args, plan),
        epochs=1,
    )


if __name__ == "__main__":
    run_command(Args(), make_algorithm, description="Train an agent with A2C.")
