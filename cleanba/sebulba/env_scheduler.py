"""Which environments act next, when they become ready in any order."""

import numpy as np


class EnvScheduler:
    """Environments take steps in batches of one size: B are sent, B are received. An environment that is
    ahead may go on as long as there are params for it, but never so far that those behind are left alone: too
    few for a batch, they would wait forever.

    Environment i has r_i steps left to go. All of them can be taken in batches of B different environments if
    the largest r_i is at most sum(r) / B, a whole number, as B divides the number of environments. That holds
    at the start, where all r_i are equal; choosing the B largest keeps it; so does adding T to every r_i,
    when the next params come. A choice that would break it, because some of those behind are not ready yet,
    is not made: they are waited for."""

    def __init__(self, envs: int, batch: int, first_step: int):
        if envs % batch:
            raise ValueError(f"{envs} environments do not come in batches of {batch}")
        self._batch = batch
        self._ready = np.empty(0, np.int32)  # environments whose observation has arrived, in that order
        self.step = np.full(envs, first_step, np.int32)  # how many actions each environment was given

    def mark_ready(self, env: np.ndarray) -> None:
        self._ready = np.concatenate([self._ready, env])

    @property
    def all_ready(self) -> bool:
        return len(self._ready) == len(self.step)

    @property
    def completed(self) -> int:
        """How many steps are complete in every environment."""
        complete = self.step - 1
        complete[self._ready] += 1
        return int(complete.min())

    def next_batch(self, until: int) -> np.ndarray:
        """Environments [B] that act next, in the order in which they became ready, or none [0]. No
        environment goes beyond step `until`."""
        left = until - self.step
        furthest_behind = np.argsort(-left[self._ready], kind="stable")[: self._batch]
        furthest_behind.sort()
        chosen = self._ready[furthest_behind]
        left[chosen] -= 1
        if len(chosen) < self._batch or left.min() < 0 or left.max() * self._batch > left.sum():
            return np.empty(0, np.int32)
        self.step[chosen] += 1
        self._ready = np.delete(self._ready, furthest_behind)
        return chosen
