"""`cleanba bench [ppo|impala|FILE.py]`: how fast a run is on this machine, what limits it, and what to
change."""

import json
import os
import shlex
import sys
import time
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cleanba.agents.algorithm import MakeAlgorithm
from cleanba.algorithms import ALGORITHMS, load_algorithm
from cleanba.bench.bottleneck import RunSpeed, bottleneck, percents
from cleanba.bench.ceilings import RandomPlay
from cleanba.bench.measure import Bench, BenchResult, candidates_for, measure, peak_memory, threads_per_actor
from cleanba.bench.show import (
    advice,
    parts_record,
    parts_table,
    save_figure,
    trials_table,
    tuning_record,
)
from cleanba.bench.tune import Setting, tune_run
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, flag, parse_args
from cleanba.runtime.code_version import code_version
from cleanba.runtime.command import command
from cleanba.runtime.compilation_cache import use_compilation_cache
from cleanba.runtime.determinism import circumstances, make_deterministic
from cleanba.runtime.files import atomic_write, file_name
from cleanba.runtime.machine import available_cores
from cleanba.training.setup import Setup, make_setup

DESCRIPTION = """Measure how fast a run with these flags is on this machine: `cleanba bench ppo` (the
default), `cleanba bench impala`, or `cleanba bench FILE.py` for an algorithm of your own.

First the parts alone: inference, learning, copies to the learners, and the environments with random actions,
stepped in the fastest of several ways, which is the ceiling of any run. Then a real training, with the
environments measured right before and right after it. The result says what limits the run and what to do.
--total-timesteps has no effect here; use --train-seconds."""

UNSUPPORTED = ("track", "save_model", "capture_video", "upload_model", "resume", "distributed", "profile")


BenchArgs = Any  # an algorithm's Args and a Bench


def bench_args(args: type) -> BenchArgs:
    """The default flags of an algorithm with this class of arguments, and those of a benchmark."""
    if clash := {field.name for field in fields(args)} & {field.name for field in fields(Bench)}:
        names = ", ".join(map(flag, sorted(clash)))
        raise UsageError(f"{names}: cleanba bench has such a flag, too; give the algorithm's another name")
    return make_dataclass("BenchArgs", [], bases=(args, Bench), frozen=True)()


def default_args(module: Any) -> BenchArgs:
    """Those of the file, if it has any, as when it trains."""
    own = getattr(module, "ARGS", None) or module.Args()
    own = own() if callable(own) else own
    return replace(bench_args(type(own)), **vars(own))


def bench_setup(args: BenchArgs, make_algorithm: MakeAlgorithm) -> Setup:
    for name in UNSUPPORTED:
        if getattr(args, name):
            raise UsageError(f"{flag(name)} is not supported by cleanba bench; leave it out")
    use_compilation_cache()
    if args.deterministic:
        make_deterministic()
    return make_setup(args, make_algorithm)


def make_out(args: BenchArgs, algorithm: str) -> Path:
    """Called before anything is measured, as it may fail."""
    name = file_name(f"bench__{algorithm}__{args.env_id}__{int(time.time())}")
    out = Path(args.out or Path(args.runs_dir) / name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out {out} cannot be written ({error.strerror}); choose another folder"
        ) from error
    return out


def bench(
    algorithm: str, make_algorithm: MakeAlgorithm, args: BenchArgs, argv: list[str], console: Console
) -> None:
    def show(what: str | Table) -> None:
        console.print(what, soft_wrap=isinstance(what, str), highlight=False, markup=False)

    load = os.getloadavg()[0]  # of other programs
    setup = bench_setup(args, make_algorithm)
    out = make_out(args, algorithm)
    where = f"{setup.topology} on {setup.learner_devices[0].device_kind}, {available_cores()} cores"
    title = f"{algorithm} on {args.env_id}  ·  {where}"
    show(f"{title}\n")
    with console.status("environments", refresh_per_second=2) as status:  # redrawing costs CPU time
        play = RandomPlay(setup, candidates_for(setup), args.seconds)
        result = measure(setup, make_algorithm, play, args, status.update)
        given = Setting.of(args, setup.plan, threads_per_actor(setup))
        analysis = analyse(result, setup, given.applied_to(args))
        show(parts_table(result.parts))
        show(f"\n{analysis_text(analysis)}\n")
        record = {
            "title": title,
            "command": shlex.join(["cleanba", "bench", *argv]),
            "code": code_version(),
            "machine": circumstances(setup.topology),
            "load_before": load,
            "layout": str(setup.topology),
            "args": vars(args),
            "plan": setup.plan._asdict(),
            **parts_record(result),
            **analysis,
            "tune": None,
        }
        write(record, out)
        save_figure(record, out / "bench.png")
        if args.tune:
            expected = result.parts["training"].rate
            tuned = tune_run(setup, make_algorithm, given, args, expected=expected, status=status.update)
            show(trials_table(tuned))
            show(f"\n{advice(tuned)}\n")
            write(record | {"tune": tuning_record(tuned)}, out)
    show(f"results are in {out}")


def analyse(result: BenchResult, setup: Setup, args: RunArgs) -> dict[str, Any]:
    """Where the time goes and what limits the run, as in bench.json."""
    device, training = setup.learner_devices[0], result.training
    rates = {name: part.rate for name, part in result.parts.items() if name in RunSpeed._fields}
    speed = RunSpeed(**rates, actor=training.actor, learner=training.learner, platform=device.platform)
    return {
        "actor_time": speed.actor_time(),
        "learner_time": training.learner,
        "bottleneck": bottleneck(speed, args, own_network="network" not in setup.algorithm.resolved),
        "peak_gib": peak_memory(device),
    }


def analysis_text(analysis: dict[str, Any]) -> str:
    times = f"actors: {percents(analysis['actor_time'])}; learner: {percents(analysis['learner_time'])}"
    used = ", ".join(f"{gib:.1f} GiB on the {where}" for where, gib in analysis["peak_gib"].items())
    return f"{times}\npeak memory: {used}\n{analysis['bottleneck']}"


def write(record: dict[str, Any], out: Path) -> None:
    atomic_write(out / "bench.json", json.dumps(record, indent=2).encode() + b"\n")


def main(argv: list[str] | None = None, prog: str = "cleanba bench") -> None:
    argv = sys.argv[1:] if argv is None else argv
    with command() as console:
        match argv:
            case [algorithm, *flags] if not algorithm.startswith("-"):
                prog = f"{prog} {algorithm}"
            case flags:
                algorithm, prog = "ppo", f"{prog} [{'|'.join(ALGORITHMS)}|FILE.py]"
        module = load_algorithm(algorithm)
        args = parse_args(default_args(module), description=DESCRIPTION, argv=flags, prog=prog)
        bench(Path(algorithm).stem, module.make_algorithm, args, argv, console)


if __name__ == "__main__":
    main()
