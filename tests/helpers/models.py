"""Small models, and the command that evaluates them."""

import jax

from cleanba import cleanba_ppo
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology
from cleanba.envs.envpool import env_spec
from cleanba.evaluation.model import Model
from helpers.runs import run_python


def make_model(**flags):
    args = cleanba_ppo.Args(**(dict(env_id="CartPole-v1", hiddens=(8,), clip_coef=0.3) | flags))
    env, plan = env_spec(args), BatchPlan.create(args, Topology((0,), (0,)))
    algorithm = cleanba_ppo.make_algorithm(args, env, plan)
    params, extra = jax.device_get(jax.jit(algorithm.init)(jax.random.key(1)))
    return Model(args, env, 640, params, algorithm, "ppo", extra)


def cleanba_eval(cwd, *argv, **env):
    command = ["-c", "from cleanba.cli import main; main()", "eval"]
    return run_python(cwd, *command, *argv, **{"JAX_NUM_CPU_DEVICES": "1"} | env)
