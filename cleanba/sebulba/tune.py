"""Looking for settings that make a run faster and leave its environments and its batch as they are."""

import dataclasses
import os
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import jax

from cleanba.sebulba.args import Args, BatchPlan, UsageError, flag
from cleanba.sebulba.ceilings import Run
from cleanba.sebulba.envs import free_cores
from cleanba.sebulba.train import MakeAlgorithm
from cleanba.sebulba.trial import measure_training, seconds_of_training


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
        """With every default resolved. A chunk is as large as it comes out, so that equal ones look equal."""
        return Setting(
            args.num_actor_threads, args.local_num_envs, plan.inference_batch, plan.chunk_rows, env_threads
        )

    def applied_to(self, args: Args) -> Args:
        return dataclasses.replace(args, **self._asdict(), gradient_accumulation_steps=None)


def neighbours(setting: Setting, actor_devices: int, cores: int, free_cores: int) -> list[list[Setting]]:
    """A list for each thing that can be changed, with what it could be instead: half and double, or another
    part of the cores. The total number of environments stays. Not all of them need to be possible."""
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


class Tuned(NamedTuple):
    tried: dict[Setting, float]  # steps per second, in the order in which they were tried: the given first
    best: Setting
    given_again: list[float]  # steps per second of both, in turns; none if the given ones are the best
    best_again: list[float]

    @property
    def is_better(self) -> bool:
        """Beyond the noise: each time again. The best of many tries is lucky more often than not."""
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
) -> Tuned:
    """Search, then compare the best with what was given, in turns, within that time. `options` of a setting
    are its possible neighbours, `rate` measures its steps per second, which takes `seconds_each` or more.
    `expected` is the rate of what was given, should there be no time for anything."""
    start = clock()
    spent = [seconds_each]

    def timed_rate(setting: Setting) -> float:
        before = clock()
        steps_per_second = rate(setting)
        spent.append(clock() - before)
        return steps_per_second

    def has_time() -> bool:
        return clock() - start + max(spent) * (1 + 2 * repeats) <= seconds

    tried = search(given, options, timed_rate, has_time) if has_time() else {given: expected}
    best = max(tried, key=lambda setting: tried[setting])
    rounds = [(rate(given), rate(best)) for _ in range(repeats if best != given else 0)]
    return Tuned(tried, best, [before for before, _ in rounds], [after for _, after in rounds])


def search(
    given: Setting,
    options: Callable[[Setting], list[list[Setting]]],
    rate: Callable[[Setting], float],
    has_time: Callable[[], bool],
) -> dict[Setting, float]:
    """One thing after the other, each as far as it helps, until nothing does."""
    tried = {given: rate(given)}
    best, before = given, None
    while best != before:
        before = best
        for thing in range(len(options(given))):
            while new := [setting for setting in options(best)[thing] if setting not in tried]:
                for setting in new:
                    if not has_time():
                        return tried
                    tried[setting] = rate(setting)
                leader = max(tried, key=lambda setting: tried[setting])
                if leader == best:
                    break
                best = leader
    return tried


# ------------------------------------------------------------------------------------------------- of runs


def tune_run(
    run: Run,
    make_algorithm: MakeAlgorithm,
    given: Setting,
    *,
    seconds: float,
    repeats: int,
    trial_seconds: float,
    expected: float,  # steps per second
    now: Callable[[str], None],  # shows what is being done
) -> Tuned:
    """Each trial is a training of its own."""
    trials, cores = 0, len(os.sched_getaffinity(0))

    def options(setting: Setting) -> list[list[Setting]]:
        near = neighbours(setting, len(run.topology.actor_ids), cores, free_cores())
        return [[s for option in thing if (s := possible(run, make_algorithm, option))] for thing in near]

    def rate_of(setting: Setting) -> float:
        nonlocal trials
        trials += 1
        now(f"tuning, trial {trials}: {setting}")
        changed = run._replace(args=setting.applied_to(run.args))
        try:
            training = measure_training(changed, make_algorithm, trial_seconds, expected)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return 0.0  # it does not fit into the device's memory
        return median(training.rates)

    seconds_each = seconds_of_training(run, trial_seconds, expected)
    return tune(
        given,
        options,
        rate_of,
        expected=expected,
        seconds_each=seconds_each,
        seconds=seconds,
        repeats=repeats,
    )


def possible(run: Run, make_algorithm: MakeAlgorithm, setting: Setting) -> Setting | None:
    """With the sizes that come of it; None if it is refused."""
    args = setting.applied_to(run.args)
    try:
        plan = BatchPlan.create(args, run.topology)
        make_algorithm(args, run.env, plan)
    except UsageError:
        return None
    return Setting.of(args, plan, setting.env_threads)
