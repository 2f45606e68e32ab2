"""Environments, actors and a learner that are slow at random moments, so that the order of everything
changes."""

import random
import time
from contextlib import contextmanager

import numpy as np
import pytest

from cleanba.envs.envpool import Envs
from cleanba.envs.spec import EnvStep
from cleanba.sebulba.actor import Actor
from cleanba.sebulba.learner import Learner


class Delayed(Envs):
    """Every fifth step of an environment takes 20 ms longer, so others overtake it."""

    def __init__(self, *args, batch, **kwargs):
        super().__init__(*args, batch=1, **kwargs)
        self.batch, self.under_way, self.waiting = batch, len(args[1]), []

    def send(self, action, env):
        super().send(action, env)
        self.under_way += len(env)

    def receive(self):
        for _ in range(self.under_way):
            delay = 0.02 if random.random() < 0.2 else 0.0
            self.waiting.append((time.monotonic() + delay, super().receive()))
        self.under_way = 0
        self.waiting.sort(key=lambda item: item[0])
        ready, self.waiting = self.waiting[: self.batch], self.waiting[self.batch :]
        time.sleep(max(0.0, ready[-1][0] - time.monotonic()))
        return EnvStep(*(np.concatenate(rows) for rows in zip(*(step for _, step in ready), strict=True)))


@contextmanager
def delays():
    """In environments, actors and the learner."""
    choose, update = Actor.choose, Learner.update

    def delayed(method, seconds):
        return lambda *args: time.sleep(random.uniform(0, seconds)) or method(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cleanba.envs.envpool.Envs", Delayed)
        patch.setattr(Actor, "choose", delayed(choose, 0.01))
        patch.setattr(Learner, "update", delayed(update, 0.02))
        yield
