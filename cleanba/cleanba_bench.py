"""How fast a run is on this machine, what limits it, and what to change: `cleanba bench [ppo|impala]`."""

import dataclasses
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import jax
from rich.console import Console
from rich.table import Table

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.sebulba.args import BatchPlan, UsageError, file_name, flag, parse_args
from cleanba.sebulba.bottleneck import Measured, bottleneck, percent
from cleanba.sebulba.ceilings import Devices, Run, Stepping, step_environments, ways_to_step
from cleanba.sebulba.command import Stopped, command, need_extra, say
from cleanba.sebulba.determinism import circumstances, make_deterministic
from cleanba.sebulba.envs import env_spec, env_threads, free_cores
from cleanba.sebulba.files import write_whole
from cleanba.sebulba.metrics import Row, read_rows
from cleanba.sebulba.records import Outcome, code_version
from cleanba.sebulba.topology import Topology
from cleanba.sebulba.train import MakeAlgorithm, train
from cleanba.sebulba.tune import Setting, Tuned, neighbours, tune

DESCRIPTION = """Measure how fast a run with these flags is on this machine: `cleanba bench ppo` (the default)
or `cleanba bench impala`.

First its parts alone: the environments with random actions, in the best of several ways (the ceiling of any
run), inference, learning, and copies to the learners. Then the training itself. What limits it is named, with
what to change. --total-timesteps counts for nothing here: --train-seconds does."""

NOT_HERE = ("track", "save_model", "capture_video", "upload_model", "resume", "distributed")
FEWEST_UPDATES = 5  # of a training, of which at least the
FIRST_UPDATES = 2  # do not count: they compile
TRIAL = 0.25  # of --train-seconds: a training while tuning


@dataclass(frozen=True)
class Bench:
    seconds: float = 2
    """that each measurement takes"""
    repeats: int = 3
    """of each measurement; medians count"""
    train_seconds: float = 20
    """about how long to train"""
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


# ----------------------------------------------------------------------------------------------- training


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


# ----------------------------------------------------------------------------------------------- the story


def make_run(args: PPOArgs | ImpalaArgs, make_algorithm: MakeAlgorithm) -> Run:
    for name in NOT_HERE:
        if getattr(args, name):
            raise UsageError(f"{flag(name)} has no place in a benchmark of one process; leave it out")
    if args.deterministic:
        make_deterministic()
    topology = Topology(args.actor_device_ids, args.learner_device_ids).check_ids()
    plan, env = BatchPlan.create(args, topology), env_spec(args)
    run = Run(args, topology, plan, env, make_algorithm(args, env, plan))
    topology.check_devices_exist()
    return run


def measure_alone(run: Run, stepped: dict[Stepping, list[float]], bench: Bench, now: Now) -> Parts:
    """All parts but the training. Of the ways in which environments were `stepped` the run's is the first."""
    plan, times = run.plan, (bench.seconds, bench.repeats)
    best = max(stepped, key=lambda way: median(stepped[way]))
    own = next(iter(stepped))
    devices = Devices(run)
    now("inference")
    calls = f"{plan.actors} × batches of {plan.inference_batch}, {run.args.compute_dtype}"
    inference = Part(calls, devices.infer(*times))
    now("learning")
    chunks = f"{plan.num_minibatches} minibatches × {plan.chunks} chunks of {plan.chunk_rows} rows"
    learning = Part(f"{run.algorithm.epochs} × {chunks}", devices.learn(*times))
    now("copies")
    copies = Part(f"{plan.actors} × {plan.num_steps} steps × {plan.envs_per_actor}", devices.copy(*times))
    return {
        "ceiling": Part(str(best), stepped[best]),
        "environments": Part(str(own), stepped[own]),
        "inference": inference,
        "learning": learning,
        "copies": copies,
    }


def look_for_faster(
    run: Run, make_algorithm: MakeAlgorithm, given: Setting, bench: Bench, rate: float, now: Now
) -> Tuned:
    """Each trial is a training of its own; `rate` is that of the given setting."""
    trials = 0

    def options(setting: Setting) -> list[list[Setting]]:
        near = neighbours(setting, len(run.topology.actor_ids), cores(), free_cores())
        return [[s for option in thing if (s := possible(run, make_algorithm, option))] for thing in near]

    def rate_of(setting: Setting) -> float:
        nonlocal trials
        trials += 1
        now(f"tuning, trial {trials}: {setting}")
        changed = run._replace(args=setting.applied_to(run.args))
        try:
            training = measure_training(changed, make_algorithm, TRIAL * bench.train_seconds, rate)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return 0.0  # it does not fit into the device's memory
        return median(training.rates)

    return tune(given, options, rate_of, seconds=60 * bench.tune_minutes, repeats=bench.repeats)


def possible(run: Run, make_algorithm: MakeAlgorithm, setting: Setting) -> Setting | None:
    """With the sizes that come of it; None if it is refused."""
    args = setting.applied_to(run.args)
    try:
        plan = BatchPlan.create(args, run.topology)
        make_algorithm(args, run.env, plan)
    except UsageError:
        return None
    return Setting.of(args, plan, setting.env_threads)


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


def shares_text(training: Training) -> str:
    return "; ".join(
        f"{who}: " + ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
        for who, shares in (("actors", training.actor), ("learner", training.learner))
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

    make_algorithm = ALGORITHMS[algorithm][1]
    run = make_run(args, make_algorithm)
    out = make_out(args, args.runs_dir, f"{algorithm}__{args.env_id}")
    device = run.topology.learner_devices()[0]
    title = f"{algorithm} on {args.env_id}  ·  {run.topology} on {device.device_kind}, {cores()} cores"
    show(f"{title}\n")
    with console.status("environments", refresh_per_second=2) as status:  # the cores have other things to do
        ways = ways_to_step(run.plan, env_threads(args, run.plan.actors), cores(), free_cores())
        stepped = step_environments(run, ways, args.seconds, args.repeats)
        parts = measure_alone(run, stepped, args, status.update)
        status.update("training")
        in_turns = 1 / sum(1 / parts[name].rate for name in ("environments", "inference", "learning"))
        training = measure_training(run, make_algorithm, args.train_seconds, expected=in_turns)
        parts["training"] = Part(f"{len(training.rates)} updates", training.rates)
        rates = {name: part.rate for name, part in parts.items() if name in Measured._fields}
        measured = Measured(**rates, actor=training.actor, learner=training.learner, platform=device.platform)
        given = Setting.of(args, run.plan, env_threads(args, run.plan.actors))
        verdict = bottleneck(measured, given.applied_to(args))
        show(table_of_parts(parts))
        show(f"\n{shares_text(training)}\n{verdict}\n")
        tuned = None
        if args.tune:
            rate = parts["training"].rate
            tuned = look_for_faster(run, make_algorithm, given, args, rate, status.update)
            show(table_of_trials(tuned))
            show(f"\n{advice(tuned)}\n")
    record = {
        "title": title,
        "command": shlex.join(["cleanba", "bench", algorithm, *argv]),
        "code": code_version(),
        "machine": circumstances(run.topology),
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
        "tune": tuned and record_of(tuned),
    }
    write_whole(out / "bench.json", json.dumps(record, indent=2).encode() + b"\n")
    draw(record, out / "bench.png")
    show(f"everything is in {out}")


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
