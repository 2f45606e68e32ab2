"""The seed of each environment, from its index among all environments of all processes."""

from collections.abc import Sequence

import numpy as np

EVALUATION, RESUMED = 1, 2  # appended to a run's seed: an evaluation or a resumed part sees new episodes


def env_seeds(seed: int | Sequence[int], env_ids: Sequence[int] | range) -> list[int]:
    """Consecutive numbers, so that no two are the same, from a start that is far away for every other `seed`.
    31 bits, EnvPool's range."""
    start = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [(start + e) % 2**31 for e in env_ids]
