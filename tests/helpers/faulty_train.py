"""PPO with a fault at a given moment: `python faulty_train.py KIND MOMENT [flags]`."""

import os
import signal
import sys
from functools import wraps
from pathlib import Path

import jax
import numpy as np

from cleanba import cleanba_ppo
from cleanba.envs.envpool import Envs
from cleanba.records import checkpoint
from cleanba.records.tensorboard_logger import TensorBoard
from cleanba.sebulba.actor import Actor
from cleanba.sebulba.learner import Learner


def at(moment, method, change):
    """`method`, but call number `moment` is `change(method, *args)`."""
    calls = 0

    @wraps(method)
    def changed(*args):
        nonlocal calls
        calls += 1
        if calls != moment:
            return method(*args)
        Path(os.environ["CLEANBA_FAULT_ROUND"], "fault").touch()
        return change(method, *args)

    return changed


def fail(*_):
    raise RuntimeError("boom")


def nan_reward(receive, envs):
    env_step = receive(envs)
    env_step.reward[-1] = np.nan
    return env_step


def nan_gradient(minibatch_sums, *inputs):
    sums = minibatch_sums(*inputs)
    leaves, tree = jax.tree.flatten(sums.gradient)
    return sums._replace(gradient=jax.tree.unflatten(tree, [*leaves[:-1], leaves[-1] * np.nan]))


def die_while_writing(atomic_write, path, data):
    path.with_name(path.name + ".unfinished").write_bytes(data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "actor": (Actor, "choose", fail),
    "environment": (Envs, "receive", fail),
    "learner": (Learner, "update", fail),
    "writer": (TensorBoard, "write", fail),
    "NaN reward": (Envs, "receive", nan_reward),
    "NaN gradient": (Learner, "minibatch_sums", nan_gradient),
    "kill in a write": (checkpoint, "atomic_write", die_while_writing),
}

if __name__ == "__main__":
    kind, moment, *flags = sys.argv[1:]
    if kind in FAULTS:
        owner, name, change = FAULTS[kind]
        setattr(owner, name, at(int(moment), getattr(owner, name), change))
    cleanba_ppo.main(argv=flags)
