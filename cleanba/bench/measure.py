"""The measurements of one benchmark, in an order that makes them comparable."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import jax

from cleanba.agents.algorithm import MakeAlgorithm
from cleanba.bench.ceilings import RandomPlay, Stepping, stepping_candidates
from cleanba.bench.device_rates import DeviceBench
from cleanba.bench.trial import MIN_UPDATES, TrainingSpeed, measure_training, training_seconds
from cleanba.config.marks import POSITIVE
from cleanba.envs.factory import env_threads
from cleanba.runtime.devices import on_accelerator
from cleanba.runtime.machine import available_cores, free_cores
from cleanba.training.setup import Setup

ShowStatus = Callable[[str], None]  # shows what is being measured


@dataclass(frozen=True)
class Bench:
    seconds: Annotated[float, POSITIVE] = 2
    """seconds per measurement"""
    repeats: Annotated[int, POSITIVE] = 3
    """repetitions of each measurement; the median counts"""
    train_seconds: Annotated[float, POSITIVE] = 20
    """approximate length of the training; it has at least five updates"""
    tune: bool = False
    """search for faster values of --num-actor-threads with --local-num-envs, --inference-batch,
    --gradient-chunk and --env-threads, at the same total number of environments"""
    tune_minutes: Annotated[float, POSITIVE] = 5
    """time limit for --tune"""
    out: str | None = None
    """folder for bench.json and bench.png; default: {runs-dir}/bench__{algorithm}__{env-id}__{time}"""


class Part(NamedTuple):
    """One part of a run, measured."""

    how: str
    rates: list[float]  # steps per second, one per repetition

    @property
    def rate(self) -> float:
        return median(self.rates)


LABELS = {
    "ceiling": "environments at best",
    "environments": "environments as run",
    "inference": "inference alone",
    "learning": "learning alone",
    "copies": "copies alone",
    "training": "training",
}
Parts = dict[str, Part]  # by the names above


def candidates_for(setup: Setup) -> list[Stepping]:
    cores = available_cores(), free_cores()
    return stepping_candidates(setup.plan, threads_per_actor(setup), *cores, background=on_accelerator())


def threads_per_actor(setup: Setup) -> int:
    return env_threads(setup.args, setup.plan.actors, background=on_accelerator())


class BenchResult(NamedTuple):
    parts: Parts
    training: TrainingSpeed
    stepped: dict[Stepping, list[float]]  # environments alone: steps per second, one per repetition


def measure(
    setup: Setup, make_algorithm: MakeAlgorithm, play: RandomPlay, bench: Bench, status: ShowStatus
) -> BenchResult:
    """The environments alone are measured right before and right after the training, because the result is
    the ratio of the two and the speed of a machine drifts."""
    alone = measure_devices(setup, bench, status)
    status("environments")
    after = bench.repeats // 2
    stepped = play.rounds(bench.repeats - after)
    expected = 1 / (sum(1 / part.rate for part in alone.values()) + 1 / median(stepped[play.own]))
    seconds = training_seconds(setup, bench.train_seconds, expected)
    too_slow = seconds > max(60, bench.train_seconds)
    status(f"training, about {seconds / 60:.0f} min: {MIN_UPDATES} updates" if too_slow else "training")
    training = measure_training(setup, make_algorithm, bench.train_seconds, expected)
    status("environments again")
    for way, rates in play.rounds(after).items():
        stepped[way] += rates
    best = max(stepped, key=lambda way: median(stepped[way]))
    parts = {
        "ceiling": Part(str(best), stepped[best]),
        "environments": Part(str(play.own), stepped[play.own]),
        **alone,
        "training": Part(f"{len(training.rates)} updates", training.rates),
    }
    return BenchResult(parts, training, stepped)


def measure_devices(setup: Setup, bench: Bench, status: ShowStatus) -> Parts:
    plan = setup.plan
    devices = DeviceBench(setup)
    status("inference")
    calls = f"{plan.actors} × batches of {plan.inference_batch}, {setup.args.compute_dtype}"
    inference = Part(calls, devices.infer(bench.seconds, bench.repeats))
    status("learning")
    minibatches = f"{setup.algorithm.epochs} × {plan.num_minibatches} minibatches"
    learned = devices.learn(bench.seconds, bench.repeats)
    learning = Part(f"{len(learned)} × {minibatches}, in chunks of {plan.chunk_rows} rows", learned)
    status("copies")
    rollouts = f"{plan.actors} × {plan.num_steps} steps × {plan.envs_per_actor}"
    copies = Part(rollouts, devices.copy(bench.seconds, bench.repeats))
    return {"inference": inference, "learning": learning, "copies": copies}


def peak_memory(device: jax.Device) -> dict[str, float]:
    """GiB, since the start of the process."""
    peak = {"host": resident_gib()}
    if stats := device.memory_stats():  # CPUs have none
        peak["device"] = stats["peak_bytes_in_use"] / 2**30
    return peak


def resident_gib(process: int | str = "self") -> float:
    """The peak so far. (`getrusage` starts at the fork, with the memory of the parent.)"""
    status = Path(f"/proc/{process}/status").read_text()
    return sum(int(line.split()[1]) / 2**20 for line in status.splitlines() if line.startswith("VmHWM:"))
