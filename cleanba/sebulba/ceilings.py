"""What the parts of a run do alone, in steps per second: no run is faster than the slowest of them."""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from cleanba.sebulba.actor import compile_act
from cleanba.sebulba.algorithm import Algorithm
from cleanba.sebulba.args import BatchPlan, RunArgs
from cleanba.sebulba.envs import Envs, EnvSpec, env_seeds
from cleanba.sebulba.frames import Sight
from cleanba.sebulba.learner import PER_LEARNER, Learner, on_device
from cleanba.sebulba.rollout import (
    Rollout,
    RolloutBuffer,
    env_ids_of_actors,
    env_ids_of_columns,
    put_on_learners,
)
from cleanba.sebulba.topology import Topology

Work = Callable[[], int]  # does some steps, and returns how many

SETTLING = 0.25  # of a measurement's time before it: queues fill, games get out of step
MOST_WAYS = 5  # to step environments that are compared: making hundreds of them takes a while
FIRST_SECONDS = 0.5  # of the round after which only those ways stay that reach
CLOSE = 0.7  # of the best


class Run(NamedTuple):
    """What is measured."""

    args: RunArgs
    topology: Topology
    plan: BatchPlan
    env: EnvSpec
    algorithm: Algorithm


def steps_per_second(works: Sequence[Work], seconds: float) -> float:
    """Of threads that do their work again and again, all at the same time."""
    with ThreadPoolExecutor(len(works)) as threads:
        return sum(threads.map(partial(_one_thread, seconds=seconds), works))


def _one_thread(work: Work, seconds: float) -> float:
    """From the end of a piece of work to the end of another: pieces may be long."""
    settled = time.perf_counter() + SETTLING * seconds
    work()
    while time.perf_counter() < settled:
        work()
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        steps += work()
    return steps / elapsed


# ------------------------------------------------------------------------------------------- environments


class Stepping(NamedTuple):
    """A way to step the environments of a run."""

    pools: int  # each with a Python thread of its own, as an actor has
    envs: int  # of each pool
    batch: int  # that a pool steps together: all, or so many as are ready first
    threads: int  # of each pool
    background: bool = False  # as a run does it that has an accelerator

    def __str__(self) -> str:
        how = "sync" if self.batch == self.envs else f"async by {self.batch}"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}{' each' * (self.pools > 1)}"
        return f"{self.pools} × {self.envs} {how}, {threads}{' in the background' * self.background}"


def ways_to_step(
    plan: BatchPlan, threads: int, cores: int, free_cores: int, *, background: bool
) -> list[Stepping]:
    """The run's own first, with its `threads` per actor. Then one pool per actor and one for all, async and
    sync, with as many threads as there are cores, and with fewer."""
    pools, envs = plan.actors, plan.envs_per_actor
    whole = pools * envs
    shapes = [(pools, envs, max(1, envs // 2)), (1, whole, max(1, whole // 2)), (pools, envs, envs)]
    ways = [Stepping(pools, envs, plan.env_batch, min(envs, threads), background)]
    for total in (cores, free_cores):
        ways += [Stepping(p, n, batch, min(n, max(1, total // p))) for p, n, batch in shapes]
    return list(dict.fromkeys(ways))[:MOST_WAYS]


class RandomPlay:
    """Environments alone, in several ways. Those that are far behind in a short first round are left out, but
    never the first, the run's own."""

    def __init__(self, run: Run, ways: list[Stepping], seconds: float):
        play = {way: _random_play(run, way) for way in ways}
        first = {way: steps_per_second(works, min(FIRST_SECONDS, seconds)) for way, works in play.items()}
        enough = CLOSE * max(first.values())
        self.own = ways[0]
        self._play = {way: play[way] for way in ways if first[way] >= enough or way == self.own}
        self._seconds = seconds

    def rounds(self, number: int) -> dict[Stepping, list[float]]:
        """Each way in turn, so that a slow minute of the machine meets all of them."""
        rounds = [
            {way: steps_per_second(works, self._seconds) for way, works in self._play.items()}
            for _ in range(number)
        ]
        return {way: [rates[way] for rates in rounds] for way in self._play}


def _random_play(run: Run, way: Stepping) -> list[Work]:
    """One for each pool."""
    rng = np.random.default_rng(run.args.seed)
    works: list[Work] = []
    for pool in range(way.pools):
        seeds = env_seeds(run.args.seed, range(pool * way.envs, (pool + 1) * way.envs))
        envs = Envs(run.env, seeds, way.threads, batch=way.batch, background=way.background)
        envs.reset()
        actions = itertools.cycle(rng.integers(run.env.num_actions, size=(100, way.batch), dtype=np.int32))
        works.append(partial(_step, envs, actions))
    return works


def _step(envs: Envs, actions: "itertools.cycle[np.ndarray]") -> int:
    came = envs.receive()
    envs.send(next(actions), came.env)
    return len(came.env)


# ---------------------------------------------------------------------------------------- on the devices


class Devices:
    """What a run does on its devices, with made-up observations, as its actors and its learner do it."""

    def __init__(self, run: Run):
        self._run = run
        self._plan = plan = run.plan
        self._mesh, self._devices = run.topology.learner_mesh(), run.topology.learner_devices()
        init_key, self._act_key, minibatch_key = jax.random.split(jax.random.key(run.args.seed), 3)
        self._learner = Learner(run.algorithm, plan, self._mesh, minibatch_key)
        self._state = self._learner.init(init_key)
        self._rollout = made_up_rollout(plan, run.env)
        columns = env_ids_of_columns(plan, process=0)
        self._columns = put_on_learners(columns, PER_LEARNER, self._mesh, self._devices)

    def infer(self, seconds: float, repeats: int) -> list[float]:
        """From observations on the host to actions on the host, one thread per actor."""
        run, plan = self._run, self._plan
        act = compile_act(run.algorithm)
        devices = [d for d in run.topology.actor_devices() for _ in range(run.args.num_actor_threads)]
        obs = random_obs(run.env, plan.inference_batch, np.random.default_rng(run.args.seed))
        envs, steps = np.arange(plan.inference_batch, dtype=np.int32), np.ones(plan.inference_batch, np.int32)

        def choose(device: jax.Device, env_id: np.ndarray) -> Work:
            params, env_id = on_device(self._state.params, device), env_id[: plan.inference_batch]
            act_here = partial(act, jax.device_put(self._act_key, device))
            sight = Sight(run.env, plan.envs_per_actor, device)

            def work() -> int:
                calls = plan.env_batch // plan.inference_batch
                jax.device_get(
                    [act_here(params, *sight(envs, obs, steps, env_id, steps)) for _ in range(calls)]
                )
                return plan.env_batch

            return work

        works = [choose(*of) for of in zip(devices, env_ids_of_actors(plan, process=0), strict=True)]
        for work in works:
            work()  # compiles, once per device
        return [steps_per_second(works, seconds) for _ in range(repeats)]

    def learn(self, seconds: float, repeats: int) -> list[float]:
        """Updates, always of the first params, so that made-up rewards lead nowhere. A long one is enough."""
        spent: list[float] = []
        self._update(0)  # compiles
        while sum(spent) < repeats * seconds:
            spent.append(self._update(len(spent)))
        return [self._plan.batch_size / s for s in spent]

    def copy(self, seconds: float, repeats: int) -> list[float]:
        """Rollouts from the host to the learners, one thread per actor."""

        def work() -> int:
            jax.block_until_ready(self._shard())
            return self._plan.num_steps * self._plan.envs_per_actor

        return [steps_per_second([work] * self._plan.actors, seconds) for _ in range(repeats)]

    def _update(self, number: int) -> float:
        """The seconds it takes, from rollouts that are on the learners already; it uses them up."""
        rollouts = jax.block_until_ready([self._shard() for _ in range(self._plan.actors)])
        start = time.perf_counter()
        self._learner.update(self._state, rollouts, self._columns, number)
        return time.perf_counter() - start

    def _shard(self) -> Rollout:
        return self._rollout.shard_over_envs(self._mesh, self._devices)


def made_up_rollout(plan: BatchPlan, env: EnvSpec) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    buffer = RolloutBuffer(plan, env)
    envs = np.arange(plan.envs_per_actor)
    for t in range(1 - env.stack, plan.num_steps + 1):  # below 0: frames from before
        buffer.write(np.full_like(envs, t), envs, obs=random_obs(env, len(envs), rng))
    for t in range(plan.num_steps + 1 if env.stack > 1 else 0):
        buffer.write(np.full_like(envs, t), envs, age=np.full_like(envs, env.stack - 1))
    for t in range(plan.num_steps):
        buffer.write(
            np.full_like(envs, t),
            envs,
            action=rng.integers(env.num_actions, size=len(envs)),
            logprob=np.full(len(envs), -np.log(env.num_actions)),  # about that of the first params
            value=np.zeros(len(envs)),
            reward=rng.integers(2, size=len(envs)),
            terminated=rng.random(len(envs)) < 0.01,
            truncated=np.zeros(len(envs), np.bool_),
            valid=np.ones(len(envs), np.bool_),
        )
    return buffer


def random_obs(env: EnvSpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Of stacked frames the newest."""
    shape = (rows, *(env.obs_shape if env.stack == 1 else env.obs_shape[1:]))
    if env.obs_dtype.kind == "f":
        return rng.standard_normal(shape).astype(env.obs_dtype)
    return rng.integers(128, size=shape, dtype=np.uint8).astype(env.obs_dtype)
