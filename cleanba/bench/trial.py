"""A short training to measure its speed; nothing else of it is kept."""

import dataclasses
import re
import tempfile
from statistics import median
from typing import NamedTuple, cast

from cleanba.agents.algorithm import MakeAlgorithm
from cleanba.records.outcome import Outcome
from cleanba.records.row import Row
from cleanba.records.run_folder import read_rows
from cleanba.runtime.signals import Stopped
from cleanba.training.setup import Setup
from cleanba.training.train import train

MIN_UPDATES = 5
WARMUP_UPDATES = 2  # at least; they compile and do not count


class TrainingSpeed(NamedTuple):
    rates: list[float]  # steps per second, one per update after the warm-up
    actor: dict[str, float]  # shares of the time, medians over these updates
    learner: dict[str, float]

    @staticmethod
    def from_rows(rows: list[Row]) -> "TrainingSpeed":
        """The first quarter of the updates is warm-up."""
        counted = rows[max(WARMUP_UPDATES, len(rows) // 4) :]
        shares: dict[str, dict[str, float]] = {"actor": {}, "learner": {}}
        for name in counted[-1]:
            if match := re.fullmatch(r"stats/(actor|learner)_(?!total_)(\w+)_seconds", name):
                total = f"stats/{match[1]}_total_seconds"
                per_update = [row.get(name, 0.0) / row[total] for row in counted]
                shares[match[1]][match[2]] = median(per_update)
        return TrainingSpeed([row["charts/SPS_update"] for row in counted], **shares)


def training_seconds(setup: Setup, seconds: float, expected: float) -> float:
    """The length of a training that should take `seconds`, at the `expected` steps per second."""
    return max(seconds, MIN_UPDATES * setup.plan.batch_size / expected)


def measure_training(
    setup: Setup, make_algorithm: MakeAlgorithm, seconds: float, expected: float
) -> TrainingSpeed:
    """A real run that takes about `seconds` at the `expected` steps per second. Its folder is deleted."""
    updates = max(MIN_UPDATES, round(seconds * expected / setup.plan.batch_size))
    with tempfile.TemporaryDirectory(prefix="cleanba-bench-") as runs_dir:
        steps = updates * setup.plan.batch_size
        args = dataclasses.replace(setup.args, total_timesteps=steps, runs_dir=runs_dir)
        try:
            outcome = cast(Outcome, train(args, make_algorithm))
        except Stopped as stopped:
            raise Stopped(stopped.by) from None  # without the hint how to resume: the folder is gone
        return TrainingSpeed.from_rows(list(read_rows(outcome.run_dir)))
