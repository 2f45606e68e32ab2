"""Search for settings that make a run faster, with the same environments and the same batch."""

import dataclasses
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import jax

from cleanba.agents.algorithm import MakeAlgorithm
from cleanba.bench.measure import Bench, ShowStatus
from cleanba.bench.trial import measure_training, training_seconds
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.config.flags import Args, flag
from cleanba.runtime.machine import available_cores, free_cores
from cleanba.training.setup import Setup

TRIAL = 0.25  # length of a training while tuning, as a share of --train-seconds


class Setting(NamedTuple):
    num_actor_threads: int
    local_num_envs: int
    inference_batch: int
    gradient_chunk: int
    env_threads: int

    def __str__(self) -> str:
        return " ".join(f"{flag(name)} {value}" for name, value in self._asdict().items())

    @staticmethod
    def of(args: Args, plan: BatchPlan, env_threads: int) -> "Setting":
        """With every default resolved. The chunk is its actual size, so that equal settings compare equal."""
        return Setting(
            args.num_actor_threads, args.local_num_envs, plan.inference_batch, plan.chunk_rows, env_threads
        )

    def applied_to(self, args: Args) -> Args:
        return dataclasses.replace(args, **self._asdict(), gradient_accumulation_steps=None)


def neighbours(setting: Setting, actor_devices: int, cores: int, free_cores: int) -> list[list[Setting]]:
    """One list per dimension of the search, with the alternatives: half and double, or another share of the
    cores. The total number of environments stays the same. Not all of them need to be feasible."""
    envs = setting.num_actor_threads * setting.local_num_envs
    threads = [
        setting._replace(
            num_actor_threads=number,
            local_num_envs=envs // number,
            inference_batch=max(1, setting.inference_batch * setting.num_actor_threads // number),
            env_threads=max(1, setting.env_threads * setting.num_actor_threads // number),
        )
        for number in (setting.num_actor_threads // 2, setting.num_actor_threads * 2)
        if number and envs % number == 0
    ]
    actors = actor_devices * setting.num_actor_threads
    shares = {max(1, total // actors) for total in (cores, free_cores, cores // 2)}
    return [
        threads,
        [setting._replace(inference_batch=n) for n in _half_and_double(setting.inference_batch)],
        [setting._replace(gradient_chunk=n) for n in _half_and_double(setting.gradient_chunk)],
        [setting._replace(env_threads=n) for n in sorted(shares) if n <= setting.local_num_envs],
    ]


def _half_and_double(size: int) -> tuple[int, int]:
    return max(1, size // 2), size * 2


class TuningResult(NamedTuple):
    tried: dict[Setting, float]  # steps per second, in order; the given setting comes first
    best: Setting
    given_again: list[float]  # steps per second of both in alternating runs; empty if the given is the best
    best_again: list[float]

    @property
    def is_better(self) -> bool:
        """In every repeated run: the best of many noisy trials was probably lucky."""
        return bool(self.best_again) and min(self.best_again) > max(self.given_again)

    @property
    def gain(self) -> float:
        return median(self.best_again) / median(self.given_again) - 1


def tune(
    given: Setting,
    options: Callable[[Setting], list[list[Setting]]],
    rate: Callable[[Setting], float],
    *,
    expected: float,
    seconds_each: float,
    seconds: float,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> TuningResult:
    """Search, then compare the best with the given setting in alternating runs, all within `seconds`.
    `options` of a setting are its feasible neighbours; `rate` measures its steps per second, which takes
    `seconds_each` or more. `expected` is the rate of the given setting if there is no time to search."""
    start = clock()
    durations = [seconds_each]

    def timed_rate(setting: Setting) -> float:
        before = clock()
        steps_per_second = rate(setting)
        durations.append(clock() - before)
        return steps_per_second

    def has_time() -> bool:
        return clock() - start + max(durations) * (1 + 2 * repeats) <= seconds

    tried = search(given, options, timed_rate, has_time) if has_time() else {given: expected}
    best = max(tried, key=lambda setting: tried[setting])
    rounds = [(rate(given), rate(best)) for _ in range(repeats if best != given else 0)]
    return TuningResult(tried, best, [before for before, _ in rounds], [after for _, after in rounds])


def search(
    given: Setting,
    options: Callable[[Setting], list[list[Setting]]],
    rate: Callable[[Setting], float],
    has_time: Callable[[], bool],
) -> dict[Setting, float]:
    """Coordinate search: one dimension after the other, each for as long as it helps, until none does."""
    tried = {given: rate(given)}
    best, before = given, None
    while best != before:
        before = best
        for dimension in range(len(options(given))):
            while new := [setting for setting in options(best)[dimension] if setting not in tried]:
                for setting in new:
                    if not has_time():
                        return tried
                    tried[setting] = rate(setting)
                leader = max(tried, key=lambda setting: tried[setting])
                if leader == best:
                    break
                best = leader
    return tried


# ------------------------------------------------------------------------------------------- a real search


def tune_run(
    setup: Setup,
    make_algorithm: MakeAlgorithm,
    given: Setting,
    bench: Bench,
    *,
    expected: float,  # steps per second
    status: ShowStatus,
) -> TuningResult:
    """Each trial is a short training."""
    trials, cores, trial_seconds = 0, available_cores(), TRIAL * bench.train_seconds

    def options(setting: Setting) -> list[list[Setting]]:
        near = neighbours(setting, len(setup.topology.actor_ids), cores, free_cores())
        return [[s for n in dimension if (s := feasible(setup, make_algorithm, n))] for dimension in near]

    def rate(setting: Setting) -> float:
        nonlocal trials
        trials += 1
        status(f"tuning, trial {trials}: {setting}")
        changed = setup._replace(args=setting.applied_to(setup.args))
        try:
            speed = measure_training(changed, make_algorithm, trial_seconds, expected)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return 0.0  # out of device memory
        return median(speed.rates)

    each = training_seconds(setup, trial_seconds, expected)
    limit = 60 * bench.tune_minutes
    return tune(
        given, options, rate, expected=expected, seconds_each=each, seconds=limit, repeats=bench.repeats
    )


def feasible(setup: Setup, make_algorithm: MakeAlgorithm, setting: Setting) -> Setting | None:
    """The setting with the sizes that result from it, or None if it would be refused."""
    args = setting.applied_to(setup.args)
    try:
        plan = BatchPlan.create(args, setup.topology)
        make_algorithm(args, setup.env, plan)
    except UsageError:
        return None
    return Setting.of(args, plan, setting.env_threads)
