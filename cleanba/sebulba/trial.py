"""A short training, of which only its speed is kept."""

import dataclasses
import re
import tempfile
from statistics import median
from typing import NamedTuple, cast

from cleanba.sebulba.ceilings import Run
from cleanba.sebulba.command import Stopped
from cleanba.sebulba.metrics import Row, read_rows
from cleanba.sebulba.records import Outcome
from cleanba.sebulba.train import MakeAlgorithm, train

FEWEST_UPDATES = 5  # of a training, of which at least the
FIRST_UPDATES = 2  # do not count: they compile


class Training(NamedTuple):
    rates: list[float]  # steps per second, of each update that counts
    actor: dict[str, float]  # shares of the time, medians over these updates
    learner: dict[str, float]

    @staticmethod
    def of(rows: list[Row]) -> "Training":
        """The first updates, at least a quarter, do not count."""
        counted = rows[max(FIRST_UPDATES, len(rows) // 4) :]
        shares: dict[str, dict[str, float]] = {"actor": {}, "learner": {}}
        for name in counted[-1]:
            if match := re.fullmatch(r"stats/(actor|learner)_(\w+)_seconds", name):
                of_updates = [row.get(name, 0.0) / row["stats/update_seconds"] for row in counted]
                shares[match[1]][match[2]] = median(of_updates)
        return Training([row["charts/SPS_update"] for row in counted], **shares)


def seconds_of_training(run: Run, seconds: float, expected: float) -> float:
    """That one takes at least, if it should take so many and makes the `expected` steps per second."""
    return max(seconds, FEWEST_UPDATES * run.plan.batch_size / expected)


def measure_training(run: Run, make_algorithm: MakeAlgorithm, seconds: float, expected: float) -> Training:
    """A real run of about so many seconds, if it makes the `expected` steps per second. It leaves nothing."""
    updates = max(FEWEST_UPDATES, round(seconds * expected / run.plan.batch_size))
    with tempfile.TemporaryDirectory(prefix="cleanba-bench-") as runs_dir:
        steps = updates * run.plan.batch_size
        args = dataclasses.replace(run.args, total_timesteps=steps, runs_dir=runs_dir)
        try:
            outcome = cast(Outcome, train(args, make_algorithm))
        except Stopped as stopped:
            raise Stopped(stopped.by) from None  # there is nothing to be resumed
        return Training.of(list(read_rows(outcome.run_dir / "metrics.jsonl")))
