"""Whose turn it is: which environments act next, when they come back in any order."""

import numpy as np


class Turns:
    """Environments take steps in batches of one size, EnvPool's: so many are sent, so many come back. Who is
    ahead may go on as long as there are params for it, but never so far that those behind are left alone:
    too few for a batch, they would wait forever.

    Left to go for environment i are r_i steps. All of them can be gone in batches of B different environments
    if the largest r_i is no more than sum(r) / B, a whole number, as B divides the number of environments.
    That holds at the start, where all r_i are equal; choosing the B largest keeps it; so does adding T to
    every r_i, when the next params come. A choice that would break it, because some of those behind are
    still on their way, is not made: they are waited for."""

    def __init__(self, envs: int, batch: int, first_step: int):
        if envs % batch:
            raise ValueError(f"{envs} environments do not come in batches of {batch}")
        self._batch = batch
        self._here = np.empty(0, np.int32)  # environments whose observation has come, in the order they came
        self.step = np.full(envs, first_step, np.int32)  # so many actions has each environment got

    def arrive(self, env: np.ndarray) -> None:
        self._here = np.concatenate([self._here, env])

    @property
    def all_here(self) -> bool:
        return len(self._here) == len(self.step)

    @property
    def done(self) -> int:
        """So many steps are complete in every environment."""
        complete = self.step - 1
        complete[self._here] += 1
        return int(complete.min())

    def take(self, until: int) -> np.ndarray:
        """A batch of environments [B] whose turn it is, in the order they came, or none [0]. No environment
        goes beyond step `until`."""
        left = until - self.step
        behind_first = np.argsort(-left[self._here], kind="stable")[: self._batch]
        behind_first.sort()
        chosen = self._here[behind_first]
        left[chosen] -= 1
        if len(chosen) < self._batch or left.min() < 0 or left.max() * self._batch > left.sum():
            return np.empty(0, np.int32)
        self.step[chosen] += 1
        self._here = np.delete(self._here, behind_first)
        return chosen
