"""How fast a run is on this machine, what limits it, and what to change: `cleanba bench [ppo|impala]`."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.sebulba.args import BatchPlan, UsageError, file_name, flag, parse_args
from cleanba.sebulba.bottleneck import Measured, bottleneck, percent
from cleanba.sebulba.ceilings import Devices, RandomPlay, Run, Stepping, ways_to_step
from cleanba.sebulba.command import command, need_extra, say
from cleanba.sebulba.compilation import keep_compiled
from cleanba.sebulba.determinism import circumstances, make_deterministic
from cleanba.sebulba.envs import env_spec, env_threads, free_cores
from cleanba.sebulba.files import write_whole
from cleanba.sebulba.records import code_version
from cleanba.sebulba.topology import Topology, on_accelerator
from cleanba.sebulba.train import MakeAlgorithm
from cleanba.sebulba.trial import FEWEST_UPDATES, Training, measure_training, seconds_of_training
from cleanba.sebulba.tune import Setting, Tuned, tune_run

DESCRIPTION = """Measure how fast a run with these flags is on this machine: `cleanba bench ppo` (the default)
or `cleanba bench impala`.

Its parts alone: inference, learning, copies to the learners, and the environments with random actions, in the
best of several ways: the ceiling of any run. Between two measurements of that comes the training itself. What
limits it is named, with what to change. --total-timesteps counts for nothing here: --train-seconds does."""

TRIAL = 0.25  # of --train-seconds: a training while tuning
NOT_HERE = ("track", "save_model", "capture_video", "upload_model", "resume", "distributed", "profile")


@dataclass(frozen=True)
class Bench:
    seconds: float = 2
    """that each measurement takes"""
    repeats: int = 3
    """of each measurement; medians count"""
    train_seconds: float = 20
    """about how long to train, but at least five updates"""
    tune: bool = False
    """look for faster values of --num-actor-threads with --local-num-envs, --inference-batch,
    --gradient-chunk and --env-threads, with the same number of environments"""
    tune_minutes: float = 5
    """that this may take"""
    out: str | None = None
    """folder for bench.json and bench.png; default: {runs-dir}/bench__{algorithm}__{env-id}__{time}"""


@dataclass(frozen=True)
class PPOArgs(cleanba_ppo.Args, Bench):
    pass


@dataclass(frozen=True)
class ImpalaArgs(cleanba_impala.Args, Bench):
    pass


Now = Callable[[str], None]  # shows what is being done

ALGORITHMS: dict[str, tuple[PPOArgs | ImpalaArgs, MakeAlgorithm]] = {
    "ppo": (PPOArgs(), cleanba_ppo.make_algorithm),
    "impala": (ImpalaArgs(), cleanba_impala.make_algorithm),
}


class Part(NamedTuple):
    """One of the things that are measured."""

    how: str
    rates: list[float]  # steps per second, of each repetition

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
Parts = dict[str, Part]  # under these names


# ----------------------------------------------------------------------------------------------- the story


def make_run(args: PPOArgs | ImpalaArgs, make_algorithm: MakeAlgorithm) -> Run:
    for name in NOT_HERE:
        if getattr(args, name):
            raise UsageError(f"{flag(name)} has no place in a benchmark of one process; leave it out")
    keep_compiled()
    if args.deterministic:
        make_deterministic()
    topology = Topology(args.actor_device_ids, args.learner_device_ids).check_ids()
    plan, env = BatchPlan.create(args, topology), env_spec(args)
    run = Run(args, topology, plan, env, make_algorithm(args, env, plan))
    topology.check_devices_exist()
    return run


def ways(run: Run) -> list[Stepping]:
    threads = threads_per_actor(run)
    return ways_to_step(run.plan, threads, cores(), free_cores(), background=on_accelerator())


def threads_per_actor(run: Run) -> int:
    return env_threads(run.args, run.plan.actors, background=on_accelerator())


class Found(NamedTuple):
    parts: Parts
    training: Training
    stepped: dict[Stepping, list[float]]  # steps per second of the environments alone, of each repetition


def measure(run: Run, make_algorithm: MakeAlgorithm, play: RandomPlay, bench: Bench, now: Now) -> Found:
    """The environments alone come right before and right after the training: what counts is its share of
    theirs, and the speed of a machine drifts."""
    alone = measure_devices(run, bench, now)
    now("environments")
    after = bench.repeats // 2
    stepped = play.rounds(bench.repeats - after)
    expected = 1 / (sum(1 / part.rate for part in alone.values()) + 1 / median(stepped[play.own]))
    least = seconds_of_training(run, bench.train_seconds, expected)
    too_slow = least > max(60, bench.train_seconds)
    now(f"training, about {least / 60:.0f} min: {FEWEST_UPDATES} updates" if too_slow else "training")
    training = measure_training(run, make_algorithm, bench.train_seconds, expected)
    now("environments again")
    for way, rates in play.rounds(after).items():
        stepped[way] += rates
    best = max(stepped, key=lambda way: median(stepped[way]))
    parts = {
        "ceiling": Part(str(best), stepped[best]),
        "environments": Part(str(play.own), stepped[play.own]),
        **alone,
        "training": Part(f"{len(training.rates)} updates", training.rates),
    }
    return Found(parts, training, stepped)


def measure_devices(run: Run, bench: Bench, now: Now) -> Parts:
    plan, times = run.plan, (bench.seconds, bench.repeats)
    devices = Devices(run)
    now("inference")
    calls = f"{plan.actors} × batches of {plan.inference_batch}, {run.args.compute_dtype}"
    inference = Part(calls, devices.infer(*times))
    now("learning")
    minibatches = f"{run.algorithm.epochs} × {plan.num_minibatches} minibatches"
    learned = devices.learn(*times)
    how = f"{len(learned)} × {minibatches}, in chunks of {plan.chunk_rows} rows"
    learning = Part(how, learned)
    now("copies")
    copies = Part(f"{plan.actors} × {plan.num_steps} steps × {plan.envs_per_actor}", devices.copy(*times))
    return {"inference": inference, "learning": learning, "copies": copies}


def peak_memory(device: jax.Device) -> dict[str, float]:
    """GiB since the process began."""
    peak = {"host": resident_gib()}
    if stats := device.memory_stats():  # CPUs have none
        peak["device"] = stats["peak_bytes_in_use"] / 2**30
    return peak


def resident_gib(process: int | str = "self") -> float:
    """The most that it had so far. (`getrusage` counts from the fork, with its parent's memory.)"""
    status = Path(f"/proc/{process}/status").read_text()
    return sum(int(line.split()[1]) / 2**20 for line in status.splitlines() if line.startswith("VmHWM:"))


def cores() -> int:
    return len(os.sched_getaffinity(0))


# ------------------------------------------------------------------------------------------------ telling


def table_of_parts(parts: Parts) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("steps/s", justify="right", no_wrap=True)
    table.add_column("of the ceiling", justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for name, part in parts.items():
        of_ceiling = percent(part.rate / parts["ceiling"].rate)
        table.add_row(LABELS[name], f"{part.rate:,.0f}", of_ceiling, part.how)
    return table


def table_of_trials(tuned: Tuned) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in Setting._fields:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("steps/s", justify="right")
    given = next(iter(tuned.tried))
    for setting, rate in tuned.tried.items():
        cells = [
            str(value) if value != before or setting == given else "·"
            for value, before in zip(setting, given, strict=True)
        ]
        table.add_row(*cells, f"{rate:,.0f}" if rate else "out of memory")
    return table


def advice(tuned: Tuned) -> str:
    if tuned.is_better:
        return f"{tuned.gain:+.0%} against your flags, measured again in turns:\n{tuned.best}"
    if len(tuned.tried) == 1:
        return "keep your flags: there was no time to try others; give more --tune-minutes"
    if tuned.best_again:
        return "keep your flags: the best of the others was not faster each time it was measured again"
    return "keep your flags: none of the others was faster"


def shares_text(actors: dict[str, float], learner: dict[str, float]) -> str:
    return "; ".join(
        f"{who}: " + ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
        for who, shares in (("actors", actors), ("learner", learner))
    )


def draw(record: dict[str, Any], path: Path) -> None:
    """Where matplotlib is installed (the extra `plot`)."""
    try:
        need_extra(path.name, "matplotlib", "plot")
    except UsageError as missing:
        say(str(missing))
        return
    from cleanrl_utils.plot_bench import plot_bench

    plot_bench(record, path)


def make_out(bench: Bench, runs_dir: str, title: str) -> Path:
    """Before anything is measured: it may be refused."""
    out = Path(bench.out or Path(runs_dir) / file_name(f"bench__{title}__{int(time.time())}"))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written ({error.strerror}); give another") from error
    return out


def bench(algorithm: str, args: PPOArgs | ImpalaArgs, argv: list[str], console: Console) -> None:
    def show(what: str | Table) -> None:
        console.print(what, soft_wrap=isinstance(what, str), highlight=False, markup=False)

    load = os.getloadavg()[0]  # others may use the machine, too
    make_algorithm = ALGORITHMS[algorithm][1]
    run = make_run(args, make_algorithm)
    out = make_out(args, args.runs_dir, f"{algorithm}__{args.env_id}")
    device = run.topology.learner_devices()[0]
    title = f"{algorithm} on {args.env_id}  ·  {run.topology} on {device.device_kind}, {cores()} cores"
    show(f"{title}\n")
    with console.status("environments", refresh_per_second=2) as status:  # the cores have other things to do
        play = RandomPlay(run, ways(run), args.seconds)
        parts, training, stepped = measure(run, make_algorithm, play, args, status.update)
        rates = {name: part.rate for name, part in parts.items() if name in Measured._fields}
        measured = Measured(**rates, actor=training.actor, learner=training.learner, platform=device.platform)
        given = Setting.of(args, run.plan, threads_per_actor(run))
        verdict = bottleneck(measured, given.applied_to(args))
        show(table_of_parts(parts))
        memory = peak_memory(device)
        used = ", ".join(f"{gib:.1f} GiB of the {where}'s" for where, gib in memory.items())
        times = shares_text(measured.time_of_actors(), training.learner)
        show(f"\n{times}\nmemory at the peak of all this: {used}\n{verdict}\n")
        record = {
            "title": title,
            "command": shlex.join(["cleanba", "bench", algorithm, *argv]),
            "code": code_version(),
            "machine": circumstances(run.topology),
            "load_before": load,
            "layout": str(run.topology),
            "args": vars(args),
            "plan": run.plan._asdict(),
            "parts": {
                name: {"label": LABELS[name], "steps_per_second": part.rate, **part._asdict()}
                for name, part in parts.items()
            },
            "ways_to_step": [{"how": str(way), **way._asdict(), "rates": r} for way, r in stepped.items()],
            "actor_time": measured.time_of_actors(),
            "learner_time": training.learner,
            "bottleneck": verdict,
            "peak_gib": memory,
            "tune": None,
        }
        keep(record, out)
        draw(record, out / "bench.png")
        if args.tune:
            tuned = tune_run(
                run,
                make_algorithm,
                given,
                seconds=60 * args.tune_minutes,
                repeats=args.repeats,
                trial_seconds=TRIAL * args.train_seconds,
                expected=parts["training"].rate,
                now=status.update,
            )
            show(table_of_trials(tuned))
            show(f"\n{advice(tuned)}\n")
            keep(record | {"tune": record_of(tuned)}, out)
    show(f"everything is in {out}")


def keep(record: dict[str, Any], out: Path) -> None:
    write_whole(out / "bench.json", json.dumps(record, indent=2).encode() + b"\n")


def record_of(tuned: Tuned) -> dict[str, Any]:
    return {
        "trials": [s._asdict() | {"steps_per_second": rate} for s, rate in tuned.tried.items()],
        "best": tuned.best._asdict(),
        "given_again": tuned.given_again,
        "best_again": tuned.best_again,
        "advice": advice(tuned),
    }


def main(argv: list[str] | None = None, prog: str = "cleanba bench") -> None:
    argv = sys.argv[1:] if argv is None else argv
    with command() as console:
        match argv:
            case [algorithm, *flags] if algorithm in ALGORITHMS:
                prog = f"{prog} {algorithm}"
            case [word, *_] if not word.startswith("-"):
                raise UsageError(f"{prog} cannot measure {word!r}; give ppo or impala, then flags")
            case flags:
                algorithm, prog = "ppo", f"{prog} [ppo|impala]"
        args = parse_args(ALGORITHMS[algorithm][0], description=DESCRIPTION, argv=flags, prog=prog)
        bench(algorithm, args, flags, console)


if __name__ == "__main__":
    main()
