"""Small models, changes to their files, and the command that evaluates them."""

import json

import jax
from safetensors import safe_open
from safetensors.numpy import save_file

from cleanba import cleanba_ppo
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology
from cleanba.envs.factory import env_spec
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


def rewrite(path, tensors=None, **metadata):
    """Replace metadata or tensors; None removes an entry."""
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() | {name: value for name, value in metadata.items() if value is not None}
        for name in [name for name, value in metadata.items() if value is None]:
            del header[name]
        save_file(tensors or {name: file.get_tensor(name) for name in file.keys()}, path, header)  # noqa: SIM118


def as_type(path, dtype):
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name).astype(dtype) for name in file.keys()}  # noqa: SIM118


def edited(path, part, **values):
    with safe_open(path, framework="numpy") as file:
        return json.dumps(json.loads(file.metadata()[part]) | values)
