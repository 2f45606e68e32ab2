"""Returns and lengths of finished episodes."""

from typing import NamedTuple

import numpy as np

from cleanba.envs.spec import EnvStep


class Episode(NamedTuple):
    episodic_return: float
    length: int


class EpisodeTracker:
    """Counts raw rewards, without reset rows. An Atari episode here is a whole game, through lost lives."""

    def __init__(self, num_envs: int):
        self._return = np.zeros(num_envs, np.float64)
        self.length = np.zeros(num_envs, np.int64)  # so far, of the episodes that are being played

    def add(self, step: EnvStep, valid: np.ndarray) -> dict[int, Episode]:
        """Count one step; returns the episodes that ended with it, by environment."""
        self._return[step.env] += step.raw_reward * valid
        self.length[step.env] += valid
        ended = step.env[step.game_over & valid]
        episodes = {int(e): Episode(float(self._return[e]), int(self.length[e])) for e in ended}
        self._return[ended] = 0
        self.length[ended] = 0
        return episodes
