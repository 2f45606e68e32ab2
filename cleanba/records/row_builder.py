"""Builds the row of an update from what the learner and all processes report."""

import time
from typing import NamedTuple

import jax
import numpy as np

from cleanba.config.batch_plan import BatchPlan
from cleanba.envs.episodes import Episode
from cleanba.records.checkpoint import Checkpoint
from cleanba.records.digests import data_digest, digest, joint_digest, params_sums
from cleanba.records.row import RECENT_GAMES, Row
from cleanba.sebulba.actor import ActorOutput
from cleanba.sebulba.learner import LearnerState
from cleanba.sebulba.sharding import local_part


class UpdateResult(NamedTuple):
    """What the learner passes to the main thread after one update."""

    update: int  # from 0
    state: LearnerState  # after the update
    collected: list[ActorOutput]  # the learner has deleted their rollouts
    losses: dict[str, float]
    learning_rate: float
    seconds: dict[str, float]  # by activity of the learner thread
    finished: float  # time.perf_counter()


class ProcessReport(NamedTuple):
    """One process's report of an update. It is sent as JSON, in which tuples become lists."""

    update: int
    episodes: list[Episode]  # finished during the update
    actor_seconds: list[dict[str, float]]  # by activity, one per actor
    lags: list[int]  # policy lags of its transitions
    params_digest: str
    data_digest: str
    digest_seconds: float  # time to compute these two

    @staticmethod
    def of(update_result: UpdateResult) -> "ProcessReport":
        start = time.perf_counter()
        sums = params_sums(local_part(update_result.state.published))  # runs on the device meanwhile
        of_data = data_digest((c.env_id, c.transitions) for c in update_result.collected)
        return ProcessReport(
            update=update_result.update,
            episodes=[episode for c in update_result.collected for episode in c.episodes],
            actor_seconds=[c.seconds for c in update_result.collected],
            lags=sorted(set().union(*(c.lags for c in update_result.collected))),
            params_digest=digest(jax.device_get(sums)),
            data_digest=of_data,
            digest_seconds=time.perf_counter() - start,
        )


class RowBuilder:
    """Makes the row of each update. Steps per second exclude the first update of this process, which includes
    compilation. Seconds and episodes of a resumed run continue from the checkpoint `resumed`."""

    def __init__(self, plan: BatchPlan, resumed: Checkpoint | None = None):
        self._plan = plan
        self._previous = time.perf_counter()
        self._started = self._previous - (resumed.row["seconds"] if resumed else 0)
        self._first: tuple[int, float] | None = None  # the first update, and when it was finished
        self.recent: list[Episode] = resumed.recent if resumed else []
        self._episodes = resumed.row["stats/games"] if resumed else 0

    def make(self, update_result: UpdateResult, reports: list[ProcessReport]) -> Row:
        """`reports` holds one of each process, in order."""
        check_agreement(reports)
        batch, update, now = self._plan.batch_size, update_result.update, update_result.finished
        seconds, self._previous = now - self._previous, now
        row: Row = {
            "update": update + 1,
            "global_step": (update + 1) * batch,
            "seconds": now - self._started,
            "charts/learning_rate": update_result.learning_rate,
            "charts/SPS_update": batch / seconds,
        }
        if self._first is None:
            self._first = update, now
        else:
            row["charts/SPS"] = (update - self._first[0]) * batch / (now - self._first[1])
        finished = [Episode(*episode) for report in reports for episode in report.episodes]
        window = max(RECENT_GAMES, len(finished))  # never only some processes' episodes of one update
        self.recent = [*self.recent, *finished][-window:]
        self._episodes += len(finished)
        if self.recent:
            row["charts/avg_episodic_return"] = float(np.mean([e.episodic_return for e in self.recent]))
            row["charts/avg_episodic_length"] = float(np.mean([e.length for e in self.recent]))
        row |= {f"losses/{name}": value for name, value in update_result.losses.items()}
        row["stats/games"] = self._episodes
        row["stats/update_seconds"] = seconds
        row |= {f"stats/learner_{name}_seconds": value for name, value in update_result.seconds.items()}
        actors = [seconds for report in reports for seconds in report.actor_seconds]
        for name in sorted(set().union(*actors)):  # an actor that never waited has no entry for it
            row[f"stats/actor_{name}_seconds"] = float(np.mean([s.get(name, 0.0) for s in actors]))
        row["stats/digest_seconds"] = reports[0].digest_seconds
        lags = [lag for report in reports for lag in report.lags]
        row |= {"stats/policy_lag_min": min(lags), "stats/policy_lag_max": max(lags)}
        row["params_digest"] = reports[0].params_digest
        row["data_digest"] = joint_digest(report.data_digest for report in reports)
        return row


def check_agreement(reports: list[ProcessReport]) -> None:
    """All processes must have computed the same params, bit for bit, from the same sums."""
    for process, report in enumerate(reports):
        if (report.update, report.params_digest) != (reports[0].update, reports[0].params_digest):
            raise RuntimeError(
                f"process {process} has other params than process 0 after update {reports[0].update + 1}"
            )
