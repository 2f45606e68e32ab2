"""How fast the environments alone can be stepped: no run is faster."""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from cleanba.config.batch_plan import BatchPlan
from cleanba.envs.factory import make_envs
from cleanba.envs.seeding import env_seeds
from cleanba.envs.spec import VectorEnv
from cleanba.training.setup import Setup

Work = Callable[[], int]  # makes some steps and returns how many

WARMUP = 0.25  # of a measurement's time, before it: queues fill, episodes get out of step
MAX_CANDIDATES = 5  # ways to step environments: making hundreds of environments takes a while
SCREENING_SECONDS = 0.5  # after which only candidates stay that reach
SCREENING_SHARE = 0.7  # of the fastest


def steps_per_second(works: Sequence[Work], seconds: float) -> float:
    """The sum over threads that repeat their work, all at the same time."""
    with ThreadPoolExecutor(len(works)) as threads:
        return sum(threads.map(partial(_one_thread, seconds=seconds), works))


def _one_thread(work: Work, seconds: float) -> float:
    """Timed from the end of one call to the end of another, since a call may be long."""
    warm = time.perf_counter() + WARMUP * seconds
    work()
    while time.perf_counter() < warm:
        work()
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        steps += work()
    return steps / elapsed


class Stepping(NamedTuple):
    """A way to step the environments of a run."""

    pools: int  # each with a Python thread of its own, like an actor
    envs: int  # per pool
    batch: int  # environments that a pool steps together: all, or the first that are ready
    threads: int  # per pool
    background: bool = False  # threads yield to all others, as in a run with an accelerator

    def __str__(self) -> str:
        how = "sync" if self.batch == self.envs else f"async by {self.batch}"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}{' each' * (self.pools > 1)}"
        return f"{self.pools} × {self.envs} {how}, {threads}{' in the background' * self.background}"


def stepping_candidates(
    plan: BatchPlan, threads: int, cores: int, free_cores: int, *, background: bool
) -> list[Stepping]:
    """The run's own first, with its `threads` per actor. Then one pool per actor and one for all, async and
    sync, with as many threads as there are cores, and with fewer."""
    pools, envs = plan.actors, plan.envs_per_actor
    all_envs = pools * envs
    shapes = [(pools, envs, max(1, envs // 2)), (1, all_envs, max(1, all_envs // 2)), (pools, envs, envs)]
    candidates = [Stepping(pools, envs, plan.env_batch, min(envs, threads), background)]
    for total in (cores, free_cores):
        candidates += [Stepping(p, n, batch, min(n, max(1, total // p))) for p, n, batch in shapes]
    return list(dict.fromkeys(candidates))[:MAX_CANDIDATES]


class RandomPlay:
    """Environments alone, with random actions, stepped in several ways. Candidates that are far behind in a
    short first round are dropped, but never the first, the run's own."""

    def __init__(self, setup: Setup, candidates: list[Stepping], seconds: float):
        play = {way: _random_play(setup, way) for way in candidates}
        screening = {
            way: steps_per_second(works, min(SCREENING_SECONDS, seconds)) for way, works in play.items()
        }
        enough = SCREENING_SHARE * max(screening.values())
        self.own = candidates[0]
        self._play = {way: play[way] for way in candidates if screening[way] >= enough or way == self.own}
        self._seconds = seconds

    def rounds(self, number: int) -> dict[Stepping, list[float]]:
        """Steps per second. The ways take turns, so that a slow minute of the machine affects all of them."""
        rounds = [
            {way: steps_per_second(works, self._seconds) for way, works in self._play.items()}
            for _ in range(number)
        ]
        return {way: [rates[way] for rates in rounds] for way in self._play}


def _random_play(setup: Setup, way: Stepping) -> list[Work]:
    """One per pool."""
    rng = np.random.default_rng(setup.args.seed)
    works: list[Work] = []
    for pool in range(way.pools):
        seeds = env_seeds(setup.args.seed, range(pool * way.envs, (pool + 1) * way.envs))
        envs = make_envs(setup.env, seeds, way.threads, batch=way.batch, background=way.background)
        envs.reset()
        actions = itertools.cycle([setup.env.action.random(rng, way.batch) for _ in range(100)])
        works.append(partial(_step, envs, actions))
    return works


def _step(envs: VectorEnv, actions: "itertools.cycle[np.ndarray]") -> int:
    env_step = envs.receive()
    envs.send(next(actions), env_step.env)
    return len(env_step.env)
