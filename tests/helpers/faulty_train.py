"""PPO with a fault at a given moment: `python faulty_train.py KIND MOMENT [flags]`."""

import os
import signal
import sys
import time
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
from cleanba.training import finish, train


def at(moment, method, change):
    """`method`, but call number `moment` is `change(method, *args)`."""
    calls = 0

    @wraps(method)
    def changed(*args, **options):
        nonlocal calls
        calls += 1
        if calls != moment:
            return method(*args, **options)
        Path(os.environ["CLEANBA_FAULT_ROUND"], "fault").touch()
        return change(method, *args, **options)

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


def repeat(method, *args, **options):
    """For a minute, or until a signal."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        result = method(*args, **options)
    return result


def take_long(*_):
    time.sleep(60)


FAULTS = {
    "actor": (Actor, "choose", fail),
    "environment": (Envs, "receive", fail),
    "learner": (Learner, "update", fail),
    "writer": (TensorBoard, "write", fail),
    "NaN reward": (Envs, "receive", nan_reward),
    "NaN gradient": (Learner, "minibatch_sums", nan_gradient),
    "kill in a write": (checkpoint, "atomic_write", die_while_writing),
    "slow checkpoint": (checkpoint, "atomic_write", take_long),
    "evaluation": (finish, "evaluate", repeat),
    "upload": (train, "report_and_upload", take_long),
}

if __name__ == "__main__":
    kind, moment, *flags = sys.argv[1:]
    if kind in FAULTS:
        owner, name, change = FAULTS[kind]
        setattr(owner, name, at(int(moment), getattr(owner, name), change))
    cleanba_ppo.main(argv=flags)
